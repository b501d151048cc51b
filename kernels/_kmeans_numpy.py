"""The kernels of ``_kmeans_numba`` in plain NumPy, for servers without Numba."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels._check import Floats, Indices

_ROWS = 1024  # points handled at once, so that memory does not grow with their number


def square_distances(points: Floats, centers: Floats, labels: Indices, out: Floats) -> None:
    """``out[i] = |points[i] - centers[labels[i]]|^2``, float32."""
    for start in range(0, len(points), _ROWS):
        part = slice(start, start + _ROWS)
        difference = points[part] - centers[labels[part]]
        np.einsum("ij,ij->i", difference, difference, out=out[part])


def label_sums(points: Floats, labels: Indices, k: int) -> NDArray[np.float64]:
    """Sum of the points of each label, ``(k, d) float64``, added in the points' order."""
    columns = (np.bincount(labels, weights=column, minlength=k) for column in points.T)
    return np.stack(list(columns), axis=1)
