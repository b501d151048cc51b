"""Compiled sums of squares, in one pass over memory.

Their operations keep the order and rounding of NumPy's sum in pairs (no flags), so both give the
same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels.checks import Floats, Indices
from protofleet.kernels.native.kernel import helper, kernel
from protofleet.kernels.plain import norms as plain

_LEAF = 128  # NumPy's: so many numbers are added up without dividing them further
_DEPTH = 128  # of the stacks, which hold two entries for each time that a size is halved
_NOTHING = np.zeros(0, np.float32)


def squares(values: NDArray[Any], start: NDArray[Any] | None) -> float:
    """``np.square(values.astype(np.float64) - start).sum()`` of flat arrays."""
    other = _NOTHING if start is None else start
    if not (_fits(values) and _fits(other)):
        return plain.squares(values, start)
    sums = np.empty(_DEPTH)
    sum_squares(values, other, np.empty(_DEPTH, np.int64), sums)
    return float(sums[0])


def _fits(values: NDArray[Any]) -> bool:
    flags = values.flags
    return values.dtype == np.float32 and flags.c_contiguous and flags.aligned


@kernel("f4[1]", "f4[1]", "i8[1] out", "f8[1] out")
def sum_squares(values: Floats, start: Floats, sizes: Indices, sums: NDArray[np.float64]) -> None:
    """``sums[0]`` becomes the sum; an empty ``start`` stands for zeros.

    ``sizes`` holds the parts that are still to be summed, the next one last; 0 says that the last
    two sums are to be added.
    """
    sizes[0] = values.size
    left, done, at = 1, 0, 0
    sums[0] = 0.0
    while left > 0 and values.size > 0:
        left -= 1
        size = sizes[left]
        if size == 0:
            done -= 1
            sums[done - 1] += sums[done]
        elif size <= _LEAF:
            stop = at + size
            sums[done] = _leaf(values[at:stop], start[at : min(stop, start.size)])
            done += 1
            at = stop
        else:
            middle = size // 2
            middle -= middle % 8
            sizes[left] = 0
            sizes[left + 1] = size - middle
            sizes[left + 2] = middle
            left += 3


@helper()
def _leaf(values: Floats, start: Floats) -> float:
    if start.size > 0:
        return _apart(values, start)
    return _alone(values)


@helper()
def _apart(values: Floats, start: Floats) -> float:
    whole = values.size - values.size % 8
    a = b = c = d = e = f = g = h = 0.0
    for i in range(0, whole, 8):
        a += _square(values[i], start[i])
        b += _square(values[i + 1], start[i + 1])
        c += _square(values[i + 2], start[i + 2])
        d += _square(values[i + 3], start[i + 3])
        e += _square(values[i + 4], start[i + 4])
        f += _square(values[i + 5], start[i + 5])
        g += _square(values[i + 6], start[i + 6])
        h += _square(values[i + 7], start[i + 7])
    total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for i in range(whole, values.size):
        total += _square(values[i], start[i])
    return total


@helper()
def _alone(values: Floats) -> float:
    zero = np.float32(0)
    whole = values.size - values.size % 8
    a = b = c = d = e = f = g = h = 0.0
    for i in range(0, whole, 8):
        a += _square(values[i], zero)
        b += _square(values[i + 1], zero)
        c += _square(values[i + 2], zero)
        d += _square(values[i + 3], zero)
        e += _square(values[i + 4], zero)
        f += _square(values[i + 5], zero)
        g += _square(values[i + 6], zero)
        h += _square(values[i + 7], zero)
    total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for i in range(whole, values.size):
        total += _square(values[i], zero)
    return total


@helper()
def _square(value: np.float32, start: np.float32) -> float:
    apart = np.float64(value) - np.float64(start)
    return apart * apart
