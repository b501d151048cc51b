"""PartialFed: both modes against their equations, round by round; mode fix by what travels, too."""

import dataclasses

import numpy as np
import pytest
from headed_model import headed, headed_grad_fn
from oracle_errors import OracleRounds
from oracles.partialfed import Fix, PartialFed
from toy_model import changed, frozen_map, new_rng, server_tools

from protofleet.errors import InputError
from protofleet.strategies import build
from protofleet.strategies.methods.partialfed import Mixture, layers_of
from protofleet.strategies.types import Step
from protofleet.tensors import Layout, Model, Network, TensorMap

_COUNTS = {"a": 2, "b": 3, "c": 1, "d": 2}
_COHORTS = ("ab", "bcd", "a", "acd", "abcd", "cd", "abd", "abcd")
_START = {"body.weight": [[0.5, -1], [2, 1]], "body.bias": [0.1, 0.2], "head.weight": [1, -1, 0.5]}
_TARGETS = {name: np.random.default_rng(i).normal(size=9) for i, name in enumerate(_COUNTS)}
_LR, _STEPS = 0.15, 3
_SETTINGS = {
    "epochs": _STEPS,
    "optimiser": {"kind": "sgd", "lr": _LR},
    "decision_optimiser": {"kind": "sgd", "lr": 2.0},
    "temperature": 1.5,
    "temperature_decay": 0.7,
    "min_temperature": 0.4,
}


def _model():
    return Model(
        params=frozen_map(_START),
        buffers=frozen_map({"calls": [0]}),
        num_classes=2,
        input_shape=(2,),
        head=("head.weight",),
    )


def _gradients(name, weight, bias, head):
    """Of three pulls that depend on each other."""
    target = _TARGETS[name]
    to_weight = weight - target[:4].reshape(2, 2) + 0.2 * np.outer(bias, head[:2])
    return to_weight, 0.5 * (bias - target[4:6]) + 0.1 * weight[0], 2 * (head - target[6:])


class Clients:
    """The strategy with clients of these gradients."""

    def __init__(self, make_tools, **settings):
        self.model, self.make_tools = _model(), make_tools
        self.strategy = build("partialfed", {**_SETTINGS, **settings}, self.model)
        self.server = self.strategy.server_init(self.model, new_rng())
        self.states = {name: self.strategy.client_init(self.model) for name in _COUNTS}
        self.evaluated = {}

    def round(self, cohort):
        updates = []
        for name in cohort:
            tools, seen = self.make_tools(name, [[0, 0]] * _COUNTS[name])

            def grad_fn(network, _batch, _rng, name=name):
                grads = TensorMap.zeros(network.params.layout)
                for key, value in zip(
                    grads, _gradients(name, *network.params.values()), strict=True
                ):
                    grads[key][...] = value
                buffers = network.buffers.copy()
                buffers["calls"][...] += 1
                return Step(loss=0.0, grads=grads, buffers=buffers)

            payload = self.strategy.downlink(self.server, name)
            self.states[name], update = self.strategy.client_update(
                self.states[name], payload, changed(tools, grad_fns={"task_loss": grad_fn})
            )
            self.evaluated[name] = seen.evaluated[-1]
            updates.append(update)
        self.server = self.strategy.aggregate(self.server, updates, server_tools())
        return updates


def _noise(name):
    """What the client's generator gives: a permutation and then Gumbel noise in each epoch."""
    rng = np.random.default_rng(1)
    draws = []
    for _ in range(_STEPS):
        rng.permutation(_COUNTS[name])
        draws.append(rng.gumbel(size=(2, 2)))
    return np.array(draws)


def _by_layer(name, layers):
    """Gradients of the oracle's two layers: body's weight and bias flat, and the head."""
    body, head = layers
    to_weight, to_bias, to_head = _gradients(name, body[:4].reshape(2, 2), body[4:], head)
    return [np.concatenate([to_weight.ravel(), to_bias]), to_head]


def _layers(tensors):
    weight, bias, head = (tensors[f"params/{key}"] for key in _START)
    return [np.concatenate([weight.ravel(), bias]), head]


_GRADIENTS = {name: lambda layers, name=name: _by_layer(name, layers) for name in _COUNTS}
_FIRST = {f"params/{key}": np.array(value) for key, value in _START.items()}


