"""A schedule whose rounds wait for more than devices: a cell's root, or a learning rate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from protofleet.errors import RefusedError
from protofleet.federation.schedules import schedule
from protofleet.federation.schedules.schedule import RoundPhase, RoundState, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedSchedule:
    """A schedule that opens no round before it may.

    Attributes:
        inner: the rules otherwise.
        may_open: whether a round may, by its number.
    """

    inner: Schedule
    may_open: Callable[[int], bool]

    def step(
        self, state: RoundState, event: schedule.ScheduleEvent, now: float
    ) -> schedule.Transition:
        """As of ``Schedule``."""
        if state.phase is not RoundPhase.WAITING or self.may_open(state.round_id):
            return self.inner.step(state, event, now)
        paused = state.paused
        if isinstance(event, schedule.Pause | schedule.Resume):
            paused, event = isinstance(event, schedule.Pause), schedule.Tick()
        after, actions = self.inner.step(replace(state, paused=True), event, now)
        return replace(after, paused=paused), actions

    def resume(self, state: RoundState, now: float) -> schedule.Transition:
        """As of ``Schedule``."""
        return self.inner.resume(state, now)

    def refusal(self, state: RoundState, device_id: str, round_id: int) -> RefusedError | None:
        """As of ``Schedule``."""
        return self.inner.refusal(state, device_id, round_id)

    @property
    def patience(self) -> int:
        """As of ``Schedule``."""
        return self.inner.patience

    @property
    def last_round(self) -> int:
        """As of ``Schedule``."""
        return self.inner.last_round

    def needed_devices(self, state: RoundState) -> int:
        """As of ``Schedule``."""
        return self.inner.needed_devices(state)
