"""``protofleet device``: take part in a federation, and use what was learned."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protofleet.cli._broker import broker_options
from protofleet.cli._process import start_process
from protofleet.cli._trust import trusted_keys
from protofleet.cli.export_model import export_model
from protofleet.cli.predict import predict
from protofleet.cli.prepare import prepare
from protofleet.cli.stores import reset, stores

if TYPE_CHECKING:
    from protofleet.edge import LocalData
    from protofleet.wire.broker_access import BrokerAccess

_PATH = click.Path(path_type=Path)

_log = logging.getLogger(__name__)


def _to_later(
    _context: click.Context, parameter: click.Parameter, texts: tuple[str, ...]
) -> tuple[tuple[int, str], ...]:
    """``ROUND:DATA`` as pairs."""
    pairs: list[tuple[int, str]] = []
    for text in texts:
        first, _, source = text.partition(":")
        if not first.isdecimal() or not source:
            raise click.BadParameter(
                f"expected ROUND:DATA as in 51:b.npz, got '{text}'", param=parameter
            )
        pairs.append((int(first), source))
    return tuple(pairs)


@click.group()
def device() -> None:
    """Take part in a federation, and use what was learned (docs/device.md)."""


device.add_command(export_model)
device.add_command(predict)
device.add_command(prepare)
device.add_command(reset)
device.add_command(stores)


def _data_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options that say with what and on what a device works."""
    options = [
        click.option("--bundle", type=_PATH, required=True, help="Folder or .pfb file."),
        click.option(
            "--data", required=True, help="FILE.npz, or uci-har:N with --data-root: subject N."
        ),
        click.option("--data-root", type=_PATH, help="Folder of the published data sets."),
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
        click.option("--json", "as_json", is_flag=True, help="Print JSON for programs."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@device.command()
@broker_options("mqtt://[user[:password]@]host[:port] or mqtts://…", required=True)
@click.option("--federation", required=True, help="Its name, as the coordinator has it.")
@click.option("--pooled", type=_PATH, help="All devices' test parts, in a rehearsal (FILE.npz).")
@click.option(
    "--data-from",
    "later",
    multiple=True,
    callback=_to_later,
    metavar="ROUND:DATA",
    help="Other data from a round on; may be repeated, rounds ascending.",
)
@click.option(
    "--store",
    type=_PATH,
    help="This device's folder; default: in the user's data, see 'device stores'.",
)
@click.option("--id", "device_id", help="Identity to take when the store is new.")
@_data_options
def join(
    *,
    broker: BrokerAccess,
    federation: str,
    pooled: Path | None,
    later: tuple[tuple[int, str], ...],
    store: Path | None,
    device_id: str | None,
    threads: int,
    as_json: bool,
    **source: Any,
) -> None:
    """Train and infer on this device's data, round by round, until the federation finishes.

    Ctrl-C leaves; started again with the same store, the device goes on where it was.
    """
    start_process(threads)
    from protofleet.edge import JoinOptions
    from protofleet.edge import join as run_device
    from protofleet.edge.stores import default_store

    trusted = trusted_keys(source["trust_files"])
    options = JoinOptions(
        broker=broker,
        federation=federation,
        bundle=source["bundle"],
        store=store or default_store(federation, device_id),
        device_id=device_id,
        threads=threads,
        backend=source["backend"],
        trusted=trusted,
    )
    data = _load(source, trusted, pooled, later)
    sys.exit(run_device(options, data, _report_json if as_json else _report_line))


def _load(
    source: dict[str, Any],
    trusted: frozenset[bytes],
    pooled: Path | None = None,
    later: tuple[tuple[int, str], ...] = (),
) -> LocalData:
    from protofleet.bundle import Bundle
    from protofleet.edge import load_local_data

    preprocessing = Bundle.open(source["bundle"], trusted=trusted).manifest.preprocessing
    return load_local_data(
        source["data"],
        preprocessing,
        pooled=pooled,
        data_root=source["data_root"],
        later=later,
    )


def _report_json(event: str, figures: dict[str, Any]) -> None:
    click.echo(json.dumps({"event": event, **figures}))


def _report_line(event: str, figures: dict[str, Any]) -> None:
    _log.info("%-9s %s", event, "  ".join(f"{k} {_short(v)}" for k, v in figures.items()))


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return "/".join(f"{key} {_short(item)}" for key, item in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
