"""A device in virtual time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofleet.edge.owner.policy import Policy
from protofleet.firmware_sim.world.habits import DAY_S, HOUR_S, Habits, Window, changes
from protofleet.firmware_sim.world.hardware import Hardware, Span
from protofleet.firmware_sim.world.network import Network
from protofleet.firmware_sim.world.simulated_device import (
    Phase,
    SimulatedDevice,
    Surroundings,
    Work,
)

_ONE = Span(low=1.0, likely=1.0, high=1.0)
_MAINS = Hardware(speed=_ONE, memory_mb=512, train_w=_ONE, idle_w=1.0)
_PHONE = Hardware(
    speed=_ONE,
    memory_mb=512,
    train_w=_ONE,
    idle_w=1.0,
    used_w=2.0,
    battery_wh=10.0,
    charge_w=6.0,
)
_LINK = Network(up_kbit_s=8.0, down_kbit_s=80.0, delay_ms=0.0, base_w=2.0)
_METERED = Network(up_kbit_s=8.0, down_kbit_s=80.0, delay_ms=0.0, metered=True)
_DOWN, _UP = 1600.0, 880.0
"""Bytes of messages beside payload and update."""
_WORK = Work(round_id=1, down_bytes=50_000.0 - _DOWN, train_s=60.0, up_bytes=10_000.0 - _UP)


def _life(
    *, hardware=_MAINS, habits=None, policy=None, away=None, home=_LINK, days=3, keepalive_s=30.0
):
    return SimulatedDevice.at(
        Surroundings(
            hardware=hardware,
            home=home,
            away=away,
            policy=policy or Policy(),
            changes=changes(habits or Habits(), days, (0,)),
            train_w=2.0,
            keepalive_s=keepalive_s,
        ),
        0.0,
    )


def _live(life, to_s):
    """The phases that end until then, each with its time."""
    found = []
    while life.now < to_s:
        life.advance(min(to_s, life.next_s))
        while (done := life.finished()) is not None:
            found.append((done, life.now))
    return found


def test_a_round_takes_and_costs_what_rates_and_watts_say():
    life = _life()
    life.give(_WORK)
    ended = _live(life, 200.0)
    assert [phase for phase, _ in ended] == [Phase.DOWNLOAD, Phase.TRAIN, Phase.UPLOAD]
    assert [at for _, at in ended] == pytest.approx([5.0, 65.0, 75.0])
    used = life.used
    idle_s = 200 - 15
    assert used.down_bytes == pytest.approx(50_000 + 2.3 * idle_s)
    assert used.up_bytes == pytest.approx(10_000 + 3.3 * idle_s)
    assert used.train_j == pytest.approx(120.0)
    assert used.radio_j == pytest.approx(2.0 * 15)
    assert (used.trained, used.delivered, life.phase) == (1, 1, Phase.IDLE)


def test_a_transfer_begins_after_its_delays():
    slow = Network(up_kbit_s=8.0, down_kbit_s=80.0, delay_ms=500.0, tail_s=3.0, tail_w=0.5)
    life = _life(home=slow)
    life.give(_WORK)
    assert [at for _, at in _live(life, 200.0)] == pytest.approx([7.0, 67.0, 79.0])
    assert life.used.radio_j == pytest.approx(2 * 1.5)  # each transfer has its tail


def test_a_line_that_is_idle_wakes_the_radio_for_every_keep_alive():
    """Half a watt for three seconds in thirty, and what coordinator and device say meanwhile."""
    awake = Network(up_kbit_s=8.0, down_kbit_s=80.0, delay_ms=0.0, tail_s=3.0, tail_w=0.5)
    life = _life(home=awake)
    _live(life, 3000.0)
    assert life.used.connected_j == pytest.approx(100 * 1.5)
    assert (life.used.up_bytes, life.used.down_bytes) == pytest.approx((9_900, 6_900))
    life.give(_WORK)
    _live(life, 6000.0)
    assert life.used.connected_j == pytest.approx((6000 - 15) * 0.05)
    seldom = _life(home=awake, keepalive_s=3600.0)  # heartbeats come every minute
    _live(seldom, 3000.0)
    assert seldom.used.connected_j == pytest.approx(50 * 1.5)
    held = _life(home=awake, hardware=_PHONE, policy=Policy(only_charging=True))
    _live(held, 3600.0)  # it rests
    assert held.used.joules == held.used.up_bytes == 0
    offline = _life(home=awake, habits=Habits(offline=(Window(at="00:00", hours=1.0),)))
    _live(offline, 3600.0)
    assert offline.used.joules == 0


def test_held_by_its_owner_it_waits_before_the_next_step_and_goes_on():
    """Charging from one to two o'clock, of which the training has half before."""
    habits = Habits(charging=(Window(at="01:00", hours=1.0),))
    life = _life(hardware=_PHONE, habits=habits, policy=Policy(only_charging=True))
    assert not life.is_present
    assert life.held == ("charging",)
    life.give(_WORK)
    ended = dict(_live(life, 3 * HOUR_S))
    assert ended[Phase.DOWNLOAD] == pytest.approx(5.0)  # what is not metered may come
    assert ended[Phase.TRAIN] == pytest.approx(HOUR_S + 60)
    assert life.used.held_s == {"charging": pytest.approx(HOUR_S - 5)}


