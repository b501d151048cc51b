"""Rounds that wait for their cohort, as one explicit state machine.

::

    WAITING ── enough live devices ──► OPEN ── all in, or deadline with quorum ──► CLOSING
       ▲                               │ ▲                                            │
       │                               └─┘ deadline below quorum: extend, add devices │
       └────────────────────── StateCommitted ◄───────────────────────────────────────┘
                                     └── last round ──► FINISHED

While the operator pauses, WAITING opens nothing.

A strategy with a final fit has one more round after the last: every live device is invited, and
its closing aggregates nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import MappingProxyType
from typing import Literal, assert_never

import numpy as np

from protofleet.errors import RefusedError
from protofleet.federation.schedules import membership
from protofleet.federation.schedules.schedule import (
    DeviceAppeared,
    DeviceDeparted,
    DeviceFailed,
    ExtendRound,
    Finish,
    Invite,
    OpenRound,
    Pause,
    Resume,
    RoundPhase,
    RoundState,
    ScheduleEvent,
    StateCommitted,
    Tick,
    Transition,
    UpdateRefused,
    UpdateStored,
)
from protofleet.federation.section import Amount
from protofleet.federation.settings import Selection, count_of

_NOBODY: frozenset[str] = frozenset()
_NOTHING: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class SynchronousSchedule:
    """Rounds with a cohort, a deadline and a quorum; the fields are those of the federation file.

    Attributes:
        final_fit: whether the strategy wants one more round after the last.
        every_s: a round opens so long after the one before at the earliest.
        is_drawn: whether the next live device is in the cohort, by chance and not by ``seed``. A
            round may then have nobody; nobody is substituted, and the deadline closes it whoever
            has answered, because the chance of each device must not depend on the others.
        rank: the strategy's order of candidates, for the selection ``strategy``: those that it
            names first are invited first. It gets them in an order drawn by ``seed``, so what it
            leaves equal is drawn by chance.
        patience: by how many rounds an update may be late and still count; 0: late ones are
            dropped. Who is late is not invited until its update has come, or is too late for that.
    """

    rounds: int
    seed: int
    size: Literal["all"] | Amount = "all"
    minimum: int = 1
    wait_s: float = 0.0
    deadline_s: float = 600.0
    quorum: Amount = 0.5
    grace_s: float = 20.0
    every_s: float = 0.0
    final_fit: bool = False
    is_drawn: Callable[[], bool] | None = None
    over_selection: float = 1.0
    selection: Selection = "random"
    rank: Callable[[Sequence[str]], Sequence[str]] | None = None
    patience: int = 0

    def step(self, state: RoundState, event: ScheduleEvent, now: float) -> Transition:
        """The state after ``event`` at time ``now`` (seconds, any origin), and what to do.

        Events that mean nothing in the present phase leave the state as it is.
        """
        state, actions = self.take(state, event, now)
        return (state, actions) if actions else self.advance(state, now)

    def take(self, state: RoundState, event: ScheduleEvent, now: float) -> Transition:
        """What the event says, and what that alone asks for."""
        match event:
            case DeviceAppeared(device_id):
                state = membership.appeared(state, device_id)
                if state.task_of(device_id):
                    return state, (Invite(device_id),)
            case DeviceDeparted(device_id):
                state = membership.departed(state, device_id, now)
            case UpdateStored() | DeviceFailed() | UpdateRefused():
                state = membership.marked(state, event)
            case StateCommitted() if state.phase is RoundPhase.CLOSING and is_last(self, state):
                return _finished(state), (Finish(),)
            case StateCommitted() if state.phase is RoundPhase.CLOSING:
                patience = 0 if is_final(self, state.round_id + 1) else self.patience
                state = membership.following(state, patience)
            case Pause() | Resume():
                state = replace(state, paused=isinstance(event, Pause))
            case StateCommitted() | Tick():
                pass
            case _:
                assert_never(event)
        return state, ()

    def advance(self, state: RoundState, now: float) -> Transition:
        """Open, close or extend a round, if it is time."""
        if state.phase is RoundPhase.WAITING:
            return _advance_waiting(self, state, now)
        if state.phase is RoundPhase.OPEN:
            return _advance_open(self, state, now)
        return state, ()

    def resume(self, state: RoundState, now: float) -> Transition:
        """Go on from what the ledger holds of a state; ``live`` and times are not in it.

        A waiting state with ``final`` says that the round before it was the final fit.

        Clocks do not survive a process: ``membership.restored``.
        """
        final = state.final or is_final(self, state.round_id)
        patience = 0 if final else self.patience
        state = membership.restored(state, now, deadline_s=self.deadline_s, patience=patience)
        if state.phase is RoundPhase.CLOSING:
            return state, (membership.close(state),)
        all_done = state.round_id > self.rounds and not self.final_fit
        if state.phase is RoundPhase.WAITING and (state.final or all_done):
            return _finished(replace(state, round_id=state.round_id - 1)), (Finish(),)
        return state, ()

    def refusal(self, state: RoundState, device_id: str, round_id: int) -> RefusedError | None:
        """Why a device's update for a round would be refused now; None if it is welcome."""
        return membership.refusal(state, device_id, round_id, patience=self.patience)

    @property
    def last_round(self) -> int:
        """The number of the last round, a final fit included."""
        return self.rounds + self.final_fit

    def needed_devices(self, state: RoundState) -> int:
        """How many devices must be live before the awaited round opens."""
        wanted = self.size if isinstance(self.size, int) else 1
        return max(self.minimum, 1 if is_final(self, state.round_id) else wanted)


