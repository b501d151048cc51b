"""pFedMe against its published equations, round by round."""

import dataclasses

import numpy as np
import pytest
from closed_form import COHORTS, EXAMPLES, Clients, batches, gradient
from oracle_errors import OracleRounds
from oracles.pfedme import PFedMe
from toy_model import LOCAL, SGD

from protofleet.errors import InputError
from protofleet.strategies import build
from protofleet.strategies.types import Payload

_SETTINGS = {
    "epochs": 2,
    "batch_size": 2,
    "lam": 3.0,
    "local_lr": 0.1,
    "inner_steps": 4,
    "optimiser": {"kind": "sgd", "lr": 0.15},
}


@pytest.mark.parametrize("beta", [1.0, 0.6, 2.0])
def test_rounds_with_some_of_the_clients_are_those_of_the_equations(model, make_tools, beta):
    strategy = build("pfedme", {**_SETTINGS, "server": {"lr": beta}}, model)
    clients = Clients(strategy, model, make_tools)
    oracle = PFedMe(gradient, [0, 0], lam=3.0, eta=0.1, beta=beta, lr=0.15, steps=4)
    drawn = {name: list(batches(name, 2, epochs=2)) for name in EXAMPLES}
    rounds = OracleRounds("pFedMe", COHORTS, 2e-6)
    for cohort in COHORTS:
        updates = clients.round(cohort)
        assert set(updates[0].tensors) == {"params/w"}
        oracle.round(cohort, drawn)
        tensors = clients.server.tensors
        rounds.agree(tensors["params/w"], oracle.w)
        for name in cohort:
            own = strategy.client_model(clients.states[name]).params["w"]
            rounds.agree(own, oracle.personal[name])


def test_many_steps_find_the_minimum_that_the_envelope_s_gradient_asks_for(model, make_tools):
    """At the minimum ∇f(θ) = λ(w - θ), so that w goes down the gradient at θ by η."""
    settings = {**_SETTINGS, "epochs": 1, "batch_size": 8, "inner_steps": 400}
    clients = Clients(build("pfedme", settings, model), model, make_tools)
    (update,) = clients.round("a")
    theta = clients.states["a"].tensors["params/w"]
    expected = -0.1 * gradient("a", theta, np.array(EXAMPLES["a"], np.float32))
    np.testing.assert_allclose(update.tensors["params/w"], expected, rtol=1e-4)


def _train(strategy, tools, state, w=(0, 0), round_id=1):
    payload = Payload(round_id=round_id, tensors={"params/w": np.array(w, np.float32)})
    return strategy.client_update(state, payload, tools)


def test_the_personal_model_is_scored_and_the_received_one_beside_it(model, make_tools):
    """Example (2, 4), rate 1/2, λ 1, one step: θ = (1, 2); ηλ = 1/4, so w goes a quarter there."""
    settings = {**SGD, "lam": 1.0, "local_lr": 0.25, "inner_steps": 1}
    strategy = build("pfedme", settings, model)
    tools, seen = make_tools("a", [[2, 4]])
    asked = []

    def statistics(network, **_):
        asked.append(network.params["w"].tolist())
        return np.eye(2, dtype=np.int64)

    tools = dataclasses.replace(tools, statistics=statistics)
    state, update = _train(strategy, tools, strategy.client_init(model))
    np.testing.assert_array_equal(update.tensors["params/w"], [0.25, 0.5])
    np.testing.assert_array_equal(state.tensors["params/w"], [1, 2])
    assert [network.params["w"].tolist() for network in seen.evaluated] == [[1, 2]]
    assert asked == [[0, 0]]
    np.testing.assert_array_equal(update.evaluation.more["shared"], np.eye(2))
    np.testing.assert_allclose(state.tensors["state/" + LOCAL][0], [0.1, 0.1], rtol=1e-6)
    assert "shared/params/w" not in state.tensors


def test_the_loss_of_a_round_is_that_of_each_batch_before_its_steps(model, make_tools):
    """|w - (2, 4)|² / 2 at (0, 0), whatever the second step finds."""
    strategy = build("pfedme", {**SGD, "lam": 1.0, "inner_steps": 2}, model)
    tools, _ = make_tools("a", [[2, 4]])
    _, update = _train(strategy, tools, strategy.client_init(model))
    assert update.loss == 10


def test_an_early_score_is_of_the_personal_model_of_the_round_before(model, make_tools):
    settings = {**SGD, "lam": 1.0, "inner_steps": 1, "score_at": "start"}
    strategy = build("pfedme", settings, model)
    tools, seen = make_tools("a", [[2, 4]])
    state, update = _train(strategy, tools, strategy.client_init(model))
    assert update.evaluation.more == {}
    _train(strategy, tools, state, w=[4, 0], round_id=2)
    assert [network.params["w"].tolist() for network in seen.evaluated] == [[0, 0], [1, 2]]


def test_with_local_init_the_own_shared_model_is_mixed(model, make_tools):
    """Weights 0 keep the own w (0.25, 0.5) whatever came: θ = w + (1.75, 3.5)/2, w a quarter on."""
    local_init = {"kind": "ala", "eta": 0.0, "max_passes": 1}
    settings = {**SGD, "lam": 1.0, "local_lr": 0.25, "inner_steps": 1, "local_init": local_init}
    strategy = build("pfedme", settings, model)
    tools, _ = make_tools("a", [[2, 4]])
    state, _ = _train(strategy, tools, strategy.client_init(model))
    np.testing.assert_array_equal(state.tensors["shared/params/w"], [0.25, 0.5])
    kept = {**state.tensors, "shared/ala/w": np.zeros(2, np.float32)}
    state = dataclasses.replace(state, tensors=kept)
    state, update = _train(strategy, tools, state, w=[9, 9], round_id=2)
    np.testing.assert_array_equal(state.tensors["params/w"], [1.125, 2.25])
    np.testing.assert_array_equal(update.tensors["params/w"], [0.46875, 0.9375])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lam": -1}, "setting 'lam'"),
        ({"local_lr": -1}, "setting 'local_lr'"),
        ({"inner_steps": 0}, "setting 'inner_steps'"),
        ({"server": {"lr": -1}}, "setting 'server.lr'"),
        ({"beta": 1}, "unknown key `beta`"),
    ],
)
def test_what_it_cannot_take_is_refused_by_name(model, settings, message):
    with pytest.raises(InputError, match=f"strategy 'pfedme': .*{message}"):
        build("pfedme", settings, model)