def test_without_a_network_it_trains_and_sends_later():
    habits = Habits(offline=(Window(at="00:00", hours=1.0),))
    life = _life(habits=Habits())
    life.give(_WORK)
    _live(life, 5.0)
    gone = _life(habits=habits)
    gone.give(_WORK)
    ended = dict(_live(gone, 2 * HOUR_S))
    assert ended[Phase.DOWNLOAD] == pytest.approx(HOUR_S + 5)
    assert gone.used.held_s == {"no network": pytest.approx(HOUR_S)}


def test_where_it_costs_by_volume_nothing_travels_if_the_owner_says_so():
    habits = Habits(away=(Window(at="00:00", hours=2.0),))
    policy = Policy(only_unmetered=True)
    life = _life(habits=habits, policy=policy, away=_METERED)
    assert life.held == ("network",)
    life.give(_WORK)
    assert _live(life, HOUR_S) == []
    free = _life(habits=habits, away=_METERED)
    free.give(_WORK)
    assert len(_live(free, HOUR_S)) == 3


def test_a_battery_runs_empty_and_the_device_comes_back_with_a_twentieth_of_it():
    """Ten watt-hours at one watt last ten hours; five watts more than idle fill a twentieth."""
    habits = Habits(charging=(Window(at="12:00", hours=2.0),))
    life = _life(hardware=_PHONE, habits=habits)
    _live(life, 10 * HOUR_S + 1)
    assert not life.is_present
    assert life.used.emptied == 1
    _live(life, 12 * HOUR_S + 299)
    assert not life.is_present
    _live(life, 12 * HOUR_S + 301)
    assert life.is_present
    assert life.battery_percent == pytest.approx(5, abs=0.1)


def test_below_the_owners_least_charge_it_takes_no_part():
    life = _life(hardware=_PHONE, policy=Policy(least_battery_percent=50.0))
    _live(life, 5 * HOUR_S - 1)
    assert life.is_present
    _live(life, 5 * HOUR_S + 1)
    assert life.held == ("battery",)


def test_quiet_hours_begin_and_end_by_the_clock():
    life = _life(policy=Policy(quiet_hours=("22:00-07:00",)))
    assert life.held == ("quiet-hours",)
    _live(life, 7 * HOUR_S)
    assert life.is_present
    _live(life, 22 * HOUR_S - 1)
    assert life.is_present
    _live(life, 22 * HOUR_S)
    assert not life.is_present


def test_a_days_data_are_there_again_at_midnight():
    policy = Policy(data_per_day_mb=0.1)
    life = _life(policy=policy)
    life.give(_WORK)
    _live(life, 100.0)
    life.give(_WORK)
    assert life.held == ("data-per-day",)
    ended = dict(_live(life, DAY_S + 100))
    assert ended[Phase.DOWNLOAD] == pytest.approx(DAY_S + 5)


def test_a_task_that_nobody_waits_for_is_dropped():
    life = _life()
    life.give(_WORK)
    _live(life, 3.0)
    life.drop()
    assert _live(life, 100.0) == []
    assert life.used.down_bytes == pytest.approx(30_000 + 97 * 2.3)
    assert life.used.abandoned == 1


@given(stops=st.lists(st.floats(0, 2 * DAY_S), max_size=12), seed=st.integers(0, 50))
def test_looking_at_it_in_between_changes_nothing(stops, seed):
    """Whoever stops the clock more often finds the same life."""
    habits = Habits(
        charging=(Window(at="22:00", hours=7.0, sd_minutes=90, share=0.8),),
        away=(Window(at="09:00", hours=8.0, sd_minutes=60),),
        busy=(Window(at="18:00", hours=3.0, sd_minutes=60),),
        offline=(Window(at="12:00", hours=1.0, sd_minutes=120, share=0.5),),
        off=(Window(at="23:00", hours=1.0, sd_minutes=30, share=0.3),),
    )

    def lived(marks):
        life = SimulatedDevice(
            Surroundings(
                hardware=_PHONE,
                home=_LINK,
                away=_METERED,
                policy=Policy(least_battery_percent=20.0, only_idle=True),
                changes=changes(habits, 3, (seed,)),
                train_w=2.0,
            )
        )
        life.advance(0.0)
        life.give(Work(round_id=1, down_bytes=4e6, train_s=3 * HOUR_S, up_bytes=4e6))
        for mark in [*sorted(marks), 2 * DAY_S]:
            _live(life, mark)
        return life

    one, other = lived([]), lived(stops)
    assert one.phase == other.phase
    figures = [
        (life.used.train_s, life.used.joules, life.used.up_bytes, life.battery_percent)
        for life in (one, other)
    ]
    np.testing.assert_allclose(figures[0], figures[1], rtol=1e-4, atol=0.1)
