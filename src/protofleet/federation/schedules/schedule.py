"""When clients train and when the server's state moves on: events in, actions out, time given.

A ``Schedule`` is pure. The caller writes an action into the ledger before it performs it, so a
process that is killed anywhere builds the same state again with ``resume``. Rounds that wait for
their cohort are one schedule (``synchronous.py``), rounds that are so many updates another
(``buffered.py``); what both do with events is in ``membership.py``.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Protocol

from protofleet.errors import RefusedError
from protofleet.federation.schedules.live_set import LiveSet

_NOBODY: frozenset[str] = frozenset()


class RoundPhase(Enum):
    """Where a federation stands."""

    WAITING = "waiting"
    OPEN = "open"
    CLOSING = "closing"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundState:
    """Everything the machine knows.

    Attributes:
        phase: where it stands.
        round_id: the round that is awaited, open or closing; after the last one stays on it.
        live: devices that are present now.
        enough_since: when ``live`` first sufficed; None: it does not, or it no longer matters.
        warmed_up: whether a round was opened since the start; from then on nothing waits.
        cohort: invited devices of the open round, sorted.
        delivered: members whose update is safely spooled.
        failed: members that said they cannot take part.
        refused: members whose update broke a rule; until an extension nobody waits for them.
        gone_since: absent members → since when.
        deadline: when the open round ends.
        rests_until: before which no other round opens.
        attempt: how often the open round was extended.
        size: how many updates the open round wants; neither those invited beyond that nor
            substitutes change it.
        final: whether the open or closing round is the final fit.
        last_invited: the last round to which each device was invited.
        paused: whether the operator wants no other round to open.
        late: devices whose update of an earlier round may still come, each with the round of its
            task; they get no other one meanwhile.
        late_delivered: devices whose update of an earlier round counts in this one. Such a device
            may be a member beside that.
    """

    phase: RoundPhase = RoundPhase.WAITING
    round_id: int = 1
    live: LiveSet = field(default_factory=LiveSet)
    enough_since: float | None = None
    warmed_up: bool = False
    cohort: tuple[str, ...] = ()
    delivered: frozenset[str] = _NOBODY
    failed: frozenset[str] = _NOBODY
    refused: frozenset[str] = _NOBODY
    gone_since: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    deadline: float = 0.0
    rests_until: float = -math.inf
    attempt: int = 0
    size: int = 0
    final: bool = False
    last_invited: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    paused: bool = False
    late: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    late_delivered: frozenset[str] = _NOBODY

    @property
    def outstanding(self) -> tuple[str, ...]:
        """Members of the open round whose update is not in yet and may still come."""
        done = self.delivered | self.refused
        return tuple(c for c in self.cohort if c not in done)

    @property
    def updates(self) -> int:
        """How many updates count in the round by now."""
        return len(self.delivered) + len(self.late_delivered)

    def task_of(self, device_id: str) -> int:
        """The round of the task whose update may still come from a device; 0: there is none."""
        if self.phase in (RoundPhase.OPEN, RoundPhase.CLOSING) and self.awaits(device_id):
            return self.round_id
        return self.late.get(device_id, 0)

    @property
    def tasks(self) -> dict[str, int]:
        """The devices of which an update may still come, each with the round of its task."""
        its_own = self.phase in (RoundPhase.OPEN, RoundPhase.CLOSING)
        return {**self.late, **dict.fromkeys(self.outstanding if its_own else (), self.round_id)}

    def awaits(self, device_id: str) -> bool:
        """Whether the device is one of the ``outstanding``."""
        done = device_id in self.delivered or device_id in self.refused
        return not done and self.is_member(device_id)

    def is_member(self, device_id: str) -> bool:
        """Whether the device was invited to the open round."""
        place = bisect_left(self.cohort, device_id)
        return self.cohort[place : place + 1] == (device_id,)


@dataclass(frozen=True, slots=True)
class DeviceAppeared:
    """A device is present, for the first time or again after a reconnect or restart."""

    device_id: str


@dataclass(frozen=True, slots=True)
class DeviceDeparted:
    """A device left, lost its connection or fell silent."""

    device_id: str


@dataclass(frozen=True, slots=True)
class UpdateStored:
    """A member's valid update is on disk and in the ledger."""

    device_id: str


@dataclass(frozen=True, slots=True)
class DeviceFailed:
    """A member refused its task and will not deliver."""

    device_id: str


@dataclass(frozen=True, slots=True)
class UpdateRefused:
    """A member's update broke a rule."""

    device_id: str


@dataclass(frozen=True, slots=True)
class StateCommitted:
    """The closing round's new server state is on disk and in the ledger."""


@dataclass(frozen=True, slots=True)
class Pause:
    """The operator wants no other round to open; an open one ends by its rules."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Rounds may open again."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


ScheduleEvent = (
    DeviceAppeared
    | DeviceDeparted
    | UpdateStored
    | DeviceFailed
    | UpdateRefused
    | StateCommitted
    | Pause
    | Resume
    | Tick
)


@dataclass(frozen=True, slots=True)
class OpenRound:
    """Start a round with this cohort: every member gets its task; ``size`` updates suffice."""

    round_id: int
    cohort: tuple[str, ...]
    size: int
    final: bool = False


@dataclass(frozen=True, slots=True)
class Invite:
    """Send one device its task again: the open round's, or the earlier one that it is late with."""

    device_id: str


@dataclass(frozen=True, slots=True)
class AddMembers:
    """Devices that have become free get the open round's task, too."""

    round_id: int
    device_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExtendRound:
    """The quorum was missed: go on with the same round and payload, and invite ``added`` too."""

    round_id: int
    attempt: int
    added: tuple[str, ...]
    needed: int


@dataclass(frozen=True, slots=True)
class CloseRound:
    """Accept no more updates; aggregate those of ``participants``, unless it was the final fit."""

    round_id: int
    participants: tuple[str, ...]
    final: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """All rounds are committed."""


ScheduleAction = OpenRound | Invite | AddMembers | ExtendRound | CloseRound | Finish
Transition = tuple[RoundState, tuple[ScheduleAction, ...]]


class Schedule(Protocol):
    """The rules by which a federation goes from state to state."""

    def step(self, state: RoundState, event: ScheduleEvent, now: float) -> Transition:
        """The state after ``event`` at time ``now`` (seconds, any origin), and what to do.

        Events that mean nothing in the present phase leave the state as it is.
        """
        ...

    def resume(self, state: RoundState, now: float) -> Transition:
        """Go on from what the ledger holds of a state; ``live`` and times are not in it.

        A waiting state with ``final`` says that the round before it was the final fit.
        """
        ...

    def refusal(self, state: RoundState, device_id: str, round_id: int) -> RefusedError | None:
        """Why a device's update for a round would be refused now; None if it is welcome."""
        ...

    @property
    def patience(self) -> int:
        """By how many rounds an update may be late and count."""
        ...

    @property
    def last_round(self) -> int:
        """The number of the last round, a final fit included."""
        ...

    def needed_devices(self, state: RoundState) -> int:
        """How many devices must be live before the awaited round opens."""
        ...
