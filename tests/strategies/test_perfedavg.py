"""Per-FedAvg against its published equations, round by round."""

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from closed_form import COHORTS, EXAMPLES, Clients, curvature, examples_of, gradient
from oracle_errors import OracleRounds
from oracles.perfedavg import PerFedAvg
from toy_model import SGD, grad_fn

from protofleet.errors import InputError
from protofleet.strategies import build
from protofleet.strategies.types import Payload, Step
from protofleet.tensors import TensorMap

_ALPHA, _BETA = 0.2, 0.3


def _settings(**changed):
    return {
        "epochs": 2,
        "batch_size": 1,
        "alpha": _ALPHA,
        "optimiser": {"kind": "sgd", "lr": _BETA},
        **changed,
    }


def _steps(name, parts, epochs):
    """Batches of one example each: what is left over goes to the batches before it."""
    x, rng, steps = examples_of(name), np.random.default_rng(1), []
    for _ in range(epochs):
        order = rng.permutation(len(x))
        if len(x) < parts:
            steps.append([x[order]] * parts)
            continue
        whole = len(x) // parts
        for number in range(whole):
            last = len(x) if number == whole - 1 else (number + 1) * parts
            rows = order[number * parts : last]
            cuts = [len(rows) * part // parts for part in range(parts + 1)]
            steps.append([x[rows[a:b]] for a, b in pairwise(cuts)])
    return steps


@pytest.mark.parametrize(("variant", "parts", "epochs"), [("fo", 2, 2), ("hf", 3, 1)])
def test_rounds_with_some_of_the_clients_are_those_of_the_equations(
    model, make_tools, variant, parts, epochs
):
    """HF's finite difference is within δ of the Hessian itself, whatever δ."""
    strategy = build("perfedavg", _settings(variant=variant, epochs=epochs), model)
    clients = Clients(strategy, model, make_tools)
    oracle = PerFedAvg(
        gradient, [0, 0], alpha=_ALPHA, beta=_BETA, hessian=curvature if variant == "hf" else None
    )
    every = {name: examples_of(name) for name in EXAMPLES}
    drawn = {name: _steps(name, parts, epochs) for name in EXAMPLES}
    rounds = OracleRounds(
        f"Per-FedAvg, {variant.upper()}", COHORTS, {"fo": 2e-6, "hf": 1e-5}[variant]
    )
    for cohort in COHORTS:
        updates = clients.round(cohort)
        assert set(updates[0].tensors) == {"params/w"}
        oracle.round(cohort, drawn, every)
        rounds.agree(clients.server.tensors["params/w"], oracle.w)
        for name in cohort:
            adapted = strategy.client_model(clients.states[name]).params["w"]
            rounds.agree(adapted, oracle.adapted[name])


def _train(strategy, tools, state, w=(0, 0), round_id=1):
    payload = Payload(round_id=round_id, tensors={"params/w": np.array(w, np.float32)})
    return strategy.client_update(state, payload, tools)


def test_a_step_looks_ahead_and_the_device_keeps_what_a_step_of_its_own_makes(model, make_tools):
    """From 0, rates 1/2: the first example's gradient is (-2, -4), so the second's is taken at
    (1, 2), which is (-3, 2): w = (1.5, -1). The mean example is (3, 2): adapted (2.25, 0.5).
    """
    settings = {**SGD, "alpha": 0.5, "batch_size": 1}
    tools, seen = make_tools("a", [[2, 4], [4, 0]])
    training = dataclasses.replace(tools.training, rng=_InOrder())
    tools = dataclasses.replace(tools, training=training)
    strategy = build("perfedavg", settings, model)
    state, update = _train(strategy, tools, strategy.client_init(model))
    np.testing.assert_array_equal(update.tensors["params/w"], [1.5, -1])
    np.testing.assert_array_equal(state.tensors["params/w"], [2.25, 0.5])
    assert [network.params["w"].tolist() for network in seen.evaluated] == [[2.25, 0.5]]


class _InOrder:
    """Shuffles nothing."""

    def permutation(self, count):
        return np.arange(count)


def test_an_early_score_is_of_the_received_model_adapted(model, make_tools):
    strategy = build("perfedavg", {**SGD, "alpha": 0.5, "score_at": "start"}, model)
    tools, seen = make_tools("a", [[2, 4]])
    _train(strategy, tools, strategy.client_init(model), w=[4, 0])
    assert [network.params["w"].tolist() for network in seen.evaluated] == [[3, 2]]


def test_with_local_init_the_own_model_is_mixed_as_it_was_sent(model, make_tools):
    """One example (2, 4), rates 1/2, from 0: ahead at (1, 2) the gradient is (-1, -2), sent is
    (0.5, 1). Weights 0 keep it whatever came: ahead (1.25, 2.5), gradient (-0.75, -1.5).
    """
    local_init = {"kind": "ala", "eta": 0.0, "max_passes": 1}
    strategy = build("perfedavg", {**SGD, "alpha": 0.5, "local_init": local_init}, model)
    tools, _ = make_tools("a", [[2, 4]])
    state, update = _train(strategy, tools, strategy.client_init(model))
    np.testing.assert_array_equal(update.tensors["params/w"], [0.5, 1])
    kept = {**state.tensors, "shared/ala/w": np.zeros(2, np.float32)}
    state = dataclasses.replace(state, tensors=kept)
    state, update = _train(strategy, tools, state, w=[9, 9], round_id=2)
    np.testing.assert_array_equal(update.tensors["params/w"], [0.875, 1.75])


def test_both_gradients_of_the_difference_draw_the_same_noise(model, make_tools):
    """A loss whose gradient is noise has a curvature of nothing, not of noise by δ."""

    def noisy(network, batch, rng):
        step = grad_fn(network, batch, rng)
        grads = TensorMap.zeros(network.params.layout)
        grads["w"][...] = rng.standard_normal(2)
        return Step(loss=step.loss, grads=grads, buffers=step.buffers)

    tools, _ = make_tools("a", [[2, 4], [1, 3], [0, 1]])
    found = []
    for variant in ("fo", "hf"):
        training = dataclasses.replace(
            tools.training, grad_fns={"task_loss": noisy}, rng=np.random.default_rng(1)
        )
        strategy = build("perfedavg", {**SGD, "variant": variant, "delta": 1e-6}, model)
        state = strategy.client_init(model)
        _, update = _train(strategy, dataclasses.replace(tools, training=training), state)
        found.append(update.tensors["params/w"])
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)


