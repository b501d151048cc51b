"""Compiled kernels of Sinkhorn's algorithm.

The kernel matrix is read once per iteration: four rows are scaled and added to the column sums
while they are in the cache. Rows lie in blocks of ``BLOCK``, each with its own column sums, which
are added in the blocks' order. Matrices are padded to whole groups of rows and whole vectors of
columns; padding carries no mass.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels.checks import Floats
from protofleet.kernels.native.kernel import FUSE, REDUCE, helper, kernel

BLOCK = 128  # rows whose column sums are kept in float32
_HIGH = 2.0**32  # scalings above it hide entries that the kernel matrix has lost to underflow

Doubles = NDArray[np.float64]


@helper(FUSE)
def _exp(x: np.float32) -> np.float32:
    """exp(x) for x <= 0 within 1 ulp, 0 below -87: 2^k times the Cephes polynomial of the rest."""
    low = np.float32(-87.0)
    lost = not x > low
    x = np.float32(max(low, x))
    x = np.float32(min(np.float32(0.0), x))
    magic = np.float32(12582912.0)  # 1.5 · 2^23: adding it rounds to an integer
    shifted = np.float32(x * np.float32(1.4426950408889634) + magic)
    k = np.float32(shifted - magic)
    r = np.float32(np.float32(x - k * np.float32(0.693359375)) + k * np.float32(2.12194440e-4))
    p = np.float32(1.9875691500e-4)
    p = np.float32(p * r + np.float32(1.3981999507e-3))
    p = np.float32(p * r + np.float32(8.3334519073e-3))
    p = np.float32(p * r + np.float32(4.1665795894e-2))
    p = np.float32(p * r + np.float32(1.6666665459e-1))
    p = np.float32(p * r + np.float32(5.0000001201e-1))
    p = np.float32(np.float32(p * r) * r + r + np.float32(1.0))
    exponent = np.int32(shifted.view(np.int32) - np.int32(0x4B400000) + np.int32(127))
    p = np.float32(p * np.int32(exponent << np.int32(23)).view(np.float32))
    return np.float32(0.0) if lost else p


@helper(REDUCE)
def _largest(row: Floats, beta: Doubles) -> float:
    """``max(beta - row)``.

    Bits in two's complement compare as integers do, which vectorises without assumptions about
    NaN.
    """
    high = np.int64(-0x7FFFFFFFFFFFFFFF)
    for j in range(row.size):
        bits = np.float64(beta[j] - np.float64(row[j])).view(np.int64)
        high = max(high, np.int64(bits ^ ((bits >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF))))
    back = np.int64(high ^ ((high >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF)))
    return back.view(np.float64)


@kernel(
    *("f4[2]", "f8[1]", "f8[1]", "f8", "f8[1] out", "f8[2] out", "i8", "i8"),
    flags=REDUCE,
)
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
    """Row potentials in the log domain for the blocks [first, last).

    ``alpha = epsilon · (log a - log Σ_j exp((beta_j - C_ij) / epsilon))``; ``tops[block]`` is the
    block's ``max_i(alpha_i - C_ij)``.
    """
    inverse = 1.0 / epsilon
    for block in range(first, last):
        top = tops[block]
        top[:] = -np.inf
        for i in range(block * BLOCK, min(block * BLOCK + BLOCK, cost.shape[0])):
            row = cost[i]
            high = _largest(row, beta)
            total = np.float32(0)
            for j in range(row.size):
                total += _exp(np.float32((beta[j] - np.float64(row[j]) - high) * inverse))
            potential = epsilon * (log_a[i] - np.log(np.float64(total))) - high
            alpha[i] = potential
            for j in range(row.size):
                value = potential - np.float64(row[j])
                top[j] = max(top[j], value)


@kernel("f4[2]", "f8[1]", "f8[1]", "f8", "f4[2] out", "f4[2] out", "i8", "i8", flags=FUSE)
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
    inverse = 1.0 / epsilon
    for block in range(first, last):
        column = sums[block]
        column[:] = np.float32(0)
        for i in range(block * BLOCK, min(block * BLOCK + BLOCK, cost.shape[0])):
            row = cost[i]
            out = kernel[i]
            for j in range(row.size):
                value = _exp(np.float32((alpha[i] - np.float64(row[j]) - top[j]) * inverse))
                out[j] = value
                column[j] += value


@helper(FUSE)
def _quotient(mass: float, total: float) -> float:
    return mass / total if mass > 0.0 else 0.0


@helper(REDUCE)
def _scale(mass: float, total: float, u: Floats, i: int) -> float:
    """Set ``u[i] = mass / total``; what the row missed before, infinite if it is out of range."""
    missed = abs(np.float64(u[i]) * total - mass)
    scaling = _quotient(mass, total)
    u[i] = np.float32(scaling)
    return missed if scaling <= _HIGH else np.inf


@helper(REDUCE)
def _scale_block(
    kernel: Floats, a: Doubles, v: Floats, u: Floats, column: Floats, start: int
) -> float:
    missed = 0.0
    column[:] = np.float32(0)
    for i in range(start, min(start + BLOCK, kernel.shape[0]), 4):
        k0, k1, k2, k3 = kernel[i], kernel[i + 1], kernel[i + 2], kernel[i + 3]
        t0 = t1 = t2 = t3 = np.float32(0)
        for j in range(k0.size):
            t0 += k0[j] * v[j]
            t1 += k1[j] * v[j]
            t2 += k2[j] * v[j]
            t3 += k3[j] * v[j]
        missed += _scale(a[i], np.float64(t0), u, i)
        missed += _scale(a[i + 1], np.float64(t1), u, i + 1)
        missed += _scale(a[i + 2], np.float64(t2), u, i + 2)
        missed += _scale(a[i + 3], np.float64(t3), u, i + 3)
        u0, u1, u2, u3 = u[i], u[i + 1], u[i + 2], u[i + 3]
        for j in range(k0.size):
            column[j] += (u0 * k0[j] + u1 * k1[j]) + (u2 * k2[j] + u3 * k3[j])
    return missed


@helper(FUSE)
def _scale_columns(sums: Floats, b: Doubles, v: Floats, fresh: Doubles) -> float:
    """``v = b / Σ_block sums``, 0.0; infinite, with ``v`` as it was, if one is out of range."""
    fresh[:] = 0.0
    for block in range(sums.shape[0]):
        column = sums[block]
        for j in range(column.size):
            fresh[j] += np.float64(column[j])
    wrong = 0
    for j in range(b.size):
        fresh[j] = _quotient(b[j], fresh[j])
        wrong += 0 if fresh[j] <= _HIGH else 1
    if wrong:
        return np.inf
    for j in range(b.size):
        v[j] = np.float32(fresh[j])
    return 0.0


@kernel(
    *("f4[2]", "f8[1]", "f8[1]", "f4[1] out", "f4[1] out", "f4[2] out", "f8[1] out"),
    *("f8[1] out", "f8[1] out", "i8", "i8", "i8", "f8"),
    flags=REDUCE,
)
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
    """Up to ``steps`` times rows and columns, until an error is at most ``tol`` or infinite.

    Rows of the blocks [first, last): ``u = a / (kernel · v)``, ``sums[block] = u · kernel``, and
    ``missed[block] = Σ |u · (kernel · v) - a|`` with the old u, infinite if a new one is out of
    range. Columns: ``v = b / Σ sums``. ``state`` is ``Σ missed``, infinite if something was out of
    range (v is then as it was), and the number of steps before the last. No steps: rows alone.
    """
    for step in range(max(steps, 1)):
        for block in range(first, last):
            missed[block] = _scale_block(kernel, a, v, u, sums[block], block * BLOCK)
        if steps == 0:
            return
        error = 0.0
        for block in range(missed.size):
            error += missed[block]
        if error < np.inf:
            error += _scale_columns(sums, b, v, fresh)
        state[0] = error
        state[1] = step
        if not error > tol or not error < np.inf:
            return


@kernel("f4[2]", "f4[2]", "f4[1]", "f4[1]", "f8[1] out", "f8[1] out", "i8", "i8", flags=REDUCE)
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
    for i in range(first, last):
        row = kernel[i]
        price = cost[i]
        mass = 0.0
        paid = 0.0
        for j in range(price.size):
            share = np.float64(row[j] * v[j])
            mass += share
            paid += share * np.float64(price[j])
        masses[i] = np.float64(u[i]) * mass
        costs[i] = np.float64(u[i]) * paid


@kernel("f4[2]", "f8[1]", "f4[1]", "f4[2] out", "i8", "i8")
def product(kernel: Floats, u: Doubles, v: Floats, out: Floats, first: int, last: int) -> None:
    """Rows [first, last) of ``out = diag(u) · kernel · diag(v)``, without the padding."""
    for i in range(first, last):
        row = kernel[i]
        target = out[i]
        for j in range(target.size):
            target[j] = np.float32(u[i] * np.float64(row[j] * v[j]))
