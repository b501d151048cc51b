"""What events make of a round's members, whatever the rules by which it opens and closes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from protofleet.errors import RefusedError
from protofleet.federation.schedules.live_set import LiveSet
from protofleet.federation.schedules.schedule import (
    CloseRound,
    DeviceFailed,
    RoundPhase,
    RoundState,
    UpdateRefused,
    UpdateStored,
)

_NOBODY: frozenset[str] = frozenset()


def appeared(state: RoundState, device_id: str) -> RoundState:
    """A device is there (again)."""
    gone_since, failed = state.gone_since, state.failed
    if device_id in gone_since:
        gone_since = without(gone_since, device_id)
    if device_id in failed:
        failed -= {device_id}
    live = state.live.including(device_id)
    return replace(state, live=live, failed=failed, gone_since=gone_since)


def departed(state: RoundState, device_id: str, now: float) -> RoundState:
    """A device is not there any more."""
    gone_since = state.gone_since
    if state.task_of(device_id) and device_id not in gone_since:
        gone_since = MappingProxyType({**gone_since, device_id: now})
    return replace(state, live=state.live.excluding(device_id), gone_since=gone_since)


def marked(state: RoundState, event: UpdateStored | DeviceFailed | UpdateRefused) -> RoundState:
    """What has become of a device's task; nothing where it had none."""
    member = frozenset({event.device_id})
    if event.device_id in state.late:
        state = replace(state, late=without(state.late, event.device_id))
        if isinstance(event, UpdateStored):
            return replace(state, late_delivered=state.late_delivered | member)
        # It may have the open round's task, but not at once: it would do the same with that.
        return replace(state, failed=state.failed | member)
    if not state.task_of(event.device_id):
        return state
    match event:
        case UpdateStored():
            return replace(state, delivered=state.delivered | member)
        case DeviceFailed():
            return replace(state, failed=state.failed | member)
        case UpdateRefused():
            return replace(state, refused=state.refused | member)


def stored(state: RoundState, device_ids: Collection[str]) -> RoundState:
    """As ``marked`` with ``UpdateStored`` for one device after the other.

    The sets, which grow with the round, are copied once for all of them.
    """
    late = frozenset(one for one in device_ids if one in state.late)
    in_time = frozenset(one for one in device_ids if one not in late and state.task_of(one))
    kept = {one: task for one, task in state.late.items() if one not in late}
    return replace(
        state,
        late=MappingProxyType(kept) if late else state.late,
        late_delivered=state.late_delivered | late if late else state.late_delivered,
        delivered=state.delivered | in_time if in_time else state.delivered,
    )


def following(state: RoundState, patience: int) -> RoundState:
    """The state after a round's commit: the next one is awaited.

    Args:
        state: of the closing round.
        patience: by how many rounds an update may be late.
    """
    next_round = state.round_id + 1
    late = {
        device_id: round_id
        for device_id, round_id in state.tasks.items()
        if next_round - round_id <= patience and device_id not in state.failed
    }
    return RoundState(
        round_id=next_round,
        live=state.live,
        warmed_up=state.warmed_up,
        last_invited=state.last_invited,
        paused=state.paused,
        rests_until=state.rests_until,
        late=MappingProxyType(late),
        gone_since=MappingProxyType({d: s for d, s in state.gone_since.items() if d in late}),
    )


def restored(state: RoundState, now: float, *, deadline_s: float, patience: int) -> RoundState:
    """The state of a new process; ``state`` is what the ledger holds of it.

    Clocks do not survive a process: the open round gets its whole deadline again, and devices
    whose update is missing count as gone from now on until they show themselves.
    """
    due = {d: task for d, task in state.late.items() if state.round_id - task <= patience}
    state = replace(
        state,
        live=LiveSet(),
        enough_since=None,
        warmed_up=False,
        failed=_NOBODY,
        refused=_NOBODY,
        deadline=now + deadline_s,
        late=MappingProxyType(due),
    )
    return replace(state, gone_since=MappingProxyType(dict.fromkeys(state.tasks, now)))


def refusal(
    state: RoundState, device_id: str, round_id: int, *, patience: int
) -> RefusedError | None:
    """Why a device's update for a round would be refused now; None if it is welcome.

    Args:
        state: where the federation stands.
        device_id: whose.
        round_id: of its task.
        patience: by how many rounds it may be late.
    """
    late = state.round_id - round_id
    if late < 0:
        rule, reason = (
            "round",
            f"round {round_id} has not begun; the federation is in round {state.round_id}",
        )
    elif state.task_of(device_id) == round_id and state.phase is not RoundPhase.CLOSING:
        return None
    elif patience and late > patience:
        rule, reason = (
            "staleness",
            f"too late: round {round_id} is more than {patience} rounds ago",
        )
    elif late or state.phase is not RoundPhase.OPEN:
        rule, reason = "round", f"too late: round {round_id} is closed"
    elif device_id not in state.cohort:
        rule, reason = "cohort", f"not in the cohort of round {round_id}"
    elif device_id in state.delivered:
        rule, reason = "cohort", f"an update for round {round_id} was accepted already"
    else:
        rule, reason = "cohort", f"an update for round {round_id} was refused already"
    return RefusedError(rule, reason)


def lost(state: RoundState, now: float, grace_s: float) -> set[str]:
    """Devices that nobody waits for: failed, refused, or gone for longer than the grace."""
    gone = {c for c, since in state.gone_since.items() if now >= since + grace_s}
    return (gone | state.failed | state.refused) - state.delivered


def noted(state: RoundState, invited: tuple[str, ...]) -> Mapping[str, int]:
    """``last_invited`` after these were invited to the awaited or open round."""
    return MappingProxyType({**state.last_invited, **dict.fromkeys(invited, state.round_id)})


def close(state: RoundState) -> CloseRound:
    """The action that closes the round with all that has come."""
    participants = tuple(sorted(state.delivered | state.late_delivered))
    return CloseRound(state.round_id, participants, state.final)


def without(
    known: Mapping[str, int] | Mapping[str, float], device_id: str
) -> MappingProxyType[str, Any]:
    """The mapping but for one device."""
    return MappingProxyType({d: value for d, value in known.items() if d != device_id})