def test_parts_are_never_of_fewer_examples_than_the_programs_take(model, make_tools):
    strategy = build("perfedavg", {**SGD, "variant": "hf", "batch_size": 2}, model)
    for count, sizes in ((7, [2, 2, 3, 3]), (4, [4, 4, 4, 4])):
        tools, seen = make_tools("a", [[k, k] for k in range(count)])
        training = dataclasses.replace(tools.training, min_batch=2)
        _train(strategy, dataclasses.replace(tools, training=training), strategy.client_init(model))
        assert seen.sizes[:4] == sizes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": -1}, "setting 'alpha'"),
        ({"delta": 0}, "setting 'delta'"),
        ({"variant": "maml"}, "`variant`: expected one of fo, hf, got 'maml'"),
        ({"server": {"population": 3}}, "`server`: unknown key `population`"),
    ],
)
def test_what_it_cannot_take_is_refused_by_name(model, settings, message):
    with pytest.raises(InputError, match=f"strategy 'perfedavg': .*{message}"):
        build("perfedavg", settings, model)


def test_clients_count_alike_or_by_their_examples(model, make_tools):
    """a has 4, b 5."""
    sides = [
        Clients(build("perfedavg", _settings(server=server), model), model, make_tools)
        for server in ({}, {"by_examples": True, "lr": 0.5})
    ]
    (a, b), _ = ([one.tensors["params/w"] for one in side.round("ab")] for side in sides)
    alike, weighted = (side.server.tensors["params/w"] for side in sides)
    np.testing.assert_allclose(alike, (a + b) / 2, rtol=1e-6)
    np.testing.assert_allclose(weighted, (4 * a + 5 * b) / 18, rtol=1e-6)
