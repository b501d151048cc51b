from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofleet.federation.schedules.buffered import BufferedSchedule
from protofleet.federation.schedules.schedule import (
    AddMembers,
    CloseRound,
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
    StateCommitted,
    Tick,
    UpdateRefused,
    UpdateStored,
)
from protofleet.federation.schedules.synchronous import SynchronousSchedule

_RULES = SynchronousSchedule(
    rounds=100, seed=0, minimum=3, deadline_s=100.0, quorum=0.5, grace_s=5.0, patience=3
)
_SCHEDULE = BufferedSchedule(rules=_RULES, buffer=2)


def _play(state, *events, schedule=_SCHEDULE, now=0.0):
    """The state after the events, and all actions; a closed round is committed at once."""
    actions = []
    pending = list(events)
    while pending:
        state, new = schedule.step(state, pending.pop(0), now)
        actions += new
        if any(isinstance(action, CloseRound) for action in new):
            pending.insert(0, StateCommitted())
    return state, actions


def _opened(schedule=_SCHEDULE):
    return _play(RoundState(), *map(DeviceAppeared, "abc"), schedule=schedule)


def test_a_round_opens_with_all_and_closes_when_its_buffer_is_full():
    state, actions = _opened()
    assert actions == [OpenRound(1, ("a", "b", "c"), 2)]
    state, actions = _play(state, UpdateStored("b"))
    assert actions == []
    state, actions = _play(state, UpdateStored("a"))
    assert actions == [CloseRound(1, ("a", "b")), OpenRound(2, ("a", "b"), 2)]
    assert state.late == {"c": 1}


def test_a_slow_device_s_update_counts_and_it_gets_the_newest_task_at_once():
    state, _ = _play(_opened()[0], UpdateStored("a"), UpdateStored("b"))
    assert _SCHEDULE.refusal(state, "c", 1) is None
    state, actions = _play(state, UpdateStored("c"))
    assert actions == [AddMembers(2, ("c",))]
    assert (state.late_delivered, state.updates) == (frozenset("c"), 1)
    # It may deliver that one, too, into the same round.
    _, actions = _play(state, UpdateStored("c"))
    assert actions == [CloseRound(2, ("c",)), OpenRound(3, ("c",), 2)]


def test_of_each_state_a_device_trains_once():
    state, _ = _play(_opened()[0], UpdateStored("a"))
    state, actions = _play(state, DeviceAppeared("a"), Tick())
    assert actions == []
    refused = _SCHEDULE.refusal(state, "a", 1)
    assert (refused.rule, "already" in str(refused)) == ("cohort", True)


def test_with_a_buffer_of_one_each_update_is_a_state():
    schedule = replace(_SCHEDULE, buffer=1)
    state, _ = _opened(schedule)
    _, actions = _play(state, UpdateStored("b"), UpdateStored("b"), schedule=schedule)
    assert actions == [
        CloseRound(1, ("b",)),
        OpenRound(2, ("b",), 1),
        CloseRound(2, ("b",)),
        OpenRound(3, ("b",), 1),
    ]


def test_what_is_too_old_is_refused_and_its_device_gets_a_new_task():
    schedule = replace(_SCHEDULE, buffer=1)
    state, _ = _opened(schedule)
    state, _ = _play(state, *[UpdateStored("a")] * 3, schedule=schedule)
    assert (state.round_id, state.late) == (4, {"b": 1, "c": 1})
    assert schedule.refusal(state, "b", 1) is None
    state, actions = _play(state, UpdateStored("a"), schedule=schedule)
    assert actions[-1] == OpenRound(5, ("a", "b", "c"), 1)
    refused = schedule.refusal(state, "b", 1)
    assert refused.rule == "staleness"
    assert "more than 3 rounds ago" in str(refused)


def test_so_many_train_at_once_and_a_free_place_goes_to_another():
    schedule = replace(_SCHEDULE, concurrency=2)
    state, actions = _opened(schedule)
    (opened,) = actions
    assert len(opened.cohort) == 2
    (waits,) = set("abc") - set(opened.cohort)
    _, actions = _play(state, UpdateStored(opened.cohort[0]), schedule=schedule)
    assert actions == [AddMembers(1, (waits,))]


