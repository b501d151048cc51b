"""``protofleet coordinator``: run a federation's server, or look at a run."""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from protofleet.cli._broker import GivenBroker, broker_overrides
from protofleet.cli._cells import root_access
from protofleet.cli._stopping import on_interrupt
from protofleet.cli._trust import as_hex, trust_option
from protofleet.cli._verbosity import json_lines, log_format_option, start_logging, verbosity
from protofleet.printable import printable, shell_word

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from rich.console import Console

    from protofleet.coordinator.events import CoordinatorEvent, Sink
    from protofleet.coordinator.process.backup import BackupList
    from protofleet.coordinator.process.run import RunSupervisor, TakeoverPolicy
    from protofleet.coordinator.status import Status
    from protofleet.federation.settings import FederationConfig


@click.group()
def coordinator() -> None:
    """Run a federation's server."""


_log = logging.getLogger(__name__)
_SHOWN = 8
"""Devices that ``status`` names."""
_FILE = click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
_CELL = click.option(
    "--cell", type=click.IntRange(min=1), help="This cell of [cells]; without: the root."
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


@coordinator.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
@broker_overrides()
@trust_option
@_CELL
@click.option("--wait", is_flag=True, help="Wait for the end of another coordinator.")
@click.option("--take-over", is_flag=True, help="Replace another coordinator on the broker.")
@log_format_option("coordinator")
@_JSON
def run(
    files: tuple[Path, ...],
    *,
    broker: GivenBroker,
    trust_files: tuple[Path, ...],
    cell: int | None,
    wait: bool,
    take_over: bool,
    as_json: bool,
) -> None:
    """Run the rounds of the federation FILES (TOML), or resume them.

    Every setting is explained in docs/coordinator.md. Killed or interrupted at any time, the same
    command goes on where the run stood. Of several federations one that fails leaves the others.
    With --json each line is one event; with --log-format json the log is lines of JSON, and has
    the events in place of the text.
    """
    # Compiled kernels would cost 50 MB here and gain little: averaging is memory-bound, and k-means
    # is mostly matrix products.
    os.environ.setdefault("PROTOFLEET_NUMBA", "0")
    start_logging()
    from protofleet.cli._several import Served, serve_all
    from protofleet.coordinator.events import Failed
    from protofleet.coordinator.process.run import TakeoverPolicy
    from protofleet.coordinator.process.storage import serve

    if cell is not None and len(files) > 1:
        raise click.UsageError("--cell: give one FILE, whose cell it is")
    configs = [_config(file, broker, trust_files) for file in files]
    succession = TakeoverPolicy(wait=wait, take_over=take_over)
    lines = json_lines()
    open_sink = _json_sink if as_json else _text_sink
    if lines is not None:
        open_sink = partial(_log_sink, also=_json_sink if as_json else None)
        if len(configs) == 1:
            lines.about["federation"] = configs[0].federation
    with on_interrupt(f"to resume: protofleet coordinator run {' '.join(map(shell_word, files))}"):
        if len(configs) == 1:
            config = configs[0]
            folder = _run_dir(config, cell)
            plain = as_json or lines is not None
            with nullcontext(open_sink("")) if plain else _live_sink(config, folder) as sink:
                serve(_opener(config, sink, succession, cell), folder, sink)
            return
        sinks = [open_sink(config.federation) for config in configs]
        several = [
            Served(config, _opener(config, sink, succession, None), sink)
            for config, sink in zip(configs, sinks, strict=True)
        ]
        if not serve_all(several, lambda one, reason: one.sink(Failed(reason=reason))):
            sys.exit(1)


def _opener(
    config: FederationConfig, sink: Sink, succession: TakeoverPolicy, cell: int | None
) -> Callable[[], AbstractContextManager[RunSupervisor]]:
    from protofleet.coordinator.process.run import open_service

    to_root = partial(root_access, config, cell)
    return partial(open_service, config, sink, succession, cell=cell, to_root=to_root)


def _run_dir(config: FederationConfig, cell: int | None) -> Path:
    from protofleet.federation.cells import cell_config

    return config.run_dir if cell is None else cell_config(config, cell).run_dir


def _of_cell(file: Path, cell: int | None) -> FederationConfig:
    """A federation file, as it is for one of its cells if there is a number."""
    from protofleet.federation.cells import cell_config
    from protofleet.federation.settings import load_config

    config = load_config(file)
    return config if cell is None else cell_config(config, cell)


def _config(file: Path, broker: GivenBroker, trust_files: tuple[Path, ...]) -> FederationConfig:
    """A federation file with what the command line says."""
    import msgspec

    from protofleet.federation.settings import load_config

    config = load_config(file)
    trusted = (*config.trusted, *as_hex(trust_files))
    access = broker.over(config.broker)
    return msgspec.structs.replace(config, trusted=trusted, broker=access)


@coordinator.command()
@_FILE
@_CELL
@_JSON
def status(file: Path, *, cell: int | None, as_json: bool) -> None:
    """Show how far the run of the federation FILE is; works while it runs."""
    import msgspec

    from protofleet.coordinator.status import read_status

    found = read_status(_of_cell(file, cell))
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    click.echo(
        f"federation {found.federation}: {found.operation}{_since(found)}, "
        f"{found.committed} of {found.planned} rounds"
    )
    for told in filter(None, (found.calibration, found.early_end)):
        click.echo(printable(told))
    if found.phase in ("open", "closing"):
        name = "final fit" if found.final else f"round {found.round_id}"
        click.echo(f"{name}: {_updates(found)}{_missing(found)}")
    for refusal in found.refused:
        click.echo(f"not invited: {printable(refusal.reason)}")
    for hold in found.held:
        click.echo(f"held: {hold.device_id}: {', '.join(hold.conditions)}")
    for ending in found.ending:
        click.echo(f"{printable(ending.text(time.time()))}: {printable(ending.remedy)}")
    if found.unread:
        click.echo(f"not known: {printable(found.unread)}")
    for one in found.cells:
        name = f"round {one.round_id} {one.phase}, {_updates(one)}{_missing(one)}"
        click.echo(f"{one.federation}: {one.operation}{_since(one)}, {name}")


@coordinator.command()
@_FILE
@_CELL
@_JSON
def pause(file: Path, *, cell: int | None, as_json: bool) -> None:
    """Let no other round of the federation FILE open.

    The open round ends by its rules. The order is durable: a coordinator that starts later comes up
    paused.
    """
    _order(file, "pause", cell=cell, as_json=as_json)


@coordinator.command()
@_FILE
@_CELL
@_JSON
def resume(file: Path, *, cell: int | None, as_json: bool) -> None:
    """Let rounds of the federation FILE open again; takes back pause and stop."""
    _order(file, "run", cell=cell, as_json=as_json)


@coordinator.command()
@_FILE
@_CELL
@click.option("--now", is_flag=True, help="Leave the open round to the next start.")
@_JSON
def stop(file: Path, *, cell: int | None, now: bool, as_json: bool) -> None:
    """End the coordinator of the federation FILE after the open round.

    Results are written, and ``coordinator run`` goes on with the next round.
    """
    _order(file, "end" if now else "stop", cell=cell, as_json=as_json)


@coordinator.command()
@_FILE
@click.argument("rounds", type=click.IntRange(min=1))
@trust_option
@_JSON
def extend(file: Path, *, rounds: int, trust_files: tuple[Path, ...], as_json: bool) -> None:
    """Let the run of the federation FILE have ROUNDS rounds, more than it has now.

    It holds over restarts, where the larger one of this and FILE counts.
    """
    import msgspec

    from protofleet.coordinator.status import read_status
    from protofleet.errors import InputError
    from protofleet.federation.plan import make_plan
    from protofleet.federation.settings import load_config

    config = load_config(file)
    found = read_status(config)
    if rounds <= found.planned:
        early = f" ({found.early_end})" if found.early_end else ""
        raise InputError(
            f"rounds: expected more than the {found.planned} that the run has{early}, got {rounds}"
        )
    trusted = (*config.trusted, *as_hex(trust_files))
    make_plan(
        msgspec.structs.replace(config, rounds=rounds, trusted=trusted)
    )  # a budget may end it
    _order(file, rounds, as_json=as_json)


_ARCHIVE = click.argument("archive", type=click.Path(dir_okay=False, path_type=Path))


@coordinator.command()
@_FILE
@_ARCHIVE
@_CELL
@click.option("--without-keys", is_flag=True, help="Leave the coordinator's key of this run out.")
@_JSON
def backup(
    file: Path, archive: Path, *, cell: int | None, without_keys: bool, as_json: bool
) -> None:
    """Write the run of the federation FILE into ARCHIVE, also while it runs.

    ARCHIVE is as secret as the run folder: readable by you alone. The federation file, the bundle,
    test data and the federation's keys are no part of it.
    """
    from protofleet.coordinator.process.backup import back_up

    listed = back_up(_of_cell(file, cell).run_dir, archive, keys=not without_keys)
    _tell_backup(listed, f"'{archive}': backup", as_json=as_json)


@coordinator.command()
@_FILE
@_ARCHIVE
@_CELL
@click.option(
    "--next-round",
    type=click.IntRange(min=1),
    help="Go on with this round: devices have finished those before it.",
)
@_JSON
def restore(
    file: Path, archive: Path, *, cell: int | None, next_round: int | None, as_json: bool
) -> None:
    """Make the run folder that the federation FILE names from ARCHIVE; it must not exist yet.

    Every file is checked before any is in place.
    """
    from protofleet.coordinator.process import backup as backups

    config = _of_cell(file, cell)
    listed = backups.restore(
        archive, config.run_dir, federation=config.federation, next_round=next_round or 0
    )
    _tell_backup(listed, f"run folder {config.run_dir}: restored", as_json=as_json)


def _tell_backup(listed: BackupList, what: str, *, as_json: bool) -> None:
    import msgspec

    from protofleet.units import byte_text, clock_text

    if as_json:
        click.echo(msgspec.json.encode(listed).decode())
        return
    size = sum(one.bytes for one in listed.files)
    where = f"round {listed.round_id} ({listed.phase})" if listed.round_id else "no round yet"
    keys = "with" if listed.keys else "without"
    click.echo(
        f"{what} of federation {printable(listed.federation)} of {clock_text(listed.made_s)}: "
        f"{where}, {len(listed.files)} files, {byte_text(size)}, {keys} the coordinator's key"
    )


def _order(file: Path, wanted: str | int, *, cell: int | None = None, as_json: bool) -> None:
    """Write an order, by name or a number of rounds, into a run's ledger; tell what came of it."""
    from contextlib import closing

    import msgspec

    from protofleet.coordinator.ledger.control import Orders, Wish
    from protofleet.coordinator.status import read_status

    config = _of_cell(file, cell)
    with closing(Orders(config.run_dir)) as orders:
        order = orders.extend(wanted) if isinstance(wanted, int) else orders.wish(Wish(wanted))
        taken = orders.await_taken(order)
    found = read_status(config)
    if as_json:
        told = {"taken": taken, **msgspec.to_builtins(found)}
        click.echo(msgspec.json.encode(told).decode())
        return
    if found.served and not taken:
        when = "; the coordinator is busy and will take the order"
    else:
        when = "" if found.served else "; no coordinator is running, the next start obeys"
    name = f"round {found.round_id}"
    doing = {
        "pausing": f"pausing, {name} ends first: {_updates(found)}",
        "stopping": f"stopping, {name} ends first: {_updates(found)}",
    }.get(found.operation, found.operation)
    click.echo(
        f"federation {found.federation}: {doing}, {found.committed} of {found.rounds} rounds{when}"
    )


def _since(found: Status) -> str:
    if found.since_s is None or found.operation in ("running", "down", "finished"):
        return ""
    from protofleet.units import clock_text

    return f" since {clock_text(found.since_s)}"


def _updates(found: Status) -> str:
    late = f", {len(found.late)} train for earlier rounds" if found.late else ""
    if found.schedule == "buffered" and not found.final:
        return f"{len(found.delivered)} of {found.size} updates{late}"
    enough = f", {found.size} suffice" if found.size < len(found.cohort) else ""
    return f"{len(found.delivered)} of {len(found.cohort)} updates{enough}{late}"


def _missing(found: Status) -> str:
    shown = ", ".join(found.missing[:_SHOWN])
    more = len(found.missing) - _SHOWN
    return (f", waits for {shown}" if shown else "") + (f" and {more} more" if more > 0 else "")


def _json_sink(federation: str) -> Sink:
    """Prints events as JSON; with the federation's name, unless that is empty."""
    from protofleet.coordinator.events import to_line

    def sink(event: CoordinatorEvent) -> None:
        click.echo(to_line(event, round(time.time(), 3), federation))

    return sink


def _log_sink(federation: str, also: Callable[[str], Sink] | None = None) -> Sink:
    """Tells events to the log, and to ``also``; with the federation's name, unless it is empty."""
    import msgspec

    from protofleet.log_lines import log_event

    named = {"federation": federation} if federation else {}
    beside = None if also is None else also(federation)

    def sink(event: CoordinatorEvent) -> None:
        if beside is not None:
            beside(event)
        fields = {**msgspec.to_builtins(event), **named}
        log_event(_log, fields.pop("event"), fields, event.text, level=event.level)

    return sink


@contextmanager
def _live_sink(config: FederationConfig, folder: Path) -> Iterator[Sink]:
    """Prints events for a person; on a terminal with the fleet below, in place of the routine."""
    from rich.console import Console

    from protofleet.coordinator.events import Started
    from protofleet.live import LiveFleet

    console = Console(highlight=False, soft_wrap=True, emoji=False)
    if not console.is_terminal or verbosity() < 0:
        yield _text_sink("")
        return
    tell = _text_sink("", console, routine=verbosity() > 0)
    with LiveFleet(console, folder, config.rounds) as fleet:

        def sink(event: CoordinatorEvent) -> None:
            if isinstance(event, Started):
                fleet.begin()
            tell(event)

        yield sink


def _text_sink(federation: str, console: Console | None = None, *, routine: bool = True) -> Sink:
    """Prints events for a person; with the federation's name, unless that is empty.

    ``routine``: also those that only say that all goes on as it should, unless ``-q`` is given.
    """
    from rich.console import Console

    from protofleet.coordinator.events import to_line

    console = console or Console(highlight=False, soft_wrap=True, emoji=False)
    chosen = verbosity()
    routine = routine and chosen >= 0
    named = f"[bold]{federation}[/bold]: " if federation else ""

    def sink(event: CoordinatorEvent) -> None:
        if not routine and event.routine:
            return
        stamp = time.strftime("%H:%M:%S")
        console.print(f"[dim]{stamp}[/dim] {named}{event.sentence}")
        if chosen > 0:
            line = to_line(event, round(time.time(), 3), federation)
            console.print(line, style="dim", markup=False)

    return sink
