"""How far a run is, read from its ledger while another process may be writing it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec

from protofleet.coordinator.control import Wish, is_served, read_order
from protofleet.coordinator.device_rows import DeviceRows
from protofleet.coordinator.ledger import FORMAT
from protofleet.coordinator.operation import operation_of
from protofleet.errors import InputError
from protofleet.federation.cells import cell_config
from protofleet.federation.schedule import RoundPhase
from protofleet.federation.settings import FederationConfig
from protofleet.strategies import DESCRIPTIONS


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A device that cannot take part: the broken rule, and the reason for people."""

    device_id: str
    rule: str
    reason: str


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """A device that is there, and the conditions of its owner that forbid it to take part."""

    device_id: str
    conditions: tuple[str, ...]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A run's progress.

    Attributes:
        phase: ``waiting`` (for devices, or stopped between rounds), ``open``, ``closing`` or
            ``finished``.
        committed: aggregated rounds.
        round_id: the latest round that was opened; 0 before the first.
        final: whether that is the final fit.
        cohort, delivered: its members, and those whose update is in.
        size: how many updates suffice for it, where more are invited.
        operation: ``running``, ``pausing`` (the open round ends first), ``paused``, ``stopping``,
            ``stopped`` (by the operator), ``down`` (no process serves the run, and none was told to
            end) or ``finished``.
        served: whether a process on this machine serves the run.
        since_s: when the operator's last order to pause, resume or stop was given or, for
            ``stopped``, obeyed; Unix seconds, null: there was none.
        schedule: ``synchronous`` or ``buffered``; of a buffered one ``size`` updates make a state,
            and ``delivered`` are the devices whose update is in the buffer.
        missing: members of an open round whose update is awaited.
        late: devices whose update of an earlier round's task may still come and count.
        refused: devices that presented themselves and cannot take part, sorted by id.
        held: devices that may not take part now, sorted by id; as of the coordinator's last second.
        cells: of a root, those whose folder is on this machine, by number.
    """

    federation: str
    phase: str
    operation: str
    served: bool
    since_s: float | None
    rounds: int
    committed: int
    round_id: int
    final: bool
    cohort: tuple[str, ...]
    delivered: tuple[str, ...]
    size: int = 0
    schedule: str = "synchronous"
    missing: tuple[str, ...] = ()
    late: tuple[str, ...] = ()
    refused: tuple[Refusal, ...] = ()
    held: tuple[Hold, ...] = ()
    cells: tuple[Status, ...] = ()


def read_identity(run_dir: Path) -> dict[str, str]:
    """What a run's ledger says it is, by name: federation, bundle, strategy, seed and more.

    Empty where ``run_dir`` has no ledger.
    """
    path = run_dir / "ledger.sqlite"
    if not path.is_file():
        return {}
    with _opened(run_dir) as db:
        return dict(db.execute("SELECT key, value FROM meta"))


@contextmanager
def _opened(run_dir: Path) -> Iterator[sqlite3.Connection]:
    """The ledger, to read; InputError in the block if it is damaged."""
    try:
        path = run_dir / "ledger.sqlite"
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            yield db
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise InputError(damaged(run_dir, error)) from error


def damaged(run_dir: Path, error: Exception) -> str:
    """What to tell of a ledger that cannot be read."""
    return (
        f"run folder '{run_dir}': its ledger cannot be read ({error}); restore the folder, or "
        "choose another run_dir"
    )


def read_status(config: FederationConfig) -> Status:
    """The status of the run in ``config.run_dir``.

    Raises:
        InputError: no run was started there, or its ledger is damaged.
    """
    path = config.run_dir / "ledger.sqlite"
    if not path.is_file():
        raise InputError(f"run folder {config.run_dir}: no run was started here")
    with _opened(config.run_dir) as db:
        meta = dict(db.execute("SELECT key, value FROM meta"))
        if meta.get("format") != str(FORMAT):
            raise InputError(
                f"run folder {config.run_dir}: its ledger has format {meta.get('format')}, this "
                f"version reads {FORMAT}"
            )
        row = db.execute(
            "SELECT round_id, phase, final, size FROM rounds ORDER BY round_id DESC LIMIT 1"
        ).fetchone()
        round_id, phase, final, size = row or (0, "waiting", False, 0)
        members = db.execute(
            "SELECT device_id, file FROM members WHERE round_id = ? ORDER BY device_id",
            (round_id,),
        ).fetchall()
        counted = db.execute(
            "SELECT DISTINCT device_id FROM members WHERE counted_in = ? ORDER BY device_id",
            (round_id,),
        ).fetchall()
        awaited = round_id + (phase == "committed")
        late = DeviceRows(db).late(awaited)
        refused = db.execute(
            "SELECT device_id, rule, reason FROM refusals ORDER BY device_id"
        ).fetchall()
        held = db.execute("SELECT device_id, conditions FROM held ORDER BY device_id").fetchall()
        order = read_order(db)
    rounds = max(config.rounds, order.rounds)
    committed = round_id if phase == "committed" and not final else max(round_id - 1, 0)
    if phase == "committed":
        enough = committed >= rounds and not DESCRIPTIONS[meta["strategy"]].final_fit
        phase = "finished" if final or enough else "waiting"
    served = is_served(config.run_dir)
    return Status(
        federation=config.federation,
        phase=phase,
        operation=_operation(phase, order.wish, served=served),
        served=served,
        since_s=order.since_s or None,
        rounds=rounds,
        committed=committed,
        round_id=round_id,
        final=bool(final),
        cohort=tuple(device_id for device_id, _ in members),
        delivered=tuple(device_id for (device_id,) in counted),
        schedule=config.schedule.kind,
        size=size,
        missing=tuple(device_id for device_id, file in members if not file and phase == "open"),
        late=tuple(
            device_id
            for device_id, task in sorted(late.items())
            if awaited - task <= config.schedule.patience and phase != "finished" and not final
        ),
        refused=tuple(
            Refusal(device_id=device_id, rule=rule, reason=reason)
            for device_id, rule, reason in refused
        ),
        held=tuple(
            Hold(device_id=device_id, conditions=tuple(msgspec.json.decode(conditions)))
            for device_id, conditions in held
        ),
        cells=_cells(config),
    )


def _cells(config: FederationConfig) -> tuple[Status, ...]:
    count = 0 if config.cells is None else config.cells.count
    configs = [cell_config(config, cell + 1) for cell in range(count)]
    return tuple(read_status(one) for one in configs if (one.run_dir / "ledger.sqlite").is_file())


def _operation(phase: str, wish: Wish, *, served: bool) -> str:
    if phase == "finished":
        return phase
    if not served and wish in (Wish.RUN, Wish.STOP, Wish.END):
        return "down"
    return operation_of(wish, RoundPhase(phase))
