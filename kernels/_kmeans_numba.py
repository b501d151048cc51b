"""Numba kernels of k-means. ``_kmeans_numpy`` has the same functions in plain NumPy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels._check import Floats, Indices
from protofleet.kernels._switch import REDUCE, jit


@jit(REDUCE)
def square_distances(points: Floats, centers: Floats, labels: Indices, out: Floats) -> None:
    """``out[i] = |points[i] - centers[labels[i]]|^2``, float32."""
    for i in range(points.shape[0]):
        center = centers[labels[i]]
        total = np.float32(0)
        for j in range(points.shape[1]):
            difference = points[i, j] - center[j]
            total += difference * difference
        out[i] = total


@jit()
def label_sums(points: Floats, labels: Indices, k: int) -> NDArray[np.float64]:
    """Sum of the points of each label, ``(k, d) float64``, added in the points' order."""
    sums = np.zeros((k, points.shape[1]))
    for i in range(points.shape[0]):
        for j in range(points.shape[1]):
            sums[labels[i], j] += points[i, j]
    return sums
