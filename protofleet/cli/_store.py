"""Which device store, or whose bundle, a command reads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from protofleet.cli._trust import trusted_keys

if TYPE_CHECKING:
    from protofleet.edge import PersonalModel
    from protofleet.runtime import BackendName

_PATH = click.Path(path_type=Path)

store_option = click.option(
    "--store", type=_PATH, help="A device's folder; default: the only one in the user's data."
)


def model_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options that say which model a command runs, and how."""
    options = [
        store_option,
        click.option(
            "--bundle",
            type=_PATH,
            help="Folder or .pfb file. Without --store: its own values, as they were exported.",
        ),
        click.option(
            "--trust",
            "trust_files",
            type=_PATH,
            multiple=True,
            help="Public key (PEM) whose bundles to accept, beside those of 'bundle trust'.",
        ),
        click.option(
            "--threads", type=click.IntRange(1), default=1, show_default=True, help="For programs."
        ),
        click.option(
            "--backend",
            type=click.Choice(["auto", "onnx", "litert"]),
            default="auto",
            show_default=True,
            help="Who runs programs; auto: ONNX Runtime where it is installed, else LiteRT.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def opened_model(
    store: Path | None,
    bundle: Path | None,
    trust_files: tuple[Path, ...],
    *,
    backend: BackendName,
    threads: int,
) -> PersonalModel:
    """The model that ``model_options`` name."""
    from protofleet.edge import open_personal

    # What a store keeps was checked when its device joined.
    trusted = None if bundle is None else trusted_keys(trust_files)
    return open_personal(store, bundle=bundle, trusted=trusted, backend=backend, threads=threads)


def chosen_store(store: Path | None) -> Path:
    """The store that is named, or the only one."""
    from protofleet.edge.stores import only_store

    return store or only_store()
