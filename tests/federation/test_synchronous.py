"""The round's state machine under a virtual clock."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from protofleet.federation import synchronous as rounds
from protofleet.federation.synchronous import (
    Appeared,
    Close,
    Committed,
    Delivered,
    Departed,
    Extend,
    Failed,
    Finish,
    Invite,
    Open,
    Phase,
    Policy,
    State,
    Tick,
)

_POLICY = Policy(rounds=2, seed=7, minimum=3, deadline_s=100.0, quorum=0.5, grace_s=10.0)


def _play(policy, *timed, state=None):
    """Feed (time, event) pairs; the last state and all actions."""
    state, done = state or State(), []
    for now, event in timed:
        state, actions = rounds.step(policy, state, event, now)
        done += actions
    return state, done


def _opened(policy=_POLICY, devices="abc"):
    state, actions = _play(policy, *[(0.0, Appeared(d)) for d in devices])
    assert state.phase is Phase.OPEN
    return state, actions


def test_a_round_opens_when_the_minimum_is_live():
    state, actions = _play(_POLICY, (0.0, Appeared("b")), (1.0, Appeared("a")), (2.0, Tick()))
    assert (state.phase, actions) == (Phase.WAITING, [])
    state, actions = rounds.step(_POLICY, state, Appeared("c"), 3.0)
    assert actions == (Open(1, ("a", "b", "c")),)
    assert state.deadline == 103.0


def test_the_first_round_waits_for_stragglers_and_later_ones_do_not():
    policy = replace(_POLICY, minimum=1, wait_s=5.0)
    state, actions = _play(policy, (0.0, Appeared("a")), (4.0, Appeared("b")), (4.9, Tick()))
    assert actions == []
    state, actions = _play(policy, (5.0, Tick()), state=state)
    assert actions == [Open(1, ("a", "b"))]
    state, actions = _play(
        policy, (6.0, Delivered("a")), (6.0, Delivered("b")), (6.1, Committed()), state=state
    )
    assert actions == [Close(1, ("a", "b")), Open(2, ("a", "b"))]


def test_a_round_closes_when_all_updates_are_in_and_the_last_one_finishes():
    state, _ = _opened(replace(_POLICY, rounds=1))
    policy = replace(_POLICY, rounds=1)
    state, actions = _play(policy, *[(1.0, Delivered(d)) for d in "cab"], state=state)
    assert actions == [Close(1, ("a", "b", "c"))]
    state, actions = _play(
        policy, (2.0, Committed()), (3.0, Tick()), (3.0, Committed()), state=state
    )
    assert (state.phase, actions) == (Phase.FINISHED, [Finish()])


def test_at_the_deadline_the_quorum_closes_the_round():
    state, _ = _opened()
    state, actions = _play(
        _POLICY, (1.0, Delivered("a")), (2.0, Delivered("b")), (99.0, Tick()), state=state
    )
    assert actions == []
    state, actions = _play(_POLICY, (100.0, Tick()), state=state)
    assert actions == [Close(1, ("a", "b"))]


def test_below_the_quorum_the_round_is_extended_with_substitutes_for_the_lost():
    state, _ = _opened()
    state, actions = _play(
        _POLICY,
        (1.0, Delivered("a")),
        (2.0, Departed("b")),
        (3.0, Appeared("d")),
        (3.0, Appeared("e")),
        (100.0, Tick()),
        state=state,
    )
    (extend,) = actions
    assert isinstance(extend, Extend)
    assert (extend.round_id, extend.attempt, extend.needed) == (1, 1, 2)
    assert len(extend.added) == 1
    assert set(extend.added) < {"d", "e"}
    assert state.deadline == 200.0
    assert set(state.cohort) == {"a", "b", "c", *extend.added}
    state, actions = _play(
        _POLICY, (101.0, Delivered(extend.added[0])), (200.0, Tick()), state=state
    )
    assert actions == [Close(1, tuple(sorted({"a", *extend.added})))]


def test_lost_members_let_the_round_close_after_their_grace():
    state, _ = _opened()
    state, actions = _play(
        _POLICY,
        (1.0, Delivered("a")),
        (1.0, Delivered("b")),
        (5.0, Departed("c")),
        (14.9, Tick()),
        state=state,
    )
    assert actions == []
    _, actions = _play(_POLICY, (15.0, Tick()), state=state)
    assert actions == [Close(1, ("a", "b"))]


def test_a_member_that_returns_within_its_grace_is_invited_again_and_awaited():
    state, _ = _opened()
    state, actions = _play(
        _POLICY,
        (1.0, Delivered("a")),
        (1.0, Delivered("b")),
        (5.0, Departed("c")),
        (14.0, Appeared("c")),
        (50.0, Tick()),
        state=state,
    )
    assert actions == [Invite("c")]
    assert state.phase is Phase.OPEN


def test_a_member_that_delivered_is_not_invited_again():
    state, _ = _opened()
    _, actions = _play(_POLICY, (1.0, Delivered("a")), (2.0, Appeared("a")), state=state)
    assert actions == []


def test_a_member_that_delivered_before_it_left_needs_no_substitute():
    state, _ = _opened(replace(_POLICY, quorum=1.0))
    state, _ = _play(_POLICY, (1.0, Departed("a")), (2.0, Delivered("a")), state=state)
    assert "a" not in rounds.lost(_POLICY, state, 1000.0)


def test_a_member_that_failed_is_not_awaited():
    state, _ = _opened()
    _, actions = _play(
        _POLICY, (1.0, Failed("a")), (2.0, Delivered("b")), (2.0, Delivered("c")), state=state
    )
    assert actions == [Close(1, ("b", "c"))]


_FINAL = replace(_POLICY, rounds=1, size=2, minimum=2, final_fit=True)


def _last_round_done(policy=_FINAL):
    """Four live devices, two of which took part in the only round; it is committed."""
    state, (opened,) = _play(policy, *[(0.0, Appeared(d)) for d in "ab"])
    state, _ = _play(policy, *[(0.0, Appeared(d)) for d in "cd"], state=state)
    state, _ = _play(policy, *[(1.0, Delivered(d)) for d in opened.cohort], state=state)
    return _play(policy, (2.0, Committed()), state=state)


def test_after_the_last_round_every_live_device_makes_one_more_fit():
    """The sampled size does not bound it; its close and its end say what it was."""
    state, actions = _last_round_done()
    assert actions == [Open(2, ("a", "b", "c", "d"), final=True)]
    assert (state.final, state.size) == (True, 4)
    state, actions = _play(_FINAL, *[(3.0, Delivered(d)) for d in "abcd"], state=state)
    assert actions == [Close(2, ("a", "b", "c", "d"), final=True)]
    state, actions = _play(_FINAL, (4.0, Committed()), (5.0, Tick()), state=state)
    assert (state.phase, state.round_id, actions) == (Phase.FINISHED, 2, [Finish()])


def test_a_final_fit_has_deadline_quorum_and_grace_as_any_round():
    state, _ = _last_round_done()
    state, actions = _play(_FINAL, (3.0, Delivered("a")), (101.9, Tick()), state=state)
    assert actions == []
    state, (extend,) = _play(_FINAL, (102.0, Tick()), state=state)
    assert (extend.needed, state.final) == (2, True)
    _, actions = _play(_FINAL, (103.0, Delivered("d")), (202.0, Tick()), state=state)
    assert actions == [Close(2, ("a", "d"), final=True)]


def test_a_final_fit_waits_for_the_minimum_only_and_not_for_a_counted_size():
    policy = replace(_FINAL, size=3, minimum=1)
    assert rounds.needed_devices(policy, 1) == 3
    assert rounds.needed_devices(policy, 2) == 1


def test_a_final_fit_is_resumed_as_what_it_was():
    """Open, closing, not yet opened and committed: also where the file has other rounds by now."""
    held = State(phase=Phase.OPEN, round_id=2, cohort=("a", "b"), size=2, final=True)
    for policy in (_FINAL, replace(_FINAL, rounds=9)):
        state, actions = rounds.resume(policy, held, 0.0)
        assert (state.phase, state.final, actions) == (Phase.OPEN, True, ())
        closing = replace(held, phase=Phase.CLOSING, delivered=frozenset("ab"))
        state, actions = rounds.resume(policy, closing, 0.0)
        assert actions == (Close(2, ("a", "b"), final=True),)
        assert _play(policy, (1.0, Committed()), state=state)[1] == [Finish()]
        state, actions = rounds.resume(policy, State(round_id=3, final=True), 0.0)
        assert (state.phase, state.round_id, actions) == (Phase.FINISHED, 2, (Finish(),))
    state, actions = rounds.resume(_FINAL, State(round_id=2), 0.0)
    assert (state.phase, actions) == (Phase.WAITING, ())
    _, actions = _play(_FINAL, *[(1.0, Appeared(d)) for d in "ab"], state=state)
    assert actions == [Open(2, ("a", "b"), final=True)]


def test_updates_are_welcome_from_cohort_members_of_the_open_round_once():
    state, _ = _opened()
    state, _ = _play(_POLICY, (1.0, Delivered("a")), state=state)
    assert rounds.refusal(state, "b", 1) is None
    assert "accepted already" in rounds.refusal(state, "a", 1)
    assert "cohort" in rounds.refusal(state, "x", 1)
    assert "not begun" in rounds.refusal(state, "b", 2)
    assert "too late" in rounds.refusal(state, "b", 0)
    closing, _ = _play(_POLICY, (1.0, Delivered("b")), (1.0, Delivered("c")), state=state)
    assert "too late" in rounds.refusal(closing, "c", 1)


def test_cohorts_depend_on_seed_round_and_devices_only():
    policy = replace(_POLICY, size=3)
    names = [f"d{i}" for i in range(20)]
    cohorts = {r: rounds.draw(policy, r, 0, names, 3) for r in range(1, 30)}
    assert cohorts == {r: rounds.draw(policy, r, 0, names[::-1], 3) for r in cohorts}
    assert len(set(cohorts.values())) > 20
    assert cohorts != {r: rounds.draw(replace(policy, seed=8), r, 0, names, 3) for r in cohorts}


def test_a_resumed_round_keeps_cohort_and_updates_and_gets_its_deadline_again():
    held = State(
        phase=Phase.OPEN, round_id=2, cohort=("a", "b", "c"), delivered=frozenset("a"), size=3
    )
    state, actions = rounds.resume(_POLICY, held, 1000.0)
    assert actions == ()
    assert (state.cohort, state.delivered, state.deadline) == (held.cohort, held.delivered, 1100.0)
    state, actions = _play(_POLICY, (1001.0, Appeared("a")), (1001.0, Appeared("b")), state=state)
    assert actions == [Invite("b")]


def test_a_resumed_closing_round_closes_with_the_same_participants():
    held = State(
        phase=Phase.CLOSING, round_id=1, cohort=("a", "b"), delivered=frozenset("ba"), size=2
    )
    assert rounds.resume(_POLICY, held, 0.0)[1] == (Close(1, ("a", "b")),)


def test_a_run_that_is_complete_finishes_at_once():
    state, actions = rounds.resume(_POLICY, State(round_id=3), 0.0)
    assert (state.phase, actions) == (Phase.FINISHED, (Finish(),))


_events = st.one_of(
    st.builds(
        lambda kind, who: kind(who),
        st.sampled_from([Appeared, Departed, Delivered, Failed]),
        st.sampled_from("abcdef"),
    ),
    st.builds(Tick),
    st.builds(Committed),
)


@given(
    st.lists(st.tuples(st.floats(0, 60), _events), max_size=120),
    st.sampled_from(["all", 2, 0.5]),
    st.booleans(),
)
def test_whatever_happens_rounds_follow_each_other(timed, size, final_fit):
    """Rounds open and close in order, only with a quorum, and count each member once."""
    policy = replace(_POLICY, size=size, rounds=2, final_fit=final_fit)
    state, now, opened, closed = State(), 0.0, [], []
    for pause, event in timed:
        now += pause
        before = state
        state, actions = rounds.step(policy, state, event, now)
        for action in actions:
            if isinstance(action, Open):
                opened.append(action.round_id)
                assert action.final == (final_fit and action.round_id == 3)
                assert before.live | state.live >= set(action.cohort)
            elif isinstance(action, Close):
                closed.append(action.round_id)
                assert set(action.participants) <= set(state.cohort)
                assert 2 * len(action.participants) >= state.size
        assert state.delivered <= set(state.cohort)
    assert opened == list(range(1, len(opened) + 1))
    assert len(opened) <= 2 + final_fit
    assert closed == opened[: len(closed)]
    assert len(opened) - len(closed) <= 1
