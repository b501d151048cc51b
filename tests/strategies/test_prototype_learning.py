"""FedHP and FedProto with an exported convolutional network on real digits."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from toy_model import server_tools

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.datasets import DeviceData
from protofleet.datasets.mnist import CLASSES, mnist_pool
from protofleet.edge.learning.meter import Meter
from protofleet.edge.learning.training import Learner, LocalData
from protofleet.export.build import BundleSpec, export_bundle
from protofleet.export.models import build_model
from protofleet.runtime import open_programs
from protofleet.strategies.scores import macro_f1

pytestmark = [pytest.mark.data, pytest.mark.slow]

_EACH = 40
"""Digits of each class and client: 30 to train on, 10 to test."""
_DIGITS = {"a": np.arange(10), "b": np.arange(10), "c": np.arange(1, 10, 2)}
_PROTOTYPES = "params/head.prototypes"
_SETTINGS = {"epochs": 3, "batch_size": 16}
_SGD = {"kind": "sgd", "lr": 0.01, "momentum": 0.9}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    torch.manual_seed(0)
    spec = BundleSpec(
        name="digits",
        strategy="fedhp",
        classes=CLASSES,
        preprocessing=Preprocessing(input_shape=(1, 28, 28)),
        objectives=("cross_entropy", "prototype_distance", "prototype_mse"),
    )
    path = tmp_path_factory.mktemp("prototypes") / "digits.pfb"
    model = build_model("cnn_prototypes", filters=[6, 8])
    export_bundle(model, spec, out=path, key=Ed25519PrivateKey.generate())
    return Bundle.open(path, any_signer=True)


@pytest.fixture(scope="module")
def learners(bundle, data_root):
    """Three devices; "c" has odd digits only."""
    pool = mnist_pool(data_root, limit=3 * _EACH)
    every = np.stack([np.flatnonzero(pool.y == label)[: 3 * _EACH] for label in range(10)])

    def learner(part, name):
        mine = every[_DIGITS[name], part * _EACH : (part + 1) * _EACH]
        train, test = mine[:, :30].ravel(), mine[:, 30:].ravel()
        own = DeviceData(
            x_train=pool.x[train],
            y_train=pool.y[train],
            x_test=pool.x[test],
            y_test=pool.y[test],
            classes=CLASSES,
        )
        return Learner(bundle, open_programs(bundle), LocalData(own=own), Meter(), name)

    return {name: learner(part, name) for part, name in enumerate(_DIGITS)}


@pytest.fixture(scope="module")
def federate(learners):
    """Three rounds: the strategy, the server's and the clients' states, every round's updates."""

    def run(name, **settings):
        anyone = learners["a"]
        strategy = anyone.strategy(name, {**_SETTINGS, **settings})
        server = strategy.server_init(anyone.model, np.random.default_rng(0))
        states, history = dict.fromkeys(learners), []
        for _ in range(3):
            updates = {}
            for client_id in learners:
                payload = strategy.downlink(server, client_id)
                states[client_id], update = train(client_id, strategy, states[client_id], payload)
                counts = np.zeros(10, np.int64)
                counts[_DIGITS[client_id]] = 30
                updates[client_id] = dataclasses.replace(update, class_counts=counts)
            server = strategy.aggregate(server, list(updates.values()), server_tools())
            history.append(updates)
        return strategy, server, states, history

    def train(client_id, strategy, state, payload):
        return learners[client_id].train(strategy, state, payload, seed=1)

    run.train = train
    return run


def scores(updates):
    return {name: macro_f1(update.evaluation.own) for name, update in updates.items()}


def assert_losses_fall(history):
    for before, after in pairwise(history):
        assert all(after[name].loss < before[name].loss for name in after)


def test_fedhp_learns_digits_with_10_x_128_numbers_each_way(federate):
    strategy, server, states, history = federate("fedhp")
    for updates in history:
        for update in updates.values():
            assert {k: v.shape for k, v in update.tensors.items()} == {_PROTOTYPES: (10, 128)}
    assert {k: v.shape for k, v in strategy.downlink(server, "a").tensors.items()} == {
        _PROTOTYPES: (10, 128)
    }
    assert_losses_fall(history)
    assert min(scores(history[-1]).values()) > 0.65
    payload = dataclasses.replace(strategy.downlink(server, "a"), final=True)
    _, last = federate.train("a", strategy, states["a"], payload)
    assert macro_f1(last.evaluation.own) > 0.8


def test_fedhp_anchors_keep_the_prototypes_apart(federate):
    """Strong anchors hold every class near its own; without them the prototypes drift farther."""
    cosines = {}
    for weight in (0.0, 10.0):
        _, server, _, _ = federate("fedhp", anchor_weight=weight)
        anchors, prototypes = server.tensors["anchors"], server.tensors[_PROTOTYPES]
        lengths = np.linalg.norm(prototypes, axis=1) * np.linalg.norm(anchors, axis=1)
        cosines[weight] = ((prototypes * anchors).sum(axis=1) / lengths).mean()
    assert cosines[10.0] > cosines[0.0] + 0.05


def test_fedproto_learns_digits_and_scores_by_the_nearest_prototype(federate, learners):
    strategy, _, states, history = federate("fedproto", optimiser=_SGD)
    assert_losses_fall(history)
    assert min(scores(history[-1]).values()) > 0.6
    for name, learner in learners.items():
        model, score = strategy.client_model(states[name]), strategy.client_score(states[name])
        again = learner.evaluate(model, score=score)
        np.testing.assert_array_equal(again.own, history[-1][name].evaluation.own)
