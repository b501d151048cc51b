"""Ways to divide rows into a train and a test part."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


def random_split(
    count: int, *, test_fraction: float, rng: np.random.Generator
) -> tuple[Rows, Rows]:
    """Train and test rows at random, whatever their class, in random order; at least one trains."""
    rows = rng.permutation(count)
    cut = min(round(test_fraction * count), count - 1)
    return rows[cut:], rows[:cut]


def folds_split(labels: NDArray[np.int64], *, folds: int, train_folds: int) -> tuple[Rows, Rows]:
    """The first ``train_folds`` of stratified folds without shuffling train, the others test.

    FedAli's published split is 7 of 10. Rows keep their order. The folds are those of
    scikit-learn's ``StratifiedKFold(shuffle=False)``: the classes, sorted by their first
    appearance, are dealt like cards to learn how many of each a fold gets, and each class is then
    cut into consecutive pieces. Neighbouring windows that overlap may be on both sides of a cut.

    Args:
        labels: ``(n,) int64``.
        folds: number of folds.
        train_folds: how many of them train.
    """
    _, first, code = np.unique(labels, return_index=True, return_inverse=True)
    by_appearance = np.argsort(np.argsort(first))[code]
    dealt = np.sort(by_appearance)
    fold = np.empty(len(labels), np.int64)
    for index in range(len(first)):
        sizes = [np.count_nonzero(dealt[start::folds] == index) for start in range(folds)]
        fold[by_appearance == index] = np.repeat(np.arange(folds), sizes)
    return np.flatnonzero(fold < train_folds), np.flatnonzero(fold >= train_folds)


def in_time_split(
    labels: NDArray[np.int64], follows: NDArray[np.bool_], *, test_fraction: float
) -> tuple[Rows, Rows]:
    """The first part of each class trains and the rest tests; test rows that overlap are left out.

    Args:
        labels: ``(n,) int64`` of one person's rows in time order.
        follows: ``(n,) bool``: the row's window overlaps the one before it.
        test_fraction: share of each class that tests.
    """
    train = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        train[rows[: len(rows) - round(test_fraction * len(rows))]] = True
    touches = np.zeros(len(labels), bool)
    touches[1:] |= train[:-1] & follows[1:]
    touches[:-1] |= train[1:] & follows[1:]
    return np.flatnonzero(train), np.flatnonzero(~train & ~touches)


def divide_like(
    labels: NDArray[np.int64], counts: NDArray[np.int64], *, rng: np.random.Generator
) -> list[Rows]:
    """Divide test rows such that each client's have the class proportions of its train rows.

    Args:
        labels: ``(n,) int64`` of the test rows.
        counts: ``(clients, classes) int64``: train rows of each client and class.
        rng: source of the choice.

    Returns:
        For each client its test rows, in random order; rows of a class that nobody trains on
        are left out.
    """
    parts: list[list[Rows]] = [[np.empty(0, np.int64)] for _ in counts]
    for label in np.flatnonzero(counts.sum(axis=0)):
        rows = rng.permutation(np.flatnonzero(labels == label))
        grown = np.cumsum(counts[:, label])
        cuts = np.rint(grown[:-1] * len(rows) / grown[-1]).astype(np.int64)
        for part, piece in zip(parts, np.split(rows, cuts), strict=True):
            part.append(piece)
    return [rng.permutation(np.concatenate(part)) for part in parts]
