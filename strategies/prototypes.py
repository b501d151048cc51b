"""Prototypes of classes: means of features, and what an aggregator makes of all clients'."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.strategies.aggregation import Aggregator
from protofleet.strategies.types import Score, UnsuitableModelError, Update
from protofleet.tensors import Model

ClassRows = NDArray[np.float32]
"""``(C, d)``, one prototype per class."""


def class_means(
    features: NDArray[np.float32], y: NDArray[np.int64], num_classes: int
) -> tuple[ClassRows, NDArray[np.int64]]:
    """Mean of each class's rows, summed in float64.

    Args:
        features: ``(n, d) float32``.
        y: ``(n,) int64`` in [0, C).
        num_classes: C.

    Returns:
        Means ``(C, d) float32``, zeros for a class without rows, and how many rows each class has,
        ``(C,) int64``.

    Raises:
        InputError: the lengths differ, or a class is outside its range.
    """
    if features.ndim != 2 or y.shape != features.shape[:1]:
        raise InputError(
            f"class means: expected features (n, d) and n classes, got {features.shape} "
            f"and {y.shape}"
        )
    if y.size and not 0 <= y.min() <= y.max() < num_classes:
        raise InputError(
            f"class means: expected classes below {num_classes}, got {y.min()} to {y.max()}"
        )
    means = np.zeros((num_classes, features.shape[1]), np.float32)
    counts = np.bincount(y, minlength=num_classes)
    for label in np.flatnonzero(counts):
        means[label] = features[y == label].mean(axis=0, dtype=np.float64)
    return means, counts


def merge_prototypes(
    aggregator: Aggregator, terms: Iterable[tuple[ClassRows, NDArray[Any]]], old: ClassRows
) -> ClassRows:
    """Each class's prototype combined over the clients that have the class.

    Args:
        aggregator: the rule.
        terms: for each client its prototypes ``(C, d) float32`` and a weight per class ``(C,)``,
            at least 0; a row of weight 0 has no effect. Read once.
        old: ``(C, d) float32``, what a class keeps that has no weight at all.

    Returns:
        ``(C, d) float32``, a new array.

    Raises:
        InputError: another shape, or a negative weight.
    """
    return aggregator.by_row(old, _checked(terms, old))


def _checked(
    terms: Iterable[tuple[ClassRows, NDArray[Any]]], old: ClassRows
) -> Iterator[tuple[ClassRows, NDArray[Any]]]:
    for prototypes, weights in terms:
        if prototypes.shape != old.shape or weights.shape != old.shape[:1] or (weights < 0).any():
            raise InputError(
                f"prototypes: expected {old.shape} and a weight of at least 0 for each class, got "
                f"{prototypes.shape} and {weights}"
            )
        yield prototypes, weights


def class_counts_of(update: Update, num_classes: int) -> NDArray[np.int64]:
    """How many training examples of each class the client registered, ``(C,) int64``.

    Raises:
        InputError: none, or not one for each class.
    """
    counts = update.class_counts
    if counts is None or counts.shape != (num_classes,):
        got = "none" if counts is None else str(counts.shape)
        raise InputError(
            f"update of '{update.client_id}': expected registered counts of {num_classes} "
            f"classes, got {got}"
        )
    return counts


def feature_width(model: Model) -> int:
    """Width d of the features.

    Raises:
        UnsuitableModelError: the bundle has none.
    """
    if not model.features:
        raise UnsuitableModelError(
            "model: the bundle has no program 'features', so nothing says what features are: "
            "export it with --head NAME, the module that takes them",
            flags="--head NAME",
        )
    return model.features


def nearest(prototypes: ClassRows, present: NDArray[Any]) -> Score:
    """Scores of features: minus the squared distance to each prototype, summed in float64.

    Args:
        prototypes: ``(C, d) float32``.
        present: ``(C,)``, 0 for classes without a prototype, which are never chosen; at least one
            other.

    Returns:
        A function from features ``(n, d) float32`` to scores ``(n, C) float32``.
    """
    known = np.flatnonzero(present)
    centres = prototypes[known].astype(np.float64)

    def score(features: NDArray[np.float32]) -> NDArray[np.float32]:
        scores = np.full((len(features), len(prototypes)), -np.inf, np.float32)
        for column, centre in zip(known, centres, strict=True):
            scores[:, column] = -np.square(features - centre).sum(axis=1)
        return scores

    return score
