"""Training alone beside a federation: the bits of both are those that each has by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_bundle, tiny_data

from protofleet.bundle import Bundle
from protofleet.datasets import DeviceData
from protofleet.edge.learning.meter import Meter
from protofleet.edge.learning.training import Learner, LocalData
from protofleet.federation.client import ClientMemory, RoundConfig, open_payload, train_round
from protofleet.federation.outcomes.alone import ALONE, settings_alone, split
from protofleet.federation.records import Costs, Sends
from protofleet.runtime import open_programs
from protofleet.tensors import blobs

_SETTINGS = {"epochs": 2, "batch_size": 16, "optimiser": {"kind": "adam", "lr": 0.05}}
_ROUNDS = 3


@pytest.fixture
def learner(tmp_path):
    bundle = Bundle.open(
        tiny_bundle(tmp_path / "tiny.pfb", Ed25519PrivateKey.generate(), head=("w", "b")),
        any_signer=True,
    )
    train, test = tiny_data(1, 40), tiny_data(2, 20)
    own = DeviceData(
        x_train=train[0],
        y_train=train[1],
        x_test=test[0],
        y_test=test[1],
        classes=bundle.manifest.classes,
    )
    return Learner(bundle, open_programs(bundle), LocalData(own=own), Meter(), "anna")


def _rounds(learner, name, settings=_SETTINGS, *, count=_ROUNDS, final=False, **order):
    """A client's rounds with the server's first state, one after the other."""
    strategy, memory, found = learner.strategy(name, settings), ClientMemory(), []
    server = strategy.server_init(learner.model, np.random.default_rng(0))
    raw = blobs.encode(strategy.downlink(server, "anna").tensors)
    for round_id in range(1, count + 1):
        last = final and round_id == count
        config = RoundConfig(round_id=round_id, seed=7, final=last, **order)
        received = open_payload(raw, config, strategy.payload)
        trained = train_round(learner, strategy, memory, received, costs=lambda _: Costs())
        memory = ClientMemory(state=trained.state, residual=trained.residual)
        found.append(trained)
    return found


def _same(one, two):
    assert one.keys() == two.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, two[name], err_msg=name)


@pytest.mark.parametrize("name", ["fedavg", "ditto", "fedala", "fedprox", "apfl", "perfedavg"])
def test_neither_touches_the_other(learner, name):
    plain, both = _rounds(learner, name), _rounds(learner, name, alone=True)
    settings = settings_alone(learner.strategy(name, _SETTINGS).settings)
    local = _rounds(learner, "local", settings)
    for before, with_alone, by_itself in zip(plain, both, local, strict=True):
        own, alone = split(with_alone.state)
        _same(own.tensors, before.state.tensors)
        _same(alone.tensors, by_itself.state.tensors)
        _same(with_alone.update.tensors, before.update.tensors)
        told = with_alone.update.evaluation
        np.testing.assert_array_equal(told.own, before.update.evaluation.own)
        np.testing.assert_array_equal(told.more[ALONE], by_itself.update.evaluation.own)
        assert ALONE not in before.update.evaluation.more


def test_where_nobody_is_told_of_it_nothing_is_trained(learner):
    quiet = _rounds(learner, "fedavg", alone=True, sends=Sends(scores=False))
    assert split(quiet[-1].state)[1] is None


def test_a_client_that_is_asked_no_more_forgets_it(learner):
    (asked,) = _rounds(learner, "fedavg", count=1, alone=True)
    strategy = learner.strategy("fedavg", _SETTINGS)
    memory = ClientMemory(state=asked.state)
    raw = blobs.encode(strategy.downlink(strategy.server_init(learner.model, None), "a").tensors)
    received = open_payload(raw, RoundConfig(round_id=2, seed=7), strategy.payload)
    trained = train_round(learner, strategy, memory, received, costs=lambda _: Costs())
    assert split(trained.state)[1] is None


def test_the_fit_after_the_last_round_scores_it_as_it_was(learner):
    *_, last, fit = _rounds(learner, "fedavg_c", alone=True, final=True)
    _same(split(fit.state)[1].tensors, split(last.state)[1].tensors)
    told = (one.update.evaluation.more[ALONE] for one in (last, fit))
    np.testing.assert_array_equal(*told)


def test_a_training_alone_that_diverges_ends_no_round(learner, monkeypatch):
    train = learner.train

    def diverging(strategy, *args, **options):
        state, update = train(strategy, *args, **options)
        if strategy.description.name == "local" and update.round_id == 2:
            state = replace(state, tensors={**state.tensors, "w": np.float32([np.nan])})
        return state, update

    monkeypatch.setattr(learner, "train", diverging)
    first, second, third = _rounds(learner, "fedavg", alone=True)
    assert [ALONE in one.update.evaluation.more for one in (first, second, third)] == [1, 0, 1]
    _same(split(second.state)[1].tensors, split(first.state)[1].tensors)