def test_a_device_that_is_gone_frees_its_place_and_may_still_deliver():
    schedule = replace(_SCHEDULE, concurrency=2)
    state, (opened,) = _opened(schedule)
    gone = opened.cohort[0]
    state, actions = _play(state, DeviceDeparted(gone), Tick(), schedule=schedule)
    assert actions == []
    state, (added,) = _play(state, Tick(), schedule=schedule, now=6.0)
    assert isinstance(added, AddMembers)
    assert schedule.refusal(state, gone, 1) is None
    # Back again, it is told of its task once more.
    _, actions = _play(state, DeviceAppeared(gone), schedule=schedule, now=7.0)
    assert actions == [Invite(gone)]


def test_who_fails_is_not_asked_again_in_the_same_round():
    state, _ = _play(_opened()[0], UpdateStored("a"), UpdateStored("b"))
    state, actions = _play(state, DeviceFailed("c"), UpdateRefused("a"), Tick())
    assert actions == []
    assert state.late == {}
    assert _SCHEDULE.refusal(state, "c", 1).rule == "round"


def test_fewer_devices_than_the_buffer_holds_are_a_synchronous_round():
    schedule = replace(_SCHEDULE, buffer=10)
    state, (opened,) = _opened(schedule)
    assert opened.size == 3
    _, actions = _play(state, *map(UpdateStored, "abc"), schedule=schedule)
    assert actions == [CloseRound(1, ("a", "b", "c")), OpenRound(2, ("a", "b", "c"), 3)]


def test_the_deadline_closes_with_the_quorum_or_offers_the_tasks_again():
    schedule = replace(_SCHEDULE, buffer=3)
    state, _ = _opened(schedule)
    state, actions = _play(state, UpdateStored("a"), Tick(), schedule=schedule, now=100.0)
    assert actions == [ExtendRound(1, 1, (), 2)]
    state, _ = _play(state, UpdateStored("b"), schedule=schedule, now=150.0)
    _, actions = _play(state, Tick(), schedule=schedule, now=200.0)
    assert actions == [CloseRound(1, ("a", "b")), OpenRound(2, ("a", "b"), 3)]


def test_while_paused_nothing_new_is_given_out_and_what_comes_counts():
    state, _ = _play(_opened()[0], UpdateStored("a"), Pause())
    state, actions = _play(state, UpdateStored("b"))
    assert actions == [CloseRound(1, ("a", "b"))]
    assert state.phase is RoundPhase.WAITING
    state, actions = _play(state, UpdateStored("c"))
    assert (actions, state.late_delivered) == ([], frozenset("c"))
    _, actions = _play(state, Resume())
    assert actions == [OpenRound(2, ("a", "b", "c"), 2)]


def test_a_paused_round_in_which_nobody_trains_closes_with_what_it_has():
    state, _ = _opened()
    _, actions = _play(state, Pause(), UpdateStored("a"), DeviceFailed("b"), DeviceFailed("c"))
    assert actions == [CloseRound(1, ("a",))]


def test_the_final_fit_invites_all_that_are_live_and_takes_nothing_older():
    rules = replace(_RULES, rounds=1, final_fit=True)
    schedule = replace(_SCHEDULE, rules=rules)
    state, _ = _play(_opened(schedule)[0], *map(UpdateStored, "ab"), schedule=schedule)
    assert (state.final, state.cohort, state.late) == (True, ("a", "b", "c"), {})
    assert schedule.refusal(state, "c", 1) is not None
    _, actions = _play(state, *map(UpdateStored, "abc"), schedule=schedule)
    assert actions == [CloseRound(2, ("a", "b", "c"), final=True), Finish()]


def test_behind_the_last_round_no_update_is_taken():
    schedule = replace(_SCHEDULE, rules=replace(_RULES, rounds=1))
    state, actions = _play(_opened(schedule)[0], *map(UpdateStored, "ab"), schedule=schedule)
    assert actions[-1] == Finish()
    assert schedule.refusal(state, "c", 1) is not None


def test_a_new_process_goes_on_with_tasks_of_earlier_rounds():
    """The ledger tells of every device's last task without an update; what is too old is over."""
    kept = RoundState(
        phase=RoundPhase.OPEN,
        round_id=6,
        cohort=("a", "b"),
        delivered=frozenset("a"),
        size=2,
        late=MappingProxyType({"c": 3, "d": 2}),
        late_delivered=frozenset(),
    )
    state, actions = _SCHEDULE.resume(kept, 50.0)
    assert actions == ()
    assert state.tasks == {"b": 6, "c": 3}
    assert state.gone_since == {"b": 50.0, "c": 50.0}
    state, actions = _play(state, DeviceAppeared("c"), now=51.0)
    assert actions == [Invite("c")]
    _, actions = _play(state, UpdateStored("c"), now=52.0)
    assert actions[0] == CloseRound(6, ("a", "c"))


