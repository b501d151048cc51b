"""Sums of many whole models with weights, and their inner products with one vector.

Both are matrix products of a few long rows, on one thread, so that no result depends on a number
of threads.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels.checks import Floats, flat
from protofleet.kernels.native.pool import one_blas_thread

_BLOCK = 1 << 12  # coordinates of a product, whose float32 sum is then added in float64


def blend(rows: Floats, weights: NDArray[np.float64], out: Floats) -> None:
    """``out = weights @ rows``.

    Args:
        rows: ``(n, size) float32``.
        weights: ``(n,) float64``.
        out: ``(size,) float32``, written; no part of ``rows``.

    Raises:
        InputError: other shapes, or an ``out`` that cannot be written.
    """
    size = flat("blend", out, out.size).size
    _check(rows, len(weights), size)
    with one_blas_thread():
        np.matmul(weights.astype(np.float32), rows, out=out)


def inner_products(rows: Floats, vector: Floats) -> NDArray[np.float64]:
    """Of each row with the vector, ``(n,) float64``.

    Args:
        rows: ``(n, size) float32``.
        vector: ``(size,) float32``.

    Raises:
        InputError: other shapes.
    """
    _check(rows, len(rows), vector.size)
    found = np.zeros(len(rows))
    with one_blas_thread():
        for start in range(0, vector.size, _BLOCK):
            part = slice(start, start + _BLOCK)
            found += rows[:, part] @ vector[part]
    return found


def _check(rows: Floats, count: int, size: int) -> None:
    if rows.shape != (count, size):
        raise InputError(f"rows of models: expected ({count}, {size}), got {rows.shape}")