def test_rounds_with_some_of_the_clients_are_those_of_the_equations(make_tools):
    clients = Clients(make_tools)
    oracle = PartialFed(
        _GRADIENTS,
        _COUNTS,
        _layers(_FIRST),
        lr=_LR,
        decision_lr=2.0,
        temperature=lambda round_id: max(0.4, 1.5 * 0.7 ** (round_id - 1)),
    )
    kept = set()
    rounds = OracleRounds("PartialFed", _COHORTS, 1e-5)
    for cohort in _COHORTS:
        clients.round(cohort)
        oracle.round({name: _noise(name) for name in cohort})
        for found, expected in zip(_layers(clients.server.tensors), oracle.server, strict=True):
            rounds.agree(found, expected)
        for name in cohort:
            tensors = clients.states[name].tensors
            rounds.agree(tensors["decisions"], oracle.logits[name])
            for found, expected in zip(_layers(tensors), oracle.own[name], strict=True):
                rounds.agree(found, expected)
            kept |= {tuple(row.argmax() for row in tensors["decisions"])}
    assert len(kept) >= 3  # clients decide differently


def test_a_round_scores_keeps_and_sends_the_model_of_its_decisions(make_tools):
    clients = Clients(make_tools)
    for _ in range(4):
        updates = clients.round("abcd")
    for update in updates:
        state = clients.states[update.client_id].tensors
        assert set(update.tensors) == {f"params/{key}" for key in _START}
        for key, value in update.tensors.items():
            np.testing.assert_array_equal(value, state[key])
            np.testing.assert_array_equal(
                value, clients.evaluated[update.client_id].params[key.removeprefix("params/")]
            )
        np.testing.assert_array_equal(state["state/calls"], [4 * _STEPS])


def test_an_early_score_is_of_the_layers_that_were_decided_before(make_tools):
    clients = Clients(make_tools, score_at="start")
    state = clients.states["a"].tensors
    clients.states["a"] = dataclasses.replace(
        clients.states["a"],
        tensors={
            **state,
            "params/head.weight": np.array([7, 7, 7], np.float32),
            "params/body.bias": np.array([9, 9], np.float32),
            "decisions": np.array([[1, 0], [0, 1]], np.float32),
        },
    )
    clients.round("a")
    scored = clients.evaluated["a"].params
    np.testing.assert_array_equal(scored["head.weight"], [7, 7, 7])
    np.testing.assert_allclose(scored["body.bias"], [0.1, 0.2])


def test_a_client_that_has_decided_nothing_yet_infers_with_what_came(make_tools):
    """Without examples its logits stay alike, and of equal ones the layer is loaded."""
    clients = Clients(make_tools)
    clients.round("ab")
    payload = clients.strategy.downlink(clients.server, "z")
    fresh = clients.strategy.client_init(clients.model)
    state, _ = clients.strategy.client_update(fresh, payload, make_tools("z", [])[0])
    for key, value in payload.tensors.items():
        assert not np.array_equal(value, fresh.tensors[key])
        np.testing.assert_array_equal(state.tensors[key], value)


def test_the_gradient_of_the_decisions_is_a_finite_difference_s():
    """Of a loss of the mixed parameters, at fixed noise, in every logit and copy."""
    layout = Layout.of({"a.weight": (3,), "a.bias": (1,), "b": (2,)})
    rng = np.random.default_rng(3)
    curved = rng.normal(size=(layout.size, layout.size))

    def grad_fn(network, _batch, _rng):
        flat = network.params.buffer.astype(np.float64)
        pull = np.tanh(curved @ flat)
        grads = TensorMap(layout, (curved.T @ (1 - pull**2)).astype(np.float32))
        return Step(loss=float(pull.sum()), grads=grads, buffers=network.buffers)

    mixture = Mixture(layout=layout, grad_fn=grad_fn, temperature=0.8)
    copies = (TensorMap(layout, rng.normal(size=layout.size).astype(np.float32)) for _ in "ab")
    params = mixture.pack(*copies, rng.normal(size=(2, 2)).astype(np.float32))

    def at(values):
        network = Network(params=values, buffers=frozen_map({}))
        return mixture(network, {}, np.random.default_rng(9))

    found = at(params).grads.buffer.copy()
    for index in range(params.buffer.size):
        moved = [params.copy() for _ in "+-"]
        for values, sign in zip(moved, (1, -1), strict=True):
            values.buffer[index] += np.float32(sign * 1e-2)
        up, down = (at(values).loss for values in moved)
        width = moved[0].buffer[index].astype(float) - moved[1].buffer[index]
        assert found[index] == pytest.approx((up - down) / width, abs=2e-3), index


