"""The loops of ``compiled/mean.py`` in NumPy, in blocks that stay in the cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels.checks import Floats, Indices

_BLOCK = 1 << 14


def accumulate(
    total: NDArray[np.float64],
    buffers: Sequence[Floats],
    weights: NDArray[np.float64],
    bad: Indices,
) -> None:
    """``total += Σ_k weights[k] · buffers[k]`` in float64, one after the other.

    ``bad[0]`` becomes 1 if a sum is not
    finite.
    """
    product = np.empty(min(total.size, _BLOCK), np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, total.size, _BLOCK):
            sums = total[start : start + _BLOCK]
            for buffer, weight in zip(buffers, weights, strict=True):
                part = product[: sums.size]
                np.multiply(buffer[start : start + _BLOCK], weight, out=part, dtype=np.float64)
                sums += part
            if not np.isfinite(sums).all():
                bad[0] = 1


def accumulate_measured(
    total: NDArray[np.float64],
    buffers: Sequence[Floats],
    weights: NDArray[np.float64],
    origin: Floats,
    bad: Indices,
) -> NDArray[np.float64]:
    """``accumulate``, and the squares of the buffers' distances to ``origin``, block by block."""
    squares = np.zeros(len(buffers))
    size = min(total.size, _BLOCK)
    wide_block, apart_block = np.empty(size, np.float64), np.empty(size, np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, total.size, _BLOCK):
            sums = total[start : start + _BLOCK]
            near = origin[start : start + _BLOCK].astype(np.float64)
            wide, apart = wide_block[: sums.size], apart_block[: sums.size]
            for k, (buffer, weight) in enumerate(zip(buffers, weights, strict=True)):
                np.copyto(wide, buffer[start : start + _BLOCK])
                np.subtract(wide, near, out=apart)
                squares[k] += np.dot(apart, apart)
                np.multiply(wide, weight, out=wide)
                sums += wide
            if not np.isfinite(sums).all():
                bad[0] = 1
    return squares


def divide(total: NDArray[np.float64], weight: float, out: Floats) -> None:
    """``out = total / weight``, rounded to float32 once."""
    np.divide(total, weight, out=out, casting="same_kind")
