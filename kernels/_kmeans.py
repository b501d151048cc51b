"""Lloyd's k-means from given centres, made for points that lie close to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels._check import Floats, Indices, finite, read_only
from protofleet.kernels._switch import backend

_BLOCK_VALUES = 1 << 21  # distances held at once: 8 MiB
_SAFETY = 0.999  # far above the rounding of a float32 distance, so that no search is wrongly saved


@dataclass(frozen=True, slots=True, kw_only=True)
class KMeansResult:
    """A clustering.

    Attributes:
        centers: ``(k, d) float32``; row j grew out of row j of the given centres.
        labels: ``(n,) int64``, the nearest centre of every point.
        n_iter: iterations that were run.
        inertia: sum of the squared distances of the points to their centres.
    """

    centers: Floats
    labels: Indices
    n_iter: int
    inertia: float


def kmeans(
    points: NDArray[Any],
    init: NDArray[Any],
    *,
    max_iter: int = 300,
    tol: float = 1e-4,
    guess: NDArray[np.int64] | None = None,
) -> KMeansResult:
    """Lloyd's algorithm as in scikit-learn 1.x (``n_init=1``, Euclidean) from given centres.

    It stops when no label changes, or when the squared movement of all centres together is at most
    ``tol`` times the mean variance of the columns; then labels are taken once more. Only empty
    clusters are treated otherwise: scikit-learn moves them to the farthest points, here such a
    centre stands at its row of ``init``, so that a row keeps its identity.

    A point nearer to its present centre than half the way from there to the next centre keeps it
    without a search (triangle inequality): exact, and most of the work where clusters are tight.

    Args:
        points: ``(n, d) float32``, may be read-only.
        init: ``(k, d) float32``, may be read-only; k may exceed n.
        max_iter: most iterations, at least 1.
        tol: relative tolerance, at least 0.
        guess: ``(n,) int64`` probable labels. They change the time, never the result.

    Raises:
        InputError: wrong shape or dtype, a number that is not finite, a setting out of range.
    """
    points, init = read_only("points", points, 2), read_only("initial centres", init, 2)
    _check(points, init, max_iter, tol)
    offset = points.mean(axis=0, dtype=np.float64).astype(np.float32)
    limit = tol * _mean_variance(points, offset)
    labels = _start(guess, len(points), len(init))
    centers, previous = init, None
    for n_iter in range(1, max_iter + 1):  # noqa: B007 - how far it came is a result
        labels = _assign(points, centers, labels, offset)
        old, centers = centers, cluster_means(points, labels, init)
        if previous is not None and np.array_equal(labels, previous):
            break
        if np.sum(np.square(centers.astype(np.float64) - old)) <= limit:
            labels = _assign(points, centers, labels, offset)
            break
        previous = labels
    else:
        labels = _assign(points, centers, labels, offset)
    distances = _distances(points, centers, labels)
    inertia = float(distances.sum(dtype=np.float64))
    return KMeansResult(centers=centers, labels=labels, n_iter=n_iter, inertia=inertia)


def cluster_means(points: NDArray[Any], labels: Indices, init: NDArray[Any]) -> Floats:
    """Mean of the points of each label, float64 inside; ``init``'s row where there is none.

    Args:
        points: ``(n, d) float32``.
        labels: ``(n,) int64`` in [0, k).
        init: ``(k, d) float32``.

    Returns:
        ``(k, d) float32``, a new array.
    """
    points, init = read_only("points", points, 2), read_only("initial centres", init, 2)
    counts = np.bincount(labels, minlength=len(init))
    sums = backend("kmeans").label_sums(points, labels, len(init))
    means: Floats = (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)
    means[counts == 0] = init[counts == 0]
    return means


def _check(points: Floats, init: Floats, max_iter: int, tol: float) -> None:
    if not points.size or not init.size or points.shape[1] != init.shape[1]:
        raise InputError(
            "k-means: expected points (n, d) and initial centres (k, d), none of them empty, "
            f"got {points.shape} and {init.shape}"
        )
    if max_iter < 1 or not 0.0 <= tol < np.inf:
        raise InputError(f"k-means: expected max_iter >= 1 and tol >= 0, got {max_iter} and {tol}")
    finite("points", points)
    finite("initial centres", init)


def _mean_variance(points: Floats, mean: Floats) -> float:
    whole = np.zeros(len(points), np.int64)
    return float(_distances(points, mean[None], whole).sum(dtype=np.float64) / points.size)


def _start(guess: NDArray[np.int64] | None, n: int, k: int) -> Indices | None:
    if guess is None:
        return None
    labels = np.ascontiguousarray(guess, np.int64)
    if labels.shape != (n,) or labels.min() < 0 or labels.max() >= k:
        raise InputError(f"k-means guess: expected ({n},) labels below {k}, got {labels.shape}")
    return labels


def _assign(points: Floats, centers: Floats, guess: Indices | None, offset: Floats) -> Indices:
    # Distances are taken around the mean: |c|^2 - 2 x·c then loses fewer digits.
    centered = centers - offset
    norms = np.einsum("ij,ij->i", centered, centered)
    if guess is None:
        labels = np.empty(len(points), np.int64)
        unsure = np.arange(len(points))
    else:
        labels = guess.copy()
        reach = _SAFETY * 0.5 * _next_center(centered, norms)[guess]
        unsure = np.flatnonzero(_distances(points, centers, guess) >= np.square(reach))
    step = max(1, _BLOCK_VALUES // len(centers))
    doubled = -2.0 * centered.T
    for start in range(0, len(unsure), step):
        part = unsure[start : start + step]
        scores = (points[part] - offset) @ doubled
        scores += norms
        labels[part] = np.argmin(scores, axis=1)
    return labels


def _distances(points: Floats, centers: Floats, labels: Indices) -> Floats:
    out = np.empty(len(points), np.float32)
    centers = read_only("centres", centers, 2)
    backend("kmeans").square_distances(points, centers, labels, out)
    return out


def _next_center(centered: Floats, norms: Floats) -> Floats:
    """Distance from each centre to its nearest other one; what rounding makes doubtful is 0."""
    k = len(centered)
    nearest = np.empty(k, np.float32)
    step = max(1, _BLOCK_VALUES // k)
    rounding = np.float32(1e-5) * norms.max()
    for start in range(0, k, step):
        part = slice(start, start + step)
        squares = norms[part, None] + norms - 2.0 * (centered[part] @ centered.T)
        rows = np.arange(len(squares))
        squares[rows, start + rows] = np.inf
        nearest[part] = np.sqrt(np.maximum(squares.min(axis=1) - rounding, 0))
    return nearest
