"""APFL against its published equations, round by round."""

import dataclasses

import numpy as np
import pytest
from closed_form import COHORTS, EXAMPLES, Clients, batches, gradient
from oracle_errors import OracleRounds
from oracles.apfl import Apfl
from toy_model import LOCAL, SGD, changed

from protofleet.errors import InputError
from protofleet.strategies import build
from protofleet.strategies.training import DivergedError
from protofleet.strategies.types import Payload, Step
from protofleet.tensors import TensorMap

_SETTINGS = {"epochs": 2, "batch_size": 2, "optimiser": {"kind": "sgd", "lr": 0.15}}


@pytest.mark.parametrize("every", ["round", "step"])
@pytest.mark.parametrize(
    "share",
    [
        {"alpha": 0.5},
        {"alpha": 0.2, "alpha_lr": 0.01},
        {"alpha": 0.75, "alpha_lr": 0.0},
        {"alpha": 0.6, "alpha_lr": 0.02, "alpha_decay": 0.5},
    ],
)
def test_rounds_with_some_of_the_clients_are_those_of_the_equations(
    model, make_tools, share, every
):
    strategy = build("apfl", {**_SETTINGS, **share, "alpha_every": every}, model)
    clients = Clients(strategy, model, make_tools)
    known = {"lr": 0.15, "alpha_lr": 0.15, "every_step": every == "step", **share}
    oracle = Apfl(gradient, EXAMPLES, [0, 0], **known)
    drawn = {name: list(batches(name, 2, epochs=2)) for name in EXAMPLES}
    rounds = OracleRounds("APFL", COHORTS, 5e-6)
    for cohort in COHORTS:
        updates = clients.round(cohort)
        assert set(updates[0].tensors) == {"params/w"}
        oracle.round(cohort, drawn)
        tensors = clients.server.tensors
        rounds.agree(tensors["params/w"], oracle.w)
        for name in cohort:
            state, own = clients.states[name].tensors, strategy.client_model(clients.states[name])
            rounds.agree(own.params["w"], oracle.mixed[name])
            rounds.agree(state["personal/params/w"], oracle.own[name])
            rounds.agree(state["alpha"], oracle.alpha[name])
    shares = {float(clients.states[name].tensors["alpha"]) for name in EXAMPLES}
    assert (len(shares) == 1) == (share.get("alpha_lr") == 0)


def _train(strategy, tools, state, w=(0, 0), round_id=1):
    payload = Payload(round_id=round_id, tensors={"params/w": np.array(w, np.float32)})
    return strategy.client_update(state, payload, tools)


def test_the_mixture_moves_the_personal_model_and_its_own_share(model, make_tools):
    """Example (2, 4), rates 1/2 and 1/64, share 1/2. Round 1 from 0 = v = w: the gradient is
    (-2, -4) at both, v = (0.5, 1), w = (1, 2), mixed (0.75, 1.5).

    Round 2, received (4, 0): v̄ = (2.25, 0.5), gradient (0.25, -3.5): v = (0.4375, 1.875); the
    share by -1/64 <(-3.5, 1), (0.25, -3.5)> = 4.375/64 to 0.568359375; w = (3, 2).
    """
    settings = {**SGD, "alpha": 0.5, "alpha_lr": 1 / 64}
    strategy = build("apfl", settings, model)
    tools, seen = make_tools("a", [[2, 4]])
    state, update = _train(strategy, tools, strategy.client_init(model))
    np.testing.assert_array_equal(update.tensors["params/w"], [1, 2])
    np.testing.assert_array_equal(state.tensors["personal/params/w"], [0.5, 1])
    np.testing.assert_array_equal(state.tensors["params/w"], [0.75, 1.5])
    state, update = _train(strategy, tools, state, w=[4, 0], round_id=2)
    np.testing.assert_array_equal(update.tensors["params/w"], [3, 2])
    np.testing.assert_array_equal(state.tensors["personal/params/w"], [0.4375, 1.875])
    share = 0.568359375
    assert state.tensors["alpha"] == share
    mixed = share * np.array([0.4375, 1.875]) + (1 - share) * np.array([3, 2])
    np.testing.assert_allclose(state.tensors["params/w"], mixed, rtol=1e-6)
    np.testing.assert_allclose(seen.evaluated[-1].params["w"], mixed, rtol=1e-6)


