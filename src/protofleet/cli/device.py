"""``protofleet device``: take part in a federation, and use what was learned."""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from protofleet.cli._broker import GivenBroker, broker_overrides
from protofleet.cli._policy import policy, policy_options
from protofleet.cli._process import restarted_by_a_service, start_process
from protofleet.cli._sections import SectionedGroup
from protofleet.cli._store import program_options
from protofleet.cli._trust import trusted_keys
from protofleet.cli._verbosity import json_lines, log_format_option, verbosity
from protofleet.cli.enrolment import enroll, invite, list_, revoke, rotate
from protofleet.cli.export_model import export_model
from protofleet.cli.predict import predict
from protofleet.cli.prepare import prepare
from protofleet.cli.record import record
from protofleet.cli.stores import reset, stores

if TYPE_CHECKING:
    from protofleet.edge import LocalData
    from protofleet.edge.notices import Report

_PATH = click.Path(path_type=Path)

_log = logging.getLogger(__name__)
_TROUBLE = frozenset({"dropped", "held"})


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


_SECTIONS = {
    "The device and its data": ("prepare", "record", "try", "personalise", "join"),
    "What was learned": ("predict", "export-model", "stores", "reset"),
    "Its owner's conditions, and who it is": ("policy", "enroll"),
    "Beside the coordinator, for its operator": ("invite", "list", "revoke", "rotate"),
}


@click.group(cls=SectionedGroup, sections=_SECTIONS)
def device() -> None:
    """Take part in a federation, and use what was learned.

    docs/device.md has all of it.
    """


device.add_command(enroll)
device.add_command(export_model)
device.add_command(invite)
device.add_command(list_)
device.add_command(policy)
device.add_command(predict)
device.add_command(prepare)
device.add_command(record)
device.add_command(reset)
device.add_command(revoke)
device.add_command(rotate)
device.add_command(stores)


