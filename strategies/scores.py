"""Scores from confusion counts: accuracy, macro-F1, and their spread over a fleet."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.strategies.types import Evaluation

Counts = NDArray[np.int64]
"""``(C, C) int64``, rows true and columns predicted class."""

Summary = dict[str, Any]
"""``personalisation`` and ``generalisation`` → ``macro_f1`` and ``accuracy`` → mean and std;
``own_loss`` → mean and std; ``more`` → each further score's name → as ``personalisation``."""

_MOST_NAMES = 8
"""Further scores in a summary; clients choose the names, and one may invent any number of them."""


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


def summarise(evaluations: Iterable[Evaluation]) -> Summary:
    """Mean and population standard deviation of the clients' scores.

    ``personalisation`` is each client's model on its own test part, with ``sample_accuracy`` over
    all clients' test samples alike (FedALA's score); ``generalisation`` the same model on the union
    of all test parts; ``own_loss`` the mean of the clients' mean losses; ``more`` the eight further
    scores that most clients have. Clients without examples are left out; a section that no client
    has is absent.
    """
    evaluations = tuple(evaluations)
    losses = [one.own_loss for one in evaluations if math.isfinite(one.own_loss)]
    sections = {
        "personalisation": {
            **_section(one.own for one in evaluations),
            **_over_samples([one.own for one in evaluations if one.own is not None]),
        },
        "generalisation": _section(one.pooled for one in evaluations),
        "own_loss": _spread(losses) if losses else {},
        "more": _more(evaluations),
    }
    return {name: section for name, section in sections.items() if section}


def _section(tables: Iterable[Counts | None]) -> dict[str, dict[str, float]]:
    scores = [score(counts) for counts in tables if counts is not None and counts.any()]
    return {key: _spread([one[key] for one in scores]) for key in scores[0]} if scores else {}


def _over_samples(tables: list[Counts]) -> dict[str, dict[str, float]]:
    total = sum(int(counts.sum()) for counts in tables)
    if not total:
        return {}
    return {"sample_accuracy": _spread([sum(int(np.trace(counts)) for counts in tables) / total])}


def _more(evaluations: tuple[Evaluation, ...]) -> dict[str, dict[str, dict[str, float]]]:
    having = Counter(name for one in evaluations for name in one.more)
    names = sorted(having, key=lambda name: (-having[name], name))[:_MOST_NAMES]
    sections = {name: _section(one.more.get(name) for one in evaluations) for name in sorted(names)}
    return {name: section for name, section in sections.items() if section}


def _spread(values: list[float]) -> dict[str, float]:
    return {"mean": float(np.mean(values)), "std": float(np.std(values))}