def draw(
    schedule: SynchronousSchedule, state: RoundState, candidates: Collection[str], size: int
) -> tuple[str, ...]:
    """``size`` of the candidates, sorted.

    The same for the same seed, round and attempt, and, as the selection asks, the same invitations
    before or the same server's state.
    """
    ordered = sorted(candidates)
    if size >= len(ordered):
        return tuple(ordered)
    rng = np.random.default_rng((schedule.seed, state.round_id, state.attempt))
    if schedule.selection == "random":
        chosen = rng.choice(len(ordered), size, replace=False)
        return tuple(ordered[index] for index in sorted(chosen))
    shuffled = [ordered[index] for index in rng.permutation(len(ordered))]
    if schedule.selection == "least_recent":
        ranked: Iterable[str] = sorted(shuffled, key=lambda one: state.last_invited.get(one, 0))
    else:
        ranked = _ranked(schedule, shuffled)
    return tuple(sorted(islice(ranked, size)))


def _ranked(schedule: SynchronousSchedule, shuffled: Sequence[str]) -> Iterable[str]:
    """As the strategy ranks them; those that it does not name come last."""
    named = () if schedule.rank is None else schedule.rank(shuffled)
    known = frozenset(shuffled)
    return dict.fromkeys((*(one for one in named if one in known), *shuffled))


def _finished(state: RoundState) -> RoundState:
    return replace(state, phase=RoundPhase.FINISHED, late=_NOTHING)


def is_final(schedule: SynchronousSchedule, round_id: int) -> bool:
    """Whether a round that opens now is the final fit."""
    return schedule.final_fit and round_id > schedule.rounds


def is_last(schedule: SynchronousSchedule, state: RoundState) -> bool:
    """Whether the run has finished when this round is committed."""
    return state.final or (state.round_id >= schedule.rounds and not schedule.final_fit)


def waiting(
    schedule: SynchronousSchedule, state: RoundState, present: int, now: float
) -> RoundState | None:
    """The awaited round as it still waits with so many devices; None: it opens."""
    is_closed = state.paused or now < state.rests_until
    if is_closed or present < schedule.needed_devices(state):
        return replace(state, enough_since=None)
    since = now if state.enough_since is None else state.enough_since
    if not state.warmed_up and now < since + schedule.wait_s:
        return replace(state, enough_since=since)
    return None


