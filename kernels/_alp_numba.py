"""Numba kernels of the ALP plan. ``_alp_numpy`` has the same functions in plain NumPy.

The plan is never formed: with ``kernel = exp(S / epsilon)`` it is ``diag(u) · kernel · diag(v)``,
and each pass below reads a row once while it is in the cache.
"""

from __future__ import annotations

import numpy as np

from protofleet.kernels._check import Floats, Indices
from protofleet.kernels._switch import FUSE, REDUCE, jit

_CHUNK = 128  # columns searched at once for their largest value


@jit(REDUCE)
def unit_rows(x: Floats, out: Floats, scale: float) -> bool:
    """``out = scale · x / |x|`` by rows, norm floored at 1e-6; False if x is not finite."""
    total = 0.0
    for i in range(x.shape[0]):
        square = 0.0
        for j in range(x.shape[1]):
            square += np.float64(x[i, j]) * np.float64(x[i, j])
        total += square
        inverse = scale / np.sqrt(max(square, 1e-12))
        for j in range(x.shape[1]):
            out[i, j] = np.float32(x[i, j] * inverse)
    return bool(np.isfinite(total))


@jit(FUSE)
def _exp(x: np.float32) -> np.float32:
    """exp(x) within 1 ulp for |x| <= 87: 2^k times the Cephes polynomial of the remainder."""
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
    return np.float32(p * np.int32(exponent << np.int32(23)).view(np.float32))


@jit(REDUCE)
def first_scaling(kernel: Floats, u: Floats, sums: Floats, shift: float) -> None:
    """``kernel = exp(kernel - shift)``, ``u = 1 / row sums``; adds ``u · kernel`` to ``sums``.

    ``kernel: (n, m)`` and ``u: (n,)`` are written, ``sums: (m,)`` is added to.
    """
    offset = np.float32(shift)
    for i in range(kernel.shape[0]):
        row = kernel[i]
        total = np.float32(0)
        for j in range(kernel.shape[1]):
            row[j] = _exp(row[j] - offset)
            total += row[j]
        u[i] = np.float32(1) / total
        for j in range(kernel.shape[1]):
            sums[j] += u[i] * row[j]


@jit(REDUCE)
def scaling(kernel: Floats, u: Floats, v: Floats, sums: Floats) -> None:
    """Rows first: ``u = 1 / (kernel · v)``; then add ``u · kernel`` to ``sums``. As above."""
    for i in range(kernel.shape[0]):
        row = kernel[i]
        total = np.float32(0)
        for j in range(kernel.shape[1]):
            total += row[j] * v[j]
        u[i] = np.float32(1) / total
        for j in range(kernel.shape[1]):
            sums[j] += u[i] * row[j]


@jit()
def _highest(row: Floats, weights: Floats) -> np.int32:
    high = np.int32(-1)
    for j in range(row.size):
        high = max(high, np.float32(row[j] * weights[j]).view(np.int32))
    return high


@jit()
def best_columns(kernel: Floats, v: Floats, start: int, out: Indices) -> None:
    """``out[i] = argmax_j kernel[i, start + j] · v[start + j]``, the lowest j of equals.

    Values are positive, so their bits compare as integers do, which vectorises without
    assumptions about NaN.
    """
    weights = v[start:]
    for i in range(kernel.shape[0]):
        row = kernel[i, start:]
        top = np.int32(-1)
        first = 0
        for chunk in range(0, row.size, _CHUNK):
            high = _highest(row[chunk : chunk + _CHUNK], weights[chunk : chunk + _CHUNK])
            if high > top:
                top = high
                first = chunk
        while np.float32(row[first] * weights[first]).view(np.int32) != top:
            first += 1
        out[i] = first


@jit()
def best_rows(kernel: Floats, u: Floats, rows: Indices, values: Floats) -> None:
    """The k largest ``u[i] · kernel[i, j]`` of the first m columns, lowest i of equals first.

    ``rows: (k, m) int64`` and ``values: (k, m) float32`` are written.
    """
    last = rows.shape[0] - 1
    values[:] = np.float32(-1)
    rows[:] = 0
    lowest = values[last]
    owner = rows[last]
    for i in range(kernel.shape[0]):
        row = kernel[i]
        for j in range(rows.shape[1]):
            value = u[i] * row[j]
            better = value > lowest[j]
            lowest[j] = value if better else lowest[j]
            owner[j] = i if better else owner[j]
        if last:
            _bubble(rows, values, i)


@jit()
def _bubble(rows: Indices, values: Floats, i: int) -> None:
    last = rows.shape[0] - 1
    for j in range(rows.shape[1]):
        if rows[last, j] != i:
            continue
        k = last
        while k > 0 and values[k, j] > values[k - 1, j]:
            values[k, j], values[k - 1, j] = values[k - 1, j], values[k, j]
            rows[k, j], rows[k - 1, j] = rows[k - 1, j], rows[k, j]
            k -= 1


@jit(FUSE)
def move(local: Floats, x: Floats, rows: Indices, weights: Floats, gamma: float) -> Floats:
    """``gamma · local + (1 - gamma) · Σ_k weights[k] · x[rows[k]]``, ``(G, d)``."""
    keep = np.float32(gamma)
    step = np.float32(1.0 - gamma)
    out = np.empty_like(local)
    for j in range(local.shape[0]):
        for c in range(local.shape[1]):
            out[j, c] = keep * local[j, c]
        for k in range(rows.shape[0]):
            weight = np.float32(step * weights[k, j])
            i = rows[k, j]
            for c in range(local.shape[1]):
                out[j, c] += weight * x[i, c]
    return out
