"""Lloyd's k-means, exact, with almost no search where points lie close to their centres."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels._check import Floats, Indices, finite, read_only
from protofleet.kernels._kmeans_search import WORK, Search, over_rows
from protofleet.kernels._pool import spread
from protofleet.kernels._switch import backend

Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class KMeansResult:
    """A clustering.

    Attributes:
        centers: ``(k, d) float32``; row j grew out of row j of the given centres.
        labels: ``(n,) int64``, the nearest centre of every point, the lowest of equals.
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

    Labels are those of float64 distances to the float32 centres. Beyond the points it takes memory
    for five numbers per point, three float64 sets of centres, and blocks.

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
    _check(points, init)
    if max_iter < 1 or not 0.0 <= tol < np.inf:
        raise InputError(f"k-means: expected max_iter >= 1 and tol >= 0, got {max_iter} and {tol}")
    search = Search(points, init, _start(guess, len(points), len(init)))
    limit = tol * search.mean_variance
    means = _Means(points, init)
    centers, labels = init, search.nearest(init)
    for n_iter in range(1, max_iter + 1):
        old, centers = centers, means.update(labels)
        moved = np.sum(np.square(centers.astype(np.float64) - old))
        if n_iter > 1 and not means.changed:
            break
        labels = search.nearest(centers)
        if moved <= limit:
            break
    inertia = float(_distances(points, centers, labels).sum())
    return KMeansResult(centers=centers, labels=labels, n_iter=n_iter, inertia=inertia)


def cluster_means(points: NDArray[Any], labels: Indices, init: NDArray[Any]) -> Floats:
    """Mean of the points of each label, float64 inside; ``init``'s row where there is none.

    Args:
        points: ``(n, d) float32``.
        labels: ``(n,) int64`` in [0, k).
        init: ``(k, d) float32``.

    Returns:
        ``(k, d) float32``, a new array.

    Raises:
        InputError: wrong shape or dtype, a number that is not finite, a label out of range.
    """
    points, init = read_only("points", points, 2), read_only("initial centres", init, 2)
    _check(points, init)
    finite("points", points)
    return _Means(points, init).update(_labels("labels", labels, len(points), len(init)))


def kmeans_plusplus(points: NDArray[Any], k: int, rng: np.random.Generator) -> Floats:
    """Greedy k-means++ seeds as scikit-learn draws them: ``k`` of the points, ``(k, d) float32``.

    Each is the best of 2 + floor(ln k) points drawn in proportion to their squared distance to the
    seeds so far. Arthur and Vassilvitskii, "k-means++" (SODA 2007).

    Args:
        points: ``(n, d) float32``.
        k: how many, in [1, n].
        rng: what draws; the same state gives the same seeds.

    Raises:
        InputError: wrong shape or dtype, a number that is not finite, ``k`` out of range.
    """
    points = read_only("points", points, 2)
    n = len(points)
    if not points.size or not 1 <= k <= n:
        raise InputError(
            f"k-means++: expected 1 <= k <= n seeds of points (n, d), got k={k} of {points.shape}"
        )
    finite("points", points)
    whole, tries = np.zeros(n, np.int64), 2 + int(math.log(k))
    chosen = [int(rng.integers(n))]
    nearest = _distances(points, points[chosen], whole)
    for _ in range(1, k):
        total = np.cumsum(nearest)
        drawn = np.searchsorted(total, rng.uniform(size=tries) * total[-1])
        best = np.inf
        for candidate in np.minimum(drawn, n - 1).tolist():
            closer = _distances(points, points[candidate : candidate + 1], whole)
            np.minimum(closer, nearest, out=closer)
            if (inertia := float(closer.sum())) < best:
                best, kept, winner = inertia, closer, candidate
        nearest = kept
        chosen.append(winner)
    return points[chosen]


def kmeans_restarts(
    points: NDArray[Any],
    k: int,
    *,
    rng: np.random.Generator,
    restarts: int = 10,
) -> KMeansResult:
    """The clustering of least inertia of several from k-means++ seeds, the first of equals.

    Args:
        points: ``(n, d) float32``.
        k: how many clusters, in [1, n].
        rng: what draws the seeds.
        restarts: how many runs, at least 1.

    Raises:
        InputError: as ``kmeans`` and ``kmeans_plusplus``, or ``restarts`` below 1.
    """
    if restarts < 1:
        raise InputError(f"k-means: expected restarts >= 1, got {restarts}")
    runs = (kmeans(points, kmeans_plusplus(points, k, rng)) for _ in range(restarts))
    return min(runs, key=lambda run: run.inertia)


class _Means:
    """Means of clusters; only clusters whose members changed are summed anew."""

    def __init__(self, points: Floats, init: Floats) -> None:
        self.changed = True
        self._points = points
        self._init = init
        self._sums = np.zeros(init.shape)
        self._labels: Indices | None = None

    def update(self, labels: Indices) -> Floats:
        wanted = np.ones(len(self._init), np.uint8)
        if self._labels is not None:
            moved = np.flatnonzero(labels != self._labels)
            wanted[:] = 0
            wanted[labels[moved]] = wanted[self._labels[moved]] = 1
        self.changed = bool(wanted.any())
        self._labels = labels.copy()
        if self.changed:
            self._sums[wanted == 1] = 0.0
            kernel, points, sums = backend("kmeans").label_sums, self._points, self._sums
            # Each thread goes through all labels and adds the points of its own clusters.
            grain = max(1, WORK * len(sums) // points.size)
            spread(
                lambda start, stop: kernel(points, labels, wanted, start, stop, sums),
                *(len(sums), grain),
            )
        counts = np.bincount(labels, minlength=len(self._init))
        means: Floats = (self._sums / np.maximum(counts, 1)[:, None]).astype(np.float32)
        means[counts == 0] = self._init[counts == 0]
        return means


def _check(points: Floats, init: Floats) -> None:
    if not points.size or not init.size or points.shape[1] != init.shape[1]:
        raise InputError(
            "k-means: expected points (n, d) and initial centres (k, d), none of them empty, "
            f"got {points.shape} and {init.shape}"
        )
    finite("initial centres", init)


def _start(guess: NDArray[np.int64] | None, n: int, k: int) -> Indices:
    if guess is None:
        return np.zeros(n, np.int64)
    return _labels("guess", guess, n, k).copy()


def _labels(name: str, labels: NDArray[Any], n: int, k: int) -> Indices:
    """``labels`` as C-ordered int64: kernels write where they point to."""
    if labels.shape != (n,) or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(
            f"k-means {name}: expected ({n},) integers, got {labels.dtype} of shape {labels.shape}"
        )
    low, high = labels.min(), labels.max()
    if low < 0 or high >= k:
        raise InputError(f"k-means {name}: expected labels from 0 to {k - 1}, got {low} to {high}")
    return np.ascontiguousarray(labels, np.int64)


def _distances(points: Floats, centers: Floats, labels: Indices) -> Doubles:
    out = np.empty(len(points))
    kernel = backend("kmeans").square_distances

    def work(start: int, stop: int) -> None:
        kernel(points[start:stop], centers, labels[start:stop], out[start:stop])

    over_rows(points, work)
    return out
