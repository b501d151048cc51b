"""Compiled sums of squares, in one pass over memory.

Their operations keep the order and rounding of NumPy's sum in pairs (no flags), so both give the
same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels.checks import Floats, Indices
from protofleet.kernels.native.kernel import REDUCE, helper, kernel
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
    sum_squares(values, other, np.empty(_DEPTH, np.int64), sums, np.empty(_LEAF))
    return float(sums[0])


def both_squares(values: NDArray[Any], start: NDArray[Any]) -> tuple[float, float]:
    """``squares(values, start)`` and, summed in another order, ``squares(values, None)``."""
    if not (_fits(values) and _fits(start)):
        return plain.both_squares(values, start)
    sums, own = np.empty(_DEPTH), np.zeros(1)
    sum_both_squares(values, start, np.empty(_DEPTH, np.int64), sums, np.empty(_LEAF), own)
    return float(sums[0]), float(own[0])


def _fits(values: NDArray[Any]) -> bool:
    flags = values.flags
    return values.dtype == np.float32 and flags.c_contiguous and flags.aligned


@kernel("f4[1]", "f4[1]", "i8[1] out", "f8[1] out", "f8[1] out")
def sum_squares(
    values: Floats,
    start: Floats,
    sizes: Indices,
    sums: NDArray[np.float64],
    leaf: NDArray[np.float64],
) -> None:
    """``sums[0]`` becomes the sum; an empty ``start`` stands for zeros.

    ``sizes`` holds the parts that are still to be summed, the next one last; 0 says that the last
    two sums are to be added. ``leaf`` is memory for the squares of a part.
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
        elif size <= leaf.size:
            _square(values[at : at + size], start[at : at + size], leaf)
            sums[done] = _added(leaf, size)
            done += 1
            at += size
        else:
            left = _halved(sizes, left, size)


@kernel("f4[1]", "f4[1]", "i8[1] out", "f8[1] out", "f8[1] out", "f8[1] out")
def sum_both_squares(
    values: Floats,
    start: Floats,
    sizes: Indices,
    sums: NDArray[np.float64],
    leaf: NDArray[np.float64],
    own: NDArray[np.float64],
) -> None:
    """``sum_squares``, and ``own[0]`` becomes the sum of the squares of ``values``."""
    sizes[0] = values.size
    left, done, at = 1, 0, 0
    sums[0] = 0.0
    while left > 0 and values.size > 0:
        left -= 1
        size = sizes[left]
        if size == 0:
            done -= 1
            sums[done - 1] += sums[done]
        elif size <= leaf.size:
            own[0] += _square_both(values[at : at + size], start[at : at + size], leaf)
            sums[done] = _added(leaf, size)
            done += 1
            at += size
        else:
            left = _halved(sizes, left, size)


@helper()
def _halved(sizes: Indices, left: int, size: int) -> int:
    """Put two halves in the place of a part, as NumPy divides it; how many parts are left."""
    middle = size // 2
    middle -= middle % 8
    sizes[left] = 0
    sizes[left + 1] = size - middle
    sizes[left + 2] = middle
    return left + 3


@helper()
def _square(values: Floats, start: Floats, out: NDArray[np.float64]) -> None:
    """A loop of its own, so that it runs in vector lanes."""
    if start.size == 0:
        for i in range(values.size):
            out[i] = np.float64(values[i]) * np.float64(values[i])
    else:
        for i in range(values.size):
            apart = np.float64(values[i]) - np.float64(start[i])
            out[i] = apart * apart


@helper()
def _square_both(values: Floats, start: Floats, out: NDArray[np.float64]) -> float:
    """As ``_square``; the sum of the squares of ``values``."""
    total = 0.0
    for i in range(values.size):
        value = np.float64(values[i])
        apart = value - np.float64(start[i])
        out[i] = apart * apart
        total = _plus_square(total, value)
    return total


@helper(REDUCE)
def _plus_square(total: float, value: float) -> float:
    """Flags of its own: this sum may run in vector lanes, the one of differences may not."""
    return total + value * value


@helper()
def _added(values: NDArray[np.float64], size: int) -> float:
    """The sum of the first ``size`` as NumPy adds them up: in eight lanes, then what is left."""
    whole = size - size % 8
    a = b = c = d = e = f = g = h = 0.0
    for i in range(0, whole, 8):
        a += values[i]
        b += values[i + 1]
        c += values[i + 2]
        d += values[i + 3]
        e += values[i + 4]
        f += values[i + 5]
        g += values[i + 6]
        h += values[i + 7]
    total = ((a + b) + (c + d)) + ((e + f) + (g + h))
    for i in range(whole, size):
        total += values[i]
    return total
