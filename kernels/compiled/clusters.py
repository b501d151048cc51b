"""Compiled kernels on clusterings."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels.checks import Floats, Indices
from protofleet.kernels.native.kernel import REDUCE, helper, kernel

Doubles = NDArray[np.float64]
Bytes = NDArray[np.uint8]


@helper()
def _nearest(row: Floats, owns: Bytes, y: int, picked: Indices) -> int:
    """Put the owners of y with the largest values of ``row`` into ``picked``; how many."""
    count = 0
    for v in range(row.size):
        if owns[v, y] != 0 and (count < picked.size or row[v] > row[picked[count - 1]]):
            place = count if count < picked.size else count - 1
            count = place + 1 if place == count else count
            while place > 0 and row[v] > row[picked[place - 1]]:
                picked[place] = picked[place - 1]
                place -= 1
            picked[place] = v
    return count


@kernel("f4[3] out", "u1[2]", "f4[2]", "i8[1] out")
def predict_missing(filled: Floats, owns: Bytes, similarity: Floats, picked: Indices) -> None:
    """Add to ``filled[u, y]`` where ``owns[u, y]`` is 0 the weighted mean of the nearest owners.

    ``filled: (U, C, d)`` is zero there; ``picked`` is scratch, as long as a mean has members.
    """
    for u in range(owns.shape[0]):
        row = similarity[u]
        for y in range(owns.shape[1]):
            count = _nearest(row, owns, y, picked) if owns[u, y] == 0 else 0
            total = 0.0
            for k in range(count):
                total += max(np.float64(row[picked[k]]), 0.0)
            for k in range(count):
                weight = np.float32(1.0 / count)
                if total > 0.0:
                    weight = np.float32(max(np.float64(row[picked[k]]), 0.0) / total)
                source = filled[picked[k], y]
                for j in range(source.size):
                    filled[u, y, j] += weight * source[j]


@helper(REDUCE)
def _square_distance(a: Doubles, b: Doubles) -> float:
    total = 0.0
    for j in range(a.size):
        difference = np.float64(a[j]) - b[j]
        total += difference * difference
    return total


@helper(REDUCE)
def _means(points: Floats, labels: Indices, centers: Doubles, counts: Doubles) -> None:
    for i in range(labels.size):
        counts[labels[i]] += 1.0
        center = centers[labels[i]]
        for j in range(points.shape[1]):
            center[j] += points[i, j]
    for c in range(counts.size):
        if counts[c] > 0.0:
            for j in range(points.shape[1]):
                centers[c, j] /= counts[c]


@helper(REDUCE)
def _worst_ratios(centers: Doubles, spreads: Doubles, worst: Doubles) -> float:
    """``worst[i]`` = the largest ``((s_i + s_j) / |c_i - c_j|)^2``; the largest square distance."""
    farthest = 0.0
    for a in range(spreads.size):
        worst[a] = 0.0
        for b in range(a):
            square = _square_distance(centers[a], centers[b])
            farthest = max(farthest, square)
            if square > 0.0:
                both = spreads[a] + spreads[b]
                ratio = both * both / square
                worst[a] = max(worst[a], ratio)
                worst[b] = max(worst[b], ratio)
    return farthest


@kernel("f4[2]", "i8[1]", "f8[2] out", "f8[2] out", "f8[1] out", flags=REDUCE)
def davies_bouldin(
    points: Floats, labels: Indices, centers: Doubles, stats: Doubles, result: Doubles
) -> None:
    """``result`` = index, number of clusters, sum of their mean distances (NaN: bad points).

    ``labels`` lie in [0, k); ``centers: (k, d)`` and ``stats: (3, k)`` come as zeros and are used
    up. Labels without points count for nothing.
    """
    counts = stats[0]
    spreads = stats[1]
    _means(points, labels, centers, counts)
    for i in range(labels.size):
        spreads[labels[i]] += math.sqrt(_square_distance(points[i], centers[labels[i]]))
    used = 0
    widest = 0.0
    total = 0.0
    for c in range(counts.size):
        if counts[c] > 0.0:
            spreads[used] = spreads[c] / counts[c]
            widest = max(widest, spreads[used])
            total += spreads[used]
            for j in range(points.shape[1]):
                centers[used, j] = centers[c, j]
            used += 1
    farthest = _worst_ratios(centers, spreads[:used], stats[2])
    index = 0.0
    if widest > 1e-8 and farthest > 1e-16:
        for c in range(used):
            index += math.sqrt(stats[2, c])
        index /= used
    result[0] = index
    result[1] = used
    result[2] = total
