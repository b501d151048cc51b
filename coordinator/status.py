"""How far a run is, read from its ledger while another process may be writing it."""

from __future__ import annotations

import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from protofleet.coordinator.ledger import LEDGER, queries
from protofleet.coordinator.ledger.control import (
    OperatorOrder,
    Wish,
    is_served,
    not_started,
    read_order,
)
from protofleet.coordinator.ledger.device_rows import DeviceRows
from protofleet.coordinator.ledger.queries import (
    LatestRound,
    check_readable,
    opened_ledger,
)
from protofleet.coordinator.ledger.reading import to_calibration, to_early_end
from protofleet.coordinator.process.expiry import Expiration, expirations
from protofleet.coordinator.process.operation import operation_of
from protofleet.errors import InputError, ProtofleetError
from protofleet.federation.cells import cell_config
from protofleet.federation.outcomes.calibration import CalibrationProgress
from protofleet.federation.schedules.early_stopping import EarlyEnd
from protofleet.federation.schedules.schedule import RoundPhase
from protofleet.federation.settings import FederationConfig
from protofleet.strategies import DESCRIPTIONS

_NONE_YET = LatestRound(0, "waiting", False, 0, 0, 0.0)  # noqa: FBT003 - a record


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
        unread: what else there is to tell, and why it cannot be read; empty: nothing.
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
    unread: str = ""
    cells: tuple[Status, ...] = ()
    planned: int = 0
    early_end: str = ""
    calibration: str = ""


def find_run(folder: Path) -> Path:
    """The run folder that ``folder`` is, or has as a demonstration's folder has.

    Raises:
        InputError: neither has a run's ledger, or the ledger is damaged or of another version.
    """
    for place in (folder, folder / "coordinator"):
        if (place / LEDGER).is_file():
            check_readable(place)
            return place
    raise InputError(
        f"'{folder}': no run of a federation; expected the run_dir of a federation file, in which "
        "'protofleet coordinator run' or 'protofleet demo' has begun a run, or the file itself"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What the ledger holds of its latest round, and of the devices.

    Attributes:
        latest: the round as the ledger has it; ``waiting``: there was none yet.
        members: of the round, and whether their update is in.
        counted: whose update counts in it.
        late: device → its task's round, where that may still bring an update.
    """

    strategy: str
    latest: LatestRound
    members: dict[str, bool]
    counted: tuple[str, ...]
    late: dict[str, int]
    refused: tuple[Refusal, ...]
    held: tuple[Hold, ...]
    order: OperatorOrder
    early_end: EarlyEnd | None
    calibration: CalibrationProgress | None

    @property
    def committed(self) -> int:
        """Aggregated rounds; a final fit is none."""
        latest = self.latest
        whole = latest.phase == "committed" and not latest.final
        return latest.round_id if whole else max(latest.round_id - 1, 0)


def read_status(config: FederationConfig) -> Status:
    """The status of the run in ``config.run_dir``.

    Raises:
        InputError: no run was started there, or its ledger is damaged.
    """
    found = _read(config.run_dir)
    planned, end = max(config.rounds, found.order.rounds), found.early_end
    rounds = planned if end is None else end.limit(planned, config.stop)
    latest, phase = found.latest, found.latest.phase
    if phase == "committed":
        enough = found.committed >= rounds and not DESCRIPTIONS[found.strategy].final_fit
        phase = "finished" if latest.final or enough else "waiting"
    served = is_served(config.run_dir)
    ending, unread = _ending(config)
    may_be_late = phase != "finished" and not latest.final
    return Status(
        federation=config.federation,
        phase=phase,
        operation=operation_now(phase, found.order.wish, served=served),
        served=served,
        since_s=found.order.since_s or None,
        rounds=rounds,
        committed=found.committed,
        round_id=latest.round_id,
        final=latest.final,
        cohort=tuple(found.members),
        delivered=found.counted,
        schedule=config.schedule.kind,
        size=latest.size,
        missing=tuple(one for one, there in found.members.items() if not there and phase == "open"),
        late=tuple(
            device_id
            for device_id, task in sorted(found.late.items())
            if may_be_late and latest.awaited - task <= config.schedule.patience
        ),
        refused=found.refused,
        held=found.held,
        ending=ending,
        unread=unread,
        cells=_cells(config),
        planned=planned,
        early_end=end.text if end is not None and end.holds(planned, config.stop) else "",
        calibration="" if found.calibration is None else found.calibration.text,
    )


def _ending(config: FederationConfig) -> tuple[tuple[Expiration, ...], str]:
    """What ends by the calendar, or why nobody knows: the rest of a status is no worse for it."""
    try:
        return expirations(config, time.time()), ""
    except (ProtofleetError, OSError, sqlite3.Error) as error:
        return (), f"what ends by the calendar: {error}"


def _read(run_dir: Path) -> _Found:
    if not (run_dir / LEDGER).is_file():
        raise not_started(run_dir)
    with opened_ledger(run_dir) as db:
        meta = queries.checked_identity(db, run_dir)
        latest = queries.latest_round(db) or _NONE_YET
        return _Found(
            strategy=meta["strategy"],
            latest=latest,
            members=queries.members(db, latest.round_id),
            counted=queries.counted(db, latest.round_id),
            late=dict(DeviceRows(db).late(latest.awaited)),
            refused=tuple(
                Refusal(device_id=device_id, rule=rule, reason=reason)
                for device_id, (rule, reason) in queries.refused(db).items()
            ),
            held=tuple(
                Hold(device_id=device_id, conditions=conditions)
                for device_id, conditions in queries.held(db).items()
            ),
            order=read_order(db),
            early_end=to_early_end(meta.get("early_end")),
            calibration=to_calibration(meta.get("calibration")),
        )


def _cells(config: FederationConfig) -> tuple[Status, ...]:
    count = 0 if config.cells is None else config.cells.count
    configs = [cell_config(config, cell + 1) for cell in range(count)]
    return tuple(read_status(one) for one in configs if (one.run_dir / LEDGER).is_file())


def operation_now(phase: str, wish: Wish, *, served: bool) -> str:
    """``Status.operation`` of a phase, an operator's wish, and whether a process serves it."""
    if phase == "finished":
        return phase
    if not served and wish in (Wish.RUN, Wish.STOP, Wish.END):
        return "down"
    return operation_of(wish, RoundPhase(phase))
