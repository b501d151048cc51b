"""A head trained alone on the bundle's features: what a device with few labels can do at once.

What is trained is the last dense layer; all before it stays as it is, so what goes into it is
computed once for every example. It is a convex problem, that ends where the bundle's own head
begins as the examples become few: the mean loss, and λ/2 times the squared distance to that head.
Source of the solver: Nesterov, "Introductory Lectures on Convex Optimization" (2004), section 2.2.
Examples are judged by heads that have not seen them (folds), so that few of them suffice.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.federation.outcomes.gate import (
    GateEvidence,
    compare,
    folds_of,
    is_one_class,
    pooled,
)
from protofleet.strategies.tasks import LearningTask
from protofleet.tensors import Network, TaskName, TensorMap

MOST_EXAMPLES = 2000
"""Training all layers has enough with more, and features take an epoch's time."""
_FOLDS = 10
_STRENGTH = 0.02
"""λ as a share of the mean squared length of the features."""
_STEPS = 300
_CURVATURE = {"classification": 0.5, "multilabel": 0.25, "regression": 1.0}
"""Largest second derivative of each task's loss by an output."""
_ALIKE = 1e-3


LastLayer = tuple[str, str]
"""Names of the weight and the bias of a model's last dense layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseHead:
    """The last layer: outputs are ``features @ weight.T + bias``.

    Attributes:
        weight: ``(C, d) float32``.
        bias: ``(C,) float32``.
    """

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]

    def __call__(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Outputs ``(n, C)``."""
        found: NDArray[np.float32] = features @ self.weight.T + self.bias
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedHead:
    """A head, and how it compares with the bundle's.

    Attributes:
        head: trained on all training examples.
        evidence: by heads that had not seen the example, and by this one on the test part.
    """

    head: DenseHead
    evidence: GateEvidence


def last_layer(network: Network, head: Collection[str], width: int, outputs: int) -> LastLayer:
    """Names of the parameters of the dense layer that makes a model's outputs.

    Args:
        network: its values.
        head: names of its head's parameters, as the bundle has them.
        width: of what goes into it.
        outputs: of the model.

    Raises:
        InputError: there is no such layer, or more than one has these shapes.
    """
    shapes = {name: network.params[name].shape for name in head if name in network.params}
    weights = [name for name, one in shapes.items() if sorted(one) == sorted((outputs, width))]
    biases = [name for name, one in shapes.items() if one == (outputs,)]
    if len(weights) != 1 or len(biases) != 1:
        raise InputError(
            f"model: its head ({', '.join(head) or 'none is known'}) does not end with a dense "
            f"layer that makes {outputs} outputs of {width} values, so it cannot learn alone; name "
            "such a layer: export --head NAME"
        )
    return weights[0], biases[0]


def head_of(network: Network, names: LastLayer) -> DenseHead:
    """A model's last dense layer."""
    weight, bias = (network.params[name] for name in names)
    rows = weight if len(bias) == len(weight) else weight.T  # a column for each output
    return DenseHead(weight=np.ascontiguousarray(rows), bias=bias)


def with_head(network: Network, names: LastLayer, head: DenseHead) -> Network:
    """The network with another last layer."""
    values = {2: head.weight, 1: head.bias}
    shapes = {name: network.params[name].shape for name in names}
    changed = {
        name: value if (value := values[len(shape)]).shape == shape else value.T
        for name, shape in shapes.items()
    }
    params = TensorMap.pack({**network.params, **changed}, network.params.layout)
    return replace(network, params=params)


def check_dense(
    head: DenseHead, features: NDArray[np.float32], outputs: NDArray[np.float32]
) -> None:
    """Raise InputError unless a bundle's outputs are what its head makes of its features."""
    if features.ndim != 2 or features.shape[1] != head.weight.shape[1]:
        raise InputError(
            "model: its head is no dense layer on its features, so it cannot learn alone"
        )
    made = head(features)
    if not np.allclose(made, outputs, rtol=_ALIKE, atol=_ALIKE * (1 + np.abs(outputs).max())):
        raise InputError("model: more than a dense layer lies between its features and its outputs")


def fit_head(
    task: LearningTask,
    start: DenseHead,
    train: tuple[NDArray[np.float32], NDArray[np.int64] | NDArray[np.float32]],
    test: tuple[NDArray[np.float32], NDArray[np.int64] | NDArray[np.float32]],
) -> FittedHead:
    """Train a head, and compare it with the one that there was.

    Args:
        task: of the model.
        start: the bundle's head.
        train: features ``(n, d)`` and true values of the examples to learn from.
        test: those of the owner's test part, perhaps none.

    Raises:
        InputError: there are no examples to learn from.
    """
    features, y = train
    if not len(y):
        raise InputError("device data: expected labelled training examples, got none")
    head = _solved(task.name, start, features, y)
    now = np.concatenate([_unseen(task, start, features, y), head(test[0])])
    before = start(np.concatenate([features, test[0]]))
    evidence = pooled(task.name, compare(task, before, now, np.concatenate([y, test[1]])))
    one_class = is_one_class(y, test[1])
    evidence = msgspec.structs.replace(evidence, kind="head", one_class=one_class)
    return FittedHead(head=head, evidence=evidence)


def _unseen(
    task: LearningTask,
    start: DenseHead,
    features: NDArray[np.float32],
    y: NDArray[np.int64] | NDArray[np.float32],
) -> NDArray[np.float32]:
    """Outputs for each example of a head that was trained without its fold."""
    found, folds = start(features), folds_of(y, min(_FOLDS, len(y)))
    for fold in np.unique(folds):
        held = folds == fold
        if held.all():
            continue  # of a single example nothing is left to learn from
        head = _solved(task.name, start, features[~held], y[~held])
        found[held] = head(features[held])
    return found


def _solved(
    task: TaskName,
    start: DenseHead,
    features: NDArray[np.float32],
    y: NDArray[np.int64] | NDArray[np.float32],
) -> DenseHead:
    """The least mean loss, pulled to the start."""
    x = np.concatenate([features, np.ones((len(features), 1), np.float32)], axis=1).astype(float)
    target = np.eye(len(start.bias))[y] if y.ndim == 1 else y.astype(float)
    origin = np.concatenate([start.weight, start.bias[:, np.newaxis]], axis=1).astype(float)
    mean = float(np.square(x).sum(axis=1).mean())
    strength = _STRENGTH * mean
    largest = float(np.linalg.eigvalsh(x @ x.T if len(x) < x.shape[1] else x.T @ x)[-1]) / len(x)
    step = 1 / (_CURVATURE[task] * largest + strength)
    momentum = _momentum(strength * step)
    now = ahead = origin
    for _ in range(_STEPS):
        error = (_said(task, x @ ahead.T) - target) / len(x)
        after = ahead - step * (error.T @ x + strength * (ahead - origin))
        now, ahead = after, after + momentum * (after - now)
    solved = now.astype(np.float32)
    return DenseHead(weight=np.ascontiguousarray(solved[:, :-1]), bias=solved[:, -1].copy())


def _momentum(ratio: float) -> float:
    """Of a problem whose least curvature is ``ratio`` of its largest."""
    root = math.sqrt(min(ratio, 1.0))
    return (1 - root) / (1 + root)


def _said(task: TaskName, outputs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities, or the values themselves."""
    if task == "regression":
        return outputs
    if task == "multilabel":
        found: NDArray[np.float64] = 1 / (1 + np.exp(-np.clip(outputs, -500, 500)))
        return found
    shifted = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = shifted / shifted.sum(axis=1, keepdims=True)
    return shares
