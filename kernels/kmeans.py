"""Lloyd's k-means, exact, with almost no search where points lie close to their centres.

Hamerly, "Making k-means even faster" (SDM 2010): two bounds per point tell whose label cannot have
changed. The others are searched among the centres that moved far enough to matter only.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels.checks import Floats, Indices, finite, read_only
from protofleet.kernels.native.pool import one_blas_thread, spread
from protofleet.kernels.native.switch import backend

Doubles = NDArray[np.float64]
EmptyClusters = Literal["keep", "relocate"]
"""What becomes of a cluster without points; ``kmeans`` says it."""

_WORK = 1 << 17  # numbers that are worth a thread
_BLOCK_VALUES = 1 << 19  # scores held at once: 2 MiB, which stay in the cache
_MOST_ROWS = 1024  # points searched at once
_LARGEST = np.finfo(np.float32).max
_LINE = 16  # columns of one cache line


@dataclass(frozen=True, slots=True, kw_only=True)
class KMeansResult:
    """A clustering.

    Attributes:
        centers: ``(k, d) float32``; row j grew out of row j of the given centres.
        labels: ``(n,) int64``, the nearest centre of every point, the lowest of equals.
        n_iter: iterations that were run.
        inertia: sum of the squared distances of the points to their centres.
        relocated: how often a cluster without points was moved to one, over all iterations.
    """

    centers: Floats
    labels: Indices
    n_iter: int
    inertia: float
    relocated: int = 0


def kmeans(  # noqa: PLR0913 - settings go by keyword
    points: NDArray[Any],
    init: NDArray[Any],
    *,
    max_iter: int = 300,
    tol: float = 1e-4,
    guess: NDArray[np.int64] | None = None,
    empty: EmptyClusters = "keep",
) -> KMeansResult:
    """Lloyd's algorithm as in scikit-learn 1.x (``n_init=1``, Euclidean) from given centres.

    It stops when no label changes, or when the squared movement of all centres together is at most
    ``tol`` times the mean variance of the columns; then labels are taken once more. The centre of a
    cluster without points stands at its row of ``init``, so that a row keeps its identity. With
    ``empty="relocate"`` it goes, as in scikit-learn, to the point that is farthest from its own
    centre (of several such clusters the first to the farthest, of equal points to the first), whose
    former centre becomes the mean of the other points; labels stay as they are until they are taken
    again. Where all points lie on their centres nothing is moved. A cluster that loses its only
    point so goes where scikit-learn puts it: to the centre of the largest cluster (the first of
    equals) if that comes before it, otherwise to the sum, not the mean, of that cluster's points as
    seen from the mean of all. Of several clusters at once scikit-learn leaves open which one goes
    to which of the points, and it takes distances in float32.

    Labels are those of float64 distances to the float32 centres. Beyond the points it takes memory
    for five numbers per point, three float64 sets of centres, and blocks.

    Args:
        points: ``(n, d) float32``, may be read-only.
        init: ``(k, d) float32``, may be read-only; k may exceed n.
        max_iter: most iterations, at least 1.
        tol: relative tolerance, at least 0.
        guess: ``(n,) int64`` probable labels. They change the time, never the result.
        empty: what becomes of a cluster without points.

    Raises:
        InputError: wrong shape or dtype, a number that is not finite, a setting out of range.
    """
    points, init = read_only("points", points, 2), read_only("initial centres", init, 2)
    _check(points, init)
    if empty not in get_args(EmptyClusters):
        known = " or ".join(get_args(EmptyClusters))
        raise InputError(f"k-means empty clusters: expected {known}, got '{empty}'")
    if max_iter < 1 or not 0.0 <= tol < np.inf:
        raise InputError(f"k-means: expected max_iter >= 1 and tol >= 0, got {max_iter} and {tol}")
    search = _Search(points, init, _start(guess, len(points), len(init)))
    limit = tol * search.mean_variance
    means = _Means(points, init)
    centers, labels, relocated = init, search.nearest(init), 0
    for n_iter in range(1, max_iter + 1):
        old, centers = centers, means.update(labels)
        if empty == "relocate":
            centers, count = means.relocated(centers, old)
            relocated += count
        moved = np.sum(np.square(centers.astype(np.float64) - old))
        if n_iter > 1 and not means.changed:
            break
        labels = search.nearest(centers)
        if moved <= limit:
            break
    inertia = float(_distances(points, centers, labels).sum())
    return KMeansResult(
        centers=centers, labels=labels, n_iter=n_iter, inertia=inertia, relocated=relocated
    )


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
        self._counts = np.zeros(len(init), np.int64)
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
            grain = max(1, _WORK * len(sums) // points.size)
            spread(
                lambda start, stop: kernel(points, labels, wanted, start, stop, sums),
                *(len(sums), grain),
            )
        counts = np.bincount(labels, minlength=len(self._init))
        means: Floats = (self._sums / np.maximum(counts, 1)[:, None]).astype(np.float32)
        means[counts == 0] = self._init[counts == 0]
        self._counts = counts
        return means

    def relocated(self, means: Floats, old: Floats) -> tuple[Floats, int]:
        """``means`` with empty clusters at far points, and how many; ``old``: centres before."""
        empty = np.flatnonzero(self._counts == 0)
        if not len(empty) or self._labels is None:
            return means, 0
        far = _distances(self._points, old, self._labels)
        if not far.max():
            return means, 0
        taken = np.argsort(-far, kind="stable")[: len(empty)]
        sums, counts, moved = self._sums.copy(), self._counts.copy(), means.copy()
        for cluster, point in zip(empty, taken, strict=False):
            former = self._labels[point]
            sums[former] -= self._points[point]
            counts[former] -= 1
            moved[cluster] = self._points[point]
            counts[cluster] = 1
        left = np.unique(self._labels[taken])
        moved[left] = sums[left] / np.maximum(counts[left], 1)[:, None]
        largest, lost = counts.argmax(), left[counts[left] == 0]
        if len(lost):
            mean = self._points.mean(axis=0, dtype=np.float64)
            moved[lost[lost > largest]] = moved[largest]
            summed = mean + counts[largest] * (moved[largest] - mean)
            moved[lost[lost < largest]] = np.clip(summed, -_LARGEST, _LARGEST)
        return moved, min(len(empty), len(taken))


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

    _over_rows(points, work)
    return out


class _Search:
    """Nearest centres of points, again and again for centres that move.

    Matrix products are taken around the points' mean, which leaves scores more digits, and in
    units that let squares neither overflow nor vanish.

    Attributes:
        mean_variance: of the points' columns.
        upper: of each point, at least the distance to its centre.
        lower: of each point, at most the distance to every other centre.
    """

    def __init__(self, points: Floats, init: Floats, labels: Indices) -> None:
        n, width = points.shape
        totals = np.zeros((2, width))
        kernel = backend("kmeans").moments
        _over_columns(points, lambda start, stop: kernel(points, start, stop, totals))
        if not np.isfinite(totals[1]).all():
            finite("points", points)
        mean = totals[0] / n
        self.mean_variance = float(np.mean(np.maximum(totals[1] / n - np.square(mean), 0.0)))
        reach = (np.sqrt(totals[1]) + np.abs(points[0])).max()  # no point is farther out
        exponent = math.frexp(max(float(reach), float(np.abs(init).max())))[1]
        self._scale = 2.0 ** -min(max(exponent, -126), 126)
        offset = ((mean + points[0]) * self._scale).astype(np.float32)
        self._frame = _Frame(offset, self._scale, _Memory())
        # Half of it is due to the matrix product: d roundings of 2^-24, in any order.
        self._slack = (0.5 * width + 8) * 2.0**-24
        self._floor = width * 2.0**-125
        self._points = points
        self._labels = labels
        self.upper = np.full(n, np.inf)
        self.lower = np.zeros(n)
        self._centers = init

    def nearest(self, centers: Floats) -> Indices:
        """Labels for ``centers``; the next call writes the array."""
        drift = np.sqrt(np.square(centers.astype(np.float64) - self._centers).sum(axis=1))
        drift *= 1.0 + 1e-12
        self._centers = centers
        gap = self._settle(drift)
        rows = np.flatnonzero(gap < np.inf)
        if len(rows) > len(centers) > 1:
            rows = self._keep_apart(rows)
        if len(rows):
            self._search(rows, gap[rows], drift)
        return self._labels

    def _settle(self, drift: Doubles) -> Doubles:
        top = int(drift.argmax())
        second = max(drift[:top].max(initial=0.0), drift[top + 1 :].max(initial=0.0))
        largest = np.array([drift[top], top, second])
        gap = np.empty(len(self._points))
        kernel = backend("kmeans").settle

        def work(start: int, stop: int) -> None:
            part = slice(start, stop)
            bounds = self.upper[part], self.lower[part], gap[part]
            points, labels = self._points[part], self._labels[part]
            kernel(points, self._centers, labels, drift, largest, *bounds)

        _over_rows(self._points, work)
        return gap

    def _keep_apart(self, rows: Indices) -> Indices:
        """``rows`` without those nearer to their centre than half the way to the next one."""
        k = len(self._centers)
        blocks = _Blocks(self._centers, np.arange(k), self._frame)
        apart = np.empty(k)

        def work(start: int, stop: int) -> None:
            own = np.arange(start, stop)
            # Least is its own score, or one that rounding makes as small: then the second is too.
            *_, second, squares = blocks.scores(self._centers, own, k)
            error = self._slack * np.square(np.sqrt(squares) + blocks.radius) + self._floor
            others = np.maximum(second + squares - error, 0.0)
            apart[own] = np.sqrt(others) / self._scale * (1.0 - 1e-12)

        _spread_blocks(work, range(0, k, blocks.rows(k)), k)
        upper = self.upper[rows]
        lower = apart[self._labels[rows]] - upper
        kept: NDArray[np.bool_] = lower > upper
        self.lower[rows[kept]] = lower[kept]
        unsure: Indices = rows[~kept]
        return unsure

    def _search(self, rows: Indices, gap: Doubles, drift: Doubles) -> None:
        """Label ``rows``, each among the centres whose drift is at least its gap."""
        order = np.argsort(-drift, kind="stable")
        falling = -drift[order]
        least = np.maximum(gap, -falling[-1])  # equal where every centre is searched
        by_gap = np.argsort(least, kind="stable")
        rows, reach = rows[by_gap], np.searchsorted(falling, -least[by_gap], side="right")
        blocks = _Blocks(self._centers, order, self._frame)
        starts, start = [], 0
        while start < len(rows):
            starts.append(start)
            start += blocks.rows(max(1, int(reach[start])))

        def work(start: int, stop: int) -> None:
            searched = max(1, int(reach[start]))
            unseen = -falling[searched] if searched < len(order) else -1.0
            self._decide(rows[start:stop], blocks, searched, unseen)

        _spread_blocks(work, starts, len(rows))

    def _decide(self, rows: Indices, blocks: _Blocks, searched: int, unseen: float) -> None:
        scores, *found = blocks.scores(self._points, rows, searched)
        numbers = np.array([self._scale, self._slack, self._floor, blocks.radius, unseen])
        fixed = numbers, rows, self._points, self._centers, blocks.order
        bounds = self._labels, self.upper, self.lower
        backend("kmeans").decide(scores, blocks.norms[:searched], *found, *fixed, *bounds)


class _Frame(NamedTuple):
    """Where and in which unit products are taken, and the memory for them."""

    offset: Floats
    scale: float
    memory: _Memory


class _Blocks:
    """Scores ``|c|^2 - 2 x·c`` of blocks of points with centres in a given order."""

    def __init__(self, centers: Floats, order: Indices, frame: _Frame) -> None:
        placed = np.empty((len(order), centers.shape[1]), np.float32)
        squares = np.empty(len(order))
        backend("kmeans").gather(centers, order, frame.offset, frame.scale, placed, squares)
        placed *= np.float32(-2)
        self.radius = math.sqrt(squares.max())
        self.norms = squares.astype(np.float32)
        self.order = order
        self._doubled = placed
        self._frame = frame

    def rows(self, searched: int) -> int:
        """How many points are scored at once with so many centres."""
        return min(_MOST_ROWS, max(1, _BLOCK_VALUES // searched))

    def scores(self, points: Floats, rows: Indices, searched: int) -> tuple[Any, ...]:
        """Scores ``(searched, B)``, least, its place, second least, squared lengths."""
        size = len(rows)
        frame, memory = self._frame, self._frame.memory
        block = memory.floats("block", size, points.shape[1])
        scores = memory.floats("scores", searched, size)
        first, second = memory.floats("first", size), memory.floats("second", size)
        best, squares = np.empty(size, np.int32), np.empty(size)
        kernels = backend("kmeans")
        kernels.gather(points, rows, frame.offset, frame.scale, block, squares)
        np.matmul(self._doubled[:searched], block.T, out=scores)
        kernels.scan(scores, self.norms[:searched], first, best, second)
        return scores, first, best, second, squares


class _Memory(threading.local):
    """Each thread's arrays for blocks: fresh memory costs more than what is computed in it."""

    def __init__(self) -> None:
        self._kept: dict[str, Floats] = {}

    def floats(self, name: str, *shape: int) -> Floats:
        """Memory of this name and thread; its content is lost in the next call."""
        size = math.prod(shape)
        if name not in self._kept or self._kept[name].size < size:
            self._kept[name] = np.empty(size, np.float32)
        return self._kept[name][:size].reshape(shape)


def _spread_blocks(work: Callable[[int, int], None], starts: Sequence[int], size: int) -> None:
    """Call ``work`` for blocks of ``range(size)`` that start there, on all threads."""
    cuts = (*starts, size)

    def several(first: int, last: int) -> None:
        for start, stop in itertools.pairwise(cuts[first : last + 1]):
            work(start, stop)

    with one_blas_thread():
        spread(several, len(starts), 1)


def _over_rows(points: Floats, work: Callable[[int, int], None]) -> None:
    """Call ``work`` for parts of the points, each worth a thread."""
    spread(work, len(points), max(1, _WORK // points.shape[1]))


def _over_columns(points: Floats, work: Callable[[int, int], None]) -> None:
    """Call ``work`` for parts of the columns, each worth a thread and of whole cache lines."""
    worth = -(-_WORK // len(points))
    spread(work, points.shape[1], -(-worth // _LINE) * _LINE)
