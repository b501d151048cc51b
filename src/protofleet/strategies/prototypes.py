"""Prototypes of classes: means of features, and what an aggregator makes of all clients'."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.strategies.aggregation import Aggregator
from protofleet.strategies.types import UnsuitableModelError, Update
from protofleet.tensors import Model, Tensors

ClassRows = NDArray[np.float32]
"""``(C, d)``, one prototype per class."""


def begins_with_bundle(start: str, model: Model) -> bool:
    """Whether the first prototypes are the bundle's own (settings ``start`` of FedHP and FedNH).

    ``auto``: where a training has moved them. What the server draws instead would throw away what
    the head has learnt: with 20 examples each, owners had 59 where the bundle's model gave 63 and
    its own prototypes 70 (docs/outcome.md, *few*).
    """
    return start == "bundle" or (start == "auto" and model.trained_prototypes)


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


@dataclass(slots=True, kw_only=True)
class CollectedRows:
    """Tensors with a row per class that travel beside a shared model, from updates read once.

    Attributes:
        old: what the server has, by the names in an update; ``(C, …) float32`` each.
        weigh: how much an update's rows count, ``(C,)``; 0 for classes that its client lacks.
    """

    old: Tensors
    weigh: Callable[[Update], NDArray[Any]]
    _taken: dict[int, tuple[Tensors, NDArray[Any]]] = field(default_factory=dict)

    def collect(self, position: int, update: Update) -> None:
        """Take the rows of an update; for ``common.combine_updates`` to call."""
        # A copy: a view would keep the whole update in memory.
        rows = {name: np.array(update.tensors[name]) for name in self.old}
        self._taken[position] = rows, self.weigh(update)

    def merged(self, aggregator: Aggregator, count: int) -> dict[str, NDArray[Any]]:
        """Each tensor combined row by row (``merge_prototypes``).

        Args:
            aggregator: the rule.
            count: number of updates, those without examples among them.
        """
        nobody = self.old, np.zeros(len(next(iter(self.old.values()))))
        terms = [self._taken.get(position, nobody) for position in range(count)]
        return {
            name: merge_prototypes(aggregator, ((r[name], w) for r, w in terms), old)
            for name, old in self.old.items()
        }

    def present(self, before: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """``(C,)``, 1 for the classes that some update has, or that were there ``before``."""
        has = [weights > 0 for _, weights in self._taken.values()]
        there: NDArray[np.bool_] = np.any([before > 0, *has], axis=0)
        return there.astype(np.uint8)


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


@dataclass(frozen=True, slots=True)
class NearestPrototype:
    """Scores of features: minus the squared distance to each prototype, summed in float64.

    Attributes:
        prototypes: ``(C, d) float32``.
        present: ``(C,)``, 0 for classes without a prototype, which are never chosen; at least one
            other.
    """

    prototypes: ClassRows
    present: NDArray[Any]

    def __call__(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scores ``(n, C) float32`` of features ``(n, d) float32``."""
        scores = np.full((len(features), len(self.prototypes)), -np.inf, np.float32)
        for label in np.flatnonzero(self.present):
            gaps = features - self.prototypes[label].astype(np.float64)
            scores[:, label] = -np.square(gaps).sum(axis=1)
        return scores

    def linear(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """A dense layer with the same softmax: ``weight (C, d)`` and ``bias (C,)``.

        Its outputs differ from the scores by the squared norm of the features, the same for all
        classes; those of absent classes are the lowest that float32 has.
        """
        absent = np.asarray(self.present) == 0
        weight = np.where(absent[:, None], 0.0, 2.0 * self.prototypes)
        bias = -np.square(self.prototypes.astype(np.float64)).sum(axis=1)
        bias[absent] = np.finfo(np.float32).min
        return weight.astype(np.float32), bias.astype(np.float32)
