"""Local by arithmetic: rounds are one training that is never told of others."""

from dataclasses import replace

import numpy as np
import pytest
from toy_model import SGD, changed, new_rng, server_tools

from protofleet.strategies import build
from protofleet.strategies.types import TensorSchemas


def _rounds(strategy, model, tools, count):
    server = strategy.server_init(model, new_rng())
    state, updates = strategy.client_init(model), []
    for _ in range(count):
        payload = strategy.downlink(server, "a")
        assert payload.tensors == {}
        state, update = strategy.client_update(state, payload, tools)
        assert update.tensors == {}
        server = strategy.aggregate(server, [update], server_tools())
        updates.append(update)
    assert server.round_id == count
    assert strategy.server_model(server) is None
    return state, updates


def test_a_round_goes_on_where_the_last_one_ended(model, make_tools):
    """Half the way to (2, 4) each time: (1, 2), (1.5, 3)."""
    strategy = build("local", SGD, model)
    tools, seen = make_tools("a", [[2, 4]])
    state, updates = _rounds(strategy, model, tools, 2)
    assert [network.params["w"].tolist() for network in seen.evaluated] == [[1, 2], [1.5, 3]]
    np.testing.assert_array_equal(strategy.client_model(state).params["w"], [1.5, 3])
    assert [update.loss for update in updates] == [10, 2.5]
    assert strategy.uplink == TensorSchemas()


@pytest.mark.parametrize(
    "optimiser", [{"kind": "sgd", "lr": 0.5, "momentum": 0.9}, {"kind": "adam", "lr": 0.1}]
)
def test_rounds_of_one_epoch_are_epochs_of_one_round(model, make_tools, optimiser):
    """One batch an epoch; the moments go on."""
    ends = []
    for epochs, rounds in ((6, 1), (1, 6), (2, 3)):
        strategy = build("local", {"epochs": epochs, "optimiser": optimiser}, model)
        tools, _ = make_tools("a", [[2, 4], [6, 0]])
        state, _ = _rounds(strategy, model, tools, rounds)
        ends.append(state.tensors["params/w"])
    np.testing.assert_array_equal(ends[0], ends[1])
    np.testing.assert_array_equal(ends[0], ends[2])


def _best(model, make_tools, scores, **settings):
    """The w that a round of four epochs keeps; w is 1, 1.5, 1.75, 1.875 after them."""
    turn = iter(scores)
    tools, seen = make_tools("a", [[2, 2]])

    def confusion(_network, **_):
        right = next(turn)
        return None if right is None else np.array([[right, 10 - right], [0, 0]])

    tools = changed(tools, statistics=confusion)
    strategy = build("local", {**SGD, "epochs": 4, "keep_best": True, **settings}, model)
    state, (update,) = _rounds(strategy, model, tools, 1)
    (scored,) = seen.evaluated
    np.testing.assert_array_equal(scored.params["w"], state.tensors["params/w"])
    return state, update


@pytest.mark.parametrize(
    ("scores", "w", "loss"),
    [
        ([3, 7, 5, 6], 1.5, 1.0),
        ([3, 7, 7, 6], 1.5, 1.0),
        ([9, 7, 7, 6], 1.0, 4.0),
        ([0, 0, 0, 1], 1.875, 0.0625),
        ([None] * 4, 1.875, 0.0625),
    ],
)
def test_the_best_epoch_on_the_own_test_part_is_kept(model, make_tools, scores, w, loss):
    """The first of equals; the last one where there is no test part."""
    state, update = _best(model, make_tools, scores)
    np.testing.assert_array_equal(state.tensors["params/w"], [w, w])
    assert update.loss == loss


def test_the_best_epoch_is_kept_with_its_moments(model, make_tools):
    state, _ = _best(model, make_tools, [3, 7, 5, 6], optimiser={"kind": "adam", "lr": 0.1})
    assert int(state.tensors["optimiser/0.steps"]) == 2


def test_a_client_without_examples_keeps_its_model(model, make_tools):
    for keep_best in (False, True):
        strategy = build("local", {**SGD, "keep_best": keep_best}, model)
        tools, _ = make_tools("a", [])
        state, (update,) = _rounds(strategy, model, tools, 1)
        np.testing.assert_array_equal(state.tensors["params/w"], [0, 0])
        assert update.num_examples == 0


def test_without_classes_the_best_epoch_has_the_smallest_error(model, make_tools):
    """RMSE of 4, 1, 2, 3 after the four epochs: the second is kept."""
    turn = iter([4.0, 1.0, 2.0, 3.0])
    tools, _ = make_tools("a", [[2, 2]])

    def statistics(_network, **_):
        error = next(turn)
        return np.array([[1, error, error**2, 0, 1]])

    regression = replace(model, task="regression")
    strategy = build("local", {**SGD, "epochs": 4, "keep_best": True}, regression)
    state, _ = _rounds(strategy, regression, changed(tools, statistics=statistics), 1)
    np.testing.assert_array_equal(state.tensors["params/w"], [1.5, 1.5])
