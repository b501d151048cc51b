"""Scores of models, made of statistics that add up over test parts, and mean losses.

A classifier's statistics are confusion counts, a regression's sums of errors, a multi-label model's
counts of right and wrong decisions. ``tasks.py`` says which belong to which task.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError, RefusedError

Counts = NDArray[np.int64]
"""``(C, C) int64``, rows true and columns predicted class."""

Statistics = NDArray[Any]
"""Of one model on one test part, in the form of its task; those of several parts add up."""

MetricName = Literal[
    "macro_f1",
    "accuracy",
    "balanced_accuracy",
    "sample_accuracy",
    "rmse",
    "mae",
    "r2",
    "sample_rmse",
    "sample_mae",
    "sample_r2",
    "micro_f1",
    "sample_macro_f1",
    "sample_micro_f1",
    "f1",
    "precision",
    "recall",
]
"""A score; ``sample_…`` is taken over all devices' test samples alike."""

MetricValues = dict[MetricName, float]


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


def balanced_accuracy(counts: Counts) -> float:
    """Plain mean, over the classes that occur, of the share of their examples that is right.

    As ``sklearn.metrics.balanced_accuracy_score``; NaN without examples. A prediction of a class
    that the owner does not have costs what any wrong one costs.
    """
    sizes = counts.sum(axis=1)
    present = sizes > 0
    if not present.any():
        return math.nan
    return float(np.mean(np.diag(counts)[present] / sizes[present]))


def one_class(counts: Counts) -> float:
    """The balanced accuracy of always naming one of the classes that occur; NaN without any."""
    present = int((counts.sum(axis=1) > 0).sum())
    return 1 / present if present else math.nan


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


LARGEST_ERROR = 1e15
"""What an output that is infinite or no number counts as, and the most that any error does."""
_LARGEST_SUM = 1e50
_ROUNDING = 1e-6
_VARIES = 1e-12


def absolute_errors(outputs: NDArray[np.float32], y: NDArray[np.float32]) -> NDArray[np.float64]:
    """``(n, T)``, each at most ``LARGEST_ERROR``; as of ``error_sums``."""
    _check_same_shape("regression", outputs, y)
    errors = np.nan_to_num(
        np.abs(outputs - y.astype(np.float64)), nan=LARGEST_ERROR, posinf=LARGEST_ERROR
    )
    found: NDArray[np.float64] = np.minimum(errors, LARGEST_ERROR)
    return found


def error_sums(outputs: NDArray[np.float32], y: NDArray[np.float32]) -> Statistics:
    """What the scores of a regression are made of; it adds up over test parts.

    Args:
        outputs: ``(n, T) float32``, the model's values.
        y: ``(n, T) float32``, the true ones.

    Returns:
        ``(T, 5) float64``: n, and the sums of ``|e|``, ``e²``, ``y`` and ``y²`` with
        ``e = output - y``, each at most ``LARGEST_ERROR``.

    Raises:
        InputError: the shapes differ.
    """
    true, errors = y.astype(np.float64), absolute_errors(outputs, y)
    columns = [np.ones_like(true), errors, errors**2, true, true**2]
    return np.stack([column.sum(axis=0) for column in columns], axis=1)


def regression_scores(sums: Statistics) -> list[MetricValues]:
    """``mae``, ``rmse`` and ``r2`` of each target.

    Args:
        sums: ``(T, 5)`` from ``error_sums``, or several of them added up.

    Returns:
        A record for each target. R² is NaN where the true values are all the same, everything is
        without examples.
    """
    found: list[MetricValues] = []
    for n, absolute, squared, total, squares in np.asarray(sums, np.float64):
        if not n:
            found.append({"rmse": math.nan, "mae": math.nan, "r2": math.nan})
            continue
        spread = squares - total**2 / n
        varies = spread > max(_VARIES * squares, 1 / _LARGEST_SUM)
        found.append(
            {
                "rmse": math.sqrt(squared / n),
                "mae": float(absolute / n),
                "r2": float(1 - squared / spread) if varies else math.nan,
            }
        )
    return found


def check_error_sums(what: str, sums: Statistics, targets: int) -> None:
    """Refuse sums that no examples have; ``what`` begins the message.

    Raises:
        RefusedError: rule ``evaluation``.
    """
    _check_form(what, sums, (targets, 5), "sums of errors")
    counts, absolute, squared, total, squares = np.asarray(sums, np.float64).T
    few = 1 + _ROUNDING
    rules = (
        ("one whole number of examples", (counts == np.floor(counts)) & (counts == counts[0])),
        ("sums that are not negative", sums[:, [0, 1, 2, 4]].min(axis=1) >= 0),
        (f"sums of at most {_LARGEST_SUM:g}", np.abs(sums).max(axis=1) <= _LARGEST_SUM),
        ("errors that fit their squares", absolute**2 <= few * counts * squared),
        ("squared errors that fit the errors", squared <= few * absolute**2),
        ("values that fit their squares", total**2 <= few * counts * squares),
    )
    for expected, holds in rules:
        if not holds.all():
            row = int(np.argmin(holds))
            raise RefusedError(
                "evaluation", f"{what}, target {row}: expected {expected}, got {sums[row].tolist()}"
            )


