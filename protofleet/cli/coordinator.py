"""``protofleet coordinator``: run a federation's server, or look at a run."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from protofleet.cli._broker import GivenBroker, broker_overrides
from protofleet.cli._stopping import on_interrupt
from protofleet.cli._trust import as_hex, trust_option
from protofleet.cli._verbosity import start_logging, verbosity
from protofleet.printable import printable

if TYPE_CHECKING:
    from protofleet.coordinator.events import Report, Sink


@click.group()
def coordinator() -> None:
    """Run a federation's server."""


_FILE = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


@coordinator.command()
@_FILE
@broker_overrides
@trust_option
@_JSON
def run(file: Path, *, broker: GivenBroker, trust_files: tuple[Path, ...], as_json: bool) -> None:
    """Run the rounds of the federation FILE (TOML), or resume them.

    Every setting is explained in docs/coordinator.md. Killed or interrupted at any time, the same
    command goes on where the run stood. With --json each line is one event.
    """
    # Compiled kernels would cost 50 MB here and gain little: averaging is memory-bound, and k-means
    # is mostly matrix products.
    os.environ.setdefault("PROTOFLEET_NUMBA", "0")
    start_logging()
    import msgspec

    from protofleet.coordinator.run import open_service
    from protofleet.federation.settings import load_config

    config = load_config(file)
    trusted = (*config.trusted, *as_hex(trust_files))
    access = broker.over(config.broker)
    config = msgspec.structs.replace(config, trusted=trusted, broker=access)
    sink = _json_sink() if as_json else _text_sink()
    with (
        on_interrupt(f"to resume: protofleet coordinator run {file}"),
        open_service(config, sink) as service,
    ):
        service.run()


@coordinator.command()
@_FILE
@_JSON
def status(file: Path, *, as_json: bool) -> None:
    """Show how far the run of the federation FILE is; works while it runs."""
    import msgspec

    from protofleet.coordinator.status import read_status
    from protofleet.federation.settings import load_config

    found = read_status(load_config(file))
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    click.echo(
        f"federation {found.federation}: {found.phase}, {found.committed} of {found.rounds} rounds"
    )
    if found.phase in ("open", "closing"):
        name = "final fit" if found.final else f"round {found.round_id}"
        enough = f", {found.size} suffice" if found.size < len(found.cohort) else ""
        click.echo(f"{name}: {len(found.delivered)} of {len(found.cohort)} updates{enough}")
    for refusal in found.refused:
        click.echo(f"not invited: {printable(refusal.reason)}")
    for hold in found.held:
        click.echo(f"held: {hold.device_id}: {', '.join(hold.conditions)}")


def _json_sink() -> Sink:
    from protofleet.coordinator.events import to_line

    def sink(report: Report) -> None:
        click.echo(to_line(report, round(time.time(), 3)))

    return sink


def _text_sink() -> Sink:
    from rich.console import Console

    from protofleet.coordinator.console import is_routine, to_text
    from protofleet.coordinator.events import to_line

    console = Console(highlight=False, soft_wrap=True, emoji=False)
    chosen = verbosity()

    def sink(report: Report) -> None:
        if chosen < 0 and is_routine(report):
            return
        stamp = time.strftime("%H:%M:%S")
        console.print(f"[dim]{stamp}[/dim] {to_text(report)}")
        if chosen > 0:
            console.print(to_line(report, round(time.time(), 3)), style="dim", markup=False)

    return sink
