"""FedProx by arithmetic."""

import dataclasses

import numpy as np
import pytest
from toy_model import SGD, new_rng, server_tools

from protofleet.errors import InputError
from protofleet.strategies import build
from protofleet.strategies.types import Payload


def _train(strategy, model, tools, w, state=None):
    round_id = 1 if state is None else 2
    payload = Payload(round_id=round_id, tensors={"params/w": np.array(w, np.float32)})
    state = strategy.client_init(model) if state is None else state
    return strategy.client_update(state, payload, tools)


def test_the_second_step_is_pulled_back_to_the_received_model(model, make_tools):
    """From 0 with rate 1/2 and mu 0.5: step 1 to (1, 2); step 2 has the gradient (1, 2) - (2, 4)
    + 0.5·(1, 2) = (-0.5, -1) and ends at (1.25, 2.5), where FedAvg ends at (1.5, 3).
    """
    tools, _ = make_tools("a", [[2, 4]])
    strategy = build("fedprox", {**SGD, "epochs": 2, "mu": 0.5}, model)
    _, update = _train(strategy, model, tools, [0, 0])
    np.testing.assert_array_equal(update.tensors["params/w"], [1.25, 2.5])
    plain = build("fedprox", {**SGD, "epochs": 2, "mu": 0.0}, model)
    _, update = _train(plain, model, tools, [0, 0])
    np.testing.assert_array_equal(update.tensors["params/w"], [1.5, 3])


def test_with_a_mixture_in_front_the_pull_is_to_the_received_model(model, make_tools):
    """Weights 0 keep the own (1, 2); received (3, 2), mu 1: gradient (-1, -2) + (-2, 0)."""
    tools, _ = make_tools("a", [[2, 4]])
    local_init = {"kind": "ala", "eta": 0.0, "max_passes": 1}
    strategy = build("fedprox", {**SGD, "mu": 1.0, "local_init": local_init}, model)
    state, _ = _train(strategy, model, tools, [0, 0])
    np.testing.assert_array_equal(state.tensors["params/w"], [1, 2])
    state = dataclasses.replace(state, tensors={**state.tensors, "ala/w": np.zeros(2, np.float32)})
    _, update = _train(strategy, model, tools, [3, 2], state)
    np.testing.assert_array_equal(update.tensors["params/w"], [2.5, 3])


def test_two_clients_meet_at_the_weighted_mean_and_buffers_stay(model, make_tools):
    strategy = build("fedprox", SGD, model)
    server = strategy.server_init(model, new_rng())
    updates = []
    for name, examples in (("a", [[2, 4]]), ("b", [[6, 0], [6, 2], [6, 4]])):
        tools, _ = make_tools(name, examples)
        payload = strategy.downlink(server, name)
        updates.append(strategy.client_update(strategy.client_init(model), payload, tools)[1])
    assert set(updates[0].tensors) == set(payload.tensors) == {"params/w"}
    after = strategy.aggregate(server, updates, server_tools())
    np.testing.assert_array_equal(after.tensors["params/w"], [2.5, 1.25])
    assert strategy.server_model(after).params["w"].tolist() == [2.5, 1.25]


def test_mu_is_the_paper_s_and_not_negative(model):
    assert build("fedprox", {}, model).settings.mu == 0.01
    with pytest.raises(InputError, match="setting 'mu': expected a number between 0 and"):
        build("fedprox", {"mu": -0.1}, model)
