"""The round as one explicit, pure state machine: events in, actions out, time as an argument.

::

    WAITING ── enough live devices ──► OPEN ── all in, or deadline with quorum ──► CLOSING
       ▲                               │ ▲                                            │
       │                               └─┘ deadline below quorum: extend, add devices │
       └───────────────────────── Committed ◄─────────────────────────────────────────┘
                                     └── last round ──► FINISHED

A strategy with a final fit has one more round after the last: every live device is invited, and
its closing aggregates nothing.

The caller writes an action into the ledger before it performs it, so a process that is killed
anywhere builds the same state again with ``resume``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Literal, assert_never

import numpy as np

from protofleet.federation.settings import Amount, count_of

_NOBODY: frozenset[str] = frozenset()


class Phase(Enum):
    """Where a federation stands."""

    WAITING = "waiting"
    OPEN = "open"
    CLOSING = "closing"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What decides a round; the fields are those of the federation file.

    Attributes:
        final_fit: whether the strategy wants one more round after the last.
    """

    rounds: int
    seed: int
    size: Literal["all"] | Amount = "all"
    minimum: int = 1
    wait_s: float = 0.0
    deadline_s: float = 600.0
    quorum: Amount = 0.5
    grace_s: float = 20.0
    final_fit: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
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
        gone_since: absent members → since when.
        deadline: when the open round ends.
        attempt: how often the open round was extended.
        size: number of devices the open round was drawn with; substitutes do not change it.
        final: whether the open or closing round is the final fit.
    """

    phase: Phase = Phase.WAITING
    round_id: int = 1
    live: frozenset[str] = _NOBODY
    enough_since: float | None = None
    warmed_up: bool = False
    cohort: tuple[str, ...] = ()
    delivered: frozenset[str] = _NOBODY
    failed: frozenset[str] = _NOBODY
    gone_since: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    deadline: float = 0.0
    attempt: int = 0
    size: int = 0
    final: bool = False

    @property
    def outstanding(self) -> tuple[str, ...]:
        """Members of the open round whose update is not in yet."""
        return tuple(c for c in self.cohort if c not in self.delivered)


@dataclass(frozen=True, slots=True)
class Appeared:
    """A device is present, for the first time or again after a reconnect or restart."""

    client_id: str


@dataclass(frozen=True, slots=True)
class Departed:
    """A device left, lost its connection or fell silent."""

    client_id: str


@dataclass(frozen=True, slots=True)
class Delivered:
    """A member's valid update is on disk and in the ledger."""

    client_id: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A member refused its task and will not deliver."""

    client_id: str


@dataclass(frozen=True, slots=True)
class Committed:
    """The closing round's new server state is on disk and in the ledger."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Appeared | Departed | Delivered | Failed | Committed | Tick


@dataclass(frozen=True, slots=True)
class Open:
    """Start a round with this cohort: every member gets its task."""

    round_id: int
    cohort: tuple[str, ...]
    final: bool = False


@dataclass(frozen=True, slots=True)
class Invite:
    """Send one member of the open round its task (again)."""

    client_id: str


@dataclass(frozen=True, slots=True)
class Extend:
    """The quorum was missed: go on with the same round and payload, and invite ``added`` too."""

    round_id: int
    attempt: int
    added: tuple[str, ...]
    needed: int


@dataclass(frozen=True, slots=True)
class Close:
    """Accept no more updates; aggregate those of ``participants``, unless it was the final fit."""

    round_id: int
    participants: tuple[str, ...]
    final: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """All rounds are committed."""


Action = Open | Invite | Extend | Close | Finish
Result = tuple[State, tuple[Action, ...]]


def step(policy: Policy, state: State, event: Event, now: float) -> Result:
    """The state after ``event`` at time ``now`` (seconds, any origin), and what to do.

    Events that mean nothing in the present phase leave the state as it is.
    """
    match event:
        case Appeared(client_id):
            state = _appeared(state, client_id)
            if state.phase is Phase.OPEN and client_id in state.outstanding:
                return state, (Invite(client_id),)
        case Departed(client_id):
            state = _departed(state, client_id, now)
        case Delivered(client_id):
            state = _marked(state, client_id, "delivered")
        case Failed(client_id):
            state = _marked(state, client_id, "failed")
        case Committed() if state.phase is Phase.CLOSING and _is_last(policy, state):
            return replace(state, phase=Phase.FINISHED), (Finish(),)
        case Committed() if state.phase is Phase.CLOSING:
            state = State(round_id=state.round_id + 1, live=state.live, warmed_up=state.warmed_up)
        case Committed():
            pass
        case Tick():
            pass
        case _:
            assert_never(event)
    return _advance(policy, state, now)


def resume(policy: Policy, state: State, now: float) -> Result:
    """Go on from what the ledger holds: phase, round, cohort, delivered, attempt and final.

    A waiting state with ``final`` says that the round before it was the final fit.

    Clocks do not survive a process: the open round gets its whole deadline again, and members
    whose update is missing count as gone from now on until they show themselves.
    """
    state = replace(
        state,
        live=_NOBODY,
        enough_since=None,
        warmed_up=False,
        failed=_NOBODY,
        gone_since=MappingProxyType(dict.fromkeys(state.outstanding, now)),
        deadline=now + policy.deadline_s,
    )
    if state.phase is Phase.CLOSING:
        return state, (_close(state),)
    all_done = state.round_id > policy.rounds and not policy.final_fit
    if state.phase is Phase.WAITING and (state.final or all_done):
        return replace(state, phase=Phase.FINISHED, round_id=state.round_id - 1), (Finish(),)
    return state, ()


