"""The kernels of ``compiled/sinkhorn.py`` in NumPy, for devices without Numba."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels.checks import Floats

BLOCK = 128
_COLUMNS = 4096
_HIGH = 2.0**32
_LOW = -87.0

Doubles = NDArray[np.float64]


def log_rows(
    cost: Floats,
    beta: Doubles,
    log_a: Doubles,
    epsilon: float,
    alpha: Doubles,
    tops: Doubles,
    first: int,
    last: int,
) -> None:
    """Row potentials in the log domain for the blocks [first, last)."""
    for block in range(first, last):
        rows = slice(block * BLOCK, block * BLOCK + BLOCK)
        part = cost[rows].astype(np.float64)
        values = beta - part
        high = values.max(axis=1)
        values -= high[:, None]
        total = _exp(values, epsilon).sum(axis=1)
        alpha[rows] = epsilon * (log_a[rows] - np.log(total)) - high
        np.subtract(alpha[rows, None], part, out=part)
        part.max(axis=0, out=tops[block])


def build(
    cost: Floats,
    alpha: Doubles,
    top: Doubles,
    epsilon: float,
    kernel: Floats,
    sums: Floats,
    first: int,
    last: int,
) -> None:
    """``kernel = exp((alpha_i - C_ij - top_j) / epsilon)`` and its column sums by blocks."""
    width = cost.shape[1]
    for block in range(first, last):
        start, stop = block * BLOCK, min(block * BLOCK + BLOCK, len(cost))
        values = alpha[start:stop, None] - cost[start:stop]
        values -= top
        kernel[start:stop, :width] = _exp(values, epsilon)
        kernel[start:stop].sum(axis=0, out=sums[block])


def _exp(values: Doubles, epsilon: float) -> Floats:
    """``exp(values / epsilon)`` of numbers up to 0; ``values`` is overwritten."""
    values *= 1.0 / epsilon
    lost = values <= _LOW
    exponents = np.maximum(values, _LOW, out=values).astype(np.float32)
    np.exp(exponents, out=exponents)
    exponents[lost] = 0
    return exponents


def iterate(
    kernel: Floats,
    a: Doubles,
    b: Doubles,
    u: Floats,
    v: Floats,
    sums: Floats,
    missed: Doubles,
    fresh: Doubles,
    state: Doubles,
    first: int,
    last: int,
    steps: int,
    tol: float,
) -> None:
    """Up to ``steps`` times rows and columns, until an error is at most ``tol`` or infinite."""
    for step in range(max(steps, 1)):
        for block in range(first, last):
            rows = slice(block * BLOCK, block * BLOCK + BLOCK)
            missed[block] = _scale_block(kernel[rows], a[rows], v, u[rows], sums[block])
        if steps == 0:
            return
        error = float(missed.sum())
        if error < np.inf:
            error += _scale_columns(sums, b, v, fresh)
        state[:] = error, step
        if not tol < error < np.inf:
            return


def _scale_block(kernel: Floats, a: Doubles, v: Floats, u: Floats, column: Floats) -> float:
    # Not a BLAS product: its order of summation depends on its threads. In float32 the error of
    # one long sum would grow with its length.
    total = np.zeros(len(kernel))
    for start in range(0, v.size, _COLUMNS):
        part = slice(start, start + _COLUMNS)
        total += np.einsum("ij,j->i", kernel[:, part], v[part])
    missed = np.abs(u * total - a).sum()
    scaling = _quotient(a, total)
    if not (scaling <= _HIGH).all():
        return np.inf
    u[:] = scaling
    np.einsum("i,ij->j", u, kernel, out=column)
    return float(missed)


def _scale_columns(sums: Floats, b: Doubles, v: Floats, fresh: Doubles) -> float:
    sums.sum(axis=0, dtype=np.float64, out=fresh)
    scaling = _quotient(b, fresh)
    if not (scaling <= _HIGH).all():
        return np.inf
    v[:] = scaling
    return 0.0


def _quotient(mass: Doubles, total: Doubles) -> Doubles:
    """``mass / total``, 0 where there is no mass, infinite where only the total is zero."""
    out = np.where(mass > 0, np.inf, 0.0)
    np.divide(mass, total, out=out, where=(mass > 0) & (total > 0))
    return out


def transport(
    kernel: Floats,
    cost: Floats,
    u: Floats,
    v: Floats,
    masses: Doubles,
    costs: Doubles,
    first: int,
    last: int,
) -> None:
    """Mass and cost of the rows [first, last) of the plan ``diag(u) · kernel · diag(v)``."""
    width = cost.shape[1]
    for start in range(first, last, BLOCK):
        rows = slice(start, min(start + BLOCK, last))
        shares = (kernel[rows, :width] * v[:width]).astype(np.float64)
        masses[rows] = u[rows] * shares.sum(axis=1)
        costs[rows] = u[rows] * np.einsum("ij,ij->i", shares, cost[rows])


def product(kernel: Floats, u: Doubles, v: Floats, out: Floats, first: int, last: int) -> None:
    """Rows [first, last) of ``out = diag(u) · kernel · diag(v)``, without the padding."""
    width = out.shape[1]
    for start in range(first, last, BLOCK):
        rows = slice(start, min(start + BLOCK, last))
        shares = kernel[rows, :width] * v[:width]
        np.multiply(shares, u[rows, None], out=out[rows], casting="same_kind")
