"""ProtoHAR by arithmetic: one full-batch step of each phase, and means over two clients."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_perceptron import cross_entropy, features, perceptron, prototype_mse, with_programs
from toy_model import new_rng, server_tools

from protofleet.strategies import build
from protofleet.strategies.types import Update

_X = np.array([[1, 0], [3, 1], [0, 2], [1, 4]], np.float32)
_Y = np.array([0, 0, 2, 2])
_LR, _HEAD_LR = 0.1, 0.02
_STEP = {
    "epochs": 1,
    "clip_norm": None,
    "optimiser": {"kind": "sgd", "lr": _LR, "momentum": 0.9},
    "head_optimiser": {"kind": "sgd", "lr": _HEAD_LR, "momentum": 0.9},
}


@pytest.fixture
def model():
    return perceptron()


def _round(make_tools, strategy, model, *, state=None, **tensors):
    tools = with_programs(make_tools("a", [])[0], x=_X, y=_Y)
    payload = strategy.downlink(strategy.server_init(model, new_rng()), "a")
    payload = dataclasses.replace(payload, tensors={**payload.tensors, **tensors})
    state = strategy.client_init(model) if state is None else state
    return strategy.client_update(state, payload, tools)


def _stepped(network, direction, rate, *, head):
    """``network`` with the head, or all but the head, moved."""
    moved = network.copy()
    for name, value in moved.params.items():
        if name.startswith("head.") == head:
            moved.params[name][...] = value - np.float32(rate) * direction[name]
    return moved


def _batch(prototypes, present=(1, 0, 1), weight=1.0):
    flags = np.array(present, np.float32)
    pull = {"prototypes": prototypes, "present": flags, "weight": np.float32(weight)}
    return {"x": _X, "y": _Y, **pull}


def test_the_head_steps_first_and_then_the_body_with_the_new_head(make_tools, model):
    prototypes = np.arange(12, dtype=np.float32).reshape(3, 4) / 4
    strategy = build("protohar", _STEP, model)
    state, update = _round(
        make_tools, strategy, model, prototypes=prototypes, present=np.array([1, 0, 1], np.uint8)
    )
    batch = _batch(prototypes)
    first = cross_entropy(model.network, batch, None).grads
    head = _stepped(model.network, first, _HEAD_LR, head=True)
    second = prototype_mse(head, batch, None).grads
    expected = _stepped(head, second, _LR, head=False)
    for name, value in expected.params.items():
        np.testing.assert_allclose(state.tensors[f"params/{name}"], value, rtol=1e-6, err_msg=name)
        assert (f"params/{name}" in update.tensors) != name.startswith("head.")
    plain = _stepped(head, cross_entropy(head, batch, None).grads, _LR, head=False)
    assert not np.allclose(plain.params.buffer, expected.params.buffer, rtol=1e-3)


def test_gradients_of_the_test_s_own_model_are_those_of_its_loss(model):
    """Central differences in float64 of the loss along every parameter."""
    batch = _batch(np.ones((3, 4), np.float32), weight=0.7)
    step = prototype_mse(model.network, batch, None)
    for name, grads in step.grads.items():
        for where in np.ndindex(grads.shape):
            sides = []
            for sign in (1, -1):
                moved = {key: value.astype(np.float64) for key, value in model.params.items()}
                moved[name][where] += sign * 1e-5
                at = SimpleNamespace(params=moved, buffers=model.buffers)
                sides.append(prototype_mse(at, batch, None).loss)
            assert grads[where] == pytest.approx((sides[0] - sides[1]) / 2e-5, abs=1e-4)


def test_prototypes_that_are_not_there_yet_do_not_pull(make_tools, model):
    """Round 1 equals a weight of zero, whatever stands in the rows."""
    one, two = (
        _round(make_tools, build("protohar", {**_STEP, "prototype_weight": weight}, model), model)
        for weight in (0.0, 5.0)
    )
    for name, value in one[1].tensors.items():
        np.testing.assert_array_equal(two[1].tensors[name], value)


def test_both_phases_go_on_with_their_moments(make_tools, model):
    """The second round's first step of the head is 0.9 times the last one and the gradient."""
    strategy = build("protohar", _STEP, model)
    state, update = _round(make_tools, strategy, model)
    body = {name: v for name, v in update.tensors.items() if name.startswith("params/")}
    later, _ = _round(make_tools, strategy, model, state=state, **body)
    batch = _batch(np.zeros((3, 4), np.float32))
    first = cross_entropy(model.network, batch, None).grads["head.bias"]
    before = strategy.client_model(state)
    second = cross_entropy(before, batch, None).grads["head.bias"]
    expected = before.params["head.bias"] - np.float32(_HEAD_LR) * (
        np.float32(0.9) * first + second
    )
    np.testing.assert_allclose(later.tensors["params/head.bias"], expected, rtol=1e-6)
    assert {"body/optimiser/0.0", "head/optimiser/0.0"} <= later.tensors.keys()


