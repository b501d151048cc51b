"""Weights of a combination that make a quadratic form least.

Source: Júdice and Pires, "A block principal pivoting algorithm for large-scale strictly monotone
linear complementarity problems", Computers & Operations Research 21(5), 1994; Murty's rule of
single exchanges behind it makes the method finite.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels.checks import finite
from protofleet.kernels.native.pool import one_blas_thread

Wide = NDArray[np.float64]

_RIDGE = 1e-12  # of the mean diagonal: a form that is flat along some direction has one minimum
_SMALL = 1e-10
_ROUNDING = 1e-13  # of what a product of the form and the values is off, beside the values
_LIKELY = 0.25  # share of the numbers that are taken for not zero at first
_BLOCKS = 3  # exchanges of whole blocks that may fail to help before single ones
_PIVOTS = 50  # for each variable


def gram(rows: NDArray[Any]) -> Wide:
    """Products of all pairs of rows, in float64.

    Args:
        rows: ``(n, m)`` floats, may be read-only.

    Returns:
        ``(n, n) float64``, symmetric.

    Raises:
        InputError: wrong shape, or a number that is not finite.
    """
    if rows.ndim != 2:
        raise InputError(f"rows: expected (n, m), got {rows.shape}")
    finite("rows", rows)
    wide = rows.astype(np.float64)
    with one_blas_thread():
        products: Wide = wide @ wide.T
    return (products + products.T) / 2


def simplex_minimum(form: Wide) -> Wide:
    """The ``a`` that makes ``aᵀ form a`` least, of all ``a >= 0`` with ``Σ a = 1``.

    With ``x = a / (2 μ)``, where μ is the multiplier of the sum, this is the linear complementarity
    problem ``form x >= 1``, ``x >= 0``, one of both equal for each number: a set of numbers that
    are not zero is guessed, solved for, and those of the wrong sign change sides.

    Args:
        form: ``(n, n) float64``, symmetric, without negative eigenvalues but for rounding. A
            trillionth of its mean diagonal is added to the diagonal, so that there is one minimum.

    Returns:
        ``(n,) float64``. Of a form of zeros all numbers are equal.

    Raises:
        InputError: no square matrix, empty, or a number that is not finite.
    """
    if form.ndim != 2 or form.shape[0] != form.shape[1] or not form.size:
        raise InputError(f"form: expected (n, n) with n >= 1, got {form.shape}")
    finite("form", form)
    size = len(form)
    scale = float(np.trace(form)) / size
    if scale <= 0:
        return np.full(size, 1 / size)
    scaled = form / scale
    scaled.reshape(-1)[:: size + 1] += _RIDGE
    with one_blas_thread():
        found: Wide = np.maximum(_complementary(scaled), 0)
    total = float(found.sum())
    return found / total if total > 0 else np.full(size, 1 / size)


def _complementary(form: Wide) -> Wide:
    size = len(form)
    # A guess: what is least on its own is likely to be part of what is least together.
    free = np.diag(form) <= np.quantile(np.diag(form), _LIKELY)
    fewest, blocks = size + 1, _BLOCKS
    values = np.zeros(size)
    for _ in range(_PIVOTS * size):
        values = np.zeros(size)
        values[free] = np.linalg.solve(form[np.ix_(free, free)], np.ones(int(free.sum())))
        largest = np.abs(values).max()
        slack = form @ values - 1
        wrong = np.where(free, values < -_SMALL * largest, slack < -_SMALL - _ROUNDING * largest)
        count = int(wrong.sum())
        if not count:
            break
        if count < fewest:
            fewest, blocks = count, _BLOCKS
        elif blocks:
            blocks -= 1
        else:
            last = np.flatnonzero(wrong)[-1]
            wrong[:] = False
            wrong[last] = True
        free ^= wrong
    return values
