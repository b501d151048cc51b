"""Ways to divide one data set among clients."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError

_MAX_DRAWS = 1000


def dirichlet(
    labels: NDArray[np.int64],
    clients: int,
    *,
    alpha: float,
    rng: np.random.Generator,
    min_examples: int = 10,
) -> list[NDArray[np.int64]]:
    """Label-skewed partition: each class is divided by proportions drawn from Dir(alpha).

    Hsu, Qi, Brown, arXiv:1909.06335. Redrawn until every client has ``min_examples``.

    Args:
        labels: ``(n,) int64``.
        clients: number of parts.
        alpha: concentration; small values give each client few classes.
        rng: source of the proportions and of the order.
        min_examples: fewest examples that a client may have.

    Returns:
        For each client the indices of its examples, in random order.

    Raises:
        InputError: no draw out of many gave every client enough.
    """
    for _ in range(_MAX_DRAWS):
        parts: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            rows = rng.permutation(np.flatnonzero(labels == label))
            cuts = np.cumsum(rng.dirichlet(np.full(clients, alpha)))[:-1] * len(rows)
            for part, piece in zip(parts, np.split(rows, cuts.astype(np.int64)), strict=True):
                part.append(piece)
        drawn = [rng.permutation(np.concatenate(part)) for part in parts]
        if min(map(len, drawn)) >= min_examples:
            return drawn
    raise InputError(
        f"Dirichlet partition: {len(labels)} examples over {clients} clients with alpha {alpha} "
        f"never gave every client {min_examples}; use fewer clients or a larger alpha"
    )


def stratified_split(
    labels: NDArray[np.int64], *, test_fraction: float, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Random indices of a train and a test part with (nearly) the same class proportions.

    A class with a single example goes to the train part.
    """
    train: list[NDArray[np.int64]] = []
    test: list[NDArray[np.int64]] = []
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        cut = min(round(test_fraction * len(rows)), len(rows) - 1)
        test.append(rows[:cut])
        train.append(rows[cut:])
    return rng.permutation(np.concatenate(train)), rng.permutation(np.concatenate(test))
