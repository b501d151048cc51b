"""The search of k-means: which centre is nearest to each point, again and again.

Hamerly, "Making k-means even faster" (SDM 2010): two bounds per point tell whose label cannot have
changed. The others are searched among the centres that moved far enough to matter only.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels._blas import one_blas_thread
from protofleet.kernels._check import Floats, Indices, finite
from protofleet.kernels._pool import spread
from protofleet.kernels._switch import backend

Doubles = NDArray[np.float64]

WORK = 1 << 17
"""Numbers that are worth a thread."""

_BLOCK_VALUES = 1 << 19  # scores held at once: 2 MiB, which stay in the cache
_MOST_ROWS = 1024  # points searched at once
_LINE = 16  # columns of one cache line


class Search:
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
        over_columns(points, lambda start, stop: kernel(points, start, stop, totals))
        if not np.isfinite(totals[1]).all():
            finite("points", points)
        mean = totals[0] / n
        self.mean_variance = float(np.mean(np.maximum(totals[1] / n - np.square(mean), 0.0)))
        reach = (np.sqrt(totals[1]) + np.abs(points[0])).max()  # no point is farther out
        exponent = math.frexp(max(float(reach), float(np.abs(init).max())))[1]
        self._scale = 2.0 ** -min(max(exponent, -126), 126)
        offset = ((mean + points[0]) * self._scale).astype(np.float32)
        self._frame = offset, self._scale, _Memory()
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

        over_rows(self._points, work)
        return gap

    def _keep_apart(self, rows: Indices) -> Indices:
        """``rows`` without those nearer to their centre than half the way to the next one."""
        k = len(self._centers)
        blocks = _Blocks(self._centers, np.arange(k), *self._frame)
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
        blocks = _Blocks(self._centers, order, *self._frame)
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


class _Blocks:
    """Scores ``|c|^2 - 2 x·c`` of blocks of points with centres in a given order."""

    def __init__(
        self, centers: Floats, order: Indices, offset: Floats, scale: float, memory: _Memory
    ) -> None:
        placed = np.empty((len(order), centers.shape[1]), np.float32)
        squares = np.empty(len(order))
        backend("kmeans").gather(centers, order, offset, scale, placed, squares)
        placed *= np.float32(-2)
        self.radius = math.sqrt(squares.max())
        self.norms = squares.astype(np.float32)
        self.order = order
        self._doubled = placed
        self._offset = offset
        self._scale = scale
        self._memory = memory

    def rows(self, searched: int) -> int:
        """How many points are scored at once with so many centres."""
        return min(_MOST_ROWS, max(1, _BLOCK_VALUES // searched))

    def scores(self, points: Floats, rows: Indices, searched: int) -> tuple[Any, ...]:
        """Scores ``(searched, B)``, least, its place, second least, squared lengths."""
        size = len(rows)
        memory = self._memory
        block = memory.floats("block", size, points.shape[1])
        scores = memory.floats("scores", searched, size)
        first, second = memory.floats("first", size), memory.floats("second", size)
        best, squares = np.empty(size, np.int32), np.empty(size)
        kernels = backend("kmeans")
        kernels.gather(points, rows, self._offset, self._scale, block, squares)
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


def over_rows(points: Floats, work: Callable[[int, int], None]) -> None:
    """Call ``work`` for parts of the points, each worth a thread."""
    spread(work, len(points), max(1, WORK // points.shape[1]))


def over_columns(points: Floats, work: Callable[[int, int], None]) -> None:
    """Call ``work`` for parts of the columns, each worth a thread and of whole cache lines."""
    worth = -(-WORK // len(points))
    spread(work, points.shape[1], -(-worth // _LINE) * _LINE)
