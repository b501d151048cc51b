"""Which clients resemble each other, class by class, and how good a clustering of them is.

Sources: Campana and Delmastro, "FedSub", section on the server (similarity of class prototypes,
prediction of missing ones); Davies and Bouldin, "A Cluster Separation Measure", IEEE TPAMI 1(2),
1979.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels.checks import Floats, finite, read_only
from protofleet.kernels.native.pool import one_blas_thread, spread
from protofleet.kernels.native.switch import backend
from protofleet.kernels.sphere import unit_rows

Owned = NDArray[np.bool_]

_ROWS = 256  # of a block of a product


def shared_class_similarity(prototypes: NDArray[Any], present: Owned) -> Floats:
    """Mean cosine of two clients' prototypes over the classes that both own; 0 without any.

    Args:
        prototypes: ``(U, C, d) float32`` of U clients and C classes, may be read-only. Those of
            absent classes are not looked at.
        present: ``(U, C) bool``, which classes a client owns.

    Returns:
        ``(U, U) float32``, symmetric up to rounding; the diagonal is of clients to themselves.

    Raises:
        InputError: wrong shape or dtype, a number that is not finite.
    """
    owned = _owned(prototypes, present)
    clients, classes, width = owned.shape
    if not unit_rows(owned.reshape(clients * classes, width)):
        finite("prototypes", _owned(prototypes, present))
    # Absent rows are zero, so that one product sums the cosines over the shared classes.
    flat_rows = owned.reshape(clients, classes * width)
    owns = present.astype(np.float32)
    sums = _products(flat_rows)
    sums /= np.maximum(owns @ owns.T, 1)
    return sums


def predict_missing_prototypes(
    prototypes: NDArray[Any], present: Owned, similarity: NDArray[Any], *, neighbours: int = 5
) -> Floats:
    """Fill in each client's missing prototypes from the most similar owners of the class.

    A missing prototype becomes the mean of those of the ``neighbours`` owners most similar to the
    client (all owners if there are fewer; of equals the lowest index), weighted with their
    similarities, negative ones as 0; where all weights vanish, their plain mean. Predicted
    prototypes take no part in other predictions.

    Args:
        prototypes: ``(U, C, d) float32``, may be read-only. Absent ones are not looked at.
        present: ``(U, C) bool``, which classes a client owns.
        similarity: ``(U, U) float32``, row u holds the similarities of client u.
        neighbours: owners that take part, at least 1.

    Returns:
        ``(U, C, d) float32``, a new array. A class that nobody owns, ``~present.any(axis=0)``,
        cannot be predicted: its rows are zero.

    Raises:
        InputError: wrong shape or dtype, a number that is not finite, a setting out of range.
    """
    filled = _owned(prototypes, present)
    finite("prototypes", filled)
    similarity = read_only("similarity", similarity, 2)
    if similarity.shape != (len(filled), len(filled)) or neighbours < 1:
        raise InputError(
            f"missing prototypes: expected similarity ({len(filled)}, {len(filled)}) and "
            f"neighbours >= 1, got {similarity.shape} and {neighbours}"
        )
    finite("similarity", similarity)
    owns = np.ascontiguousarray(present).view(np.uint8)
    picked = np.empty(min(neighbours, len(filled)), np.int64)
    backend("clusters").predict_missing(filled, owns, similarity, picked)
    return filled


def davies_bouldin(points: NDArray[Any], labels: NDArray[np.int64]) -> float:
    """Davies-Bouldin index of a clustering, lower is better; as scikit-learn computes it.

    The mean over the clusters of the largest ``(s_i + s_j) / |c_i - c_j|``, where s is the mean
    distance of a cluster's points to their mean c. Clusters with the same c are not compared with
    each other; if all s, or all ``|c_i - c_j|``, are at most 1e-8, the index is 0.

    Args:
        points: ``(n, d) float32``, may be read-only.
        labels: ``(n,) int64``, any numbers; 2 to n - 1 different ones.

    Raises:
        InputError: wrong shape or dtype, a number that is not finite, too few or too many clusters.
    """
    points = read_only("points", points, 2)
    n, width = points.shape
    labels = np.ascontiguousarray(labels, np.int64)
    if labels.shape != (n,) or not points.size:
        raise InputError(
            "Davies-Bouldin: expected points (n, d), not empty, and labels (n,), "
            f"got {points.shape} and {labels.shape}"
        )
    highest = int(labels.view(np.uint64).max())  # a negative label looks larger than any n
    if highest >= n:
        labels = np.unique(labels, return_inverse=True)[1]
        highest = int(labels.max())
    centers, stats = np.zeros((highest + 1, width)), np.zeros((3, highest + 1))
    result = np.empty(3)
    backend("clusters").davies_bouldin(points, labels, centers, stats, result)
    index, clusters, spread = result.tolist()
    if not 2 <= clusters < n:
        raise InputError(
            f"Davies-Bouldin: expected 2 to {n - 1} clusters of {n} points, got {clusters:.0f}"
        )
    if not np.isfinite(spread):
        finite("points", points)
    return index


def _owned(prototypes: NDArray[Any], present: Owned) -> Floats:
    """A copy with zeros for absent prototypes."""
    prototypes = read_only("prototypes", prototypes, 3)
    if present.shape != prototypes.shape[:2] or present.dtype != np.bool_:
        raise InputError(
            f"present: expected {prototypes.shape[:2]} bool, got {present.shape} {present.dtype}"
        )
    owned: Floats = prototypes.copy()
    owned[~present] = 0
    return owned


def _products(rows: Floats) -> Floats:
    """``rows @ rows.T`` in blocks, so that no bit depends on a number of threads."""
    out = np.empty((len(rows), len(rows)), np.float32)

    def work(start: int, stop: int) -> None:
        for first in range(start, stop, _ROWS):
            part = slice(first, min(first + _ROWS, stop))
            np.matmul(rows[part], rows.T, out=out[part])

    with one_blas_thread():
        spread(work, len(rows), _ROWS)
    return out
