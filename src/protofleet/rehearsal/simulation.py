"""The coordinator's schedule and virtual devices, from event to event in virtual time.

The schedule is the coordinator's own (``federation.schedules``), so who is invited, when a round is
extended and when it closes is what a deployment would do. What a device cannot be seen to do from
outside takes no time: an acknowledgement, a decision of the coordinator.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from protofleet.federation.plan import Plan
from protofleet.federation.records import RoundRecord
from protofleet.federation.schedules.early_stopping import EarlyEnd, EarlyStopping
from protofleet.federation.schedules.schedule import (
    AddMembers,
    CloseRound,
    DeviceAppeared,
    DeviceDeparted,
    ExtendRound,
    Finish,
    Invite,
    OpenRound,
    RoundPhase,
    RoundState,
    ScheduleAction,
    ScheduleEvent,
    StateCommitted,
    Tick,
    UpdateStored,
)
from protofleet.firmware_sim.world.simulated_device import Phase, SimulatedDevice, Work
from protofleet.rehearsal.training import ClosedRound, Training

NOTICED_S = 60.0
"""After which a broker tells that a device is gone which said nothing: twice its keep-alive."""
_TICK_S = 1.0
"""A coordinator looks at its clock so often."""


class _Kind(IntEnum):
    """Of an entry of the event queue; at the same time in this order."""

    LIFE = 0
    GONE = 1
    TICK = 2


@dataclass(slots=True, kw_only=True)
class RehearsedRound:
    """A round in virtual time.

    Attributes:
        round_id: of the round.
        opened_s, closed_s: seconds since the midnight before the start.
        invited: who was.
        delivered_s: when each update was taken.
        counted: whose update counts.
        extended: how often it was.
        record: what came of it; None where nothing was trained.
    """

    round_id: int
    opened_s: float
    closed_s: float = 0.0
    invited: list[str] = field(default_factory=list)
    delivered_s: dict[str, float] = field(default_factory=dict)
    counted: tuple[str, ...] = ()
    extended: int = 0
    record: RoundRecord | None = None


class Simulation:
    """A fleet and its coordinator.

    Args:
        plan: of the federation.
        lives: the devices by name, at the start.
        train_s: how long each trains for a round, by name.
        up_bytes: of an update.
        training: what becomes of it.

    Attributes:
        early_end: after which round the run ends before its last one; None: it does not.
        late_updates: updates that came too late to count.
    """

    def __init__(
        self,
        plan: Plan,
        lives: Mapping[str, SimulatedDevice],
        train_s: Mapping[str, float],
        up_bytes: int,
        training: Training,
    ) -> None:
        self._plan, self._lives, self._training = plan, dict(sorted(lives.items())), training
        self._names = tuple(self._lives)
        self._train_s, self._up_bytes = train_s, up_bytes
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._queue: list[tuple[float, int, int, int]] = []
        self._versions = [0] * len(self._names)
        self._told = [False] * len(self._names)
        self._gone: dict[int, float] = {}
        self._now = self._ticks_s = 0.0
        self._state = RoundState()
        self._round: RehearsedRound | None = None
        self._closed: list[RehearsedRound] = []
        self._trained: list[tuple[str, int]] = []
        self._finished = False
        self.early_end: EarlyEnd | None = None
        self.late_updates = 0
        self._early = EarlyStopping(plan.config.stop, plan.bundle.manifest.task)
        self._set_rounds(plan.config.rounds)

    def rounds(self, start_s: float, end_s: float) -> Iterator[RehearsedRound]:
        """Live from the start on; each round when it has closed, none that is open at the end.

        All times are seconds from the midnight before the start.
        """
        self._state, actions = self._schedule.resume(self._state, start_s)
        self._now = start_s
        self._do(actions)
        for number in range(len(self._names)):
            self._live(number)
        while not self._finished and self._queue:
            at_s, kind, number, version = heapq.heappop(self._queue)
            if at_s > end_s:
                break
            self._now = max(self._now, at_s)
            self._happen(_Kind(kind), number, version)
            yield from self._closed
            self._closed.clear()
        self._now = self._now if self._finished else end_s
        for life in self._lives.values():
            while life.now < self._now:
                life.advance(min(self._now, life.next_s))
                life.finished()

    @property
    def now(self) -> float:
        """Where the simulation stands."""
        return self._now

    @property
    def finished(self) -> bool:
        """Whether the federation has had its last round."""
        return self._finished

    def _set_rounds(self, rounds: int) -> None:
        self._schedule = self._plan.with_rounds(rounds).schedule(lambda: self._training.server)

    def _happen(self, kind: _Kind, number: int, version: int) -> None:
        if kind is _Kind.LIFE:
            if version == self._versions[number]:
                self._live(number)
        elif kind is _Kind.GONE:
            if self._gone.pop(number, None) == self._now:
                self._depart(number)
        elif self._now == self._ticks_s:
            self._step(Tick())

    def _live(self, number: int) -> None:
        """Bring a device to the present, and tell the schedule what shows from outside."""
        name = self._names[number]
        life = self._lives[name]
        life.advance(self._now)
        self._phases(name, life)
        self._presence(number, life)
        self._wake(number, life)

    def _phases(self, name: str, life: SimulatedDevice) -> None:
        while (work := life.work) is not None and (done := life.finished()) is not None:
            if done is Phase.TRAIN:
                self._trained.append((name, work.round_id))
            elif done is Phase.UPLOAD:
                self._delivered(name, work.round_id)

    def _delivered(self, name: str, round_id: int) -> None:
        if self._schedule.refusal(self._state, name, round_id) is not None:
            self.late_updates += 1
            return
        if self._round is not None:
            self._round.delivered_s[name] = self._now
        self._step(UpdateStored(name))

    def _presence(self, number: int, life: SimulatedDevice) -> None:
        name, is_there = self._names[number], life.is_present
        if is_there:
            self._gone.pop(number, None)
            if not self._told[number]:
                self._told[number] = True
                self._step(DeviceAppeared(name))
        elif self._told[number] and number not in self._gone:
            if life.held:  # it says so
                self._depart(number)
            else:
                self._gone[number] = self._now + NOTICED_S
                self._push(self._gone[number], _Kind.GONE, number, 0)

    def _depart(self, number: int) -> None:
        self._told[number] = False
        self._step(DeviceDeparted(self._names[number]))

    def _wake(self, number: int, life: SimulatedDevice) -> None:
        self._versions[number] += 1
        self._push(life.next_s, _Kind.LIFE, number, self._versions[number])

    def _push(self, at_s: float, kind: _Kind, number: int, version: int) -> None:
        heapq.heappush(self._queue, (at_s, int(kind), number, version))

    def _step(self, event: ScheduleEvent) -> None:
        self._state, actions = self._schedule.step(self._state, event, self._now)
        self._do(actions)
        self._await_clock()

    def _await_clock(self) -> None:
        """Look again when the state may change by time alone."""
        config, state = self._plan.config, self._state
        times = [since + config.liveness.grace_s for since in state.gone_since.values()]
        if state.phase is RoundPhase.OPEN:
            times.append(state.deadline)
        if state.phase is RoundPhase.WAITING:
            times.append(state.rests_until)
        if state.phase is RoundPhase.WAITING and state.enough_since is not None:
            times.append(state.enough_since + config.cohort.wait_s)
        later = [one for one in times if one > self._now]
        if later and (self._ticks_s <= self._now or min(later) < self._ticks_s):
            self._ticks_s = min(later) + _TICK_S
            self._push(self._ticks_s, _Kind.TICK, 0, 0)

    def _do(self, actions: Sequence[ScheduleAction]) -> None:
        for action in actions:
            match action:
                case OpenRound(round_id, cohort, _, final):
                    self._round = RehearsedRound(round_id=round_id, opened_s=self._now)
                    self._invite(cohort, final=final)
                case AddMembers(_, added):
                    self._invite(added, final=self._state.final)
                case ExtendRound(added=added):
                    if self._round is not None:
                        self._round.extended += 1
                    self._invite(added, final=self._state.final)
                case Invite(name):
                    self._remind(name)
                case CloseRound(_, participants, final):
                    self._close(participants, final=final)
                case Finish():
                    self._finished = True

    def _invite(self, names: Sequence[str], *, final: bool) -> None:
        if self._round is None or not names:
            return
        self._round.invited.extend(names)
        sizes = self._training.payload_bytes(self._round.round_id, names, final=final)
        for name in names:
            number, life = self._numbers[name], self._lives[name]
            life.advance(self._now)
            life.give(
                Work(
                    round_id=self._round.round_id,
                    down_bytes=sizes[name],
                    train_s=self._train_s[name],
                    up_bytes=self._up_bytes,
                )
            )
            self._wake(number, life)

    def _remind(self, name: str) -> None:
        """A device is back whose task is open: it still has it, unless it was dropped meanwhile."""
        life = self._lives[name]
        if life.work is None or life.work.round_id != self._state.round_id:
            self._invite((name,), final=self._state.final)

    def _close(self, participants: Sequence[str], *, final: bool) -> None:
        done = self._round
        if done is None:
            return
        done.closed_s, done.counted = self._now, tuple(participants)
        for name in done.invited:
            number, life = self._numbers[name], self._lives[name]
            if life.phase in {Phase.DOWNLOAD, Phase.UPLOAD}:  # nobody answers any longer
                life.advance(self._now)
                life.drop()
                self._wake(number, life)
        done.record = self._training.closed(
            ClosedRound(
                opened_s=done.opened_s,
                seconds=self._now - done.opened_s,
                invited=tuple(done.invited),
                delivered_s=done.delivered_s,
                extended=done.extended,
                trained=tuple(self._trained),
                running=tuple(self._running()),
                counted=done.counted,
            )
        )
        self._trained.clear()
        self._round = None
        self._closed.append(done)
        self._look_at(done, final=final)
        self._step(StateCommitted())

    def _running(self) -> Iterator[tuple[str, int]]:
        for name, life in self._lives.items():
            if life.phase is Phase.TRAIN and life.work is not None:
                yield name, life.work.round_id

    def _look_at(self, done: RehearsedRound, *, final: bool) -> None:
        """End the run after this round if it brings nothing more."""
        planned, record = self._plan.config.rounds, done.record
        if final or record is None or done.round_id >= planned:
            return
        scores = record.scores
        end = self._early.add(done.round_id, scores.selecting, scores.loss, planned=planned)
        self.early_end = end
        self._set_rounds(planned if end is None else end.after)
