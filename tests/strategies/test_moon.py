"""MOON by arithmetic, with the toy program of laws/case_moon.py: features are x·w."""

import numpy as np
import pytest
from laws.case_moon import moon_grad_fn, moon_tools
from toy_model import SGD, changed, new_rng, server_tools

from protofleet.errors import InputError
from protofleet.strategies import build
from protofleet.strategies.types import Payload

_X = [[2, 4], [6, 0]]


def _round(strategy, tools, state, w, round_id):
    seen = []

    def recorded(network, batch, rng):
        seen.append({k: np.array(batch[k]) for k in ("x", "positive", "negative", "tau", "mu")})
        return moon_grad_fn(network, batch, rng)

    tools = changed(tools, grad_fns={"moon": recorded})
    payload = Payload(round_id=round_id, tensors={"params/w": np.array(w, np.float32)})
    return (*strategy.client_update(state, payload, tools), seen)


def test_positives_are_the_received_model_s_and_negatives_the_previous_one_s(model, make_tools):
    """Batches of one example, in any order: every row gets its own features."""
    strategy = build("moon", {**SGD, "batch_size": 1}, model)
    tools, _ = moon_tools(make_tools)("a", _X)
    state, _, seen = _round(strategy, tools, strategy.client_init(model), [3, 1], 1)
    for batch in seen:
        np.testing.assert_array_equal(batch["positive"], batch["x"] * [3, 1])
        np.testing.assert_array_equal(batch["negative"], batch["positive"])
        assert (batch["tau"].dtype, batch["mu"].dtype) == (np.float32, np.float32)
        assert (batch["tau"].shape, float(batch["tau"]), float(batch["mu"])) == ((), 0.5, 1.0)
    own = state.tensors["params/w"]
    _, _, seen = _round(strategy, tools, state, [5, 7], 2)
    assert sorted(batch["x"].tolist() for batch in seen) == [[[2, 4]], [[6, 0]]]
    for batch in seen:
        np.testing.assert_array_equal(batch["positive"], batch["x"] * [5, 7])
        np.testing.assert_array_equal(batch["negative"], batch["x"] * own)


def test_two_rounds_of_one_client(model, make_tools):
    """Round 1 from 0, examples' mean (4, 2): both models are the same, to (2, 1).

    Round 2, received (4, 2): the toy's pull is mu/tau·mean(x·(own - received)) = 2/0.5·(4·-2, 2·-1)
    = (-32, -8), the plain gradient 0: to (20, 6).
    """
    strategy = build("moon", {**SGD, "mu": 2.0}, model)
    tools, evaluated = moon_tools(make_tools)("a", _X)
    state, update, _ = _round(strategy, tools, strategy.client_init(model), [0, 0], 1)
    np.testing.assert_array_equal(update.tensors["params/w"], [2, 1])
    state, update, _ = _round(strategy, tools, state, [4, 2], 2)
    assert set(update.tensors) == {"params/w"}
    np.testing.assert_array_equal(update.tensors["params/w"], [20, 6])
    np.testing.assert_array_equal(evaluated.evaluated[1].params["w"], [20, 6])


def test_two_clients_meet_at_the_weighted_mean(model, make_tools):
    strategy = build("moon", SGD, model)
    server = strategy.server_init(model, new_rng())
    updates = []
    for name, examples in (("a", [[2, 4]]), ("b", [[6, 0], [6, 2], [6, 4]])):
        tools, _ = moon_tools(make_tools)(name, examples)
        payload = strategy.downlink(server, name)
        updates.append(strategy.client_update(strategy.client_init(model), payload, tools)[1])
    after = strategy.aggregate(server, updates, server_tools())
    np.testing.assert_array_equal(after.tensors["params/w"], [2.5, 1.25])


def test_mixing_weights_are_learnt_with_moon_s_own_loss(model, make_tools):
    """Own (2, 1), received (4, 2), gap (2, 1): the gradient at the received model is the pull
    (-16, -4), which moves weights 1 up and is cut: training starts from (4, 2), to (12, 4).
    """
    local_init = {"kind": "ala", "max_passes": 1, "sample_percent": 100}
    strategy = build("moon", {**SGD, "local_init": local_init}, model)
    tools, _ = moon_tools(make_tools)("a", _X)
    state, _, _ = _round(strategy, tools, strategy.client_init(model), [0, 0], 1)
    state, update, seen = _round(strategy, tools, state, [4, 2], 2)
    assert len(seen) == 2
    np.testing.assert_array_equal(seen[0]["negative"], np.array(_X) * [2, 1])
    np.testing.assert_array_equal(state.tensors["ala/w"], [1, 1])
    np.testing.assert_array_equal(update.tensors["params/w"], [12, 4])


def test_a_client_without_examples_calls_no_program(model, make_tools):
    def never(*_):
        raise AssertionError

    strategy = build("moon", SGD, model)
    tools, _ = make_tools("a", [])
    tools = changed(tools, features=never, grad_fns={"moon": never})
    payload = strategy.downlink(strategy.server_init(model, new_rng()), "a")
    _, update = strategy.client_update(strategy.client_init(model), payload, tools)
    assert update.num_examples == 0


@pytest.mark.parametrize("setting", [{"tau": 0.0}, {"mu": -1.0}])
def test_settings_have_ranges(model, setting):
    with pytest.raises(InputError, match=f"setting '{next(iter(setting))}'"):
        build("moon", setting, model)
