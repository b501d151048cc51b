"""What a service reports: its state as events, and of repeated things few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from protofleet.coordinator import events
from protofleet.errors import RefusedError
from protofleet.federation.schedules.schedule import ExtendRound, RoundPhase, RoundState
from protofleet.federation.server import Aggregated
from protofleet.printable import printable
from protofleet.wire.messages import Announcement, TransferOffer
from protofleet.wire.transfers.transfer import Rejected

FIRST_REPETITION_S = 30.0
LONGEST_S = 3600.0
BURST = 100
"""Events of a kind that others cause and that are reported at once, whatever they are about."""
PER_MINUTE = 10
"""So many more then: 20 MB of log a day at most, however many devices are invented."""
MINUTE_S = 60.0
_LOG_COST = 8
"""A device's log is as long as so many other events."""
_MOST = 10_000


class LogThrottle:
    """Bounds what outsiders can write into a log: by equal things, and by kinds of event.

    Of equal things the 1st, 2nd, 4th, 8th … pass, of a kind ``BURST`` at once and then
    ``PER_MINUTE``.
    """

    def __init__(self) -> None:
        self._seen: Counter[Hashable] = Counter()
        self._left: dict[str, int] = {}
        self._withheld: Counter[str] = Counter()

    def is_news(self, thing: Hashable) -> bool:
        """Whether ``thing`` comes for the 1st, 2nd, 4th … time."""
        if len(self._seen) >= _MOST:
            self._seen.clear()
        self._seen[thing] += 1
        count = self._seen[thing]
        return count & (count - 1) == 0

    def passes(self, kind: str, thing: Hashable = None, *, cost: int = 1) -> bool:
        """Whether to report an event of ``kind``; equal ``thing`` of it recur, None never does.

        One that is as long as others ``cost`` times counts so often.
        """
        left = self._left.get(kind, BURST)
        if left >= cost and (thing is None or self.is_news((kind, thing))):
            self._left[kind] = left - cost
            return True
        self._withheld[kind] += 1
        return False

    def next_minute(self) -> dict[str, int]:
        """A minute is over: how many of each kind were withheld in it."""
        self._left = {k: min(BURST, left + PER_MINUTE) for k, left in self._left.items()}
        withheld = dict(self._withheld)
        self._withheld.clear()
        return withheld


