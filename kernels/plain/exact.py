"""The loops of ``compiled/exact.py`` in NumPy, block by block."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels.checks import Floats, Indices

_BLOCK = 1 << 12  # as in ``kernels.exact``
_NOT_FINITE = 0x7F800000
_BIAS = 126  # |x| < 2 ** (exponent bits - _BIAS)
_LOWEST = -7


def accumulate(
    limbs: NDArray[np.float64],
    tops: Indices,
    buffers: Sequence[Floats],
    weights: NDArray[np.float64],
    exponents: Indices,
    magic: NDArray[np.float64],
    blocks: tuple[int, int],
    bad: Indices,
) -> None:
    """Add the products of some blocks to their limbs (``exact.ExactSum``).

    ``bad[0]`` becomes 1 if a buffer holds a number that is not finite.
    """
    for block in range(*blocks):
        part = slice(block * _BLOCK, (block + 1) * _BLOCK)
        sums = limbs[block, :, : buffers[0][part].size]
        for buffer, weight, power in zip(buffers, weights, exponents.tolist(), strict=True):
            values = buffer[part]
            largest = int((values.view(np.uint32) & np.uint32(0x7FFFFFFF)).max())
            if largest >= _NOT_FINITE:
                bad[0] = 1
                continue
            if largest:
                needed = ((largest >> 23) - _BIAS + power + 32) // 32 - 1
                raised = needed - int(tops[block])
                if raised > 0:
                    _raise(sums, raised)
                    tops[block] = needed
            rest = np.multiply(values, weight, dtype=np.float64)
            place = int(tops[block]) - _LOWEST
            for limb, one in enumerate(magic[place : place + 3][::-1]):
                rounded = rest + one
                rounded -= one
                sums[limb] += rounded
                rest -= rounded


def _raise(limbs: NDArray[np.float64], by: int) -> None:
    """Make room for larger numbers: limbs move down, and the lowest ones are given up."""
    kept = limbs[: max(len(limbs) - by, 0)].copy()
    limbs[...] = 0.0
    limbs[by : by + len(kept)] = kept


def divide(limbs: NDArray[np.float64], weight: float, out: Floats, first: int, last: int) -> None:
    """``out = sum / weight`` in some blocks, rounded to float32 once."""
    for block in range(first, last):
        part = out[block * _BLOCK : (block + 1) * _BLOCK]
        high, middle, low = limbs[block, :, : part.size]
        np.divide((low + middle) + high, weight, out=part, casting="same_kind")