def test_a_layer_is_what_has_one_name_up_to_the_last_dot():
    layout = Layout.of({"w": (), "body.0.weight": (), "head": (), "body.0.bias": ()})
    assert layers_of(layout) == {
        "w": ("w",),
        "body.0": ("body.0.weight", "body.0.bias"),
        "head": ("head",),
    }


@pytest.mark.parametrize("loaded", ["body", "head"])
def test_rounds_with_some_of_the_clients_and_fixed_layers_are_those_of_the_equations(
    make_tools, loaded
):
    clients = Clients(make_tools, mode="fix", loaded=[loaded])
    chosen = [loaded == "body", loaded == "head"]
    oracle = Fix(_GRADIENTS, _COUNTS, _layers(_FIRST), loaded=chosen, lr=_LR, steps=_STEPS)
    rounds = OracleRounds("PartialFed, fix", _COHORTS, 2e-6)
    for cohort in _COHORTS:
        clients.round(cohort)
        oracle.round(cohort)
        found = _layers({**_FIRST, **clients.server.tensors})
        rounds.agree(found[chosen.index(True)], oracle.server[chosen.index(True)])
        for name in cohort:
            own = _layers({**clients.server.tensors, **clients.states[name].tensors})
            rounds.agree(own[chosen.index(False)], oracle.own[name][chosen.index(False)])


@pytest.mark.parametrize("settings", [{}, {"loaded": ["w"]}])
def test_fix_is_personalisation_by_the_layers_that_are_named(make_tools, settings):
    """All but the head by default: FedPer, bit for bit."""
    model = headed(frozen_map, w=(0.5, 1), b=(2, 3))
    sgd = {"epochs": 2, "optimiser": {"kind": "sgd", "lr": 0.25}}
    ends = []
    for name, more in (("fedper", {}), ("partialfed", {"mode": "fix", **settings})):
        strategy = build(name, {**sgd, **more}, model)
        server = strategy.server_init(model, new_rng())
        states = dict.fromkeys("ab", strategy.client_init(model))
        for _ in range(3):
            updates = []
            for client, examples in (("a", [[4, 8]]), ("b", [[8, 0]] * 3)):
                tools, _ = make_tools(client, examples)
                tools = changed(tools, grad_fns={"task_loss": headed_grad_fn})
                payload = strategy.downlink(server, client)
                assert set(payload.tensors) == {"params/w"}
                states[client], update = strategy.client_update(states[client], payload, tools)
                updates.append(update)
            server = strategy.aggregate(server, updates, server_tools())
        ends.append((server, states))
    (server, states), (other, others) = ends
    np.testing.assert_array_equal(server.tensors["params/w"], other.tensors["params/w"])
    for client, state in states.items():
        for key, value in state.tensors.items():
            np.testing.assert_array_equal(value, others[client].tensors[key])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "fixed"}, "`mode`: expected one of adaptive, fix, got 'fixed'"),
        ({"loaded": ["body"]}, "setting 'loaded': in mode 'adaptive' clients decide"),
        ({"local_init": {"kind": "ala"}}, "setting 'local_init': in mode 'adaptive'"),
        ({"mode": "fix", "loaded": ["tail."]}, "setting 'loaded': expected .* got tail. for body"),
        ({"mode": "fix", "loaded": []}, "setting 'loaded': expected .* got none for body"),
        ({"mode": "fix", "loaded": ["body", "head"]}, "setting 'loaded': .* not of all"),
        ({"temperature": 0}, "setting 'temperature'"),
        ({"temperature_decay": 1.1}, "setting 'temperature_decay'"),
        ({"min_temperature": 0}, "setting 'min_temperature'"),
        ({"decision_optimiser": {"kind": "sgd", "lr": -1}}, "setting 'optimiser.lr'"),
        ({"mu": 1}, "unknown key `mu`"),
    ],
)
def test_what_the_method_cannot_take_is_refused_by_name(settings, message):
    with pytest.raises(InputError, match=f"strategy 'partialfed': .*{message}"):
        build("partialfed", settings, _model())