def _data_options(command: Callable[..., None]) -> Callable[..., None]:
    """Options that say with what and on what a device works."""
    options = [
        click.option("--bundle", type=_PATH, required=True, help="Folder or .pfb file."),
        click.option(
            "--data", required=True, help="FILE.npz, or uci-har:N with --data-root: subject N."
        ),
        click.option("--data-root", type=_PATH, help="Folder of the published data sets."),
        *program_options,
        click.option("--json", "as_json", is_flag=True, help="Print JSON for programs."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@device.command()
@broker_overrides(
    "mqtts://[user@]host[:port], or mqtt://… on this machine; an enrolled device knows it."
)
@click.option("--federation", help="Its name; an enrolled device knows it.")
@click.option(
    "--cells",
    type=click.IntRange(min=1),
    help="The federation has so many cells: join that which the --id names.",
)
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
@click.option(
    "--no-scores",
    is_flag=True,
    help="Never send scores, losses and costs, whatever the coordinator asks for.",
)
@click.option(
    "--no-counts",
    is_flag=True,
    help="Never send numbers of examples; strategies that need those of classes then wait.",
)
@click.option(
    "--send-log",
    is_flag=True,
    help="Send the last lines of the log when a round fails: 8 KiB at most, nothing of the data.",
)
@click.option(
    "--rest/--no-rest",
    "rests",
    default=True,
    show_default=True,
    help="End the connection while the owner's conditions hold the device: its radio may sleep.",
)
@click.option("--stay", is_flag=True, help="Wait for another run when the federation has finished.")
@policy_options
@log_format_option("device")
@_data_options
@restarted_by_a_service()
def join(
    *,
    broker: GivenBroker,
    federation: str | None,
    cells: int | None,
    pooled: Path | None,
    later: tuple[tuple[int, str], ...],
    store: Path | None,
    device_id: str | None,
    no_scores: bool,
    no_counts: bool,
    send_log: bool,
    rests: bool,
    stay: bool,
    policy_file: Path | None,
    conditions: dict[str, Any],
    threads: int,
    as_json: bool,
    **source: Any,
) -> None:
    """Train and infer on this device's data, round by round, until the federation finishes.

    Ctrl-C leaves; started again with the same store, the device goes on where it was.
    """
    start_process(threads)
    from protofleet.edge import JoinOptions, JoinSettings
    from protofleet.edge import join as run_device
    from protofleet.edge.state.stores import default_store, only_store
    from protofleet.federation.records import Sends

    trusted = trusted_keys(source["trust_files"])
    if cells is not None:
        federation = _cell(federation, device_id, cells)
    store = store or (default_store(federation, device_id) if federation else only_store())
    options = JoinOptions(
        broker=broker.in_store(store),
        federation=federation,
        bundle=source["bundle"],
        store=store,
        device_id=device_id,
        threads=threads,
        backend=source["backend"],
        trusted=trusted,
        policy=policy_file,
        settings=JoinSettings(
            sends=Sends(scores=not no_scores, counts=not no_counts),
            stays=stay,
            sends_log=send_log,
            rests=rests,
            conditions=conditions,
        ),
    )
    data = _load(source, trusted, pooled, later)
    status = run_device(options, data, _reporter(as_json=as_json))
    if status:
        stopped = signal.Signals(status - 128).name
        kept = f"'{options.store}' keeps the state"
        _tell(f"stopped by {stopped}; to go on: the same command ({kept})")
    if verbosity() >= 0 and json_lines() is None:
        _tell_predict(options.store)
    sys.exit(status)


def _tell(text: str) -> None:
    """On stderr, in the log's format."""
    if json_lines() is None:
        click.echo(f"protofleet: {text}", err=True)
    else:
        _log.warning("%s", text)


def _cell(federation: str | None, device_id: str | None, cells: int) -> str:
    """The federation of the cell that a device's id names."""
    from protofleet.federation.cells import cell_federation, cell_of

    if federation is None or device_id is None:
        raise click.UsageError("--cells: give --federation and --id, which say the cell")
    return cell_federation(federation, cell_of(device_id, cells))


def _tell_predict(store: Path) -> None:
    """How to use the model that the rounds have made, if one has counted."""
    from protofleet.edge.state.stores import store_option, summarise

    known = summarise(store)
    if known.round_id or known.head:
        words = ["protofleet device predict --data FILE", store_option(store)]
        click.echo(f"to use the model: {' '.join(filter(None, words))}", err=True)


@device.command("try")
@click.option(
    "--optimiser",
    type=click.Choice(["adam", "sgd"]),
    help="Default: the bundle's, else the first that its strategy takes.",
)
@_data_options
def try_(*, optimiser: str | None, threads: int, as_json: bool, **source: Any) -> None:
    """Find a learning rate on this device's data, and what a round would cost it.

    Trains a local round with each rate of a ladder and with the bundle's own, and scores it on a
    quarter of the training examples that is held out. Nothing is sent or kept. The last lines are
    for the federation file: one device's advice, so try two or three.
    """
    start_process(threads)
    import msgspec

    from protofleet.bundle import Bundle
    from protofleet.cli._trial_text import to_text
    from protofleet.edge import try_bundle

    trusted = trusted_keys(source["trust_files"])
    data = _load(source, trusted)
    bundle = Bundle.open(source["bundle"], trusted=trusted)
    trial = try_bundle(
        bundle,
        data,
        optimiser=optimiser,
        threads=threads,
        backend=source["backend"],
        progress=_no_progress if as_json or verbosity() < 0 else _progress,
    )
    click.echo(msgspec.json.encode(trial).decode() if as_json else to_text(trial))


@device.command("personalise")
@click.option(
    "--store", type=_PATH, help="Folder of the device; default: one of the bundle's name."
)
@click.option("--id", "device_id", help="Of the device, when its store is made.")
@_data_options
def personalise_(
    *, store: Path | None, device_id: str | None, threads: int, as_json: bool, **source: Any
) -> None:
    """Train the head of the bundle's model on this device's labels, without any federation.

    Seconds of work with some labels of each class: the rest of the model stays as it is. What comes
    of it is compared with the bundle's own model on examples that it has not seen, and 'device
    predict' takes the better one. A device that joins a federation does so by itself.
    """
    start_process(threads)
    from protofleet.bundle import Bundle
    from protofleet.edge.current_round import in_use_figures
    from protofleet.edge.learning.personalise import personalise, store_head
    from protofleet.edge.state.store import Store
    from protofleet.edge.state.stores import default_store
    from protofleet.runtime import open_programs

    trusted = trusted_keys(source["trust_files"])
    data = _load(source, trusted)
    bundle = Bundle.open(source["bundle"], trusted=trusted)
    programs = open_programs(bundle, threads=threads, backend=source["backend"])
    fitted = personalise(bundle, programs, data)
    folder = store or default_store(bundle.manifest.name, device_id)
    with Store.open(folder, device_id=device_id) as opened:
        store_head(opened, bundle, fitted, data)
    figures = {**in_use_figures(0, fitted.evidence), "examples": len(data.own.y_train)}
    report = _reporter(as_json=as_json)
    report("personalised", {**figures, "store": str(folder)})
    if verbosity() >= 0 and json_lines() is None:
        _tell_predict(folder)


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        click.echo(f"\rrate {done} of at most {total} ", nl=False, err=True)
        click.echo(end, nl=False, err=True)


def _no_progress(_done: int, _total: int) -> None:
    """For programs."""


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


def _reporter(*, as_json: bool) -> Report:
    if json_lines() is None:
        return _report_json if as_json else _report_line

    def report(event: str, figures: dict[str, Any]) -> None:
        if as_json:
            _report_json(event, figures)
        _report_record(event, figures)

    return report


def _report_json(event: str, figures: dict[str, Any]) -> None:
    click.echo(json.dumps({"event": event, **figures}))


def _report_line(event: str, figures: dict[str, Any]) -> None:
    from protofleet.cli._device_lines import to_text

    _log.info("%-9s %s", event, to_text(event, figures))
    _log.debug("%-9s %s", event, figures)


def _report_record(event: str, figures: dict[str, Any]) -> None:
    from protofleet.cli._device_lines import to_text
    from protofleet.log_lines import log_event

    lines = json_lines()
    if event == "joined" and lines is not None:
        lines.about.update(federation=figures["federation"], device=figures["device_id"])
    level = logging.WARNING if event in _TROUBLE else logging.INFO
    log_event(_log, event, figures, to_text(event, figures), level=level)
