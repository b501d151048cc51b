"""A calibration over the wire: who is asked, what is waited for, and what a kill leaves."""

from __future__ import annotations

import msgspec
import pytest
from fake_endpoint import CONNECTED, QUIET

from protofleet.coordinator import events
from protofleet.coordinator.ledger.control import Orders, Wish
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.federation.outcomes.calibration import CalibrationProgress
from protofleet.federation.records import RunRecord, load_record
from protofleet.federation.settings import RoundSettings
from protofleet.strategies.optimisers import LADDERS
from protofleet.wire.messages import CalibrationAnswer

_RATES = LADDERS["sgd"]
_CAN = CalibrationAnswer(key="")
_GOOD = (1.0, 1.0, 0.99, 0.97, 0.9, 0.8, 0.5, 0.2, 0.4, 1.5, 9.0)


@pytest.fixture
def opened(open_federation):
    def new(minimum):
        found = open_federation(minimum=minimum, round=RoundSettings(deadline_s=60))
        found.leaves_the_rate_open()
        return found

    return new


@pytest.fixture
def fed(opened):
    return opened(2)


def _tells(fed, device_id, ratios=_GOOD, **changes):
    """A step: what a device answers to the order that was announced last."""

    def step():
        answer = CalibrationAnswer(key=_key(fed), ratios=ratios)
        return fed.online(device_id, calibration=answer, **changes)

    return step


def _order(fed):
    return fed.endpoint.published[-1].calibration


def _key(fed):
    """Of the order that was announced last."""
    orders = (one.calibration for one in reversed(fed.endpoint.published))
    return next(order.key for order in orders if order)


def _chosen(fed):
    with Ledger(fed.plan.config.run_dir, fed.plan.identity) as ledger:
        return (ledger.calibration() or CalibrationProgress()).chosen


def _rate_of_tasks(fed):
    return {sent.task.settings["optimiser"]["lr"] for sent in fed.endpoint.sent}


def test_devices_are_asked_before_the_first_round_and_the_least_ratio_is_its_rate(fed):
    seen = []

    def look():
        seen.append((_order(fed), fed.invited()))

    fed.play(
        CONNECTED,
        fed.online("a", calibration=_CAN),
        fed.online("b", calibration=_CAN),
        QUIET,
        look,
        _tells(fed, "b"),
        QUIET,
        look,
        _tells(fed, "a", (10.0,) * 10 + (0.1,)),
        QUIET,
    )
    (first, invited), (second, _) = seen
    assert (first.devices, first.rates, first.seed) == (("a", "b"), _RATES, 0)
    assert (second.key, second.devices, invited) == (first.key, first.devices, [])
    assert _chosen(fed).lr == 1.0  # (9 + 0.1) / 2 is least
    assert fed.invited() == [("a", 1), ("b", 1)]
    assert _rate_of_tasks(fed) == {1.0}
    assert _order(fed) is msgspec.UNSET
    assert fed.told(events.Calibrating, "devices", "tries") == [(2, 11)]
    assert fed.told(events.Calibrated, "lr", "devices") == [(1.0, 2)]
    assert ["largest that was tried" in what for (what,) in fed.told(events.ResultsTrouble, "what")]


def test_the_run_goes_on_with_the_rate_and_says_how_it_was_found(fed):
    fed.play(
        CONNECTED,
        fed.online("a", calibration=_CAN),
        fed.online("b", calibration=_CAN),
        QUIET,
        _tells(fed, "b"),
        _tells(fed, "a"),
        QUIET,
    )
    fed.play(CONNECTED, fed.online("a"), fed.online("b"), QUIET)
    assert _rate_of_tasks(fed) == {0.03}
    come, go = [fed.online("a"), fed.online("b")], [fed.gone("a", "left"), fed.gone("b", "left")]
    fed.play(CONNECTED, come, fed.delivers("a"), fed.delivers("b"), go)
    record = load_record(fed.plan.config.run_dir / "result.json", RunRecord)
    assert (record.calibration.lr, record.calibration.devices) == (0.03, 2)
    assert len(fed.told(events.Calibrated, "lr")) == 1


def test_a_kill_loses_no_answer(fed):
    come = [fed.online("a", calibration=_CAN), fed.online("b", calibration=_CAN)]
    fed.play(CONNECTED, come, QUIET, _tells(fed, "b"), QUIET)
    key = _order(fed).key
    fed.play(CONNECTED, come, QUIET, QUIET)
    assert (_order(fed).key, _order(fed).devices) == (key, ("a",))
    fed.play(CONNECTED, come, QUIET, _tells(fed, "a"), QUIET)
    assert (_chosen(fed).lr, _chosen(fed).devices) == (0.03, 2)
    assert fed.invited() == [("a", 1), ("b", 1)]


