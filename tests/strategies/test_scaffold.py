"""SCAFFOLD against its published equations, round by round."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from closed_form import Clients
from laws.coded import CodedRounds
from oracle_errors import OracleRounds
from oracles.scaffold import Scaffold
from toy_model import changed, frozen_map, new_rng, server_tools

from protofleet.errors import InputError
from protofleet.strategies import build
from protofleet.strategies.aggregation import build as build_rule
from protofleet.strategies.optimisers import Sgd
from protofleet.strategies.types import Step, Update
from protofleet.tensors import Model, TensorMap
from protofleet.wire.codecs import Codec

_EXAMPLES = {
    "a": [[2, 4], [1, 3]],
    "b": [[6, 0], [6, 2], [7, 4]],
    "c": [[-3, 0.5]],
    "d": [[0.5, -8], [4, 4]],
}
_COHORTS = ("ab", "bcd", "a", "acd", "abcd", "cd")
_CURVATURE = {"a": [1, 0.25], "b": [0.5, 2], "c": [2, 1], "d": [0.1, 1]}
_LR, _STEPS = 0.2, 3


def _clients(strategy, model, make_tools):
    """Clients with losses curvature · (w - mean(x))² / 2, whose own minima lie apart."""
    return Clients(strategy, model, make_tools, _EXAMPLES, _gradient)


def _gradient(name, w, x):
    return np.array(_CURVATURE[name], w.dtype) * (w - x.mean(axis=0))


def _gradients():
    return {
        name: lambda w, name=name: _gradient(name, w, np.float32(_EXAMPLES[name]))
        for name in _EXAMPLES
    }


def _settings(**changed):
    return {"epochs": _STEPS, "optimiser": {"kind": "sgd", "lr": _LR}, **changed}


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("server_lr", [1.0, 0.7])
@pytest.mark.parametrize("population", [0, 4, 9])
def test_rounds_with_some_of_the_clients_are_those_of_the_equations(
    model, make_tools, option, server_lr, population
):
    server = {"lr": server_lr, "population": population}
    strategy = build("scaffold", _settings(option=option, server=server), model)
    clients = _clients(strategy, model, make_tools)
    oracle = Scaffold(
        _gradients(),
        [0, 0],
        lr=_LR,
        steps=_STEPS,
        server_lr=server_lr,
        option=len(option),
        population=population or None,
    )
    rounds = OracleRounds("SCAFFOLD", _COHORTS, 2e-6)
    for cohort in _COHORTS:
        updates = clients.round(cohort)
        assert set(updates[0].tensors) == {"params/w", "change/control/w"}
        oracle.round(cohort)
        tensors = clients.server.tensors
        rounds.agree(tensors["params/w"], oracle.x)
        rounds.agree(tensors["control/w"], oracle.c)
        for name in cohort:
            own = clients.states[name].tensors["control/w"]
            rounds.agree(own, oracle.controls[name])


def _optimum():
    """Where the sum of all gradients is zero."""
    curvatures = np.array([_CURVATURE[name] for name in _EXAMPLES])
    targets = np.array([np.mean(_EXAMPLES[name], axis=0) for name in _EXAMPLES])
    return (curvatures * targets).sum(axis=0) / curvatures.sum(axis=0)


@pytest.mark.parametrize("option", ["I", "II"])
def test_it_reaches_the_optimum_that_the_drift_keeps_plain_averaging_from(
    model, make_tools, option
):
    clients = _clients(build("scaffold", _settings(option=option), model), model, make_tools)
    plain = _clients(build("fedavg", _settings(), model), model, make_tools)
    for _ in range(200):
        clients.round("abcd")
        # FedAvg counts by examples; here all clients alike, as in the paper.
        plain.server = dataclasses.replace(
            plain.server, tensors={"params/w": _plain_mean(plain.round("abcd"))}
        )
    found = [side.server.tensors["params/w"] for side in (clients, plain)]
    np.testing.assert_allclose(found[0], _optimum(), atol=1e-4)
    assert np.abs(found[1] - _optimum()).max() > 0.1


def _plain_mean(updates):
    return np.mean([update.tensors["params/w"] for update in updates], axis=0, dtype=np.float32)


def test_clients_may_count_by_their_examples(model, make_tools):
    """a has 2, b 3; control variates count alike whatever parameters do."""
    by_examples = {"by_examples": True}
    sides = [
        _clients(build("scaffold", _settings(server=server), model), model, make_tools)
        for server in ({}, by_examples)
    ]
    updates, _ = (side.round("ab") for side in sides)
    a, b = (update.tensors["params/w"] for update in updates)
    alike, weighted = (side.server.tensors for side in sides)
    np.testing.assert_allclose(alike["params/w"], (a + b) / 2, rtol=1e-6)
    np.testing.assert_allclose(weighted["params/w"], (2 * a + 3 * b) / 5, rtol=1e-6)
    np.testing.assert_array_equal(alike["control/w"], weighted["control/w"])


def test_a_round_without_a_step_changes_no_control_variate(model, make_tools):
    strategy = build("scaffold", _settings(batch_size=10, drop_last=True), model)
    clients = _clients(strategy, model, make_tools)
    (update,) = clients.round("a")
    np.testing.assert_array_equal(update.tensors["change/control/w"], [0, 0])
    np.testing.assert_array_equal(clients.states["a"].tensors["control/w"], [0, 0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimiser": {"kind": "adam"}}, "`optimiser.kind`: expected one of sgd, got 'adam'"),
        ({"optimiser": {"kind": "sgd", "momentum": 0.9}}, "setting 'optimiser.momentum'"),
        ({"optimiser": {"kind": "sgd", "lr": 0}}, "setting 'optimiser.lr'"),
        ({"server": {"lr": -1}}, "setting 'server.lr'"),
        ({"server": {"population": -1}}, "setting 'server.population'"),
        ({"option": "III"}, "`option`: expected one of I, II, got 'III'"),
        ({"option": "I", "clip_norm": 1.0}, "setting 'clip_norm': option I"),
        ({"mu": 1}, "unknown key `mu`"),
    ],
)
def test_what_the_method_cannot_take_is_refused_by_name(model, settings, message):
    with pytest.raises(InputError, match=f"strategy 'scaffold': .*{message}"):
        build("scaffold", settings, model)


def test_the_defaults_are_the_paper_s(model):
    settings = build("scaffold", {}, model).settings
    assert (settings.option, settings.server.lr, settings.server.by_examples) == ("II", 1.0, False)
    assert settings.optimiser == Sgd()


def _pulled_to(make_tools):
    """Tools of clients with losses |w - target|² / 2 and as much noise on their gradients."""
    noise = np.random.default_rng(8)

    def make(name, target):
        def grad_fn(network, _batch, _rng):
            grads = TensorMap.zeros(network.params.layout)
            grads["w"][...] = network.params["w"] - target + noise.standard_normal(target.size)
            return Step(loss=0.0, grads=grads, buffers=network.buffers)

        tools, seen = make_tools(name, [[0, 0]])
        return changed(tools, grad_fns={"task_loss": grad_fn}), seen

    return make


@pytest.mark.parametrize("kind", ["int8", "int4", "topk"])
def test_c_stays_near_the_mean_of_the_clients_under_a_lossy_codec(kind, make_tools):
    """It is off by what coding lost of each client's last change, and by nothing earlier."""
    rng = np.random.default_rng(7)
    targets = {name: rng.standard_normal(256).astype(np.float32) for name in "abcd"}
    wide = Model(
        params=frozen_map({"w": np.zeros(256)}),
        buffers=frozen_map({}),
        num_classes=2,
        input_shape=(2,),
    )
    strategy = build("scaffold", _settings(), wide)
    case = SimpleNamespace(
        model=wide, make_tools=_pulled_to(make_tools), update=lambda update, _: update
    )
    rounds = CodedRounds(strategy, case, up=Codec.of(kind, keep=0.1), down=Codec())
    server, own = strategy.server_init(wide, new_rng()), dict.fromkeys(targets, 0)
    gaps = []
    for _ in range(30):
        true, got = rounds.round(server, targets)
        server = strategy.aggregate(server, got, server_tools())
        for update in true:
            own[update.client_id] += update.tensors["change/control/w"]
        mean = np.mean(list(own.values()), axis=0)
        gaps.append(np.linalg.norm(server.tensors["control/w"] - mean))
    assert max(gaps[20:]) < 1.2 * max(gaps[:10])
    size = np.mean([np.linalg.norm(value) for value in own.values()])
    assert max(gaps) < 0.005 * size


def test_a_rule_combines_the_changes_of_control_variates_too(model):
    """Three clients of which one lies: the mean moves by three times the median change."""
    strategy = build("scaffold", _settings(), model)
    server = strategy.server_init(model, new_rng())
    changes = {"a": [1, 2], "b": [2, 4], "z": [9e5, -9e5]}
    updates = [
        Update(
            client_id=name,
            round_id=1,
            num_examples=1,
            tensors={
                "params/w": server.tensors["params/w"],
                "change/control/w": np.array(change, np.float32),
            },
        )
        for name, change in changes.items()
    ]
    tools = dataclasses.replace(server_tools(), aggregator=build_rule("median", {}))
    after = strategy.aggregate(server, updates, tools)
    np.testing.assert_allclose(after.tensors["control/w"], [2, 2])
