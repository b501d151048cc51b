"""Adaptive local aggregation against an independent oracle, and as a plug-in of every strategy."""

import dataclasses
import math

import numpy as np
import pytest
from laws.cases import Case, case_of
from oracles import ala as oracle
from toy_model import SGD, changed, frozen_map, new_rng, server_tools

from protofleet.errors import InputError
from protofleet.strategies import build
from protofleet.strategies.ala import Ala, Probe, local_aggregation
from protofleet.strategies.training import LocalObjective
from protofleet.strategies.types import Payload, Step
from protofleet.tensors import Network, TensorMap

_ALA = {"kind": "ala"}
_LAYOUT = {"low.weight": (4, 3), "low.bias": (3,), "head.weight": (3, 2), "head.bias": (2,)}
_NAMES = tuple(_LAYOUT)


def softmax_loss(params, batch):
    """Mean cross-entropy of two dense layers with tanh between, and its gradients, in float64."""
    x, y = batch
    hidden = np.tanh(x @ params["low.weight"] + params["low.bias"])
    logits = hidden @ params["head.weight"] + params["head.bias"]
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    rows = np.arange(len(y))
    loss = -np.log(probabilities[rows, y]).mean()
    out = probabilities.copy()
    out[rows, y] -= 1
    out /= len(y)
    back = out @ params["head.weight"].T * (1 - hidden**2)
    return loss, {
        "low.weight": x.T @ back,
        "low.bias": back.sum(axis=0),
        "head.weight": hidden.T @ out,
        "head.bias": out.sum(axis=0),
    }


class Client:
    """Examples, two models, and a program that records which examples it saw."""

    def __init__(self, make_tools, seed, n=30):
        rng = np.random.default_rng(seed)
        self.own = frozen_map({k: rng.normal(size=s) for k, s in _LAYOUT.items()})
        self.received = frozen_map({k: rng.normal(size=s) for k, s in _LAYOUT.items()})
        tools, _ = make_tools("a", np.zeros((n, 2)))
        x = rng.normal(size=(n, 4)).astype(np.float32)
        y = rng.integers(0, 2, n)
        self.seen = []
        self.tools = changed(tools, x=x, y=y, grad_fns={"task_loss": self.program})

    def program(self, network, batch, _rng):
        params = network.params
        first = np.flatnonzero((self.tools.training.x == batch["x"][0]).all(axis=1))[0]
        self.seen.append((int(first), len(batch["y"])))
        loss, gradients = softmax_loss(params, (batch["x"], batch["y"]))
        grads = TensorMap.pack({k: gradients[k].astype(np.float32) for k in _NAMES})
        return Step(loss=float(loss), grads=grads, buffers=network.buffers)

    def merge(self, weights, buffers, **settings):
        self.seen.clear()
        probe = Probe(tools=self.tools.training, batch_size=8, objective=LocalObjective())
        received = Network(params=self.received, buffers=buffers)
        return local_aggregation(Ala(**settings), self.own, received, weights, probe)

    def expected(self, weights, *, layer_idx, eta=1.0, threshold=0.01, window=10, cap=200):
        """By the oracle, with the batches of the first pass."""
        passes = self.seen[:3]  # int(0.8 · 30) examples in batches of 8
        x, y = self.tools.training.x, self.tools.training.y
        batches = [(x[i : i + n], y[i : i + n]) for i, n in passes]
        upper = _NAMES[-layer_idx:]
        mixed, weights, count = oracle.call(
            self.own,
            self.received,
            weights,
            softmax_loss,
            upper=upper,
            batches=batches,
            eta=eta,
            threshold=threshold,
            window=window,
            cap=cap,
        )
        assert self.seen == passes * count
        return mixed, weights, count


