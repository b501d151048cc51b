"""Scores from confusion counts: accuracy and macro-F1, and the mean cross-entropy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError

Counts = NDArray[np.int64]
"""``(C, C) int64``, rows true and columns predicted class."""


def confusion(y_true: NDArray[Any], y_pred: NDArray[Any], num_classes: int) -> Counts:
    """Count pairs of true and predicted class.

    Args:
        y_true: ``(n,)`` integers in [0, C).
        y_pred: ``(n,)`` integers in [0, C).
        num_classes: C.

    Raises:
        InputError: the lengths differ or a class is outside its range.
    """
    if y_true.shape != y_pred.shape or y_true.ndim != 1:
        raise InputError(
            f"confusion: expected labels of one length, got {y_true.shape} and {y_pred.shape}"
        )
    for name, y in (("true", y_true), ("predicted", y_pred)):
        if y.size and not 0 <= y.min() <= y.max() < num_classes:
            raise InputError(
                f"confusion: expected {name} classes below {num_classes}, "
                f"got {y.min()} to {y.max()}"
            )
    pairs = y_true.astype(np.int64) * num_classes + y_pred
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def accuracy(counts: Counts) -> float:
    """Share of right predictions; NaN without examples."""
    total = int(counts.sum())
    return int(np.trace(counts)) / total if total else math.nan


def macro_f1(counts: Counts) -> float:
    """Plain mean of the classes' F1 as ``sklearn.metrics.f1_score(average="macro")``.

    Only classes that occur among the true or the predicted labels count; NaN without examples.
    """
    sizes = counts.sum(axis=0) + counts.sum(axis=1)  # 2 TP + FP + FN
    present = sizes > 0
    if not present.any():
        return math.nan
    return float(np.mean(2 * np.diag(counts)[present] / sizes[present]))


def mean_cross_entropy(scores: NDArray[np.float32], y_true: NDArray[np.int64]) -> float:
    """Mean cross-entropy of the softmax of ``scores (n, C)``; NaN without examples."""
    if not len(y_true):
        return math.nan
    shifted = scores.astype(np.float64) - scores.max(axis=1, keepdims=True)
    normaliser = np.log(np.exp(shifted).sum(axis=1))
    return float(np.mean(normaliser - shifted[np.arange(len(y_true)), y_true]))


def score(counts: Counts) -> dict[str, float]:
    """``macro_f1`` and ``accuracy`` of one model on one test set."""
    return {"macro_f1": macro_f1(counts), "accuracy": accuracy(counts)}
