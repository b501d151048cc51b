"""The round's state machine under a virtual clock."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from protofleet.federation.schedules import membership
from protofleet.federation.schedules.schedule import (
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
from protofleet.federation.schedules.synchronous import SynchronousSchedule, draw, lost

_SCHEDULE = SynchronousSchedule(
    rounds=2, seed=7, minimum=3, deadline_s=100.0, quorum=0.5, grace_s=10.0
)


def _play(schedule, *timed, state=None):
    """Feed (time, event) pairs; the last state and all actions."""
    state, done = state or RoundState(), []
    for now, event in timed:
        state, actions = schedule.step(state, event, now)
        done += actions
    return state, done


def _opened(schedule=_SCHEDULE, devices="abc"):
    state, actions = _play(schedule, *[(0.0, DeviceAppeared(d)) for d in devices])
    assert state.phase is RoundPhase.OPEN
    return state, actions


def test_a_round_opens_no_sooner_than_its_pace_allows_and_devices_may_come_meanwhile():
    daily = replace(_SCHEDULE, every_s=1000.0)
    state, _ = _play(daily, *[(5.0, DeviceAppeared(one)) for one in "abc"])
    events = [*[(20.0, UpdateStored(one)) for one in "abc"], (21.0, StateCommitted())]
    events += [(22.0, DeviceAppeared("d")), (1004.9, Tick())]
    state, actions = _play(daily, *events, state=state)
    assert (state.phase, state.round_id) == (RoundPhase.WAITING, 2)
    assert [type(one) for one in actions] == [CloseRound]
    state, actions = daily.step(state, Tick(), 1005.0)
    assert actions == (OpenRound(2, tuple("abcd"), 4),)
    assert state.rests_until == 2005.0


def test_a_round_that_lasts_longer_than_its_pace_is_followed_at_once():
    hasty = replace(_SCHEDULE, every_s=10.0)
    state, _ = _play(hasty, *[(0.0, DeviceAppeared(one)) for one in "abc"])
    state, actions = _play(
        hasty, *[(50.0, UpdateStored(one)) for one in "abc"], (51.0, StateCommitted()), state=state
    )
    assert actions[-1] == OpenRound(2, tuple("abc"), 3)


def test_a_new_process_does_not_wait_for_the_pace():
    daily = replace(_SCHEDULE, every_s=1000.0)
    state, _ = daily.resume(RoundState(round_id=2), 5.0)
    state, actions = _play(daily, *[(6.0, DeviceAppeared(one)) for one in "abc"], state=state)
    assert actions == [OpenRound(2, tuple("abc"), 3)]


def test_a_round_opens_when_the_minimum_is_live():
    state, actions = _play(
        _SCHEDULE, (0.0, DeviceAppeared("b")), (1.0, DeviceAppeared("a")), (2.0, Tick())
    )
    assert (state.phase, actions) == (RoundPhase.WAITING, [])
    state, actions = _SCHEDULE.step(state, DeviceAppeared("c"), 3.0)
    assert actions == (OpenRound(1, ("a", "b", "c"), 3),)
    assert state.deadline == 103.0


def test_while_the_operator_pauses_the_open_round_ends_and_no_other_opens():
    state, _ = _opened()
    state, actions = _play(
        _SCHEDULE,
        (1.0, Pause()),
        *[(2.0, UpdateStored(d)) for d in "abc"],
        (3.0, StateCommitted()),
        (500.0, Tick()),
        state=state,
    )
    assert [type(action) for action in actions] == [CloseRound]
    assert (state.phase, state.round_id, state.paused) == (RoundPhase.WAITING, 2, True)
    assert _SCHEDULE.resume(state, 0.0)[0].paused
    _, actions = _SCHEDULE.step(state, Resume(), 501.0)
    assert actions == (OpenRound(2, ("a", "b", "c"), 3),)


def test_the_first_round_waits_for_stragglers_and_later_ones_do_not():
    schedule = replace(_SCHEDULE, minimum=1, wait_s=5.0)
    state, actions = _play(
        schedule, (0.0, DeviceAppeared("a")), (4.0, DeviceAppeared("b")), (4.9, Tick())
    )
    assert actions == []
    state, actions = _play(schedule, (5.0, Tick()), state=state)
    assert actions == [OpenRound(1, ("a", "b"), 2)]
    state, actions = _play(
        schedule,
        (6.0, UpdateStored("a")),
        (6.0, UpdateStored("b")),
        (6.1, StateCommitted()),
        state=state,
    )
    assert actions == [CloseRound(1, ("a", "b")), OpenRound(2, ("a", "b"), 2)]


def test_a_round_closes_when_all_updates_are_in_and_the_last_one_finishes():
    state, _ = _opened(replace(_SCHEDULE, rounds=1))
    schedule = replace(_SCHEDULE, rounds=1)
    state, actions = _play(schedule, *[(1.0, UpdateStored(d)) for d in "cab"], state=state)
    assert actions == [CloseRound(1, ("a", "b", "c"))]
    state, actions = _play(
        schedule, (2.0, StateCommitted()), (3.0, Tick()), (3.0, StateCommitted()), state=state
    )
    assert (state.phase, actions) == (RoundPhase.FINISHED, [Finish()])


def test_at_the_deadline_the_quorum_closes_the_round():
    state, _ = _opened()
    state, actions = _play(
        _SCHEDULE, (1.0, UpdateStored("a")), (2.0, UpdateStored("b")), (99.0, Tick()), state=state
    )
    assert actions == []
    state, actions = _play(_SCHEDULE, (100.0, Tick()), state=state)
    assert actions == [CloseRound(1, ("a", "b"))]


def test_below_the_quorum_the_round_is_extended_with_substitutes_for_the_lost():
    state, _ = _opened()
    state, actions = _play(
        _SCHEDULE,
        (1.0, UpdateStored("a")),
        (2.0, DeviceDeparted("b")),
        (3.0, DeviceAppeared("d")),
        (3.0, DeviceAppeared("e")),
        (100.0, Tick()),
        state=state,
    )
    (extend,) = actions
    assert isinstance(extend, ExtendRound)
    assert (extend.round_id, extend.attempt, extend.needed) == (1, 1, 2)
    assert len(extend.added) == 1
    assert set(extend.added) < {"d", "e"}
    assert state.deadline == 200.0
    assert set(state.cohort) == {"a", "b", "c", *extend.added}
    state, actions = _play(
        _SCHEDULE, (101.0, UpdateStored(extend.added[0])), (200.0, Tick()), state=state
    )
    assert actions == [CloseRound(1, tuple(sorted({"a", *extend.added})))]


def test_lost_members_let_the_round_close_after_their_grace():
    state, _ = _opened()
    state, actions = _play(
        _SCHEDULE,
        (1.0, UpdateStored("a")),
        (1.0, UpdateStored("b")),
        (5.0, DeviceDeparted("c")),
        (14.9, Tick()),
        state=state,
    )
    assert actions == []
    _, actions = _play(_SCHEDULE, (15.0, Tick()), state=state)
    assert actions == [CloseRound(1, ("a", "b"))]


def test_a_member_that_returns_within_its_grace_is_invited_again_and_awaited():
    state, _ = _opened()
    state, actions = _play(
        _SCHEDULE,
        (1.0, UpdateStored("a")),
        (1.0, UpdateStored("b")),
        (5.0, DeviceDeparted("c")),
        (14.0, DeviceAppeared("c")),
        (50.0, Tick()),
        state=state,
    )
    assert actions == [Invite("c")]
    assert state.phase is RoundPhase.OPEN


def test_a_member_that_delivered_is_not_invited_again():
    state, _ = _opened()
    _, actions = _play(_SCHEDULE, (1.0, UpdateStored("a")), (2.0, DeviceAppeared("a")), state=state)
    assert actions == []


def test_a_member_that_delivered_before_it_left_needs_no_substitute():
    state, _ = _opened(replace(_SCHEDULE, quorum=1.0))
    state, _ = _play(_SCHEDULE, (1.0, DeviceDeparted("a")), (2.0, UpdateStored("a")), state=state)
    assert "a" not in lost(_SCHEDULE, state, 1000.0)


def test_a_member_that_failed_is_not_awaited():
    state, _ = _opened()
    _, actions = _play(
        _SCHEDULE,
        (1.0, DeviceFailed("a")),
        (2.0, UpdateStored("b")),
        (2.0, UpdateStored("c")),
        state=state,
    )
    assert actions == [CloseRound(1, ("b", "c"))]


_FINAL = replace(_SCHEDULE, rounds=1, size=2, minimum=2, final_fit=True)


_ALL = replace(_SCHEDULE, quorum=1.0)


def test_a_member_that_was_refused_is_not_needed_and_not_invited_again():
    state, _ = _opened(_ALL)
    state, actions = _play(
        _ALL,
        (1.0, UpdateRefused("c")),
        (2.0, DeviceAppeared("c")),
        (3.0, UpdateStored("a")),
        (4.0, UpdateStored("b")),
        state=state,
    )
    assert actions == [CloseRound(1, ("a", "b"))]
    refusal = _ALL.refusal(replace(state, phase=RoundPhase.OPEN), "c", 1)
    assert "was refused already" in str(refusal)


def test_where_most_are_refused_the_few_that_are_left_make_no_round_and_all_may_try_again():
    """They may be the liars, and the bounds wrong."""
    state, _ = _opened(_ALL)
    state, actions = _play(
        _ALL,
        (1.0, UpdateRefused("a")),
        (2.0, UpdateRefused("b")),
        (3.0, UpdateStored("c")),
        (100.0, Tick()),
        state=state,
    )
    assert actions == [ExtendRound(1, 1, (), 3)]
    assert state.outstanding == ("a", "b")
    _, actions = _play(_ALL, (101.0, UpdateStored("a")), (102.0, UpdateStored("b")), state=state)
    assert actions == [CloseRound(1, ("a", "b", "c"))]


def _last_round_done(schedule=_FINAL):
    """Four live devices, two of which took part in the only round; it is committed."""
    state, (opened,) = _play(schedule, *[(0.0, DeviceAppeared(d)) for d in "ab"])
    state, _ = _play(schedule, *[(0.0, DeviceAppeared(d)) for d in "cd"], state=state)
    state, _ = _play(schedule, *[(1.0, UpdateStored(d)) for d in opened.cohort], state=state)
    return _play(schedule, (2.0, StateCommitted()), state=state)


def test_after_the_last_round_every_live_device_makes_one_more_fit():
    """The sampled size does not bound it; its close and its end say what it was."""
    state, actions = _last_round_done()
    assert actions == [OpenRound(2, ("a", "b", "c", "d"), 4, final=True)]
    assert (state.final, state.size) == (True, 4)
    state, actions = _play(_FINAL, *[(3.0, UpdateStored(d)) for d in "abcd"], state=state)
    assert actions == [CloseRound(2, ("a", "b", "c", "d"), final=True)]
    state, actions = _play(_FINAL, (4.0, StateCommitted()), (5.0, Tick()), state=state)
    assert (state.phase, state.round_id, actions) == (RoundPhase.FINISHED, 2, [Finish()])


def test_a_final_fit_has_deadline_quorum_and_grace_as_any_round():
    state, _ = _last_round_done()
    state, actions = _play(_FINAL, (3.0, UpdateStored("a")), (101.9, Tick()), state=state)
    assert actions == []
    state, (extend,) = _play(_FINAL, (102.0, Tick()), state=state)
    assert (extend.needed, state.final) == (2, True)
    _, actions = _play(_FINAL, (103.0, UpdateStored("d")), (202.0, Tick()), state=state)
    assert actions == [CloseRound(2, ("a", "d"), final=True)]


def test_a_final_fit_waits_for_the_minimum_only_and_not_for_a_counted_size():
    schedule = replace(_FINAL, size=3, minimum=1)
    assert schedule.needed_devices(RoundState(round_id=1)) == 3
    assert schedule.needed_devices(RoundState(round_id=2)) == 1


def test_a_final_fit_is_resumed_as_what_it_was():
    """Open, closing, not yet opened and committed: also where the file has other rounds by now."""
    held = RoundState(phase=RoundPhase.OPEN, round_id=2, cohort=("a", "b"), size=2, final=True)
    for schedule in (_FINAL, replace(_FINAL, rounds=9)):
        state, actions = schedule.resume(held, 0.0)
        assert (state.phase, state.final, actions) == (RoundPhase.OPEN, True, ())
        closing = replace(held, phase=RoundPhase.CLOSING, delivered=frozenset("ab"))
        state, actions = schedule.resume(closing, 0.0)
        assert actions == (CloseRound(2, ("a", "b"), final=True),)
        assert _play(schedule, (1.0, StateCommitted()), state=state)[1] == [Finish()]
        state, actions = schedule.resume(RoundState(round_id=3, final=True), 0.0)
        assert (state.phase, state.round_id, actions) == (RoundPhase.FINISHED, 2, (Finish(),))
    state, actions = _FINAL.resume(RoundState(round_id=2), 0.0)
    assert (state.phase, actions) == (RoundPhase.WAITING, ())
    _, actions = _play(_FINAL, *[(1.0, DeviceAppeared(d)) for d in "ab"], state=state)
    assert actions == [OpenRound(2, ("a", "b"), 2, final=True)]


def test_updates_are_welcome_from_cohort_members_of_the_open_round_once():
    state, _ = _opened()
    state, _ = _play(_SCHEDULE, (1.0, UpdateStored("a")), state=state)
    assert _SCHEDULE.refusal(state, "b", 1) is None
    assert "accepted already" in str(_SCHEDULE.refusal(state, "a", 1))
    assert "cohort" in str(_SCHEDULE.refusal(state, "x", 1))
    assert "not begun" in str(_SCHEDULE.refusal(state, "b", 2))
    assert "too late" in str(_SCHEDULE.refusal(state, "b", 0))
    closing, _ = _play(_SCHEDULE, (1.0, UpdateStored("b")), (1.0, UpdateStored("c")), state=state)
    assert "too late" in str(_SCHEDULE.refusal(closing, "c", 1))
    assert _SCHEDULE.refusal(closing, "c", 1).rule == "round"
    assert _SCHEDULE.refusal(state, "x", 1).rule == "cohort"


def _cohorts(schedule, names):
    return [draw(schedule, RoundState(round_id=r), names, 3) for r in range(1, 30)]


_SURPLUS = replace(_SCHEDULE, size=4, minimum=8, over_selection=1.5)


def test_more_are_invited_than_needed_and_the_round_closes_when_enough_are_in():
    state, actions = _opened(_SURPLUS, "abcdefgh")
    (opened,) = actions[-1:]
    assert (opened.size, len(opened.cohort)) == (4, 6)
    first = opened.cohort[:4]
    state, actions = _play(_SURPLUS, *[(1.0, UpdateStored(d)) for d in first[:3]], state=state)
    assert actions == []
    state, actions = _play(_SURPLUS, (1.0, UpdateStored(first[3])), state=state)
    assert actions == [CloseRound(1, first)]
    assert _SURPLUS.refusal(state, opened.cohort[4], 1).rule == "round"


def test_the_surplus_stands_in_for_those_who_drop_out():
    state, actions = _opened(_SURPLUS, "abcdefgh")
    cohort = actions[-1].cohort
    gone = [(1.0, DeviceDeparted(d)) for d in cohort[:2]]
    _, actions = _play(_SURPLUS, *gone, *[(2.0, UpdateStored(d)) for d in cohort[2:]], state=state)
    assert actions == [CloseRound(1, cohort[2:])]


def test_of_a_tenth_more_than_ten_eleven_are_invited_and_no_more_than_are_there():
    schedule = replace(_SCHEDULE, size=10, minimum=20, over_selection=1.1)
    _, actions = _opened(schedule, [f"d{i}" for i in range(20)])
    assert len(actions[-1].cohort) == 11
    _, actions = _opened(replace(schedule, minimum=10), [f"d{i}" for i in range(10)])
    assert (len(actions[-1].cohort), actions[-1].size) == (10, 10)
    # 50 · 1.1 is a little more than 55 in binary fractions.
    _, actions = _opened(replace(schedule, size=50, minimum=60), [f"d{i}" for i in range(60)])
    assert len(actions[-1].cohort) == 55


def test_substitutes_make_up_what_is_wanted_and_count_as_invited():
    """The surplus is not made up, and rotation knows of whom an extension has added."""
    surplus = replace(_SURPLUS, selection="least_recent")
    state, actions = _opened(surplus, "abcdefgh")
    cohort = actions[-1].cohort
    gone = [(1.0, DeviceDeparted(d)) for d in cohort[:3]]
    state, (extend,) = _play(surplus, *gone, (100.0, Tick()), state=state)
    assert len(extend.added) == 1
    assert set(state.last_invited) == {*cohort, *extend.added}


def test_a_final_fit_invites_everybody_and_waits_for_everybody():
    schedule = replace(_SURPLUS, rounds=1, final_fit=True, size=2, minimum=4)
    state = RoundState(round_id=2, warmed_up=True)
    state, actions = _play(schedule, *[(0.0, DeviceAppeared(d)) for d in "abcd"], state=state)
    cohort = actions[-1].cohort
    assert (actions[-1].final, actions[-1].size) == (True, len(cohort))
    _, actions = _play(schedule, *[(1.0, UpdateStored(d)) for d in cohort[:-1]], state=state)
    assert actions == []


def _rounds(schedule, names, count, state=None):
    """The cohorts of rounds in which everybody delivers."""
    state, actions = _play(schedule, *[(0.0, DeviceAppeared(d)) for d in names], state=state)
    cohorts = []
    while len(cohorts) < count:
        (opened,) = [action for action in actions if isinstance(action, OpenRound)]
        cohorts.append(opened.cohort)
        stored = [(1.0, UpdateStored(d)) for d in opened.cohort]
        state, actions = _play(schedule, *stored, (1.0, StateCommitted()), state=state)
    return cohorts


def test_least_recent_invites_every_device_once_before_any_twice():
    schedule = replace(_SCHEDULE, rounds=100, size=4, minimum=12, selection="least_recent")
    names = [f"d{i}" for i in range(12)]
    cohorts = _rounds(schedule, names, 9)
    for turn in range(3):
        assert sorted(sum(cohorts[3 * turn : 3 * turn + 3], ())) == sorted(names)
    assert cohorts == _rounds(schedule, names[::-1], 9)
    assert cohorts != _rounds(replace(schedule, seed=8), names, 9)


def test_least_recent_goes_on_from_the_invitations_that_a_ledger_holds():
    schedule = replace(_SCHEDULE, rounds=100, size=4, minimum=12, selection="least_recent")
    names = [f"d{i}" for i in range(12)]
    cohorts = _rounds(schedule, names, 5)
    invited = {d: r for r, cohort in enumerate(cohorts[:2], 1) for d in cohort}
    held, _ = schedule.resume(RoundState(round_id=3, last_invited=invited), 0.0)
    assert _rounds(schedule, names, 3, held) == cohorts[2:]


def test_the_strategy_ranks_and_chance_fills_up():
    schedule = replace(
        _SCHEDULE,
        rounds=100,
        size=3,
        minimum=8,
        selection="strategy",
        rank=lambda _: ["h", "?", "g"],
    )
    cohorts = _rounds(schedule, "abcdefgh", 8)
    assert all({"g", "h"} < set(cohort) for cohort in cohorts)
    assert len(set(cohorts)) > 2


def test_cohorts_depend_on_seed_round_and_devices_only():
    schedule = replace(_SCHEDULE, size=3)
    names = [f"d{i}" for i in range(20)]
    cohorts = _cohorts(schedule, names)
    assert cohorts == _cohorts(schedule, names[::-1])
    assert len(set(cohorts)) > 20
    assert cohorts != _cohorts(replace(schedule, seed=8), names)


def test_a_resumed_round_keeps_cohort_and_updates_and_gets_its_deadline_again():
    held = RoundState(
        phase=RoundPhase.OPEN, round_id=2, cohort=("a", "b", "c"), delivered=frozenset("a"), size=3
    )
    state, actions = _SCHEDULE.resume(held, 1000.0)
    assert actions == ()
    assert (state.cohort, state.delivered, state.deadline) == (held.cohort, held.delivered, 1100.0)
    state, actions = _play(
        _SCHEDULE, (1001.0, DeviceAppeared("a")), (1001.0, DeviceAppeared("b")), state=state
    )
    assert actions == [Invite("b")]


def test_a_resumed_closing_round_closes_with_the_same_participants():
    held = RoundState(
        phase=RoundPhase.CLOSING, round_id=1, cohort=("a", "b"), delivered=frozenset("ba"), size=2
    )
    assert _SCHEDULE.resume(held, 0.0)[1] == (CloseRound(1, ("a", "b")),)


def test_a_run_that_is_complete_finishes_at_once():
    state, actions = _SCHEDULE.resume(RoundState(round_id=3), 0.0)
    assert (state.phase, actions) == (RoundPhase.FINISHED, (Finish(),))


_events = st.one_of(
    st.builds(
        lambda kind, who: kind(who),
        st.sampled_from(
            [DeviceAppeared, DeviceDeparted, UpdateStored, UpdateRefused, DeviceFailed]
        ),
        st.sampled_from("abcdef"),
    ),
    st.builds(Tick),
    st.builds(StateCommitted),
    st.builds(Pause),
    st.builds(Resume),
)


@given(
    st.lists(st.tuples(st.floats(0, 60), _events), max_size=120),
    st.sampled_from(["all", 2, 0.5]),
    st.booleans(),
    st.sampled_from([1.0, 1.3, 3.0]),
    st.sampled_from(["random", "least_recent", "strategy"]),
)
def test_whatever_happens_rounds_follow_each_other(timed, size, final_fit, over, selection):
    """Rounds open and close in order, only with a quorum, and count each member once."""
    schedule = replace(
        _SCHEDULE,
        size=size,
        rounds=2,
        final_fit=final_fit,
        over_selection=over if size != "all" else 1.0,
        selection=selection,
        rank=lambda candidates: candidates[:1],
    )
    invited = {}
    state, now, opened, closed = RoundState(), 0.0, [], []
    for pause, event in timed:
        now += pause
        before = state
        state, actions = schedule.step(state, event, now)
        for action in actions:
            if isinstance(action, OpenRound):
                opened.append(action.round_id)
                assert 1 <= action.size <= len(action.cohort)
                invited |= dict.fromkeys(action.cohort, action.round_id)
                assert not state.paused
                assert action.final == (final_fit and action.round_id == 3)
                assert before.live | state.live >= set(action.cohort)
            elif isinstance(action, CloseRound):
                closed.append(action.round_id)
                assert set(action.participants) <= set(state.cohort)
                assert 2 * len(action.participants) >= state.size
            elif isinstance(action, ExtendRound):
                invited |= dict.fromkeys(action.added, action.round_id)
        assert state.delivered <= set(state.cohort)
        assert state.last_invited == invited
    assert opened == list(range(1, len(opened) + 1))
    assert len(opened) <= 2 + final_fit
    assert closed == opened[: len(closed)]
    assert len(opened) - len(closed) <= 1


_LATE = replace(_SCHEDULE, rounds=4, patience=2)


def _late_after_the_first():
    """a and b have delivered in time, c has not."""
    state, _ = _opened(_LATE)
    state, actions = _play(
        _LATE, (1.0, UpdateStored("a")), (2.0, UpdateStored("b")), (100.0, Tick()), state=state
    )
    assert actions == [CloseRound(1, ("a", "b"))]
    return _play(_LATE, (100.0, StateCommitted()), state=state)


def test_who_misses_a_round_may_deliver_late_and_is_not_invited_meanwhile():
    state, actions = _late_after_the_first()
    assert (actions, state.late) == ([], {"c": 1})  # three are wanted, two are free
    state, actions = _play(_LATE, (101.0, DeviceAppeared("d")), state=state)
    assert actions == [OpenRound(2, ("a", "b", "d"), 3)]
    assert _LATE.refusal(state, "c", 1) is None
    state, actions = _play(_LATE, (102.0, UpdateStored("c")), state=state)
    assert (actions, state.late_delivered) == ([], frozenset("c"))
    closing = [(103.0, UpdateStored(one)) for one in "abd"]
    state, actions = _play(_LATE, *closing, (103.0, StateCommitted()), state=state)
    assert actions == [CloseRound(2, ("a", "b", "c", "d")), OpenRound(3, ("a", "b", "c", "d"), 4)]


def test_updates_stored_together_are_as_one_after_the_other():
    names = "abcde"
    opened, _ = _opened(replace(_SCHEDULE, minimum=5), names)
    state = replace(opened, late={"x": 1, "y": 1}, delivered=frozenset("e"))
    arrived = ["b", "x", "stranger", "e", "d"]
    one_by_one = state
    for name in arrived:
        one_by_one = membership.marked(one_by_one, UpdateStored(name))
    together = membership.stored(state, arrived)
    assert together == one_by_one
    assert (together.delivered, dict(together.late)) == (frozenset("bde"), {"y": 1})
    assert together.late_delivered == {"x"}


def test_a_late_update_counts_for_no_quorum():
    """Quorum and size are those of the round's own members."""
    state, _ = _late_after_the_first()
    state, _ = _play(_LATE, (101.0, DeviceAppeared("d")), (102.0, UpdateStored("c")), state=state)
    _, actions = _play(_LATE, (103.0, UpdateStored("a")), (201.0, Tick()), state=state)
    assert [type(action) for action in actions] == [ExtendRound]


def test_what_is_too_late_is_refused_by_its_rule_and_its_device_invited_again():
    state, _ = _late_after_the_first()
    state, _ = _play(_LATE, (101.0, DeviceAppeared("d")), state=state)
    for round_id in (2, 3):
        events = [(102.0, UpdateStored(one)) for one in "abd"]
        state, actions = _play(_LATE, *events, (102.0, StateCommitted()), state=state)
        assert actions[0].round_id == round_id
    assert actions[-1] == OpenRound(4, ("a", "b", "c", "d"), 4)
    assert _LATE.refusal(state, "c", 1).rule == "staleness"


def test_late_updates_come_between_rounds_too():
    state, _ = _late_after_the_first()
    state, actions = _play(_LATE, (101.0, UpdateStored("c")), state=state)
    assert actions == [OpenRound(2, ("a", "b", "c"), 3)]
    assert state.late_delivered == frozenset("c")
    events = [(102.0, UpdateStored(one)) for one in "abc"]
    state, actions = _play(_LATE, *events, state=state)
    assert actions == [CloseRound(2, ("a", "b", "c"))]
    assert state.updates == 4
