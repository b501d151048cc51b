"""The kernels of ``_alp_numba`` in plain NumPy, for devices without Numba."""

from __future__ import annotations

import numpy as np

from protofleet.kernels._check import Floats, Indices


def unit_rows(x: Floats, out: Floats, scale: float) -> bool:
    """``out = scale · x / |x|`` by rows, norm floored at 1e-6; False if x is not finite."""
    square = np.einsum("ij,ij->i", x, x, dtype=np.float64)
    if not np.isfinite(square).all():
        return False
    inverse = scale / np.sqrt(np.maximum(square, 1e-12))
    np.multiply(x, inverse[:, None], out=out, casting="same_kind")
    return True


def first_scaling(kernel: Floats, u: Floats, sums: Floats, shift: float) -> None:
    """``kernel = exp(kernel - shift)``, ``u = 1 / row sums``; adds ``u · kernel`` to ``sums``."""
    kernel -= np.float32(shift)
    np.exp(kernel, out=kernel)
    np.divide(np.float32(1), kernel.sum(axis=1), out=u)
    sums += u @ kernel


def scaling(kernel: Floats, u: Floats, v: Floats, sums: Floats) -> None:
    """Rows first: ``u = 1 / (kernel · v)``; then adds ``u · kernel`` to ``sums``."""
    np.divide(np.float32(1), kernel @ v, out=u)
    sums += u @ kernel


def best_columns(kernel: Floats, v: Floats, start: int, out: Indices) -> None:
    """``out[i] = argmax_j kernel[i, start + j] · v[start + j]``, the lowest j of equals."""
    np.argmax(kernel[:, start:] * v[start:], axis=1, out=out)


def best_rows(kernel: Floats, u: Floats, rows: Indices, values: Floats) -> None:
    """The k largest ``u[i] · kernel[i, j]`` of the first m columns, lowest i of equals first."""
    columns = u[:, None] * kernel[:, : rows.shape[1]]
    if rows.shape[0] == 1:
        np.argmax(columns, axis=0, out=rows[0])
    else:
        rows[:] = np.argsort(-columns, axis=0, kind="stable")[: rows.shape[0]]
    values[:] = np.take_along_axis(columns, rows, axis=0)


def move(local: Floats, x: Floats, rows: Indices, weights: Floats, gamma: float) -> Floats:
    """``gamma · local + (1 - gamma) · Σ_k weights[k] · x[rows[k]]``, ``(G, d)``."""
    out = np.float32(gamma) * local
    step = np.float32(1.0 - gamma)
    for picked, weight in zip(rows, weights, strict=True):
        out += (step * weight)[:, None] * x[picked]
    return out
