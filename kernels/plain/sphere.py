"""The kernels of ``compiled/sphere.py`` in NumPy, for devices without Numba."""

from __future__ import annotations

import numpy as np

from protofleet.kernels.checks import Floats, Indices

_VALUES = 1 << 18  # handled at once, so that memory does not grow with the number of rows


def unit_rows(rows: Floats, good: Indices) -> None:
    """Divide rows by their norms, floored at 1e-6; ``good[0]`` = 1 if all were finite."""
    step = max(1, _VALUES // max(1, rows.shape[1]))
    finite = True
    for start in range(0, len(rows), step):
        wide = rows[start : start + step].astype(np.float64)
        squares = np.einsum("ij,ij->i", wide, wide)
        finite = finite and bool(np.isfinite(squares).all())
        with np.errstate(invalid="ignore"):
            wide *= (1.0 / np.sqrt(np.maximum(squares, 1e-12)))[:, None]
        rows[start : start + step] = wide
    good[0] = finite


def pull(prototypes: Floats, best: Indices, out: Floats) -> None:
    """``out = (E P + Eᵀ P) / n`` with n rows P and ``E[i, best[i]] = 1``, zero elsewhere."""
    share = np.float32(1.0 / len(prototypes))
    np.take(prototypes, best, axis=0, out=out)
    out *= share
    for row, j in zip(prototypes, best.tolist(), strict=True):
        out[j] += share * row