def refusal(state: State, client_id: str, round_id: int) -> str | None:
    """Why an update would be refused now; None if it is welcome."""
    if round_id > state.round_id:
        return f"round {round_id} has not begun; the federation is in round {state.round_id}"
    if round_id < state.round_id or state.phase is not Phase.OPEN:
        return f"too late: round {round_id} is closed"
    if client_id not in state.cohort:
        return f"not in the cohort of round {round_id}"
    if client_id in state.delivered:
        return f"an update for round {round_id} was accepted already"
    return None


def draw(
    policy: Policy, round_id: int, attempt: int, candidates: Collection[str], size: int
) -> tuple[str, ...]:
    """``size`` of the candidates, sorted; the same for the same seed, round and attempt."""
    ordered = sorted(candidates)
    if size >= len(ordered):
        return tuple(ordered)
    rng = np.random.default_rng((policy.seed, round_id, attempt))
    chosen = rng.choice(len(ordered), size, replace=False)
    return tuple(ordered[index] for index in sorted(chosen))


def needed_devices(policy: Policy, round_id: int) -> int:
    """How many devices must be live before a round opens."""
    wanted = policy.size if isinstance(policy.size, int) else 1
    return max(policy.minimum, 1 if _is_final(policy, round_id) else wanted)


def _is_final(policy: Policy, round_id: int) -> bool:
    """Whether a round that opens now is the final fit."""
    return policy.final_fit and round_id > policy.rounds


def _is_last(policy: Policy, state: State) -> bool:
    return state.final or (state.round_id >= policy.rounds and not policy.final_fit)


def _appeared(state: State, client_id: str) -> State:
    gone = {c: since for c, since in state.gone_since.items() if c != client_id}
    return replace(
        state,
        live=state.live | {client_id},
        failed=state.failed - {client_id},
        gone_since=MappingProxyType(gone),
    )


def _departed(state: State, client_id: str, now: float) -> State:
    gone = dict(state.gone_since)
    if state.phase is Phase.OPEN and client_id in state.outstanding:
        gone.setdefault(client_id, now)
    return replace(state, live=state.live - {client_id}, gone_since=MappingProxyType(gone))


def _marked(state: State, client_id: str, what: Literal["delivered", "failed"]) -> State:
    if state.phase is not Phase.OPEN or client_id not in state.outstanding:
        return state
    if what == "failed":
        return replace(state, failed=state.failed | {client_id})
    return replace(state, delivered=state.delivered | {client_id})


def _advance(policy: Policy, state: State, now: float) -> Result:
    if state.phase is Phase.WAITING:
        return _advance_waiting(policy, state, now)
    if state.phase is Phase.OPEN:
        return _advance_open(policy, state, now)
    return state, ()


def _advance_waiting(policy: Policy, state: State, now: float) -> Result:
    if len(state.live) < needed_devices(policy, state.round_id):
        return replace(state, enough_since=None), ()
    since = now if state.enough_since is None else state.enough_since
    if not state.warmed_up and now < since + policy.wait_s:
        return replace(state, enough_since=since), ()
    total, final = len(state.live), _is_final(policy, state.round_id)
    size = total if final or policy.size == "all" else count_of(policy.size, total)
    cohort = draw(policy, state.round_id, 0, state.live, size)
    state = replace(
        state,
        phase=Phase.OPEN,
        enough_since=None,
        warmed_up=True,
        cohort=cohort,
        deadline=now + policy.deadline_s,
        size=size,
        final=final,
    )
    return state, (Open(state.round_id, cohort, final),)


def _advance_open(policy: Policy, state: State, now: float) -> Result:
    reached = len(state.delivered) >= count_of(policy.quorum, state.size)
    remaining = set(state.outstanding) - lost(policy, state, now)
    if reached and (not remaining or now >= state.deadline):
        closing = replace(state, phase=Phase.CLOSING)
        return closing, (_close(closing),)
    if now < state.deadline:
        return state, ()
    return _extend(policy, state, now)


def _extend(policy: Policy, state: State, now: float) -> Result:
    """Give the round its deadline again, and a live substitute for each member that is lost."""
    attempt = state.attempt + 1
    spare = state.live - set(state.cohort)
    remaining = len(state.cohort) - len(lost(policy, state, now))
    added = draw(policy, state.round_id, attempt, spare, max(state.size - remaining, 0))
    state = replace(
        state,
        cohort=tuple(sorted((*state.cohort, *added))),
        deadline=now + policy.deadline_s,
        attempt=attempt,
    )
    needed = count_of(policy.quorum, state.size)
    return state, (Extend(state.round_id, attempt, added, needed),)


def lost(policy: Policy, state: State, now: float) -> set[str]:
    """Outstanding members that nobody waits for: failed, or gone for longer than the grace."""
    gone = {c for c, since in state.gone_since.items() if now >= since + policy.grace_s}
    return (gone | state.failed) - state.delivered


def _close(state: State) -> Close:
    return Close(state.round_id, tuple(sorted(state.delivered)), state.final)
