"""How far a run is, read from its ledger while another process may be writing it."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from protofleet.coordinator.control import Order, Wish, is_served, not_started, read_order
from protofleet.coordinator.device_rows import DeviceRows
from protofleet.coordinator.expiry import Expiration, expirations
from protofleet.coordinator.formats import check_format
from protofleet.coordinator.ledger_reading import to_calibration, to_early_end
from protofleet.coordinator.operation import operation_of
from protofleet.errors import InputError
from protofleet.federation.calibration import CalibrationProgress
from protofleet.federation.cells import cell_config
from protofleet.federation.early_stopping import EarlyEnd
from protofleet.federation.records import UpdateRecord
from protofleet.federation.schedule import RoundPhase
from protofleet.federation.settings import FederationConfig
from protofleet.strategies import DESCRIPTIONS

_to_record = msgspec.json.Decoder(UpdateRecord).decode


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
        ending: what ends by the calendar within thirty days, or is over, the earliest first.
        cells: of a root, those whose folder is on this machine, by number.
        planned: how many rounds the run was to have; more than ``rounds`` where it ended early.
        early_end: why it did, or rests; empty: it does neither.
        calibration: how the learning rate was chosen, or who is trying rates; empty: the settings
            have one.
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
    ending: tuple[Expiration, ...] = ()
    cells: tuple[Status, ...] = ()
    planned: int = 0
    early_end: str = ""
    calibration: str = ""


def read_identity(run_dir: Path) -> dict[str, str]:
    """What a run's ledger says it is, by name: federation, bundle, strategy, seed and more.

    Empty where ``run_dir`` has no ledger.
    """
    path = run_dir / "ledger.sqlite"
    if not path.is_file():
        return {}
    with opened_ledger(run_dir) as db:
        return dict(db.execute("SELECT key, value FROM meta"))


def find_run(folder: Path) -> Path:
    """The run folder that ``folder`` is, or has as a demonstration's folder has.

    Raises:
        InputError: neither has a run's ledger, or the ledger is damaged or of another version.
    """
    for place in (folder, folder / "coordinator"):
        if (place / "ledger.sqlite").is_file():
            check_ledger(place)
            return place
    raise InputError(
        f"'{folder}': no run of a federation; expected the run_dir of a federation file, in which "
        "'protofleet coordinator run' or 'protofleet demo' has begun a run, or the file itself"
    )


def counted_updates(run_dir: Path) -> Iterator[tuple[int, UpdateRecord]]:
    """The updates that a run has counted, each with the round in which it counts, by round.

    Each is read when the iteration reaches it.

    Raises:
        InputError: the run's ledger is damaged.
    """
    with opened_ledger(run_dir) as db:
        rows = db.execute(
            "SELECT counted_in, record FROM members WHERE counted_in IS NOT NULL"
            " ORDER BY counted_in, device_id"
        )
        for number, record in rows:
            yield number, _to_record(record)


def check_ledger(run_dir: Path) -> None:
    """Raise InputError if a run's ledger is damaged, or of another version's format."""
    with opened_ledger(run_dir) as db:
        found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        check_format(run_dir, dict(db.execute("SELECT key, value FROM meta")))


@contextmanager
def opened_ledger(run_dir: Path) -> Iterator[sqlite3.Connection]:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What the ledger holds of its latest round, and of the devices.

    Attributes:
        phase: of the round as the ledger has it; ``waiting``: there was none yet.
        members: of the round, and whether their update is in.
        counted: whose update counts in it.
        late: device → its task's round, where that may still bring an update.
    """

    strategy: str
    round_id: int
    phase: str
    final: bool
    size: int
    members: dict[str, bool]
    counted: tuple[str, ...]
    late: dict[str, int]
    refused: tuple[Refusal, ...]
    held: tuple[Hold, ...]
    order: Order
    early_end: EarlyEnd | None
    calibration: CalibrationProgress | None

    @property
    def awaited(self) -> int:
        """The round that an update would count in now."""
        return self.round_id + (self.phase == "committed")

    @property
    def committed(self) -> int:
        """Aggregated rounds; a final fit is none."""
        whole = self.phase == "committed" and not self.final
        return self.round_id if whole else max(self.round_id - 1, 0)


