"""FedPHP against its published equations, round by round."""

from dataclasses import replace

import numpy as np
import pytest
from closed_form import COHORTS
from laws.case_fedphp import features, fedphp_grad_fn
from oracle_errors import OracleRounds
from oracles.fedphp import FedPhp
from quadratic_clients import (
    COUNTS,
    QuadraticClients,
    flat,
    gradients,
    start,
)
from toy_model import SGD, changed, new_rng

from protofleet.errors import InputError
from protofleet.strategies import build
from protofleet.strategies.types import Evaluation, Payload, Step, UnsuitableModelError
from protofleet.tensors import TensorMap

_LR, _STEPS = 0.2, 3
_SETTINGS = {"epochs": _STEPS, "optimiser": {"kind": "sgd", "lr": _LR}}


def _programs(grad_fn):
    """The transfer is half the squared distance of all parameters to the teacher's rows."""

    def fedphp(network, batch, rng):
        own = grad_fn(network, batch, rng)
        pull = batch["mmd"] * (network.params.buffer - batch["teacher"].mean(axis=0))
        grads = TensorMap(own.grads.layout, batch["local"] * own.grads.buffer + pull)
        return Step(loss=0.0, grads=grads, buffers=own.buffers)

    return {"fedphp": fedphp}


def _clients(make_tools, tools=None, **settings):
    strategy = build("fedphp", {**_SETTINGS, **settings}, start())

    def outputs(_name):
        return lambda network, x: np.repeat(network.params.buffer[None], len(x), axis=0)

    return QuadraticClients(strategy, make_tools, _programs, features=outputs, **(tools or {}))


@pytest.mark.parametrize(
    ("mu", "participations", "lam"), [(0.9, 3, 0.3), (1.0, 2, 0.1), (0.5, 100, 1.0), (0, 1, 0)]
)
def test_rounds_with_some_of_the_clients_are_those_of_the_equations(
    make_tools, mu, participations, lam
):
    known = {"mu": mu, "participations": participations, "lam": lam}
    clients = _clients(make_tools, **known)
    oracle = FedPhp(
        gradients(),
        lambda w, personal: w - personal,
        COUNTS,
        start().params.buffer,
        lr=_LR,
        steps=_STEPS,
        **known,
    )
    rounds = OracleRounds("FedPHP", COHORTS, 2e-6)
    for cohort in COHORTS:
        clients.round(cohort)
        oracle.round(cohort)
        rounds.agree(flat(clients.server.tensors), oracle.w)
        for name in cohort:
            personal = clients.states[name].tensors
            rounds.agree(flat(personal), oracle.personal[name])
            assert personal["inherited"] == oracle.rounds[name]


def test_predictions_teach_in_the_place_of_features(model, make_tools):
    """The program gets what the personal model gives, and the weight at that term alone."""
    strategy = build("fedphp", {**SGD, "transfer": "kl", "lam": 0.25}, _with_features(model))
    tools, _ = make_tools("a", [[2, 4], [1, 3]])
    seen = []

    def program(network, batch, rng):
        seen.append({key: np.array(value) for key, value in batch.items()})
        return fedphp_grad_fn(network, batch, rng)

    tools = changed(tools, grad_fns={"fedphp": program}, predict=features)
    state = strategy.client_init(_with_features(model))
    payload = Payload(round_id=1, tensors={"params/w": np.ones(2, np.float32)})
    for _ in range(2):
        state, _ = strategy.client_update(state, payload, tools)
    weights = [{key: float(one[key]) for key in ("local", "mmd", "kl")} for one in seen]
    assert weights == [{"local": 1, "mmd": 0, "kl": 0}, {"local": 0.75, "mmd": 0, "kl": 0.25}]
    assert not seen[1]["teacher"].any()
    # Round 1: from (1, 1) half the way to the mean (1.5, 3.5).
    expected = seen[1]["x"] * np.float32([1.25, 2.25])
    np.testing.assert_array_equal(seen[1]["teacher_outputs"], expected)


def _with_features(model):
    return replace(model, features=2)


def test_the_personal_model_is_scored_and_never_leaves(make_tools):
    """Early, that of the round before."""
    for score_at in ("end", "start"):
        scored = []

        def evaluate(_name, scored=scored):
            return lambda network: scored.append(network.params.buffer.copy()) or Evaluation()

        clients = _clients(make_tools, {"evaluate": evaluate}, participations=1, score_at=score_at)
        personal = [start().params.buffer]
        for _ in range(3):
            (update,) = clients.round("a")
            personal.append(flat(clients.states["a"].tensors))
            assert set(update.tensors) == {"params/w", "params/head.b"}
        assert not np.array_equal(flat(update.tensors), personal[-1])
        expected = personal[1:] if score_at == "end" else personal[:-1]
        np.testing.assert_array_equal(scored, expected)


def test_buffers_are_inherited_too(model, make_tools):
    """A step adds 0.1 to the prototypes; of the second round's change 1 - μ / 2 stays."""
    known = _with_features(model)
    strategy = build("fedphp", {**SGD, "mu": 0.5, "participations": 1, "lam": 0.0}, known)
    tools, _ = make_tools("a", [[2, 4]])
    tools = changed(tools, grad_fns={"fedphp": fedphp_grad_fn}, features=features)
    state = strategy.client_init(known)
    payload = Payload(round_id=1, tensors={"params/w": np.zeros(2, np.float32)})
    for _ in range(2):
        state, _ = strategy.client_update(state, payload, tools)
    kept = state.tensors
    np.testing.assert_allclose(kept["shared/state/block.local_prototypes"][0], 0.2, rtol=1e-6)
    np.testing.assert_allclose(kept["state/block.local_prototypes"][0], 0.15, rtol=1e-6)


def test_without_a_step_nothing_is_inherited(make_tools):
    clients = _clients(make_tools, batch_size=10, drop_last=True)
    clients.round("a")
    state = clients.states["a"].tensors
    assert state["inherited"] == 0
    np.testing.assert_array_equal(flat(state), start().params.buffer)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mu": 1.5}, "setting 'mu'"),
        ({"participations": 0}, "setting 'participations'"),
        ({"lam": -0.1}, "setting 'lam'"),
        ({"transfer": "l2"}, "`transfer`: expected one of"),
        ({"beta": 1}, "unknown key `beta`"),
    ],
)
def test_settings_have_ranges(settings, message):
    with pytest.raises(InputError, match=message):
        build("fedphp", settings, start())


def test_a_bundle_without_features_is_refused_with_the_remedy(model):
    with pytest.raises(UnsuitableModelError, match="--head NAME"):
        build("fedphp", {}, model)


def test_the_server_is_fedavg_s(make_tools):
    clients = _clients(make_tools)
    server = clients.strategy.server_init(start(), new_rng())
    assert clients.strategy.server_model(server) is not None
    assert clients.strategy.private is not None
