"""A device's part in a calibration: what it tries, what it tells, and what goes before."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from fake_endpoint import CONNECTED, QUIET, UNTIL_WOKEN

from protofleet.cli._device_lines import to_text
from protofleet.edge.learning.calibrating import check_order
from protofleet.edge.learning.training import Learner
from protofleet.errors import RefusedError
from protofleet.federation.outcomes.calibration import try_rates
from protofleet.federation.randomness import server_rng
from protofleet.federation.records import Sends
from protofleet.wire.messages import CalibrationAnswer, CalibrationOrder, Presence

_RATES = (0.01, 0.1, 1.0)
_SETTINGS = {"epochs": 2, "batch_size": 16, "optimiser": {"kind": "sgd", "lr": 0.01}}
_ORDER = CalibrationOrder(
    key="one", settings=_SETTINGS, seed=3, rates=_RATES, devices=("anna", "ben")
)


def _asks(device, order=_ORDER, **changes):
    changes = {"phase": "waiting", "round_id": 1, "rounds": 9, **changes}
    return device.announced(calibration=order, **changes)


def _told(device):
    """Answers that were published, each once."""
    found = [one for one in device.endpoint.published if isinstance(one, Presence)]
    online = [one.calibration for one in found if one.status == "online"]
    return [one for index, one in enumerate(online) if [one] != online[index - 1 : index]]


def test_the_rates_are_tried_from_the_first_payload_and_the_ratios_told(device):
    device.play(CONNECTED, _asks(device), UNTIL_WOKEN, QUIET, _asks(device), QUIET, told=False)
    learner = device.learner()
    strategy = learner.strategy("fedavg", _SETTINGS)
    first = strategy.downlink(strategy.server_init(learner.model, server_rng(3, 0)), "anna")
    expected = try_rates(
        learner.rate_tester(1),
        strategy,
        replace(first, round_id=1),
        seed=3,
        rates=_RATES,
    )
    answer = CalibrationAnswer(key="one", ratios=tuple(expected.tolist()))
    assert _told(device) == [CalibrationAnswer(key=""), answer]
    assert device.names()[:3] == ["joined", "calibrating", "calibrated"]
    said = device.said("calibrated")[0]
    assert (said["rates"], said["ratios"]) == (_RATES, answer.ratios)
    assert said["train_s"] > 0
    assert (device.journal.stage, device.journal.last_round_id) == ("idle", 0)
    assert device.memory.state is None
    assert "of 3 learning rates" in to_text("calibrated", said)
    assert "from 0.01 to 1" in to_text("calibrating", device.said("calibrating")[0])


def test_who_is_not_asked_tries_nothing(device):
    other = msgspec.structs.replace(_ORDER, devices=("ben",))
    device.play(CONNECTED, _asks(device, other), QUIET, told=False)
    assert device.names() == ["joined", "left"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rates": (0.1, 0.01)}, "expected rates above 0, ascending"),
        ({"rates": (0.0, 0.1)}, "expected rates above 0"),
        ({"seed": -1}, "expected a seed"),
        ({"settings": {"no": 1}}, "no"),
    ],
)
def test_an_order_that_cannot_be_is_answered_with_nothing(device, caplog, change, told):
    wrong = msgspec.structs.replace(_ORDER, **change)
    device.play(CONNECTED, _asks(device, wrong), QUIET, QUIET, told=False)
    assert _told(device)[-1] == CalibrationAnswer(key="one", ratios=())
    assert "no learning rates can be tried" in caplog.text
    assert told in caplog.text
    assert "no learning rates could be tried" in to_text("calibrated", device.said("calibrated")[0])


@pytest.mark.parametrize("rates", [(float("nan"),), (float("inf"),), (0.1, 0.1)])
def test_rates_that_nobody_can_try(rates):
    with pytest.raises(RefusedError, match="ascending"):
        check_order(msgspec.structs.replace(_ORDER, rates=rates))


def test_an_owner_who_keeps_scores_back_tells_no_ratios(device):
    device.sends = Sends(scores=False)
    device.play(CONNECTED, _asks(device), QUIET, QUIET, told=False)
    assert _told(device)[-1] == CalibrationAnswer(key="one", ratios=())


class _HeldLearner(Learner):
    """Its testers take until somebody cancels them."""

    def rate_tester(self, round_id):
        tester = super().rate_tester(round_id)
        train = tester.train

        def held(*arguments, **more):
            assert tester.cancelled.wait(20)
            return train(*arguments, **more)

        tester.train = held
        return tester


class _BrokenLearner(Learner):
    """Its testers fail as no strategy should."""

    def rate_tester(self, round_id):
        raise ValueError(round_id)


def test_whatever_an_order_leads_to_the_device_stays(device, caplog):
    device.play(CONNECTED, _asks(device), UNTIL_WOKEN, QUIET, kind=_BrokenLearner, told=False)
    assert _told(device)[-1] == CalibrationAnswer(key="one", ratios=())
    assert "no learning rates can be tried" in caplog.text


def test_another_order_takes_the_place_of_one_that_is_being_tried(device):
    """No ratio is told under the name of rates that it is not of."""
    other = msgspec.structs.replace(_ORDER, key="two", rates=(0.02, 0.2))
    steps = [_asks(device, other), UNTIL_WOKEN, QUIET, UNTIL_WOKEN, QUIET]
    device.play(CONNECTED, _asks(device), *steps, kind=_HeldOnce, told=False)
    (empty, answer) = _told(device)
    assert (empty.key, answer.key, len(answer.ratios)) == ("", "two", 2)


class _HeldOnce(Learner):
    """Its first tester takes until somebody cancels it."""

    held = False

    def rate_tester(self, round_id):
        tester = super().rate_tester(round_id)
        if not self.held:
            self.held = True
            train = tester.train

            def waits(*arguments, **more):
                assert tester.cancelled.wait(20)
                return train(*arguments, **more)

            tester.train = waits
        return tester


def test_a_task_goes_before_and_the_trial_is_given_up(device):
    """As another order may come; nobody waits for this one any more."""
    task, payload, _ = device.round()
    steps = [task, UNTIL_WOKEN, payload, UNTIL_WOKEN]
    device.play(CONNECTED, _asks(device), *steps, QUIET, kind=_HeldLearner, told=False)
    assert device.names()[:4] == ["joined", "calibrating", "task", "trained"]
    assert device.sent() == [1]


def test_a_trial_that_nobody_waits_for_ends(device):
    device.play(
        CONNECTED,
        _asks(device),
        device.announced(phase="waiting", round_id=1, rounds=9),
        UNTIL_WOKEN,
        QUIET,
        kind=_HeldLearner,
        told=False,
    )
    assert device.names() == ["joined", "calibrating", "left"]
    assert _told(device) == [CalibrationAnswer(key="")]
