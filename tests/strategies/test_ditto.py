"""Ditto by arithmetic: w trains as in FedAvg, v with a pull to the received w."""

import dataclasses

import numpy as np
import pytest
from toy_model import LOCAL, SGD, new_rng, server_tools

from protofleet.errors import InputError
from protofleet.strategies import build
from protofleet.strategies.types import Payload

_SETTINGS = {**SGD, "personal_epochs": 2, "lam": 0.5}


def _round(strategy, tools, state, w, round_id):
    payload = Payload(round_id=round_id, tensors={"params/w": np.array(w, np.float32)})
    return strategy.client_update(state, payload, tools)


def test_the_shared_model_goes_up_and_the_personal_one_is_held_near_the_received(model, make_tools):
    """Example (2, 4), rate 1/2, lambda 1/2. Round 1 from 0: w to (1, 2); v to (1, 2), then with the
    gradient (-1, -2) + (1, 2)/2 to (1.25, 2.5).

    Round 2, received (4, 0): w to (3, 2). v: gradient (-0.75, -1.5) + (-2.75, 2.5)/2 =
    (-2.125, -0.25), to (2.3125, 2.625); then (0.3125, -1.375) + (-1.6875, 2.625)/2 =
    (-0.53125, -0.0625), to (2.578125, 2.65625).
    """
    strategy = build("ditto", _SETTINGS, model)
    tools, seen = make_tools("a", [[2, 4]])
    state, update = _round(strategy, tools, strategy.client_init(model), [0, 0], 1)
    np.testing.assert_array_equal(update.tensors["params/w"], [1, 2])
    np.testing.assert_array_equal(state.tensors["params/w"], [1.25, 2.5])
    state, update = _round(strategy, tools, state, [4, 0], 2)
    assert set(update.tensors) == {"params/w"}
    np.testing.assert_array_equal(update.tensors["params/w"], [3, 2])
    np.testing.assert_array_equal(state.tensors["params/w"], [2.578125, 2.65625])
    scored = [network.params["w"].tolist() for network in seen.evaluated]
    assert scored == [[1.25, 2.5], [2.578125, 2.65625]]
    np.testing.assert_array_equal(strategy.client_model(state).params["w"], [2.578125, 2.65625])


def test_each_model_has_buffers_of_its_own(model, make_tools):
    """A step adds 0.1: the shared model makes one a round, the personal one two."""
    strategy = build("ditto", _SETTINGS, model)
    tools, _ = make_tools("a", [[2, 4]])
    state = strategy.client_init(model)
    for round_id in (1, 2):
        state, _ = _round(strategy, tools, state, [0, 0], round_id)
    np.testing.assert_allclose(state.tensors["state/" + LOCAL][0], [0.4, 0.4], rtol=1e-6)
    np.testing.assert_allclose(state.tensors["shared/state/" + LOCAL][0], [0.2, 0.2], rtol=1e-6)
    assert "shared/params/w" not in state.tensors


def test_an_early_score_is_of_the_personal_model_of_the_round_before(model, make_tools):
    strategy = build("ditto", {**_SETTINGS, "score_at": "start"}, model)
    tools, seen = make_tools("a", [[2, 4]])
    state, _ = _round(strategy, tools, strategy.client_init(model), [0, 0], 1)
    _round(strategy, tools, state, [4, 0], 2)
    assert [network.params["w"].tolist() for network in seen.evaluated] == [[0, 0], [1.25, 2.5]]


def test_with_local_init_the_own_shared_model_is_mixed_and_takes_the_received_one_s_place(
    model, make_tools
):
    """Weights 0 keep the shared (1, 2), whatever came: w to (1.5, 3), and v is pulled to (1, 2):
    (-0.75, -1.5) + (0.25, 0.5)/2 = (-0.625, -1.25), to (1.5625, 3.125); then (-0.4375, -0.875) +
    (0.5625, 1.125)/2 = (-0.15625, -0.3125), to (1.640625, 3.28125).
    """
    local_init = {"kind": "ala", "eta": 0.0, "max_passes": 1}
    strategy = build("ditto", {**_SETTINGS, "local_init": local_init}, model)
    tools, _ = make_tools("a", [[2, 4]])
    state, _ = _round(strategy, tools, strategy.client_init(model), [0, 0], 1)
    np.testing.assert_array_equal(state.tensors["shared/params/w"], [1, 2])
    kept = {**state.tensors, "shared/ala/w": np.zeros(2, np.float32)}
    state, update = _round(strategy, tools, dataclasses.replace(state, tensors=kept), [9, 9], 2)
    np.testing.assert_array_equal(update.tensors["params/w"], [1.5, 3])
    np.testing.assert_array_equal(state.tensors["params/w"], [1.640625, 3.28125])
    np.testing.assert_array_equal(state.tensors["shared/ala/w"], [0, 0])


def test_two_clients_meet_at_the_weighted_mean(model, make_tools):
    strategy = build("ditto", _SETTINGS, model)
    server = strategy.server_init(model, new_rng())
    updates = []
    for name, examples in (("a", [[2, 4]]), ("b", [[6, 0], [6, 2], [6, 4]])):
        tools, _ = make_tools(name, examples)
        payload = strategy.downlink(server, name)
        updates.append(strategy.client_update(strategy.client_init(model), payload, tools)[1])
    after = strategy.aggregate(server, updates, server_tools())
    np.testing.assert_array_equal(after.tensors["params/w"], [2.5, 1.25])


@pytest.mark.parametrize("setting", [{"lam": -1.0}, {"personal_epochs": 0}])
def test_settings_have_ranges(model, setting):
    with pytest.raises(InputError, match=f"setting '{next(iter(setting))}'"):
        build("ditto", setting, model)