def _advance_waiting(schedule: SynchronousSchedule, state: RoundState, now: float) -> Transition:
    free = state.live if not state.late else [one for one in state.live if one not in state.late]
    if (still := waiting(schedule, state, len(free), now)) is not None:
        return still, ()
    total, final = len(free), is_final(schedule, state.round_id)
    size = total if final or schedule.size == "all" else count_of(schedule.size, total)
    cohort = draw(schedule, state, free, _invited(schedule, size))
    if schedule.is_drawn is not None and not final:
        cohort = tuple(device_id for device_id in sorted(free) if schedule.is_drawn())
        size = len(cohort)
    state = replace(
        state,
        phase=RoundPhase.OPEN,
        enough_since=None,
        warmed_up=True,
        cohort=cohort,
        deadline=now + schedule.deadline_s,
        rests_until=now + schedule.every_s,
        size=size,
        final=final,
        last_invited=membership.noted(state, cohort),
    )
    return state, (OpenRound(state.round_id, cohort, size, final),)


def _invited(schedule: SynchronousSchedule, size: int) -> int:
    """How many are invited so that ``size`` updates come."""
    return math.ceil(size * schedule.over_selection - 1e-9)  # 1.1 of 10 are 11, not 12


def _advance_open(schedule: SynchronousSchedule, state: RoundState, now: float) -> Transition:
    by_chance = schedule.is_drawn is not None and not state.final
    reached = by_chance or len(state.delivered) >= _needed_updates(schedule, state)
    surplus = schedule.over_selection > 1 and not state.final
    full = surplus and len(state.delivered) >= state.size
    if full or (reached and (now >= state.deadline or not _waits(schedule, state, now))):
        closing = replace(state, phase=RoundPhase.CLOSING)
        return closing, (membership.close(closing),)
    if now < state.deadline:
        return state, ()
    return _extend(schedule, state, now)


def _needed_updates(schedule: SynchronousSchedule, state: RoundState) -> int:
    """The quorum without those who cannot or must not take part: one could stop the run.

    But where that leaves less than half it stays what it is: the few may be the liars.
    """
    quorum = count_of(schedule.quorum, state.size)
    unable = (state.failed | state.refused) - state.delivered
    able = len(state.cohort) - sum(state.is_member(one) for one in unable)
    return able if able < quorum and 2 * able >= state.size else quorum


def _extend(schedule: SynchronousSchedule, state: RoundState, now: float) -> Transition:
    """Give the round its deadline again, and a live substitute for each member that is lost.

    Who was refused may try once more.
    """
    attempt = state.attempt + 1
    spare = set(state.live) - set(state.cohort) - state.late.keys()
    remaining = len(state.cohort) - len(lost(schedule, state, now))
    state = replace(state, attempt=attempt)
    added = draw(schedule, state, spare, max(state.size - remaining, 0))
    state = replace(
        state,
        cohort=tuple(sorted((*state.cohort, *added))),
        deadline=now + schedule.deadline_s,
        refused=_NOBODY,
        last_invited=membership.noted(state, added),
    )
    needed = _needed_updates(schedule, state)
    return state, (ExtendRound(state.round_id, attempt, added, needed),)


def lost(schedule: SynchronousSchedule, state: RoundState, now: float) -> set[str]:
    """Members that nobody waits for: failed, refused, or gone for longer than the grace."""
    found = membership.lost(state, now, schedule.grace_s)
    return {one for one in found if state.is_member(one)}


def _waits(schedule: SynchronousSchedule, state: RoundState, now: float) -> bool:
    """Whether there are outstanding members that are not lost."""
    over = len(state.delivered) + len(state.refused)
    if len(state.cohort) > over + len(state.failed) + len(state.gone_since):
        return True  # there are, whoever is lost; asked at every event of a large round
    return bool(set(state.outstanding) - lost(schedule, state, now))
