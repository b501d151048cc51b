"""Compiled kernels of k-means.

Distances are float64. Scores, ``|c|^2 - 2 x·c`` from float32 matrix products, only sort out what
is far enough; the rest is compared by distance.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels.checks import Floats, Indices
from protofleet.kernels.native.kernel import FUSE, REDUCE, helper, kernel

Doubles = NDArray[np.float64]

_UP = 1.0 + 2.0**-50  # more than the rounding of one float64 operation
_DOWN = 1.0 - 2.0**-50
_FAR = 1e150  # stands for infinity in bounds, which must stay numbers when drifts are subtracted


@kernel("f4[2]", "i8", "i8", "f8[2] out", flags=FUSE)
def moments(points: Floats, start: int, stop: int, out: Doubles) -> None:
    """Add sum and sum of squares of ``x - points[0]`` of some columns to ``out: (2, d)``.

    What is not finite shows in the squares. Four rows go together: fewer sums go to memory.
    """
    base, sums, squares = points[0, start:stop], out[0, start:stop], out[1, start:stop]
    n = points.shape[0]
    whole = n - n % 4
    for i in range(0, whole, 4):
        p, q = points[i, start:stop], points[i + 1, start:stop]
        r, s = points[i + 2, start:stop], points[i + 3, start:stop]
        for j in range(base.size):
            x = np.float64(base[j])
            a, b = np.float64(p[j]) - x, np.float64(q[j]) - x
            c, d = np.float64(r[j]) - x, np.float64(s[j]) - x
            sums[j] += a + b + c + d
            squares[j] += a * a + b * b + c * c + d * d
    for i in range(whole, n):
        p = points[i, start:stop]
        for j in range(base.size):
            a = np.float64(p[j]) - np.float64(base[j])
            sums[j] += a
            squares[j] += a * a


@helper(REDUCE)
def _square(point: Floats, center: Floats) -> float:
    total = 0.0
    for j in range(point.size):
        difference = np.float64(point[j]) - np.float64(center[j])
        total += difference * difference
    return total


@kernel("f4[2]", "f4[2]", "i8[1]", "f8[1] out")
def square_distances(points: Floats, centers: Floats, labels: Indices, out: Doubles) -> None:
    """``out[i] = |points[i] - centers[labels[i]]|^2``, float64."""
    for i in range(points.shape[0]):
        out[i] = _square(points[i], centers[labels[i]])


@kernel("f4[2]", "i8[1]", "u1[1]", "i8", "i8", "f8[2] out")
def label_sums(
    points: Floats, labels: Indices, wanted: NDArray[np.uint8], start: int, stop: int, sums: Doubles
) -> None:
    """Add every point with a wanted label in [start, stop) to ``sums[label]``, in their order."""
    for i in range(points.shape[0]):
        label = labels[i]
        if start <= label < stop and wanted[label]:
            for j in range(points.shape[1]):
                sums[label, j] += np.float64(points[i, j])


@kernel("f4[2]", "f4[2]", "i8[1]", "f8[1]", "f8[1]", "f8[1] out", "f8[1] out", "f8[1] out")
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
    """Carry bounds over a move of the centres; ``gap`` is infinite where the label must stay.

    ``upper`` bounds the distance to the own centre, ``lower`` that to every other one; ``drift``
    is how far each centre moved, ``largest`` the largest drift, its centre, and the second
    largest. Elsewhere ``upper`` becomes the distance, ``lower`` stays that to the old centres, and
    only centres whose drift is at least ``gap`` can be nearer.
    """
    for i in range(points.shape[0]):
        label = labels[i]
        bound = (upper[i] + drift[label]) * _UP
        far = largest[2] if label == np.int64(largest[1]) else largest[0]
        least = (lower[i] - far) - abs(lower[i]) * (1.0 - _DOWN)
        if least <= bound:
            bound = math.sqrt(_square(points[i], centers[label]))
            bound *= 1.0 + points.shape[1] * (_UP - 1.0)
        upper[i] = bound
        if least > bound:
            lower[i] = least
            gap[i] = np.inf
        else:
            gap[i] = (lower[i] - bound) - (abs(lower[i]) + bound) * (_UP - 1.0)


@kernel("f4[2]", "i8[1]", "f4[1]", "f8", "f4[2] out", "f8[1] out", flags=REDUCE)
def gather(
    points: Floats, rows: Indices, offset: Floats, scale: float, out: Floats, squares: Doubles
) -> None:
    """``out[b] = scale · points[rows[b]] - offset`` and its squared length."""
    factor = np.float32(scale)
    for b in range(rows.size):
        point = points[rows[b]]
        total = 0.0
        for j in range(point.size):
            x = np.float32(np.float32(point[j] * factor) - offset[j])
            out[b, j] = x
            total += np.float64(x) * np.float64(x)
        squares[b] = total


@kernel("f4[2]", "f4[1]", "f4[1] out", "i4[1] out", "f4[1] out")
def scan(
    scores: Floats,
    norms: Floats,
    first: Floats,
    best: NDArray[np.int32],
    second: Floats,
) -> None:
    """Least and second least of ``scores[:, b] + norms``, and where the least is.

    ``scores: (m, B)``; ``second`` is infinite for m = 1.
    """
    size = first.size
    for b in range(size):
        first[b] = np.inf
        second[b] = np.inf
        best[b] = 0
    for j in range(scores.shape[0]):
        norm = norms[j]
        index = np.int32(j)
        for b in range(size):
            score = np.float32(scores[j, b] + norm)
            high = max(first[b], score)
            second[b] = min(second[b], high)
            best[b] = index if score < first[b] else best[b]
            first[b] = min(first[b], score)


@helper()
def _exact(
    scores: Floats,
    norms: Floats,
    b: int,
    limit: float,
    point: Floats,
    centers: Floats,
    order: Indices,
    own: int,
) -> tuple[int, float, float]:
    """Nearest centre among ``own`` and those scored up to ``limit``; its and the next square."""
    winner = own
    near = _square(point, centers[own])
    other = np.inf
    for j in range(scores.shape[0]):
        if np.float64(np.float32(scores[j, b] + norms[j])) <= limit and order[j] != own:
            square = _square(point, centers[order[j]])
            if square < near or (square == near and order[j] < winner):
                other = near
                near = square
                winner = order[j]
            elif square < other:
                other = square
    return winner, near, other


@kernel(
    *("f4[2]", "f4[1]", "f4[1]", "i4[1]", "f4[1]", "f8[1]", "f8[1]", "i8[1]"),
    *("f4[2]", "f4[2]", "i8[1]", "i8[1] out", "f8[1] out", "f8[1] out"),
)
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
    """Label ``rows`` by the nearest of the searched centres ``order[:m]`` and the present one.

    ``first, best, second`` are what ``scan`` found and ``squares`` what ``gather`` did; ``numbers``
    is the scale, the error of a score per squared length, its least value, the length of the
    longest centre, and the largest drift of the centres that were not searched (negative: none).
    ``upper`` and ``lower`` become bounds for the centres as they are.
    """
    scale, slack, floor, radius, unseen = numbers
    for b in range(rows.size):
        i = rows[b]
        own = labels[i]
        error = slack * (math.sqrt(squares[b]) + radius) ** 2 + floor
        low = first[b] + squares[b] - error
        high = first[b] + squares[b] + error
        alone = second[b] - first[b] > 2.0 * error
        mine = (upper[i] * scale) ** 2
        winner = np.int64(order[best[b]])
        rest = np.inf if unseen < 0.0 else (lower[i] - unseen) * scale * _DOWN
        if low > mine:
            other = low
        elif alone and winner == own:
            other = second[b] + squares[b] - error
        elif alone and high < mine:
            other = min(second[b] + squares[b] - error, mine * (1.0 - slack))
            labels[i] = winner
            upper[i] = math.sqrt(high) / scale
        else:
            limit = first[b] + 2.0 * error
            winner, near, other = _exact(
                scores, norms, b, limit, points[i], centers, order[: scores.shape[0]], own
            )
            other = min(other * scale * scale * (1.0 - slack), low + 2.0 * error)
            labels[i] = winner
            upper[i] = math.sqrt(near) * (1.0 + slack)
        lower[i] = min(rest, math.sqrt(max(other, 0.0)), _FAR) / scale * _DOWN
