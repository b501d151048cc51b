"""What a service reports: its state as events, and of repeated things few."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from protofleet.coordinator import events
from protofleet.errors import RefusedError
from protofleet.federation.schedule import ExtendRound, RoundPhase, RoundState
from protofleet.federation.server import Aggregated

FIRST_REPETITION_S = 30.0
LONGEST_S = 3600.0
_MOST = 10_000


class LogThrottle:
    """Lets the 1st, 2nd, 4th, 8th … of equal things pass: a flood from a device fills no log."""

    def __init__(self) -> None:
        self._seen: Counter[Hashable] = Counter()

    def passes(self, thing: Hashable) -> bool:
        """Whether to report ``thing`` this time."""
        if len(self._seen) >= _MOST:
            self._seen.clear()
        self._seen[thing] += 1
        count = self._seen[thing]
        return count & (count - 1) == 0


class Reporter:
    """Turns states and refusals into events for ``sink``.

    Args:
        deadline_s: of a round.
        sink: takes the events.
    """

    def __init__(self, deadline_s: float, sink: events.Sink) -> None:
        self._deadline_s, self._sink = deadline_s, sink
        self._throttle = LogThrottle()
        self._waited_for: int | None = None
        self._waiting_since = self._tell_again_at = 0.0
        self._interval_s = FIRST_REPETITION_S

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
        self._sink(
            events.Waiting(
                round_id=state.round_id,
                live=live,
                needed=needed,
                waited_s=round(now - self._waiting_since, 1),
            )
        )

    def rejected(self, device_id: str, round_id: int, error: RefusedError) -> None:
        """An update was not taken."""
        if self._throttle.passes((device_id, round_id)):
            self._sink(
                events.UpdateRejected(
                    round_id=round_id, device_id=device_id, rule=error.rule, reason=str(error)
                )
            )

    def aggregated(self, round_id: int, outcome: Aggregated) -> None:
        """Whose claims counted in part, and whose updates not at all."""
        for one in outcome.limited:
            if self._throttle.passes((one.client_id, one.claim)):
                self._sink(
                    events.ClaimLimited(
                        round_id=round_id,
                        device_id=one.client_id,
                        claim=one.claim,
                        stated=one.stated,
                        limit=one.limit,
                    )
                )
        if outcome.fault:
            self._sink(
                events.UpdatesLeftOut(
                    round_id=round_id,
                    devices=outcome.left_out,
                    dropped=outcome.dropped,
                    reason=outcome.fault,
                )
            )

    def refused(self, device_id: str, error: RefusedError) -> None:
        """Something that a device sent broke a rule."""
        if self._throttle.passes((device_id, error.rule)):
            self._sink(
                events.DeviceRefused(device_id=device_id, rule=error.rule, reason=str(error))
            )

    def may_answer(self, device_id: str, error: RefusedError) -> bool:
        """Whether to announce the federation to a refused device this time."""
        return self._throttle.passes((device_id, error.rule, "announced"))