_EVENTS = st.one_of(
    st.builds(
        lambda kind, who: kind(who),
        st.sampled_from(
            [
                DeviceAppeared,
                DeviceDeparted,
                UpdateStored,
                UpdateRefused,
                DeviceFailed,
            ]
        ),
        st.sampled_from("abcdef"),
    ),
    st.builds(Tick),
    st.builds(Pause),
    st.builds(Resume),
)


class _Watched:
    """Plays events and checks after each what must hold whatever happens."""

    def __init__(self, schedule):
        self.schedule = schedule
        self.state, self.now = RoundState(), 0.0
        self.given, self.counted, self.closed = {}, [], []

    def event(self, event):
        device_id = getattr(event, "device_id", None)
        if isinstance(event, UpdateStored):
            task = self.given.get(device_id, 0)
            if not task or self.schedule.refusal(self.state, device_id, task) is not None:
                return  # the coordinator does not store it
            assert self.state.round_id - task <= self.schedule.patience
            self.counted.append((device_id, task, self.state.round_id))
        before = self.state
        self.state, actions = self.schedule.step(self.state, event, self.now)
        for action in actions:
            self.action(action, before)

    def action(self, action, before):
        match action:
            case OpenRound(round_id, cohort, size):
                assert not before.paused
                assert 1 <= size <= max(self.schedule.buffer, 1)
                self.give(cohort, round_id)
            case AddMembers(round_id, cohort):
                assert cohort
                assert not before.paused
                self.give(cohort, round_id)
            case ExtendRound(round_id, _, added):
                self.give(added, round_id)
            case Invite(device_id):
                assert self.given[device_id] == self.state.task_of(device_id)
            case CloseRound(round_id, participants):
                counted = [device_id for device_id, _, r in self.counted if r == round_id]
                assert sorted(set(counted)) == list(participants)
                assert counted
                self.closed.append(round_id)
                self.event(StateCommitted())

    def give(self, cohort, round_id):
        for device_id in cohort:
            assert device_id in self.state.live
            assert self.given.get(device_id, 0) < round_id
            self.given[device_id] = round_id


@given(
    st.lists(st.tuples(st.floats(0, 60), _EVENTS), max_size=150),
    st.integers(1, 4),
    st.sampled_from(["all", 2, 0.5]),
)
def test_whatever_happens_each_update_counts_once(timed, buffer, concurrency):
    """Tasks of a device only get newer, and every update that was taken is in one closed round."""
    schedule = replace(_SCHEDULE, buffer=buffer, concurrency=concurrency)
    watched = _Watched(schedule)
    for pause, event in timed:
        watched.now += pause
        watched.event(event)
        state = watched.state
        assert not set(state.cohort) & state.late.keys()
        assert all(state.round_id - task <= schedule.patience for task in state.late.values())
    counted = [(device_id, task) for device_id, task, _ in watched.counted]
    assert len(set(counted)) == len(counted)
    assert watched.closed == list(range(1, len(watched.closed) + 1))
    open_ones = [entry for entry in watched.counted if entry[2] not in watched.closed]
    assert len(open_ones) == watched.state.updates


@pytest.mark.parametrize("devices", [1, 2, 5])
@pytest.mark.parametrize("buffer", [1, 2, 7])
def test_it_always_goes_on(devices, buffer):
    """Whoever is there and delivers, whatever the buffer holds, rounds follow each other."""
    rules = replace(_RULES, minimum=1, rounds=20)
    schedule = replace(_SCHEDULE, rules=rules, buffer=buffer)
    names = [f"d{index}" for index in range(devices)]
    state, actions = _play(RoundState(), *map(DeviceAppeared, names), schedule=schedule)
    for _ in range(20 * buffer + 1):
        if state.phase is RoundPhase.FINISHED:
            break
        state, actions = _play(state, UpdateStored(min(state.tasks)), schedule=schedule)
    assert actions[-1] == Finish()