@pytest.mark.parametrize("layer_idx", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_first_and_later_calls_are_the_oracle_s(model, make_tools, layer_idx, seed):
    client = Client(make_tools, seed)
    first = client.merge({}, model.buffers, layer_idx=layer_idx)
    mixed, weights, passes = client.expected(None, layer_idx=layer_idx)
    assert passes >= 11
    assert first.weights.keys() == set(_NAMES[-layer_idx:])
    for name in _NAMES:
        np.testing.assert_allclose(first.network.params[name], mixed[name], atol=1e-4)
    for name in first.weights:
        np.testing.assert_allclose(first.weights[name], weights[name], atol=1e-4)
    later = client.merge(first.weights, model.buffers, layer_idx=layer_idx)
    mixed, weights, passes = client.expected(first.weights, layer_idx=layer_idx)
    assert passes == 1
    np.testing.assert_allclose(later.network.params["head.bias"], mixed["head.bias"], atol=1e-5)
    np.testing.assert_allclose(later.weights["head.bias"], weights["head.bias"], atol=1e-5)


def test_lower_tensors_are_the_received_ones_and_upper_ones_lie_between(model, make_tools):
    client = Client(make_tools, 4)
    merged = client.merge({}, model.buffers)
    for name in ("low.weight", "low.bias"):
        np.testing.assert_array_equal(merged.network.params[name], client.received[name])
    moved = False
    for name in ("head.weight", "head.bias"):
        low = np.minimum(client.own[name], client.received[name]) - 1e-6
        high = np.maximum(client.own[name], client.received[name]) + 1e-6
        assert ((low <= merged.network.params[name]) & (merged.network.params[name] <= high)).all()
        moved |= not np.allclose(merged.network.params[name], client.received[name])
    assert moved


@pytest.mark.parametrize(
    ("percent", "n", "sizes"),
    [(80, 30, [8, 8, 8]), (100, 30, [8, 8, 8, 6]), (50, 15, [7]), (10, 3, [1]), (0, 3, [1])],
)
def test_a_call_looks_at_a_contiguous_part_in_order(model, make_tools, percent, n, sizes):
    """int(s/100·n) examples, at least one; the last short batch counts."""
    client = Client(make_tools, 5, n)
    client.merge({}, model.buffers, sample_percent=percent, max_passes=1)
    assert [size for _, size in client.seen] == sizes
    start = client.seen[0][0]
    assert [first for first, _ in client.seen] == [start + 8 * i for i in range(len(sizes))]
    assert 0 <= start <= n - sum(sizes)


def test_every_start_of_the_part_is_drawn(model, make_tools):
    client = Client(make_tools, 6, 10)
    starts = set()
    for _ in range(60):
        client.merge({}, model.buffers, max_passes=1)
        starts.add(client.seen[0][0])
    assert starts == {0, 1, 2}


def _program(losses):
    """Gives these losses in turn and no gradient."""
    turn = iter(losses)

    def program(network, _batch, _rng):
        grads = TensorMap.zeros(network.params.layout)
        return Step(loss=next(turn), grads=grads, buffers=network.buffers)

    return program


def _passes(model, make_tools, losses, **settings):
    client = Client(make_tools, 7, 2)
    calls = []
    inner = _program(losses)

    def counted(*arguments):
        calls.append(1)
        return inner(*arguments)

    client.tools.training.grad_fns["task_loss"] = counted
    client.merge({}, model.buffers, **settings)
    return len(calls)


def test_the_first_call_makes_one_pass_more_than_the_window_at_least(model, make_tools):
    assert _passes(model, make_tools, [1.0] * 300) == 11
    assert _passes(model, make_tools, [1.0] * 300, window=3) == 4


def test_the_first_call_ends_when_the_last_ten_losses_spread_less_than_the_threshold(
    model, make_tools
):
    """Ten losses of which one is 0.3 apart have a population deviation of 0.09."""
    losses = [1.0] * 12 + [1.3] + [1.0] * 300
    early = [1.3] * 3 + [1.0] * 300
    assert _passes(model, make_tools, early, threshold=0.01) == 13
    assert _passes(model, make_tools, early, threshold=0.2) == 11
    assert _passes(model, make_tools, losses[4:], threshold=0.089) == 19
    assert _passes(model, make_tools, losses[4:], threshold=0.091) == 11


def test_the_first_call_ends_at_its_cap(model, make_tools):
    assert _passes(model, make_tools, [0.0, 1.0] * 200) == 200
    assert _passes(model, make_tools, [0.0, 1.0] * 200, max_passes=5) == 5


def test_the_loss_of_a_pass_is_that_of_its_last_batch(model, make_tools):
    """First batches that leap about do not keep the phase going."""
    client = Client(make_tools, 8, 10)  # 80 % in batches of 8 would be one: batches of 4 are two
    rng = np.random.default_rng(0)
    calls = []

    def program(network, _batch, _rng):
        calls.append(1)
        loss = 1.0 if len(calls) % 2 == 0 else float(rng.normal())
        grads = TensorMap.zeros(network.params.layout)
        return Step(loss=loss, grads=grads, buffers=network.buffers)

    client.tools.training.grad_fns["task_loss"] = program
    probe = Probe(tools=client.tools.training, batch_size=4, objective=LocalObjective())
    received = Network(params=client.received, buffers=model.buffers)
    local_aggregation(Ala(), client.own, received, {}, probe)
    assert len(calls) == 2 * 11


def test_a_loss_that_is_not_finite_names_the_client(model, make_tools):
    with pytest.raises(InputError, match="client 'a': expected a finite loss of 'task_loss'"):
        _passes(model, make_tools, [math.inf])


_SHARING = ("fedavg", "fedavg_c", "fedprox", "fedper", "fedrep", "ditto", "fedali")


class Plugged:
    """A strategy with the plug-in, its server's w set by hand, one client with one example."""

    def __init__(self, name, model, make_tools, **ala):
        toy = Case(model=model, settings=SGD, make_tools=make_tools, server_tools=server_tools)
        self.case = case_of(name, make_tools, toy)
        local_init = {"kind": "ala", "max_passes": 1, "eta": 0.1, **ala}
        settings = {**self.case.settings, "epochs": 1, "local_init": local_init}
        self.strategy = build(name, settings, self.case.model)
        self.server = self.strategy.server_init(self.case.model, new_rng())
        self.state = self.strategy.client_init(self.case.model)
        self.starts = []

    def round(self, round_id, w, examples=((2, 4),)):
        tools, _ = self.case.make_tools("a", examples)
        found = tools.training.grad_fns.items()
        programs = {name: self._recorded(grad_fn) for name, grad_fn in found}
        tools = changed(tools, grad_fns=programs)
        tensors = {**self.server.tensors, "params/w": np.array(w, np.float32)}
        payload = Payload(round_id=round_id, tensors=tensors)
        self.starts.clear()
        self.state, update = self.strategy.client_update(self.state, payload, tools)
        return update

    def _recorded(self, grad_fn):
        def recorded(network, *rest):
            self.starts.append(network.params["w"].tolist())
            return grad_fn(network, *rest)

        return recorded

    @property
    def weights(self):
        (found,) = [v for name, v in self.state.tensors.items() if name.endswith("ala/w")]
        return found


@pytest.mark.parametrize("name", _SHARING)
def test_any_strategy_trains_from_the_mixture_and_keeps_the_weights(name, model, make_tools):
    """Example (2, 4), rate 1/2: round 1 ends with (1, 2). Received (3, 1), the gap is (2, -1).

    With weights 1 the gradient is (3, 1) - (2, 4) = (1, -3): weights 1 - 0.1·(2, 3) = (0.8, 0.7),
    mixture (1 + 2·0.8, 2 - 0.7) = (2.6, 1.3). A head after w is not shared and not counted.
    """
    plugged = Plugged(name, model, make_tools, layer_idx=1)
    plugged.round(1, [0, 0])
    assert plugged.starts[0] == [0, 0]
    assert not any("ala/" in key for key in plugged.state.tensors)
    update = plugged.round(2, [3, 1])
    np.testing.assert_allclose(plugged.starts[0], [3, 1])
    np.testing.assert_allclose(plugged.starts[1], [2.6, 1.3], rtol=1e-6)
    np.testing.assert_allclose(plugged.weights, [0.8, 0.7], rtol=1e-6)
    assert not any("ala/" in key for key in update.tensors)
    plugged.strategy.client_model(plugged.state)


def test_weights_persist_and_a_later_call_makes_one_pass(model, make_tools):
    """Own model after round 2: halfway from (2.6, 1.3) to (2, 4), (2.3, 2.65).

    Received (1.3, 1.65): gap (-1, -1), start (2.3 - 0.8, 2.65 - 0.7) = (1.5, 1.95), gradient
    (-0.5, -2.05), weights (0.8, 0.7) + 0.1·(-0.5, -2.05) = (0.75, 0.495).
    """
    plugged = Plugged("fedavg", model, make_tools, max_passes=1, threshold=0.0)
    plugged.round(1, [0, 0])
    plugged.round(2, [3, 1])
    update = plugged.round(3, [1.3, 1.65])
    np.testing.assert_allclose(plugged.starts[0], [1.5, 1.95], rtol=1e-6)
    assert len(plugged.starts) == 2
    np.testing.assert_allclose(plugged.weights, [0.75, 0.495], rtol=1e-5)
    np.testing.assert_allclose(plugged.starts[1], [2.3 - 0.75, 2.65 - 0.495], rtol=1e-6)
    np.testing.assert_allclose(update.tensors["params/w"], [1.775, 3.0775], rtol=1e-6)


def test_nothing_is_mixed_where_the_received_model_is_the_own_one(model, make_tools):
    plugged = Plugged("fedavg", model, make_tools)
    plugged.round(1, [0, 0])
    plugged.round(2, [3, 1])
    kept = plugged.weights.copy()
    own = plugged.state.tensors["params/w"].tolist()
    plugged.round(3, own)
    assert plugged.starts == [own]
    np.testing.assert_array_equal(plugged.weights, kept)


def test_a_client_without_examples_keeps_its_weights_and_takes_the_received_model(
    model, make_tools
):
    plugged = Plugged("fedavg", model, make_tools)
    plugged.round(1, [0, 0])
    plugged.round(2, [3, 1])
    kept = plugged.weights.copy()
    update = plugged.round(3, [5, 6], examples=())
    assert plugged.starts == []
    np.testing.assert_array_equal(plugged.weights, kept)
    np.testing.assert_array_equal(update.tensors["params/w"], [5, 6])


def test_a_newcomer_in_a_later_round_mixes_the_bundle_s_model(model, make_tools):
    """Its own model is (0, 0): with the weights 1 of the start it sees the received one first."""
    plugged = Plugged("fedavg", model, make_tools)
    plugged.round(2, [3, 1])
    np.testing.assert_allclose(plugged.starts[0], [3, 1])
    np.testing.assert_allclose(plugged.weights, [0.7, 1.0], rtol=1e-6)  # 1 - 0.1·(3·1, 1·-3), cut


def test_round_1_mixes_nothing_even_if_the_device_has_another_model(model, make_tools):
    """A device that kept a store of another federation starts from what it received."""
    plugged = Plugged("fedavg", model, make_tools)
    tensors = {**plugged.state.tensors, "params/w": np.float32([9, 9])}
    plugged.state = dataclasses.replace(plugged.state, tensors=tensors)
    plugged.round(1, [3, 1])
    assert "ala/w" not in plugged.state.tensors


def test_weights_of_another_model_are_refused(model, make_tools):
    plugged = Plugged("fedavg", model, make_tools)
    plugged.round(1, [0, 0])
    tensors = {**plugged.state.tensors, "ala/w": np.ones(3, np.float32)}
    plugged.state = dataclasses.replace(plugged.state, tensors=tensors)
    with pytest.raises(InputError, match="tensor 'w': expected"):
        plugged.round(2, [3, 1])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"local_init": {"kind": "fedala"}}, "expected one of ala, got 'fedala'"),
        ({"local_init": {**_ALA, "layers": 1}}, "unknown key `layers`"),
        ({"local_init": {**_ALA, "layer_idx": -1}}, "setting 'local_init.layer_idx'"),
        ({"local_init": {**_ALA, "sample_percent": 101}}, "setting 'local_init.sample_percent'"),
        ({"local_init": {**_ALA, "max_passes": 0}}, "setting 'local_init.max_passes'"),
        ({"local_init": {**_ALA, "window": 0}}, "setting 'local_init.window'"),
        ({"local_init": {**_ALA, "eta": -1.0}}, "setting 'local_init.eta'"),
        ({"local_init": {**_ALA, "threshold": math.nan}}, "setting 'local_init.threshold'"),
        ({"score_at": "middle"}, "`score_at`: expected one of .*, got 'middle'"),
    ],
)
def test_wrong_settings_are_named(model, settings, message):
    with pytest.raises(InputError, match=message):
        build("fedavg", settings, model)
