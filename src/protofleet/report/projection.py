"""Points of many dimensions on a plane."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def principal_plane(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], tuple[float, float]]:
    """Projection of ``(n, d)`` values on their first two principal components.

    Returns:
        ``(n, 2)`` coordinates, zero where there are fewer components, and both variance shares.
    """
    centred = values - values.mean(0)
    left, scale, _ = np.linalg.svd(centred, full_matrices=False)
    points = np.zeros((len(values), 2))
    kept = min(2, len(scale))
    points[:, :kept] = left[:, :kept] * scale[:kept]
    variance = np.zeros(2)
    variance[:kept] = scale[:kept] ** 2 / max(float((scale**2).sum()), 1e-300)
    return points, (float(variance[0]), float(variance[1]))
