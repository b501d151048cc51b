"""FedALA by arithmetic; local aggregation itself is tested in test_ala.py."""

import numpy as np
import pytest
from toy_model import new_rng, server_tools

from protofleet.errors import InputError
from protofleet.strategies import build
from protofleet.strategies.ala import Ala

_SETTINGS = {
    "epochs": 1,
    "drop_last": False,
    "optimiser": {"kind": "sgd", "lr": 0.5},
    "local_init": {"kind": "ala", "eta": 0.1, "max_passes": 1},
}


def test_defaults_of_local_aggregation_are_the_paper_s(model):
    settings = build("fedala", {}, model).settings
    assert settings.local_init == Ala(
        layer_idx=2, sample_percent=80, eta=1.0, threshold=0.01, window=10, max_passes=200
    )
    assert settings.score_at == "start"


def test_local_aggregation_cannot_be_left_out(model):
    with pytest.raises(InputError, match=r"`local_init`: expected a table.*, got nothing"):
        build("fedala", {"local_init": None}, model)


def test_two_clients_two_rounds(model, make_tools):
    """Round 1 from (0, 0): a with (2, 4) ends at (1, 2), b with twice (6, 0) at (3, 0); mean
    (7, 2)/3.

    Round 2, client a: gap (4/3, -4/3); with weights 1 the gradient is (7/3 - 2, 2/3 - 4) =
    (1/3, -10/3), weights 1 - 0.1·(4/9, 40/9) = (43, 25)/45, mixture (1, 2) + 4/3·(43, -25)/45.
    Client b: gap (-2/3, 2/3), gradient (7/3 - 6, 2/3) = (-11/3, 2/3), weights 1 - 0.1·(22/9, 4/9)
    = (34, 43)/45, mixture (3, 0) + 2/3·(-34, 43)/45. Then each goes half the way to its mean.
    """
    strategy = build("fedala", _SETTINGS, model)
    server = strategy.server_init(model, new_rng())
    examples = {"a": [[2, 4]], "b": [[6, 0], [6, 0]]}
    states = {name: strategy.client_init(model) for name in examples}
    for _ in range(2):
        updates, scored = [], []
        for name, rows in examples.items():
            tools, seen = make_tools(name, rows)
            payload = strategy.downlink(server, name)
            assert set(payload.tensors) == {"params/w"}
            states[name], update = strategy.client_update(states[name], payload, tools)
            updates.append(update)
            scored += [network.params["w"] for network in seen.evaluated]
        server = strategy.aggregate(server, updates, server_tools())
    mixed_a = np.array([1, 2]) + 4 / 3 * np.array([43, -25]) / 45
    mixed_b = np.array([3, 0]) + 2 / 3 * np.array([-34, 43]) / 45
    # Scored once a round, before training.
    np.testing.assert_allclose(scored, [mixed_a, mixed_b], rtol=1e-5)
    trained_a, trained_b = np.add(mixed_a, [2, 4]) / 2, np.add(mixed_b, [6, 0]) / 2
    np.testing.assert_allclose(updates[0].tensors["params/w"], trained_a, rtol=1e-5)
    np.testing.assert_allclose(updates[1].tensors["params/w"], trained_b, rtol=1e-5)
    np.testing.assert_allclose(
        server.tensors["params/w"], (trained_a + 2 * trained_b) / 3, rtol=1e-5
    )
    np.testing.assert_allclose(states["a"].tensors["ala/w"], [43 / 45, 25 / 45], rtol=1e-5)


def test_only_parameters_travel_and_the_device_infers_with_its_trained_model(model, make_tools):
    strategy = build("fedala", _SETTINGS, model)
    server = strategy.server_init(model, new_rng())
    tools, seen = make_tools("a", [[2, 4]])
    payload = strategy.downlink(server, "a")
    state, update = strategy.client_update(strategy.client_init(model), payload, tools)
    assert set(update.tensors) == {"params/w"}
    np.testing.assert_array_equal(seen.evaluated[0].params["w"], [0, 0])
    np.testing.assert_array_equal(strategy.client_model(state).params["w"], [1, 2])
