"""What a device's command reads: which store or bundle, and in what form its examples come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from protofleet.cli._trust import bundle_trust_option, trusted_keys
from protofleet.errors import InputError

if TYPE_CHECKING:
    from protofleet.bundle.manifest import Manifest
    from protofleet.edge import PersonalModel
    from protofleet.edge.data.mapping import TableMapping
    from protofleet.edge.owner.policy import Use
    from protofleet.runtime import BackendName

_PATH = click.Path(path_type=Path)
_LOOKED_AT = 100_000
"""Rows of a table in which labels are looked for."""

store_option = click.option(
    "--store", type=_PATH, help="A device's folder; default: the only one in the user's data."
)

program_options = (
    bundle_trust_option,
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
)
"""Whose programs run, and how."""

raw_option = click.option(
    "--raw", is_flag=True, help="Examples are readings as they come: normalise them as the bundle."
)
rate_option = click.option(
    "--rate",
    "rate_hz",
    type=click.FloatRange(0, min_open=True),
    metavar="HZ",
    help="Of sensor samples; default: from their times, else the bundle's.",
)
time_option = click.option(
    "--time",
    metavar="COLUMN",
    help="Of a CSV of sensor samples: where the times are, as numbers of any unit or dates; "
    "default: time_s, time_ms, or the one whose name says so.",
)
columns_option = click.option(
    "--columns",
    metavar="NAME,...",
    callback=lambda _context, _option, value: tuple(value.split(",")) if value else None,
    help="Of a CSV without a row of names: those of its columns, such as time_ms,acc_x,acc_y.",
)

labels_option = click.option(
    "--labels",
    metavar="FILE",
    help="A table of what a person has marked: a column of times and one of labels, or start, end "
    "and label.",
)

mapping_option = click.option(
    "--mapping",
    type=_PATH,
    metavar="FILE.toml",
    help="What columns and labels mean where their names do not say. A FILE that is not there is "
    "written, with what they seem to mean, for you to complete.",
)


def table_mapping(path: Path | None, sources: Sequence[str], manifest: Manifest) -> TableMapping:
    """What a person has said in a file; of one that is not there a proposal is written.

    Raises:
        InputError: it cannot be read, means what the bundle does not have, or was written now.
    """
    from protofleet.cli._outputs import check_writable_file
    from protofleet.edge.data.mapping import NO_MAPPING, proposal, read_mapping
    from protofleet.edge.data.recording_files import recording_files

    if path is None:
        return NO_MAPPING
    if path.exists():
        return read_mapping(path, manifest)
    check_writable_file(path, "--mapping")
    if "-" in sources:
        raise InputError(f"--mapping '{path}': no such file; recordings in files have one proposed")
    tables = []
    for file in recording_files(sources):
        with file.open() as stream:
            rows = chain.from_iterable(file.rows(stream))
            tables.append((file.parts[-1], list(islice(rows, _LOOKED_AT))))
    path.write_text(proposal(sources[0], tables, manifest), encoding="utf-8")
    raise InputError(
        f"--mapping '{path}': written, with what the columns seem to be; complete it, and run this "
        "command again"
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
            "--use",
            type=click.Choice(["auto", "personal", "head", "bundle"]),
            default="auto",
            show_default=True,
            help="Of a store: the personal model, or a head trained alone, where your examples say "
            "that it helps, and else the bundle's own (auto); or one of them, whatever helps. For "
            "good: use = ... in the store's policy.toml.",
        ),
        *program_options,
    ]
    for option in reversed(options):
        command = option(command)
    return command


def opened_model(
    store: Path | None,
    bundle: Path | None,
    trust_files: tuple[Path, ...],
    *,
    use: Use,
    backend: BackendName,
    threads: int,
) -> PersonalModel:
    """The model that ``model_options`` name."""
    from protofleet.edge import open_personal

    # What a store keeps was checked when its device joined.
    trusted = frozenset() if bundle is None else trusted_keys(trust_files)
    return open_personal(
        store, bundle=bundle, trusted=trusted, use=use, backend=backend, threads=threads
    )


def chosen_store(store: Path | None) -> Path:
    """The store that is named, or the only one."""
    from protofleet.edge.state.stores import only_store

    return store or only_store()
