"""FedRep by arithmetic: first the head b alone, then the body w alone."""

import numpy as np
import pytest
from headed_model import headed, headed_grad_fn
from toy_model import SGD, changed, frozen_map, new_rng, server_tools

from protofleet.errors import InputError
from protofleet.strategies import build


def _tools(make_tools, name, examples):
    tools, seen = make_tools(name, examples)
    moved = []

    def recorded(network, *rest):
        moved.append({key: value.tolist() for key, value in network.params.items()})
        return headed_grad_fn(network, *rest)

    return changed(tools, grad_fns={"task_loss": recorded}), seen, moved


def test_the_head_moves_first_and_the_body_after_it(make_tools):
    """Rate 1/2, example (8, 0), from 0: the head goes to 4 and 6, then the body to 1."""
    model = headed(frozen_map)
    strategy = build("fedrep", {**SGD, "head_epochs": 2}, model)
    server = strategy.server_init(model, new_rng())
    tools, seen, moved = _tools(make_tools, "a", [[8, 0]])
    payload = strategy.downlink(server, "a")
    state, update = strategy.client_update(strategy.client_init(model), payload, tools)
    assert [(step["w"][0], step["head.b"][0]) for step in moved] == [(0, 0), (0, 4), (0, 6)]
    assert set(payload.tensors) == set(update.tensors) == {"params/w"}
    np.testing.assert_array_equal(update.tensors["params/w"], [1, 0])
    np.testing.assert_array_equal(state.tensors["params/head.b"], [6, 0])
    np.testing.assert_array_equal(state.tensors["state/calls"], [3])  # buffers go through both
    assert update.loss == 2.0  # of the body's epoch: (6 - 8)²/2
    (network,) = seen.evaluated
    np.testing.assert_array_equal(network.params["w"], [1, 0])


def test_bodies_meet_at_the_weighted_mean(make_tools):
    """One head epoch: b to half of x, then w to a quarter."""
    model = headed(frozen_map)
    strategy = build("fedrep", {**SGD, "head_epochs": 1}, model)
    server = strategy.server_init(model, new_rng())
    updates = []
    for name, examples in (("a", [[4, 8]]), ("b", [[8, 0]] * 3)):
        tools, _, _ = _tools(make_tools, name, examples)
        payload = strategy.downlink(server, name)
        updates.append(strategy.client_update(strategy.client_init(model), payload, tools)[1])
    after = strategy.aggregate(server, updates, server_tools())
    np.testing.assert_array_equal(after.tensors["params/w"], [(1 + 3 * 2) / 4, 2 / 4])
    assert strategy.server_model(after) is None


def test_defaults_are_ten_head_epochs_and_one_of_the_body():
    settings = build("fedrep", {}, headed(frozen_map)).settings
    assert (settings.head_epochs, settings.epochs) == (10, 1)
    with pytest.raises(InputError, match="setting 'head_epochs'"):
        build("fedrep", {"head_epochs": 0}, headed(frozen_map))