class Reporter:
    """Turns states and refusals into events for ``sink``.

    Args:
        deadline_s: of a round.
        sink: takes the events.
    """

    def __init__(self, deadline_s: float, sink: events.Sink) -> None:
        self._deadline_s, self._sink = deadline_s, sink
        self._throttle, self._answers = LogThrottle(), LogThrottle()
        self._waited_for: int | None = None
        self._waiting_since = self._tell_again_at = 0.0
        self._interval_s = FIRST_REPETITION_S
        self._minute_began: float | None = None
        self._last_logs: dict[str, int] = {}

    def watch(self, now: float) -> None:
        """Tell once a minute (``now``: monotonic seconds) what was withheld."""
        if self._minute_began is None:
            self._minute_began = now
        seconds = now - self._minute_began
        if seconds < MINUTE_S:
            return
        self._minute_began = now
        self._answers.next_minute()
        for kind, count in self._throttle.next_minute().items():
            self._sink(events.Withheld(kind=kind, count=count, seconds=round(seconds, 1)))

    def opened(self, state: RoundState, *, resumed: bool) -> None:
        """A round has begun, or goes on."""
        self._sink(
            events.RoundOpened(
                round_id=state.round_id,
                final=state.final,
                cohort=state.cohort,
                delivered=len(state.delivered),
                resumed=resumed,
                deadline_s=self._deadline_s,
                size=state.size,
            )
        )

    def extended(self, state: RoundState, action: ExtendRound) -> None:
        """The open round goes on with more members."""
        self._sink(
            events.RoundExtended(
                round_id=action.round_id,
                attempt=action.attempt,
                delivered=len(state.delivered),
                needed=action.needed,
                missing=tuple(c for c in state.outstanding if c not in action.added),
                added=action.added,
            )
        )

    def waiting(self, state: RoundState, needed: int, now: float) -> None:
        """A round waits for ``needed`` devices (``now``: monotonic seconds).

        Told when the number present changes, and again at intervals that double up to an hour.
        """
        if state.phase is not RoundPhase.WAITING:
            self._waited_for = None
            return
        if self._waited_for is None:
            self._waited_for, self._waiting_since = -1, now
        live = len(state.live)
        if live != self._waited_for:
            self._waited_for, self._interval_s = live, FIRST_REPETITION_S
        elif now < self._tell_again_at:
            return
        self._tell_again_at = now + self._interval_s
        self._interval_s = min(2 * self._interval_s, LONGEST_S)
        self._tell(
            events.Waiting(
                round_id=state.round_id,
                live=live,
                needed=needed,
                waited_s=round(now - self._waiting_since, 1),
                opens_in_s=round(max(0.0, state.rests_until - now), 1),
            )
        )

    def device_log(self, device_id: str, round_id: int, text: str) -> None:
        """A device's log of a round that has failed on it; of each round once."""
        lines = tuple(map(printable, text.split("\n")))
        event = events.DeviceLog(device_id=device_id, round_id=round_id, lines=lines)
        if self._last_logs.get(device_id, 0) < round_id:
            self._last_logs[device_id] = round_id
            self._tell(event, cost=_LOG_COST)

    def online(self, device_id: str, live: int) -> None:
        """A device is present; ``live`` of them are."""
        self._tell(events.DeviceOnline(device_id=device_id, live=live))

    def offline(self, device_id: str, reason: str, live: int) -> None:
        """A device is absent; ``live`` of them are present."""
        self._tell(events.DeviceOffline(device_id=device_id, reason=reason, live=live))

    def held(self, device_id: str, conditions: tuple[str, ...], live: int) -> None:
        """A device may not take part by its owner's conditions."""
        event = events.DeviceHeld(device_id=device_id, conditions=conditions, live=live)
        self._tell(event, (device_id, conditions))

    def rejected(self, device_id: str, offer: TransferOffer, error: RefusedError) -> None:
        """An update was not taken."""
        round_id = offer.round_id
        event = events.UpdateRejected(
            round_id=round_id,
            device_id=device_id,
            rule=error.rule,
            reason=str(error),
            transfer_id=offer.transfer_id,
        )
        self._tell(event, (device_id, round_id))

    def task_refused(self, event: Rejected) -> None:
        """A device does not take part in a round."""
        round_id, device_id = event.offer.round_id, event.device_id
        report = events.TaskRefused(
            round_id=round_id,
            device_id=device_id,
            rule=event.rule,
            reason=event.reason,
            transfer_id=event.offer.transfer_id,
        )
        self._tell(report, (device_id, round_id))

    def aggregated(self, round_id: int, outcome: Aggregated) -> None:
        """Whose claims counted in part, and whose updates not at all."""
        for one in outcome.limited:
            event = events.ClaimLimited(
                round_id=round_id,
                device_id=one.client_id,
                claim=one.claim,
                stated=one.stated,
                limit=one.limit,
            )
            self._tell(event, (one.client_id, one.claim))
        if outcome.fault:
            self._sink(
                events.UpdatesLeftOut(
                    round_id=round_id,
                    devices=outcome.left_out,
                    dropped=outcome.dropped,
                    reason=outcome.fault,
                )
            )

    def refused(self, device_id: str, error: RefusedError) -> bool:
        """Something that a device sent broke a rule; whether that was told."""
        event = events.DeviceRefused(device_id=device_id, rule=error.rule, reason=str(error))
        return self._tell(event, (device_id, error.rule))

    def another_coordinator(self, announcement: Announcement) -> bool:
        """Somebody else announces this federation; whether that was told."""
        return self._tell(events.AnotherCoordinator(federation=announcement.federation), "it")

    def may_answer(self, device_id: str, error: RefusedError) -> bool:
        """Whether to announce the federation to a refused device this time."""
        return self._answers.passes("announced", (device_id, error.rule))

    def _tell(
        self, event: events.CoordinatorEvent, thing: Hashable = None, *, cost: int = 1
    ) -> bool:
        passes = self._throttle.passes(event.name, thing, cost=cost)
        if passes:
            self._sink(event)
        return passes
