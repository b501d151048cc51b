"""FedPer by arithmetic: body w and head b move together, only w travels."""

import numpy as np
import pytest
from headed_model import headed, headed_grad_fn
from toy_model import SGD, changed, frozen_map, new_rng, server_tools

from protofleet.errors import InputError
from protofleet.strategies import build
from protofleet.strategies.types import Payload

_QUARTER = {"epochs": 1, "optimiser": {"kind": "sgd", "lr": 0.25}}


def _tools(make_tools, name, examples):
    tools, seen = make_tools(name, examples)
    return changed(tools, grad_fns={"task_loss": headed_grad_fn}), seen


def test_bodies_meet_at_the_weighted_mean_and_heads_stay(make_tools):
    """Rate 1/4 from w + b = 0: a with (4, 8) moves both to (1, 2); b, three times (8, 0), to
    (2, 0). Mean body (1·1 + 3·2, 2)/4 = (1.75, 0.5).
    """
    model = headed(frozen_map)
    strategy = build("fedper", _QUARTER, model)
    server = strategy.server_init(model, new_rng())
    updates, states = [], []
    for name, examples in (("a", [[4, 8]]), ("b", [[8, 0]] * 3)):
        tools, _ = _tools(make_tools, name, examples)
        payload = strategy.downlink(server, name)
        assert set(payload.tensors) == {"params/w"}
        state, update = strategy.client_update(strategy.client_init(model), payload, tools)
        assert set(update.tensors) == {"params/w"}
        updates.append(update)
        states.append(state)
    server = strategy.aggregate(server, updates, server_tools())
    np.testing.assert_array_equal(server.tensors["params/w"], [1.75, 0.5])
    np.testing.assert_array_equal(states[0].tensors["params/head.b"], [1, 2])
    # Round 2 of a: w + b = (2.75, 2.5), gradient (-1.25, -5.5).
    tools, seen = _tools(make_tools, "a", [[4, 8]])
    state, _ = strategy.client_update(states[0], strategy.downlink(server, "a"), tools)
    np.testing.assert_array_equal(state.tensors["params/w"], [1.75 + 1.25 / 4, 0.5 + 5.5 / 4])
    np.testing.assert_array_equal(state.tensors["params/head.b"], [1 + 1.25 / 4, 2 + 5.5 / 4])
    np.testing.assert_array_equal(state.tensors["state/calls"], [2])
    (network,) = seen.evaluated
    np.testing.assert_array_equal(network.params["head.b"], state.tensors["params/head.b"])
    assert strategy.server_model(server) is None


def test_an_early_score_is_of_the_received_body_with_the_own_head(make_tools):
    model = headed(frozen_map, b=(7, 7))
    strategy = build("fedper", {**SGD, "score_at": "start"}, model)
    tools, seen = _tools(make_tools, "a", [[4, 8]])
    payload = Payload(round_id=3, tensors={"params/w": np.array([5, 6], np.float32)})
    strategy.client_update(strategy.client_init(model), payload, tools)
    (network,) = seen.evaluated
    assert {name: value.tolist() for name, value in network.params.items()} == {
        "w": [5, 6],
        "head.b": [7, 7],
    }


@pytest.mark.parametrize("head", ["tail.", ""])
def test_a_head_that_is_nothing_or_all_is_refused(head):
    with pytest.raises(InputError, match="head: expected some parameters, not all and not none"):
        build("fedper", {"head": head}, headed(frozen_map))
