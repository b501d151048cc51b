"""A schedule that waits: no round before it may open, as a cell's root orders it."""

from protofleet.federation.schedules.gated_schedule import GatedSchedule
from protofleet.federation.schedules.schedule import (
    CloseRound,
    DeviceAppeared,
    OpenRound,
    Pause,
    Resume,
    RoundPhase,
    RoundState,
    Tick,
    UpdateStored,
)
from protofleet.federation.schedules.synchronous import SynchronousSchedule


class _Root:
    """What the root has ordered so far."""

    ordered = 0

    def __call__(self, round_id):
        return round_id <= self.ordered


def _made():
    root = _Root()
    return root, GatedSchedule(inner=SynchronousSchedule(rounds=2, seed=0), may_open=root)


def test_a_round_opens_when_it_is_ordered():
    root, schedule = _made()
    state, actions = schedule.step(RoundState(), DeviceAppeared("anna"), 0.0)
    assert (state.phase, actions, set(state.live)) == (RoundPhase.WAITING, (), {"anna"})
    assert not state.paused
    root.ordered = 1
    state, actions = schedule.step(state, Tick(), 1.0)
    assert actions == (OpenRound(1, ("anna",), 1),)
    state, actions = schedule.step(state, UpdateStored("anna"), 2.0)
    assert (state.phase, actions) == (RoundPhase.CLOSING, (CloseRound(1, ("anna",)),))


def test_the_operator_s_pause_is_another_matter():
    root, schedule = _made()
    state, _ = schedule.step(RoundState(), DeviceAppeared("anna"), 0.0)
    state, _ = schedule.step(state, Pause(), 1.0)
    assert state.paused
    root.ordered = 1
    state, actions = schedule.step(state, Tick(), 2.0)
    assert (state.phase, actions) == (RoundPhase.WAITING, ())
    root.ordered = 0
    state, _ = schedule.step(state, Resume(), 3.0)
    assert not state.paused
    root.ordered = 1
    assert schedule.step(state, Tick(), 4.0)[1] == (OpenRound(1, ("anna",), 1),)


def test_the_rest_is_the_inner_schedule_s():
    _, schedule = _made()
    inner, state = schedule.inner, RoundState()
    assert schedule.last_round == inner.last_round == 2
    assert schedule.needed_devices(state) == inner.needed_devices(state)
    assert str(schedule.refusal(state, "anna", 3)) == str(inner.refusal(state, "anna", 3))
    assert schedule.resume(state, 1.0) == inner.resume(state, 1.0)
