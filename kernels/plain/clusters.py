"""The kernels of ``compiled/clusters.py`` in NumPy, for servers without Numba."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels.checks import Floats, Indices

Doubles = NDArray[np.float64]
Bytes = NDArray[np.uint8]

_VALUES = 1 << 18  # differences held at once, so that memory does not grow with the clusters


def predict_missing(filled: Floats, owns: Bytes, similarity: Floats, picked: Indices) -> None:
    """Add to ``filled[u, y]`` where ``owns[u, y]`` is 0 the weighted mean of the nearest owners.

    ``filled: (U, C, d)`` is zero there; ``picked`` is scratch, as long as a mean has members.
    """
    for y in range(owns.shape[1]):
        owners, missing = np.flatnonzero(owns[:, y]), np.flatnonzero(owns[:, y] == 0)
        if not (owners.size and missing.size):
            continue
        values = similarity[np.ix_(missing, owners)]
        nearest = np.argsort(-values, axis=1, kind="stable")[:, : picked.size]
        weights = np.maximum(np.take_along_axis(values, nearest, axis=1), 0).astype(np.float64)
        weights[weights.sum(axis=1) == 0] = 1
        weights /= weights.sum(axis=1, keepdims=True)
        narrow = weights.astype(np.float32)
        for k, members in enumerate(owners[nearest].T):
            filled[missing, y] += narrow[:, k, None] * filled[members, y]


def davies_bouldin(
    points: Floats, labels: Indices, centers: Doubles, stats: Doubles, result: Doubles
) -> None:
    """``result`` = index, number of clusters, sum of their mean distances (NaN: bad points).

    ``labels`` lie in [0, k); ``centers: (k, d)`` and ``stats: (3, k)`` come as zeros and are used
    up. Labels without points count for nothing.
    """
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    used = len(starts)
    counts = np.diff(starts, append=len(labels))
    rows = points[order].astype(np.float64)
    with np.errstate(invalid="ignore"):
        means = np.add.reduceat(rows, starts, axis=0, out=centers[:used])
        means /= counts[:, None]
        rows -= np.repeat(means, counts, axis=0)
        distances = np.sqrt(np.einsum("ij,ij->i", rows, rows))
        spreads = np.divide(np.add.reduceat(distances, starts), counts, out=stats[1, :used])
        worst, farthest = _worst_ratios(means, spreads)
    different = spreads.max() > 1e-8 and farthest > 1e-16
    result[:] = np.sqrt(worst).mean() if different else 0.0, used, spreads.sum()


def _worst_ratios(means: Doubles, spreads: Doubles) -> tuple[Doubles, float]:
    """The largest ``((s_i + s_j) / |c_i - c_j|)^2`` of each i, and the largest square distance."""
    worst = np.empty_like(spreads)
    farthest = 0.0
    step = max(1, _VALUES // means.size)
    for start in range(0, len(means), step):
        part = slice(start, start + step)
        differences = means[part, None] - means
        squares = np.einsum("ijk,ijk->ij", differences, differences)
        farthest = max(farthest, float(squares.max()))
        squares[squares == 0] = np.inf
        worst[part] = (np.square(spreads[part, None] + spreads) / squares).max(axis=1)
    return worst, farthest
