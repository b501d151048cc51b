"""Rounds that are so many updates, whoever sent them: nobody is waited for, and nobody waits.

::

    WAITING ── enough live devices ──► OPEN ── buffer full ──► CLOSING
       ▲                               │ ▲                        │
       │                               └─┘ free: the newest task  │
       └────────────────────── StateCommitted ◄───────────────────┘

Source: Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek and Huba, "Federated Learning with Buffered
Asynchronous Aggregation" (arXiv:2106.06639), algorithm 1; with a buffer of one update, the order of
events of Xie, Koyejo and Gupta (arXiv:1903.03934).

A round lasts until the server has its updates, of this round's task or of earlier ones, and its
close makes the next state. Who has delivered gets the newest state's task at once, if it did not
have it already: of each state a device trains once, so nobody fills a buffer alone, and training
the same state twice would tell nothing new. Who is slow keeps its task over rounds, up to
``patience`` of them.

Deviation: where fewer devices take part than the buffer holds, it is full when all have delivered.
If updates fail to come, deadline and quorum are those of a synchronous round: with the quorum the
round closes, else the tasks are offered again. A final fit is a synchronous round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from protofleet.errors import RefusedError
from protofleet.federation.schedules import membership
from protofleet.federation.schedules.schedule import (
    AddMembers,
    ExtendRound,
    OpenRound,
    RoundPhase,
    RoundState,
    ScheduleEvent,
    Transition,
)
from protofleet.federation.schedules.synchronous import SynchronousSchedule, draw, is_final, waiting
from protofleet.federation.section import Amount
from protofleet.federation.settings import count_of

_NOBODY: frozenset[str] = frozenset()
_ANY = 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferedSchedule:
    """A new state after so many updates.

    Attributes:
        rules: seed, patience, deadline, quorum, minimum and selection, and the final fit.
        buffer: updates that make a state.
        concurrency: how many devices train at once: all that are live, a fraction of them or a
            count.
    """

    rules: SynchronousSchedule
    buffer: int
    concurrency: Literal["all"] | Amount = "all"

    def step(self, state: RoundState, event: ScheduleEvent, now: float) -> Transition:
        """The state after ``event`` at time ``now`` (seconds, any origin), and what to do.

        Events that mean nothing in the present phase leave the state as it is.
        """
        state, actions = self.rules.take(state, event, now)
        if actions:
            return state, actions
        if is_final(self.rules, state.round_id):
            return self.rules.advance(state, now)
        if state.phase is RoundPhase.WAITING:
            return self._open(state, now)
        if state.phase is RoundPhase.OPEN:
            return self._advance_open(state, now)
        return state, ()

    def resume(self, state: RoundState, now: float) -> Transition:
        """As ``SynchronousSchedule.resume``."""
        return self.rules.resume(state, now)

    def refusal(self, state: RoundState, device_id: str, round_id: int) -> RefusedError | None:
        """Why a device's update for a round would be refused now; None if it is welcome."""
        return self.rules.refusal(state, device_id, round_id)

    @property
    def patience(self) -> int:
        """By how many rounds an update may be late and count."""
        return self.rules.patience

    @property
    def last_round(self) -> int:
        """The number of the last round, a final fit included."""
        return self.rules.last_round

    def needed_devices(self, state: RoundState) -> int:
        """How many devices must be live before the awaited round opens."""
        return self.rules.needed_devices(state)

    def _open(self, state: RoundState, now: float) -> Transition:
        if (still := waiting(self.rules, state, len(state.live), now)) is not None:
            return still, ()
        others = sum(one not in state.live for one in state.late.keys() | state.late_delivered)
        state = replace(
            state,
            phase=RoundPhase.OPEN,
            enough_since=None,
            warmed_up=True,
            deadline=now + self.rules.deadline_s,
            size=min(self.buffer, len(state.live) + others),
        )
        state, cohort = self._joined(state, self._slots(state, now))
        return state, (OpenRound(state.round_id, cohort, state.size),)

    def _advance_open(self, state: RoundState, now: float) -> Transition:
        if state.updates >= state.size:
            return _closing(state)
        slots = 0 if state.paused else self._slots(state, now)
        state, added = self._joined(state, slots)
        if added:
            return state, (AddMembers(state.round_id, added),)
        due = now >= state.deadline
        if state.updates >= self._needed(state) and (due or not self._training(state, now)):
            return _closing(state)
        return self._extend(state, now) if due else (state, ())

    def _slots(self, state: RoundState, now: float) -> int:
        """How many more devices may train."""
        return self._concurrent(state) - len(self._training(state, now))

    def _concurrent(self, state: RoundState) -> int:
        total = len(state.live)
        return _ANY if self.concurrency == "all" else count_of(self.concurrency, total)

    def _training(self, state: RoundState, now: float) -> set[str]:
        """Devices whose update is waited for."""
        return state.tasks.keys() - membership.lost(state, now, self.rules.grace_s)

    def _joined(self, state: RoundState, slots: int) -> tuple[RoundState, tuple[str, ...]]:
        """The state with new members, up to so many of those that have nothing to do."""
        if slots <= 0:
            return state, ()
        idle = state.failed | state.refused | state.late.keys()
        free = [one for one in state.live if one not in idle and not state.is_member(one)]
        added = draw(self.rules, state, free, slots)
        cohort = tuple(sorted((*state.cohort, *added)))
        return replace(state, cohort=cohort, last_invited=membership.noted(state, added)), added

    def _needed(self, state: RoundState) -> int:
        """The quorum, as far as it can be reached; while the operator pauses, any update."""
        if state.paused:
            return 1
        quorum = count_of(self.rules.quorum, state.size)
        able = state.updates + len(state.tasks.keys() - state.failed)
        return able if able < quorum and 2 * able >= state.size else quorum

    def _extend(self, state: RoundState, now: float) -> Transition:
        """Offer every task again, and the newest one to as many others as there are slots."""
        state = replace(
            state,
            attempt=state.attempt + 1,
            deadline=now + self.rules.deadline_s,
            refused=_NOBODY,
        )
        state, added = self._joined(state, 0 if state.paused else self._concurrent(state))
        return state, (ExtendRound(state.round_id, state.attempt, added, self._needed(state)),)


def _closing(state: RoundState) -> Transition:
    state = replace(state, phase=RoundPhase.CLOSING)
    return state, (membership.close(state),)
