"""A ladder of learning rates: what a device tells of it, and what the server makes of that."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_bundle, tiny_data

from protofleet.bundle import Bundle
from protofleet.datasets import DeviceData
from protofleet.edge import LocalData
from protofleet.edge.join import open_learner
from protofleet.errors import InputError, RefusedError
from protofleet.federation.client import ClientMemory, RoundConfig, open_payload, train_round
from protofleet.federation.coding import decode_update
from protofleet.federation.outcomes.calibration import (
    MOST_DEVICES,
    RATIOS,
    WORST,
    _searched,
    check_ratios,
    choose,
    drawn,
    held_out,
    is_auto,
    ladder_of,
    schemas_of,
    try_rates,
    with_rate,
)
from protofleet.federation.outcomes.trouble import of_calibration
from protofleet.federation.records import Costs
from protofleet.strategies.optimisers import LADDERS
from protofleet.strategies.types import ClientState
from protofleet.tensors import blobs

_RATES = LADDERS["adam"]
_CURVE = np.array([0.98, 0.94, 0.78, 0.52, 0.21, 0.1, 0.2])
"""Means of eight owners of digits, FedAvg."""


def test_the_rate_with_the_least_mean_ratio_is_chosen():
    found = choose("adam", _RATES, [_CURVE, _CURVE + 1, _CURVE], otherwise=0.5)
    assert (found.lr, found.devices, found.at_edge) == (0.03, 3, False)
    assert found.ratios[0] == pytest.approx((2 * 0.98 + 1.98) / 3, abs=1e-6)
    assert found.text == (
        "learning rate 0.03 (adam), chosen by 3 devices from 7 between 0.0001 and 0.1: a local "
        "round makes the loss on held-out examples 0.43 times what it was"
    )
    alike = choose("sgd", LADDERS["sgd"], [np.ones(11)], otherwise=0.5)
    assert (alike.lr, alike.at_edge) == (1e-5, True)
    near = choose("adam", _RATES, [np.array([0.9, 0.64, 0.63, 7, 10, 10, 10])], otherwise=0.5)
    assert near.lr == 3e-4, "it brings as much, and is farther from where training diverges"
    slow = choose("adam", _RATES, [1 - np.arange(7) / 400], otherwise=0.5)
    assert slow.lr == 0.1, "a little is more than nothing"
    harmful = choose("adam", _RATES, [np.array([1.02, 1.01, 1.03, 2, 10, 10, 10])], otherwise=0.5)
    assert harmful.lr == 3e-4
    own = choose("adam", _RATES, [], otherwise=0.5)
    assert (own.lr, own.devices, own.ratios, own.at_edge) == (0.5, 0, (), False)
    assert own.text == (
        "learning rate 0.5 (adam), the strategy's own: no device could try those between 0.0001 "
        "and 0.1"
    )
    assert "give optimiser.lr the number" in of_calibration(own).remedy


@pytest.mark.parametrize(("spread", "lr"), [(0.01, 0.003), (0.2, 1e-3)])
def test_of_rates_that_the_devices_cannot_tell_apart_the_smallest_is_chosen(spread, lr):
    """Few held-out examples: what is best by chance harms in the rounds that follow."""
    rng = np.random.default_rng(4)
    curve = np.array([0.95, 0.9, 0.7, 0.6, 0.75, 2.0, 9.0])
    told = list(np.clip(curve + rng.normal(0, spread, (8, 7)), 0, WORST))
    assert choose("adam", _RATES, told, otherwise=0.5).lr == lr


def test_who_calibrates_is_drawn_by_the_seed():
    names = {f"pi-{number}" for number in range(30)}
    assert (
        drawn(names, 3) == drawn(sorted(names, reverse=True), 3) == tuple(sorted(drawn(names, 3)))
    )
    assert len(drawn(names, 3)) == MOST_DEVICES
    assert drawn(names, 3) != drawn(names, 4)
    assert drawn(["b", "a"], 3) == ("a", "b")
    assert drawn([], 3) == ()


@pytest.mark.parametrize("seed", range(20))
def test_one_liar_of_ten_moves_the_rate_by_one_rung_at_most(seed):
    rng = np.random.default_rng(seed)
    honest = list(_CURVE * rng.lognormal(0, 0.3, (9, 7)))
    before = _RATES.index(choose("adam", _RATES, honest, otherwise=0.5).lr)
    for praised in range(7):
        lie = np.full(7, WORST)
        lie[praised] = 0.0
        after = _RATES.index(choose("adam", _RATES, [*honest, lie], otherwise=0.5).lr)
        assert abs(after - before) <= 1


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -0.1, WORST + 1])
def test_what_no_device_measures_is_refused(wrong):
    ratios = np.ones(7)
    ratios[3] = wrong
    with pytest.raises(RefusedError, match="expected 7 ratios from 0 to 10"):
        check_ratios(ratios, 7)
    check_ratios(np.ones(7), 7)
    schemas_of(_RATES).check({RATIOS: np.ones(7)})
    schemas_of(_RATES).check({})
    with pytest.raises(RefusedError, match=r"expected \(7,\) float64"):
        schemas_of(_RATES).check({RATIOS: np.ones(6)})


def test_a_quarter_of_each_class_is_held_out_the_last_ones():
    y = np.array([0] * 8 + [1] * 3 + [2] * 5)
    assert np.flatnonzero(held_out(y)).tolist() == [6, 7, 15]
    assert held_out(np.array([0, 1, 2, 0, 1, 2])) is None
    assert held_out(np.zeros(0, np.int64)) is None
    assert np.flatnonzero(held_out(np.zeros((9, 2), np.float32))).tolist() == [7, 8]


def test_settings_that_leave_the_rate_open():
    settings = {"epochs": 2, "optimiser": {"kind": "sgd", "lr": "auto", "momentum": 0.5}}
    assert is_auto(settings)
    assert with_rate(settings, 0.3) == {
        "epochs": 2,
        "optimiser": {"kind": "sgd", "lr": 0.3, "momentum": 0.5},
    }
    assert not any(map(is_auto, ({}, {"optimiser": {"lr": 0.1}}, with_rate(settings, 0.3))))
    assert ladder_of(settings) == ("sgd", LADDERS["sgd"])
    with pytest.raises(InputError, match=r'kind of adam, sgd beside lr = "auto", got None'):
        ladder_of({"optimiser": {"lr": "auto"}})


@pytest.fixture
def opened(tmp_path):
    """A strategy and a learner of so many examples; ``mislabelled``: all but what is held out."""

    def new(examples=40, *, mislabelled=False):
        path = tiny_bundle(tmp_path / "tiny.pfb", Ed25519PrivateKey.generate())
        bundle = Bundle.open(path, any_signer=True)
        x, y = tiny_data(0, examples)
        if mislabelled:
            kept = held_out(y)
            x[~kept] = x[~kept][::-1]
        test = tiny_data(1, 10)
        data = DeviceData(
            x_train=x, y_train=y, x_test=test[0], y_test=test[1], classes=bundle.manifest.classes
        )
        learner = open_learner(bundle, LocalData(own=data), threads=1, device_id="anna")
        declared = bundle.manifest.strategy
        return learner.strategy(declared.name, {**declared.settings, "epochs": 3}), learner

    return new


def _order(strategy, learner, rates):
    server = strategy.server_init(learner.model, np.random.default_rng(0))
    order = RoundConfig(round_id=1, seed=3, rates=rates)
    raw = blobs.encode(strategy.downlink(server, "anna").tensors)
    return open_payload(raw, order, strategy.payload)


def test_a_calibration_tells_ratios_and_changes_nothing_that_a_device_keeps(opened):
    strategy, learner = opened()
    received = _order(strategy, learner, _RATES)
    state = strategy.client_init(learner.model)
    for memory in (ClientMemory(), ClientMemory(state=state, residual={"w": np.ones(2)})):
        done = train_round(learner, strategy, memory, received, costs=lambda _: Costs())
        assert isinstance(done.state, ClientState)
        assert done.state.tensors.keys() == state.tensors.keys()
        np.testing.assert_equal(dict(done.state.tensors), dict(state.tensors))
        assert done.residual == memory.residual
        told = decode_update(done.blob, done.coding, {}, max_bytes=4096, forms=schemas_of(_RATES))
        ratios = told.update.tensors[RATIOS]
        check_ratios(ratios, len(ratios))
        assert (told.update.client_id, told.update.num_examples) == ("anna", 40)
        assert told.record.evaluation.own is None
    tester = learner.rate_tester(1)
    again = try_rates(tester, strategy, received.payload, seed=3, rates=_RATES)
    np.testing.assert_array_equal(again, ratios)
    assert ratios[:3].tolist() == sorted(ratios[:3], reverse=True)


def test_who_has_too_few_examples_abstains(opened):
    strategy, learner = opened(examples=3)
    received = _order(strategy, learner, _RATES)
    done = train_round(learner, strategy, ClientMemory(), received, costs=lambda _: Costs())
    assert done.update.tensors == {}


def test_rates_that_can_be_no_better_are_not_tried(opened):
    """A hopeless one ends the way up; the way down goes on as long as none helps."""
    strategy, learner = opened(mislabelled=True)
    tester, payload = learner.rate_tester(1), _order(strategy, learner, _RATES).payload
    trained = []
    train = tester.train
    tester.train = lambda one, *args, **more: trained.append(one) or train(one, *args, **more)
    ratios = try_rates(tester, strategy, payload, seed=3, rates=(1e-4, 1e3, 1e4, 1e5))
    assert [one.settings.optimiser.lr for one in trained] == [1e4, 1e3, 1e-4]
    assert ratios[1:].tolist() == [WORST] * 3


@pytest.mark.parametrize(
    ("ratios", "tried", "found"),
    [
        # A fresh model: up to the end, and one down.
        ([0.98, 0.94, 0.78, 0.5, 0.2, 0.1, 0.2], [3, 4, 5, 6, 2], [0.976, 0.927, 0.78]),
        # A trained one: two in a row that do worse, then down to one that does.
        ([0.9, 0.7, 0.6, 0.9, 1.4, 1.6, 1.5], [3, 4, 5, 2, 1], [0.9, 0.7, 0.6]),
        # One that does worse on the way up may be chance, and so may a small rate that harms.
        ([1.2, 1.1, 1.3, 0.5, 0.6, 0.4, 0.7], [3, 4, 5, 6, 2], [1, 1, 1.3]),
        # Nothing but the smallest rate helps.
        ([0.9, 10, 10, 10, 10, 10, 10], [3, 2, 1, 0], [0.9, 10, 10]),
    ],
)
def test_the_search_begins_in_the_middle(ratios, tried, found):
    asked = []
    told = _searched(7, lambda place: asked.append(place) or ratios[place])
    assert asked == tried
    assert told[:3] == pytest.approx(found, abs=1e-3)
    last = max(asked)
    assert told[3 : last + 1] == ratios[3 : last + 1]
    assert told[last + 1 :] == [max(ratios[3 : last + 1])] * (6 - last)
    assert np.argmin(told) == np.argmin(ratios)
