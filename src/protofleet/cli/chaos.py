"""``protofleet chaos``: a federation on this machine under faults."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from protofleet.cli._outputs import writable
from protofleet.cli._stopping import on_interrupt
from protofleet.cli._verbosity import start_logging

if TYPE_CHECKING:
    from protofleet.chaos.run import FaultResult, Row

_FILE = click.Path(dir_okay=False, path_type=Path)
_LINE = "{:<17}{:>9}{:>18}{:>6}{:>15}{:>14}{:>11}"


def _names(_context: click.Context, _option: click.Parameter, text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


@click.command()
@click.option("--faults", default="", callback=_names, help="Some of them, e.g. half-open,clock.")
@click.option(
    "--strategies",
    default="",
    callback=_names,
    help="Such as fedsub,fedavg-buffered; default: all.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=12,
    show_default=True,
    help="Rounds of each federation.",
)
@click.option(
    "--injections",
    type=click.IntRange(1),
    default=6,
    show_default=True,
    help="Faults in each round.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the schedule of faults.")
@click.option(
    "--broadcast-from",
    metavar="N",
    type=click.IntRange(0),
    default=2,
    show_default=True,
    help="A payload for N devices or more travels to all at once; 0: never.",
)
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the files there; bundles that are there are used again.",
)
@click.option("--json", "json_file", type=_FILE, callback=writable, help="Also write rows to FILE.")
@click.option(
    "--out", type=_FILE, callback=writable, help="Also write the table, as Markdown, to FILE."
)
def chaos(
    *,
    faults: tuple[str, ...],
    strategies: tuple[str, ...],
    rounds: int,
    injections: int,
    seed: int,
    broadcast_from: int,
    folder: Path | None,
    json_file: Path | None,
    out: Path | None,
) -> None:
    """Run federations under faults, and compare them with undisturbed ones.

    Real coordinators, devices and Mosquitto, on this machine; docs/reliability.md says what each
    fault is. Exit status 1: something was lost, counted twice or came out differently.
    """
    start_logging()
    import msgspec

    from protofleet.chaos.faults import FAULTS
    from protofleet.chaos.models import METHODS
    from protofleet.chaos.page import page
    from protofleet.chaos.run import Options, run

    options = Options(
        faults=faults or tuple(FAULTS),
        strategies=strategies or tuple(METHODS),
        rounds=rounds,
        injections=injections,
        seed=seed,
        broadcast_from=broadcast_from,
        folder=folder,
    )
    click.echo(_LINE.format(*_HEAD))
    rows: list[Row] = []
    with on_interrupt("the same command starts over"):
        results: list[FaultResult] = []
        for result in run(options):
            results.append(result)
            rows.append(result.row)
            _tell(result.row)
            if json_file is not None:
                json_file.write_bytes(msgspec.json.format(msgspec.json.encode(rows)) + b"\n")
            if out is not None:
                out.write_text(page(results, options), encoding="utf-8")
    if any(row.lost or row.counted_twice or not row.same_bits for row in rows):
        sys.exit(1)


_HEAD = (
    "fault",
    "injected",
    "rounds completed",
    "lost",
    "counted twice",
    "bytes resent",
    "same bits",
)


def _tell(row: Row) -> None:
    figures = (
        row.fault,
        row.injected,
        row.rounds_completed,
        row.lost,
        row.counted_twice,
        row.bytes_resent,
        "yes" if row.same_bits else "NO",
    )
    click.echo(_LINE.format(*figures))
