"""What the coordinator makes of its operator's orders: events for the schedule, and reports."""

from __future__ import annotations

from protofleet.coordinator import events
from protofleet.coordinator.ledger.control import Control, Wish
from protofleet.federation.schedules import schedule
from protofleet.federation.schedules.schedule import RoundPhase, RoundState


class Operation:
    """Follows the orders in a ledger and tells when they are obeyed.

    Args:
        control: of the ledger.
        sink: told what happens.
    """

    def __init__(self, control: Control, sink: events.Sink) -> None:
        self._control, self._sink = control, sink
        control.begin()
        self._order = control.read()
        self._told = ""

    @property
    def rounds(self) -> int:
        """To which the run was extended; 0: it was not."""
        return self._order.rounds

    def news(self) -> bool:
        """Whether there is another order than before; it is the one in force from now on."""
        if not self._control.changed():
            return False
        before, self._order = self._order, self._control.read()
        return self._order.serial != before.serial

    @property
    def pending(self) -> bool:
        """Whether the order in force was given and not obeyed by any process."""
        return self._order.taken < self._order.serial

    def event(self) -> schedule.ScheduleEvent:
        """What the order in force means to the schedule."""
        return schedule.Resume() if self._order.wish is Wish.RUN else schedule.Pause()

    def taken(self) -> None:
        """The order in force is obeyed."""
        self._control.take(self._order)
        self._order = self._order._replace(taken=self._order.serial)

    def ends(self, state: RoundState) -> bool:
        """Whether the process is to end in this state, with rounds left."""
        drained = state.phase is RoundPhase.WAITING
        return self._order.wish is Wish.END or (self._order.wish is Wish.STOP and drained)

    def hold(self, state: RoundState) -> str:
        """What devices are told: ``paused`` while no round opens; empty: they go on."""
        return "paused" if state.paused and state.phase is RoundPhase.WAITING else ""

    def report(self, state: RoundState) -> bool:
        """Tell what has changed in the run's operation, if anything has."""
        now = operation_of(self._order.wish, state.phase)
        before, self._told = self._told, now
        if now == before or (now == "running" and not before):
            return False
        kind = _EVENTS[now]
        self._sink(kind(round_id=state.round_id, since_s=round(self._order.since_s, 3)))
        return True

    def stopped(self, state: RoundState, result: str) -> events.Stopped:
        """The process ends, as it was told to."""
        self._control.note_stopped()
        self._order = self._control.read()
        stopped = events.Stopped(
            round_id=state.round_id,
            open=state.phase is not RoundPhase.WAITING,
            result=result,
        )
        self._sink(stopped)
        return stopped


def operation_of(wish: Wish, phase: RoundPhase) -> str:
    """``running``, ``pausing``, ``paused``, ``stopping`` or ``stopped``."""
    if wish is Wish.PAUSE:
        return "paused" if phase is RoundPhase.WAITING else "pausing"
    return {Wish.RUN: "running", Wish.STOPPED: "stopped"}.get(wish, "stopping")


_EVENTS: dict[str, type[events.Operated]] = {
    "running": events.Continued,
    "pausing": events.Pausing,
    "paused": events.Paused,
    "stopping": events.Stopping,
}