def label_counts(outputs: NDArray[np.float32], y: NDArray[np.float32]) -> Statistics:
    """What the scores of a multi-label model are made of; it adds up over test parts.

    Args:
        outputs: ``(n, L) float32`` logits; above 0 a label holds.
        y: ``(n, L) float32``, 1 where a label holds, else 0.

    Returns:
        ``(L, 4) int64``: true positives, false positives, false and true negatives.

    Raises:
        InputError: the shapes differ.
    """
    _check_same_shape("multilabel", outputs, y)
    said, true = outputs > 0, y > 0
    columns = (said & true, said & ~true, ~said & true, ~said & ~true)
    return np.stack([column.sum(axis=0, dtype=np.int64) for column in columns], axis=1)


def label_scores(counts: Statistics) -> list[MetricValues]:
    """``f1``, ``precision`` and ``recall`` of each label; NaN where nothing was to be found.

    Args:
        counts: ``(L, 4)`` from ``label_counts``, or several of them added up.
    """

    def share(part: int, whole: int) -> float:
        return part / whole if whole else math.nan

    return [
        {
            "f1": share(2 * tp, 2 * tp + fp + fn),
            "precision": share(tp, tp + fp),
            "recall": share(tp, tp + fn),
        }
        for tp, fp, fn, _ in counts.tolist()
    ]


def micro_f1(counts: Statistics) -> float:
    """F1 of all labels' decisions together; NaN where no label is true or predicted."""
    tp, fp, fn, _ = counts.sum(axis=0).tolist()
    return 2 * tp / (2 * tp + fp + fn) if tp + fp + fn else math.nan


def check_label_counts(what: str, counts: Statistics, labels: int) -> None:
    """Refuse counts that no examples have; ``what`` begins the message.

    Raises:
        RefusedError: rule ``evaluation``.
    """
    _check_form(what, counts, (labels, 4), "counts of labels")
    if not np.issubdtype(counts.dtype, np.integer) or counts.min() < 0:
        raise RefusedError("evaluation", f"{what}: expected whole numbers from 0 on")
    if len(set(counts.sum(axis=1).tolist())) > 1:
        raise RefusedError("evaluation", f"{what}: expected as many examples for every label")


def check_confusion(what: str, counts: Statistics, num_classes: int) -> None:
    """Refuse what are no confusion counts of so many classes; ``what`` begins the message.

    Raises:
        RefusedError: rule ``evaluation``.
    """
    _check_form(what, counts, (num_classes, num_classes), f"counts of {num_classes} classes")
    if not np.issubdtype(counts.dtype, np.integer):
        raise RefusedError("evaluation", f"{what}: expected whole numbers")


def mean_square(outputs: NDArray[np.float32], y: NDArray[np.float32]) -> float:
    """Mean squared error over examples and targets; NaN without examples."""
    return _mean((outputs.astype(np.float64) - y) ** 2)


def mean_huber(outputs: NDArray[np.float32], y: NDArray[np.float32]) -> float:
    """Mean Huber loss with a threshold of 1; NaN without examples."""
    errors = np.abs(outputs.astype(np.float64) - y)
    return _mean(np.where(errors <= 1, errors**2 / 2, errors - 0.5))


def mean_binary_cross_entropy(outputs: NDArray[np.float32], y: NDArray[np.float32]) -> float:
    """Mean over examples and labels of the cross-entropy of a logit's sigmoid; NaN without."""
    logits = outputs.astype(np.float64)
    return _mean(np.maximum(logits, 0) - logits * y + np.log1p(np.exp(-np.abs(logits))))


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if values.size else math.nan


def _check_same_shape(what: str, outputs: NDArray[Any], y: NDArray[Any]) -> None:
    if outputs.shape != y.shape or y.ndim != 2:
        raise InputError(
            f"{what}: expected outputs and true values (n, targets), got {outputs.shape} and "
            f"{y.shape}"
        )


def _check_form(what: str, found: Statistics, shape: tuple[int, int], named: str) -> None:
    if found.shape != shape:
        raise RefusedError(
            "evaluation", f"{what}: expected {named} of shape {shape}, got {found.shape}"
        )