def test_the_share_stays_between_none_and_all(model, make_tools):
    for received, expected in (([100, 100], 1), ([1.99, 4.01], 0)):
        strategy = build("apfl", {**SGD, "alpha": 0.5, "alpha_lr": 10.0}, model)
        tools, _ = make_tools("a", [[2, 4]])
        state = strategy.client_init(model)
        far = {**state.tensors, "personal/params/w": np.array([1.0, 5.0], np.float32)}
        state, _ = _train(strategy, tools, dataclasses.replace(state, tensors=far), w=received)
        assert state.tensors["alpha"] == expected


def test_each_model_has_buffers_of_its_own(model, make_tools):
    """A step adds 0.1 to each."""
    strategy = build("apfl", {**SGD, "epochs": 2}, model)
    tools, _ = make_tools("a", [[2, 4]])
    state, _ = _train(strategy, tools, strategy.client_init(model))
    for name in ("state/", "shared/state/"):
        np.testing.assert_allclose(state.tensors[name + LOCAL][0], [0.2, 0.2], rtol=1e-6)
    assert "shared/params/w" not in state.tensors


def test_an_early_score_is_of_the_received_model_mixed_with_the_own_one(model, make_tools):
    strategy = build("apfl", {**SGD, "alpha_lr": 0.0, "score_at": "start"}, model)
    tools, seen = make_tools("a", [[2, 4]])
    state, _ = _train(strategy, tools, strategy.client_init(model))
    _train(strategy, tools, state, w=[4, 0], round_id=2)
    scored = [network.params["w"].tolist() for network in seen.evaluated]
    assert scored == [[0, 0], [2.25, 0.5]]


def test_with_local_init_the_own_shared_model_is_mixed(model, make_tools):
    """Weights 0 keep the own w (1, 2) whatever came: w to (1.5, 3), mixed with v = (0.5, 1)."""
    local_init = {"kind": "ala", "eta": 0.0, "max_passes": 1}
    settings = {**SGD, "alpha_lr": 0.0, "local_init": local_init}
    strategy = build("apfl", settings, model)
    tools, _ = make_tools("a", [[2, 4]])
    state, _ = _train(strategy, tools, strategy.client_init(model))
    kept = {**state.tensors, "shared/ala/w": np.zeros(2, np.float32)}
    state = dataclasses.replace(state, tensors=kept)
    state, update = _train(strategy, tools, state, w=[9, 9], round_id=2)
    np.testing.assert_array_equal(update.tensors["params/w"], [1.5, 3])
    np.testing.assert_array_equal(state.tensors["personal/params/w"], [0.8125, 1.625])


def test_a_share_that_is_no_number_ends_the_round(model, make_tools):
    """A loss may be finite where its gradient is not, and the state must not keep that."""

    def endless(network, _batch, _rng):
        grads = TensorMap.zeros(network.params.layout)
        grads["w"][...] = np.inf
        return Step(loss=1.0, grads=grads, buffers=network.buffers)

    strategy = build("apfl", SGD, model)
    tools, _ = make_tools("a", [[2, 4]])
    tools = changed(tools, grad_fns={"task_loss": endless})
    with pytest.raises(DivergedError, match="gradient of the mixture's share"):
        _train(strategy, tools, strategy.client_init(model), w=[1, 1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 1.5}, "setting 'alpha'"),
        ({"alpha_lr": -1}, "setting 'alpha_lr'"),
        ({"alpha_every": "epoch"}, "`alpha_every`: expected one of"),
        ({"server": {"lr": -1}}, "setting 'server.lr'"),
        ({"lam": 1}, "unknown key `lam`"),
    ],
)
def test_what_it_cannot_take_is_refused_by_name(model, settings, message):
    with pytest.raises(InputError, match=f"strategy 'apfl': .*{message}"):
        build("apfl", settings, model)