def read_status(config: FederationConfig) -> Status:
    """The status of the run in ``config.run_dir``.

    Raises:
        InputError: no run was started there, or its ledger is damaged.
    """
    found = _read(config.run_dir)
    planned, end = max(config.rounds, found.order.rounds), found.early_end
    rounds = planned if end is None else end.limit(planned, config.stop)
    phase = found.phase
    if phase == "committed":
        enough = found.committed >= rounds and not DESCRIPTIONS[found.strategy].final_fit
        phase = "finished" if found.final or enough else "waiting"
    served = is_served(config.run_dir)
    may_be_late = phase != "finished" and not found.final
    return Status(
        federation=config.federation,
        phase=phase,
        operation=operation_now(phase, found.order.wish, served=served),
        served=served,
        since_s=found.order.since_s or None,
        rounds=rounds,
        committed=found.committed,
        round_id=found.round_id,
        final=found.final,
        cohort=tuple(found.members),
        delivered=found.counted,
        schedule=config.schedule.kind,
        size=found.size,
        missing=tuple(one for one, there in found.members.items() if not there and phase == "open"),
        late=tuple(
            device_id
            for device_id, task in sorted(found.late.items())
            if may_be_late and found.awaited - task <= config.schedule.patience
        ),
        refused=found.refused,
        held=found.held,
        ending=expirations(config, time.time()),
        cells=_cells(config),
        planned=planned,
        early_end=end.text if end is not None and end.holds(planned, config.stop) else "",
        calibration="" if found.calibration is None else found.calibration.text,
    )


def _read(run_dir: Path) -> _Found:
    if not (run_dir / "ledger.sqlite").is_file():
        raise not_started(run_dir)
    with opened_ledger(run_dir) as db:
        meta = dict(db.execute("SELECT key, value FROM meta"))
        check_format(run_dir, meta)
        row = db.execute(
            "SELECT round_id, phase, final, size FROM rounds ORDER BY round_id DESC LIMIT 1"
        ).fetchone()
        round_id, phase, final, size = row or (0, "waiting", False, 0)
        return _Found(
            strategy=meta["strategy"],
            round_id=round_id,
            phase=phase,
            final=bool(final),
            size=size,
            members=_members(db, round_id),
            counted=_counted(db, round_id),
            late=dict(DeviceRows(db).late(round_id + (phase == "committed"))),
            refused=_refused(db),
            held=_held(db),
            order=read_order(db),
            early_end=to_early_end(meta.get("early_end")),
            calibration=to_calibration(meta.get("calibration")),
        )


def _members(db: sqlite3.Connection, round_id: int) -> dict[str, bool]:
    rows = db.execute(
        "SELECT device_id, file IS NOT NULL FROM members WHERE round_id = ? ORDER BY device_id",
        (round_id,),
    )
    return {device_id: bool(there) for device_id, there in rows}


def _counted(db: sqlite3.Connection, round_id: int) -> tuple[str, ...]:
    rows = db.execute(
        "SELECT DISTINCT device_id FROM members WHERE counted_in = ? ORDER BY device_id",
        (round_id,),
    )
    return tuple(device_id for (device_id,) in rows)


def _refused(db: sqlite3.Connection) -> tuple[Refusal, ...]:
    rows = db.execute("SELECT device_id, rule, reason FROM refusals ORDER BY device_id")
    return tuple(
        Refusal(device_id=device_id, rule=rule, reason=reason) for device_id, rule, reason in rows
    )


def _held(db: sqlite3.Connection) -> tuple[Hold, ...]:
    rows = db.execute("SELECT device_id, conditions FROM held ORDER BY device_id")
    return tuple(
        Hold(device_id=device_id, conditions=tuple(msgspec.json.decode(conditions)))
        for device_id, conditions in rows
    )


def _cells(config: FederationConfig) -> tuple[Status, ...]:
    count = 0 if config.cells is None else config.cells.count
    configs = [cell_config(config, cell + 1) for cell in range(count)]
    return tuple(read_status(one) for one in configs if (one.run_dir / "ledger.sqlite").is_file())


def operation_now(phase: str, wish: Wish, *, served: bool) -> str:
    """``Status.operation`` of a phase, an operator's wish, and whether a process serves it."""
    if phase == "finished":
        return phase
    if not served and wish in (Wish.RUN, Wish.STOP, Wish.END):
        return "down"
    return operation_of(wish, RoundPhase(phase))