def test_the_update_holds_class_means_of_the_trained_model_s_features(make_tools, model):
    strategy = build("protohar", _STEP, model)
    state, update = _round(make_tools, strategy, model)
    found = features(strategy.client_model(state), _X)
    expected = [found[:2].mean(axis=0), np.zeros(4), found[2:].mean(axis=0)]
    np.testing.assert_allclose(update.tensors["prototypes"], expected, rtol=1e-6)


def test_the_model_is_scored_before_its_training_and_again_after_it(make_tools, model):
    strategy = build("protohar", _STEP, model)
    tools, seen = make_tools("a", [])
    counted = []

    def confusion(network, **_):
        counted.append(network.params.copy())
        return np.eye(3, dtype=np.int64)

    tools = with_programs(tools, x=_X, y=_Y, statistics=confusion)
    payload = strategy.downlink(strategy.server_init(model, new_rng()), "a")
    body = {n: v + 1 for n, v in payload.tensors.items() if n.startswith("params/")}
    payload = dataclasses.replace(payload, tensors={**payload.tensors, **body})
    state, update = strategy.client_update(strategy.client_init(model), payload, tools)
    for name, value in seen.evaluated[0].params.items():
        expected = body.get(f"params/{name}", model.params[name])
        np.testing.assert_array_equal(value, expected, err_msg=name)
    np.testing.assert_array_equal(counted[0].buffer, strategy.client_model(state).params.buffer)
    assert update.evaluation.more["after_fit"].tolist() == np.eye(3).tolist()


def _two_updates(strategy, model):
    """a has 1 example of class 0 and 3 of class 1, b 2 of class 0."""
    shared = strategy.server_init(model, new_rng()).tensors
    updates = []
    for client_id, value, counts in (("a", 1, [1, 3, 0]), ("b", 4, [2, 0, 0])):
        tensors = {
            name: np.full(tensor.shape, value, np.float32)
            for name, tensor in shared.items()
            if name != "present"
        }
        update = Update(client_id=client_id, round_id=1, num_examples=sum(counts), tensors=tensors)
        updates.append(dataclasses.replace(update, class_counts=np.array(counts)))
    return updates


@pytest.mark.parametrize(("mean", "first"), [("examples", 3.0), ("plain", 2.5)])
def test_the_server_averages_bodies_by_examples_and_prototypes_by_those_of_the_class(
    model, mean, first
):
    """Bodies (4 · 1 + 2 · 4) / 6 = 2; class 0 (1 · 1 + 2 · 4) / 3 or plain; class 1 a's alone."""
    strategy = build("protohar", {**_STEP, "prototype_mean": mean}, model)
    state = strategy.server_init(model, new_rng())
    old = np.full((3, 4), 7, np.float32)
    state = dataclasses.replace(state, tensors={**state.tensors, "prototypes": old})
    after = strategy.aggregate(state, _two_updates(strategy, model), server_tools())
    np.testing.assert_allclose(after.tensors["params/body.0.weight"], 2, rtol=1e-6)
    np.testing.assert_allclose(after.tensors["prototypes"][:, 0], [first, 1, 7], rtol=1e-6)
    assert after.tensors["present"].tolist() == [1, 1, 0]
    assert "params/head.weight" not in after.tensors
    later = strategy.aggregate(after, _two_updates(strategy, model)[1:], server_tools())
    np.testing.assert_allclose(later.tensors["prototypes"][:, 0], [4, 1, 7], rtol=1e-6)
    assert later.tensors["present"].tolist() == [1, 1, 0]


def test_counts_that_make_no_sense_do_not_stop_the_server(model):
    strategy = build("protohar", _STEP, model)
    updates = [
        dataclasses.replace(update, class_counts=np.array([-4, 0, 0]))
        for update in _two_updates(strategy, model)
    ]
    after = strategy.aggregate(strategy.server_init(model, new_rng()), updates, server_tools())
    assert after.tensors["present"].tolist() == [0, 0, 0]
    assert (after.tensors["prototypes"] == 0).all()
