"""Compiled kernels on unit vectors."""

from __future__ import annotations

import math

import numpy as np

from protofleet.kernels.checks import Floats, Indices
from protofleet.kernels.native.kernel import REDUCE, kernel


@kernel("f4[2] out", "i8[1] out", flags=REDUCE)
def unit_rows(rows: Floats, good: Indices) -> None:
    """Divide rows by their norms, floored at 1e-6; ``good[0]`` = 1 if all were finite."""
    total = 0.0
    for i in range(rows.shape[0]):
        square = 0.0
        for j in range(rows.shape[1]):
            square += np.float64(rows[i, j]) * np.float64(rows[i, j])
        total += square
        inverse = 1.0 / math.sqrt(max(square, 1e-12))
        for j in range(rows.shape[1]):
            rows[i, j] = np.float32(rows[i, j] * inverse)
    good[0] = 1 if np.isfinite(total) else 0


@kernel("f4[2]", "i8[1]", "f4[2] out")
def pull(prototypes: Floats, best: Indices, out: Floats) -> None:
    """``out = (E P + Eᵀ P) / n`` with n rows P and ``E[i, best[i]] = 1``, zero elsewhere."""
    share = np.float32(1.0 / prototypes.shape[0])
    for i in range(prototypes.shape[0]):
        other = prototypes[best[i]]
        for j in range(prototypes.shape[1]):
            out[i, j] = share * other[j]
    for i in range(prototypes.shape[0]):
        row = out[best[i]]
        for j in range(prototypes.shape[1]):
            row[j] += share * prototypes[i, j]
