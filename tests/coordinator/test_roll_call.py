from __future__ import annotations

from protofleet.coordinator.devices.roll_call import PAUSE_S, SPREAD_MAX_S, SPREAD_MIN_S, RollCall


def test_answers_are_spread_by_the_number_of_devices():
    spreads = [RollCall(known, 0.0, 400.0).spread_s for known in (0, 20_000, 10**9)]
    assert spreads == [SPREAD_MIN_S, 100.0, SPREAD_MAX_S]


def test_devices_that_come_count_and_a_broker_that_takes_few_has_time():
    roll = RollCall(0, 0.0, 20.0)
    roll.met(1000)
    roll.met(10)
    assert roll.spread_s == 100.0


def test_unknown_devices_cause_a_call_at_once_and_then_seldom():
    roll = RollCall(0, 0.0, 400.0)
    roll.begin(0.0)
    assert not roll.heard_unknown(0, SPREAD_MIN_S / 2)
    assert roll.heard_unknown(0, SPREAD_MIN_S)
    assert roll.number == 1
    assert not roll.heard_unknown(0, PAUSE_S / 2)


def test_names_that_are_invented_cause_fewer_and_fewer_calls():
    """A call costs every device a message; one that brings devices keeps the pace."""
    calls = {"invented": 0, "found": 0}
    for kind in calls:
        roll, known = RollCall(0, 0.0, 400.0), 0
        for now in range(0, 36_000, 10):
            known += kind == "found"
            calls[kind] += roll.heard_unknown(known, float(now))
    assert calls["invented"] < 20
    assert calls["found"] > 500
