"""A head trained alone: it learns from few examples, and is judged by others than those."""

from __future__ import annotations

import numpy as np
import pytest

from protofleet.edge.learning.head import (
    DenseHead,
    check_dense,
    fit_head,
    head_of,
    last_layer,
    with_head,
)
from protofleet.errors import InputError
from protofleet.federation.outcomes.gate import ENOUGH
from protofleet.strategies.tasks import TASKS
from protofleet.tensors import Network, TensorMap

_D, _C = 12, 4


def _problem(seed, count, *, shift=1.0):
    """A start, features, and outputs of an owner whose own head lies away from it."""
    rng = np.random.default_rng(seed)
    start = rng.normal(size=(_C, _D)).astype(np.float32)
    own = (start + shift * rng.normal(size=start.shape)).astype(np.float32)
    features = np.maximum(rng.normal(size=(count, _D)), 0).astype(np.float32)
    head = DenseHead(weight=start, bias=np.zeros(_C, np.float32))
    return head, features, features @ own.T


def _nothing(y):
    return np.zeros((0, _D), np.float32), y[:0]


def test_it_learns_an_owner_s_own_habits_and_says_so():
    start, features, outputs = _problem(0, 600, shift=2.0)
    y = outputs.argmax(axis=1)
    found = fit_head(
        TASKS["classification"], start, (features[:160], y[:160]), (features[160:180], y[160:180])
    )
    said = [one(features[180:]).argmax(axis=1) for one in (start, found.head)]
    before, now = (float((one == y[180:]).mean()) for one in said)
    assert now > before + 0.03
    evidence = found.evidence
    assert (evidence.kind, evidence.examples, evidence.helps) == ("head", 180, True)
    assert evidence.now == pytest.approx(now, abs=0.12)
    assert "head: a head trained alone has" in evidence.text


def test_wrong_labels_seldom_open_the_gate():
    """What fits them is better on examples that it has not seen by how often each class comes."""
    start, features, outputs = _problem(1, 60, shift=0.0)
    opened = 0
    for seed in range(40):
        y = np.random.default_rng(seed).permutation(outputs.argmax(axis=1))
        found = fit_head(TASKS["classification"], start, (features, y), _nothing(y))
        opened += found.evidence.helps
    assert opened <= 2 * (1 - ENOUGH) * 40


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_few_examples_move_little_and_prove_nothing(count):
    start, features, outputs = _problem(3, count)
    y = outputs.argmax(axis=1)
    found = fit_head(TASKS["classification"], start, (features, y), _nothing(y))
    assert found.evidence.examples == count
    assert not found.evidence.helps
    assert np.isfinite(found.head.weight).all()
    assert np.abs(found.head.weight - start.weight).max() < 2 * np.abs(start.weight).max()


def test_regression_and_labels_have_heads_too():
    start, features, outputs = _problem(4, 200)
    values = outputs.astype(np.float32)
    found = fit_head(
        TASKS["regression"], start, (features[:80], values[:80]), (features[80:], values[80:])
    )
    assert found.evidence.gain > 0.3
    assert found.evidence.helps
    flags = (outputs > 0).astype(np.float32)
    found = fit_head(
        TASKS["multilabel"], start, (features[:80], flags[:80]), (features[80:], flags[80:])
    )
    assert found.evidence.helps


def test_the_solution_is_where_the_gradient_vanishes():
    start, features, outputs = _problem(5, 50)
    values = outputs.astype(np.float32)
    head = fit_head(TASKS["regression"], start, (features, values), _nothing(values)).head
    strength = 0.02 * float((np.square(features).sum(axis=1) + 1).mean())
    error = (head(features) - values) / len(values)
    gradient = error.T @ features + strength * (head.weight - start.weight)
    assert np.abs(gradient).max() < 1e-3


def _network(**params):
    packed = TensorMap.pack({name: np.asarray(one, np.float32) for name, one in params.items()})
    return Network(params=packed, buffers=TensorMap.pack({}))


def test_a_head_is_found_by_its_names_and_put_in_its_place():
    network = _network(body=np.ones((2, 3)), w=np.ones((_C, 2)), b=np.zeros(_C))
    names = last_layer(network, ("w", "b"), 2, _C)
    head = head_of(network, names)
    assert head.weight.shape == (_C, 2)
    other = with_head(network, names, DenseHead(weight=head.weight * 3, bias=head.bias + 1))
    assert (other.params["w"] == 3).all()
    assert (other.params["b"] == 1).all()
    assert (other.params["body"] == 1).all()
    assert (network.params["w"] == 1).all()
    turned = _network(w=np.ones((2, _C)), b=np.zeros(_C))
    assert last_layer(turned, ("b", "w"), 2, _C) == names
    assert head_of(turned, names).weight.shape == (_C, 2)
    changed = with_head(turned, names, head_of(turned, names))
    assert changed.params["w"].shape == (2, _C)


def test_of_a_head_of_several_layers_the_last_one_is_found():
    network = _network(**{"0.w": np.ones((9, 7)), "0.b": np.ones(9), "1.w": np.ones((_C, 9))})
    head = ("0.w", "0.b", "1.w", "1.b")
    network = _network(**{**network.params, "1.b": np.zeros(_C)})
    assert last_layer(network, head, 9, _C) == ("1.w", "1.b")
    with pytest.raises(InputError, match=r"0\.w, 0\.b, 1\.w, 1\.b.*export --head NAME"):
        last_layer(network, head, 7, _C)


@pytest.mark.parametrize("names", [(), ("w",), ("w", "body"), ("b", "nothing"), ("w", "b", "w2")])
def test_a_head_that_is_not_known_is_refused(names):
    network = _network(
        body=np.ones((2, 3)), w=np.ones((_C, 2)), b=np.zeros(_C), w2=np.ones((_C, 2))
    )
    with pytest.raises(InputError, match="its head"):
        last_layer(network, names, 2, _C)


def test_a_head_that_is_not_all_between_features_and_outputs_is_refused():
    start, features, _ = _problem(6, 8)
    check_dense(start, features, start(features))
    with pytest.raises(InputError, match="more than a dense layer"):
        check_dense(start, features, np.tanh(start(features)))
    with pytest.raises(InputError, match="no dense layer on its features"):
        check_dense(start, features[:, :3], start(features))


def test_without_examples_there_is_nothing_to_learn():
    start, features, outputs = _problem(7, 0)
    y = outputs.argmax(axis=1) if len(outputs) else np.zeros(0, np.int64)
    with pytest.raises(InputError, match="expected labelled training examples, got none"):
        fit_head(TASKS["classification"], start, (features, y), (features, y))
