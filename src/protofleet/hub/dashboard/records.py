"""What the pages are made from: one immutable snapshot of a run, read from its folder."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import msgspec

from protofleet.coordinator.events import CoordinatorEvent
from protofleet.coordinator.ledger.rollout_rows import Rollout, RolloutDevice
from protofleet.federation.outcomes.calibration import CalibrationProgress
from protofleet.federation.outcomes.outcome import Outcome, OwnerOutcome
from protofleet.federation.records import RoundRecord
from protofleet.tensors import TaskName
from protofleet.wire.mqtt.usage import NO_USAGE, DeviceUsage


class DeviceView(msgspec.Struct, frozen=True, kw_only=True):
    """One device as it is known now; times are Unix seconds, 0 where nothing was told.

    Attributes:
        state: ``online``, ``held``, ``refused``, ``offline``, ``left``, ``silent``, ``revoked``,
            ``unregistered``, or ``unknown`` (its coordinator has not heard of it since it started).
        since_s, heard_s: of the state, and of the last sign of it.
        conditions: of its owner, which hold it.
        bundle: digest of the one that it has.
        phase: of its last heartbeat: ``idle``, ``receive``, ``train``, ``send``, ``leave``, since
            ``phase_since_s``, of the round ``phase_round``.
        last_round: of its last update; ``rounds``: how many of its updates counted.
        num_examples, loss, score: of its last update; ``score`` is the task's headline.
        owner: what the run has done for its owner; None: not told.
        train_step_ms, infer_ms: medians of its last update.
        phases_s: wall seconds by phase in its last update.
        backend: who ran the bundle's programs for its last update.
        usage: in all.
        rule, reason: why it cannot take part, or what of it was refused last.
    """

    device_id: str
    state: str = "unknown"
    since_s: float = 0.0
    heard_s: float = 0.0
    conditions: tuple[str, ...] = ()
    bundle: str = ""
    phase: str = ""
    phase_since_s: float = 0.0
    phase_round: int = 0
    last_round: int = 0
    rounds: int = 0
    num_examples: int = 0
    loss: float | None = None
    score: float | None = None
    owner: OwnerOutcome | None = None
    train_step_ms: float | None = None
    infer_ms: float | None = None
    phases_s: dict[str, float] = {}
    backend: str = ""
    usage: DeviceUsage = NO_USAGE
    rule: str = ""
    reason: str = ""


class CurrentRound(msgspec.Struct, frozen=True, kw_only=True):
    """The latest round that was opened.

    Attributes:
        phase: ``open``, ``closing`` or ``committed``.
        size: so many updates suffice.
        attempt: how often it was extended.
        opened_s, deadline_s: Unix seconds; no deadline: none is known.
        cohort: who was invited; ``delivered``: whose update counts in it.
        late: whose update of an earlier round's task may still come, and count in it or the next.
    """

    round_id: int
    phase: str
    final: bool
    size: int
    attempt: int
    opened_s: float
    deadline_s: float | None = None
    cohort: tuple[str, ...] = ()
    delivered: frozenset[str] = frozenset()
    late: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[str, ...]:
        """Members whose update is awaited; none after it has closed."""
        open_ = self.phase == "open"
        return tuple(one for one in self.cohort if one not in self.delivered) if open_ else ()


class LoggedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the event stream.

    Attributes:
        time_s: Unix seconds.
        event: the name of its kind.
        said: what it says; None: of a kind that only another version knows.
    """

    time_s: float
    event: str
    said: CoordinatorEvent | None = None

    @classmethod
    def of(cls, said: CoordinatorEvent, time_s: float) -> Self:
        """An event as it was logged at that time."""
        return cls(time_s=time_s, event=said.name, said=said)

    @property
    def device_id(self) -> str:
        """Whom it is about; empty: no device."""
        return str(getattr(self.said, "device_id", ""))

    @property
    def text(self) -> str:
        """Its sentence, safe to show."""
        return "" if self.said is None else self.said.text[:300]


class RunSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it stands.

    Attributes:
        key: names it in addresses; ``name``: the federation's.
        folder: its run folder, for people.
        read_s: when this was read, Unix seconds.
        operation: as in ``coordinator.status.Status``.
        served: whether a process on this machine serves it.
        identity: what its ledger says it is.
        rounds: how many it is to have; 0: not told.
        committed: its rounds, in order, with their bytes as of now.
        current: the latest that was opened; None: none was.
        needed, live: how many devices the next round waits for, and how many are there; None
            where it does not wait.
        devices: by id, all that were ever heard of, invited or refused.
        events: the latest, the oldest first.
        event_counts: of each kind, since the event stream began.
        logs: device → the last log that it sent, of the devices that sent one last.
        joining: bytes up and down that devices paid before their first round.
        update_times: round → device → when its update was taken, of the latest rounds.
        outcome: what it has done for the devices' owners, a summary; None: nobody has told.
        device_troubles: what is wrong on devices → on which.
        early_end: why the run has ended before its last round; empty: it has not.
        calibration: of its learning rate; None: the settings have one.
        disk_free_bytes, disk_bytes: of the disk that the folder is on.
        trouble: why the folder could not be read just now; empty: it could.
    """

    key: str
    name: str
    folder: str
    read_s: float
    operation: str = "down"
    served: bool = False
    identity: Mapping[str, str] = {}
    task: TaskName = "classification"
    rounds: int = 0
    committed: tuple[RoundRecord, ...] = ()
    current: CurrentRound | None = None
    needed: int | None = None
    live: int | None = None
    devices: Mapping[str, DeviceView] = {}
    outcome: Outcome | None = None
    device_troubles: dict[str, tuple[str, ...]] = {}
    early_end: str = ""
    calibration: CalibrationProgress | None = None
    events: tuple[LoggedEvent, ...] = ()
    event_counts: Mapping[str, int] = {}
    logs: Mapping[str, LoggedEvent] = {}
    joining: tuple[int, int] = (0, 0)
    update_times: Mapping[int, Mapping[str, float]] = {}
    rollout: Rollout | None = None
    rollout_devices: tuple[RolloutDevice, ...] = ()
    disk_free_bytes: int = 0
    disk_bytes: int = 0
    trouble: str = ""

    @property
    def round_id(self) -> int:
        """The latest that was opened; 0: none."""
        return 0 if self.current is None else self.current.round_id

    @property
    def aggregated(self) -> int:
        """Committed rounds without the final fit."""
        return sum(not one.final for one in self.committed)