def test_one_that_is_gone_is_waited_for_as_long_as_a_member(opened):
    fed, invited = opened(3), []
    fed.play(
        CONNECTED,
        [fed.online(name, calibration=_CAN) for name in ("a", "b", "c")],
        QUIET,
        [_tells(fed, name) for name in ("a", "b")],
        fed.gone("c"),
        fed.after(19.0),
        lambda: invited.append(fed.invited()),
        fed.after(2.0),
        QUIET,
    )
    assert (_chosen(fed).devices, invited) == (2, [[]])


def test_one_that_is_slow_is_waited_for_as_long_as_a_round(fed):
    invited = []
    fed.play(
        CONNECTED,
        [fed.online(name, calibration=_CAN) for name in ("a", "b")],
        QUIET,
        _tells(fed, "a"),
        fed.after(59.0, fed.beat("b")),
        lambda: invited.append(fed.invited()),
        fed.after(2.0, fed.beat("b")),
        QUIET,
    )
    assert (_chosen(fed).devices, invited) == (1, [[]])


def test_without_anybody_who_can_the_strategys_own_rate_is_used_and_told(fed):
    fed.play(CONNECTED, fed.online("a"), fed.online("b"), QUIET, QUIET)
    assert (_chosen(fed).devices, _chosen(fed).lr) == (0, fed.plan.own_lr)
    assert _rate_of_tasks(fed) == {fed.plan.own_lr}
    (what, remedy) = fed.told(events.ResultsTrouble, "what", "remedy")[0]
    assert "no device could try" in what
    assert "optimiser.lr" in remedy


def test_where_those_asked_cannot_others_are(opened):
    fed, first, others = opened(10), [], []
    names = list("abcdefghij")
    fed.play(
        CONNECTED,
        [fed.online(name, calibration=_CAN) for name in names],
        QUIET,
        lambda: first.extend(_order(fed).devices),
        [_cannot(fed, name) for name in names],
        QUIET,
        lambda: others.extend(_order(fed).devices),
        [_tells(fed, name) for name in names],
        QUIET,
    )
    assert (len(first), len(others)) == (8, 2)
    assert sorted(first + others) == names
    assert _chosen(fed).devices == 2


def _cannot(fed, name):
    return _tells(fed, name, ())


@pytest.mark.parametrize("lie", [(float("nan"),) * 11, (-1.0,) * 11, (1.0,) * 7, (11.0,) * 11])
def test_a_lie_is_refused_and_not_waited_for(fed, lie):
    fed.play(
        CONNECTED,
        [fed.online(name, calibration=_CAN) for name in ("a", "b")],
        QUIET,
        _tells(fed, "a", lie),
        _tells(fed, "b"),
        _tells(fed, "a", (0.0,) * 11),
        QUIET,
    )
    assert (_chosen(fed).devices, _chosen(fed).lr) == (1, 0.03)
    assert "calibration" in [rule for (rule,) in fed.told(events.DeviceRefused, "rule")]
    assert fed.invited()[:2] == [("a", 1), ("b", 1)]


def test_answers_of_strangers_and_to_other_orders_do_not_count(fed):
    old = CalibrationAnswer(key="another", ratios=_GOOD)
    fed.play(
        CONNECTED,
        [fed.online(name, calibration=old) for name in ("a", "b")],
        QUIET,
        QUIET,
        _tells(fed, "c"),
        QUIET,
    )
    assert _order(fed).devices == ("a", "b")
    assert _chosen(fed) is None


def test_rounds_that_are_ordered_while_rates_are_tried_are_not_lost(fed):
    come = [fed.online(name, calibration=_CAN) for name in ("a", "b")]

    def extend():
        orders = Orders(fed.plan.config.run_dir)
        orders.extend(5)
        orders.close()

    fed.play(CONNECTED, come, QUIET, extend, QUIET, _tells(fed, "a"), _tells(fed, "b"), QUIET)
    assert fed.invited() == [("a", 1), ("b", 1)]
    assert fed.endpoint.published[-1].rounds == 5


def test_a_pause_holds_a_calibration(fed):
    devices = [fed.online(name, calibration=_CAN) for name in ("a", "b")]
    fed.play(CONNECTED, devices[0], QUIET)
    orders = Orders(fed.plan.config.run_dir)
    orders.wish(Wish.PAUSE)
    orders.close()
    fed.play(CONNECTED, devices, QUIET, QUIET)
    assert _order(fed) is msgspec.UNSET
