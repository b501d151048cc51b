"""The kernels of ``compiled/kmeans.py`` in NumPy, for servers without Numba."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels.checks import Floats, Indices

Doubles = NDArray[np.float64]

_ROWS = 1024  # points handled at once, so that memory does not grow with their number
_ROUNDING = 2.0**-50  # more than that of one float64 operation
_FAR = 1e150  # stands for infinity in bounds, which must stay numbers when drifts are subtracted


def moments(points: Floats, start: int, stop: int, out: Doubles) -> None:
    """Add sum and sum of squares of ``x - points[0]`` of some columns to ``out: (2, d)``."""
    base = points[0, start:stop].astype(np.float64)
    for part in _parts(len(points)):
        block = points[part, start:stop].astype(np.float64)
        with np.errstate(invalid="ignore"):  # infinities are found in the result
            block -= base
            out[0, start:stop] += block.sum(axis=0)
        out[1, start:stop] += np.einsum("ij,ij->j", block, block)


def square_distances(points: Floats, centers: Floats, labels: Indices, out: Doubles) -> None:
    """``out[i] = |points[i] - centers[labels[i]]|^2``, float64."""
    for part in _parts(len(points)):
        difference = points[part].astype(np.float64) - centers[labels[part]]
        np.einsum("ij,ij->i", difference, difference, out=out[part])


def label_sums(
    points: Floats, labels: Indices, wanted: NDArray[np.uint8], start: int, stop: int, sums: Doubles
) -> None:
    """Add every point with a wanted label in [start, stop) to ``sums[label]``, in their order."""
    used = start + np.flatnonzero(wanted[start:stop])
    chosen = np.zeros(len(sums), np.bool_)
    chosen[used] = True
    rows = np.flatnonzero(chosen[labels])
    kept = labels[rows]
    for j in range(points.shape[1]):
        column = np.bincount(kept, weights=points[rows, j], minlength=len(sums))
        sums[used, j] += column[used]


def settle(
    points: Floats,
    centers: Floats,
    labels: Indices,
    drift: Doubles,
    largest: Doubles,
    upper: Doubles,
    lower: Doubles,
    gap: Doubles,
) -> None:
    """Carry bounds over a move of the centres; ``gap`` is infinite where the label must stay."""
    upper += drift[labels]
    upper *= 1.0 + _ROUNDING
    far = np.where(labels == largest[1], largest[2], largest[0])
    least = (lower - far) - np.abs(lower) * _ROUNDING
    rows = np.flatnonzero(least <= upper)
    for chunk in _parts(len(rows)):
        part = rows[chunk]
        squares = np.empty(len(part))
        square_distances(points[part], centers, labels[part], squares)
        upper[part] = np.sqrt(squares) * (1.0 + points.shape[1] * _ROUNDING)
    kept = least > upper
    gap[:] = (lower - upper) - (np.abs(lower) + upper) * _ROUNDING
    gap[kept] = np.inf
    lower[kept] = least[kept]


def gather(
    points: Floats, rows: Indices, offset: Floats, scale: float, out: Floats, squares: Doubles
) -> None:
    """``out[b] = scale · points[rows[b]] - offset`` and its squared length."""
    np.take(points, rows, axis=0, out=out)
    out *= np.float32(scale)
    out -= offset
    np.einsum("ij,ij->i", out, out, out=squares, dtype=np.float64)


def scan(
    scores: Floats,
    norms: Floats,
    first: Floats,
    best: NDArray[np.int32],
    second: Floats,
) -> None:
    """Least and second least of ``scores[:, b] + norms``, and where the least is."""
    scores = scores + norms[:, None]
    columns = np.arange(first.size)
    best[:] = scores.argmin(axis=0)
    first[:] = scores[best, columns]
    scores[best, columns] = np.inf
    second[:] = scores.min(axis=0)


def decide(
    scores: Floats,
    norms: Floats,
    first: Floats,
    best: NDArray[np.int32],
    second: Floats,
    squares: Doubles,
    numbers: Doubles,
    rows: Indices,
    points: Floats,
    centers: Floats,
    order: Indices,
    labels: Indices,
    upper: Doubles,
    lower: Doubles,
) -> None:
    """Label ``rows`` by the nearest of the searched centres ``order[:m]`` and the present one."""
    scale, slack, floor, radius, unseen = numbers
    least, own, winner = first.astype(np.float64), labels[rows], order[best]
    error = slack * np.square(np.sqrt(squares) + radius) + floor
    alone = second - least > 2.0 * error
    low, high = least + squares - error, least + squares + error
    after = second + squares - error
    mine = np.square(upper[rows] * scale)
    stays = low > mine
    same = ~stays & alone & (winner == own)
    moves = ~stays & ~same & alone & (high < mine)
    other = np.where(stays, low, np.where(same, after, np.minimum(after, mine * (1.0 - slack))))
    labels[rows[moves]] = winner[moves]
    upper[rows[moves]] = np.sqrt(high[moves]) / scale
    for b in np.flatnonzero(~(stays | same | moves)):
        near = order[: len(scores)][scores[:, b] + norms <= least[b] + 2.0 * error[b]]
        found = np.union1d(near, own[b])
        exact = np.empty(len(found))
        square_distances(centers[found], points[rows[b], None], np.zeros_like(found), exact)
        nearest = int(exact.argmin())
        labels[rows[b]] = found[nearest]
        upper[rows[b]] = np.sqrt(exact[nearest]) * (1.0 + slack)
        exact[nearest] = np.inf
        other[b] = min(exact.min() * scale * scale * (1.0 - slack), low[b] + 2.0 * error[b])
    rest = np.inf if unseen < 0.0 else (lower[rows] - unseen) * scale * (1.0 - _ROUNDING)
    bound = np.minimum(np.minimum(rest, _FAR), np.sqrt(np.maximum(other, 0.0))) / scale
    lower[rows] = bound * (1.0 - _ROUNDING)


def _parts(n: int) -> Iterator[slice]:
    return (slice(start, start + _ROWS) for start in range(0, n, _ROWS))
