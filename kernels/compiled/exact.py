"""Compiled loops of exact sums.

Their operations keep NumPy's order and rounding (no flags), so both give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels.checks import Floats, Indices
from protofleet.kernels.compiled.mean import memory_of
from protofleet.kernels.native.kernel import helper, kernel

_BLOCK = 1 << 12  # as in ``kernels.exact``
_LIMBS = 3
_TOGETHER = 4  # buffers read at once, so that limbs are loaded and stored once for all of them
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
    size = buffers[0].size
    memory, starts = memory_of(buffers, size)
    bits, flat = memory.view(np.uint32), limbs.reshape(-1)
    add_up(flat, tops, memory, bits, starts, weights, exponents, magic, size, *blocks, bad)


@kernel(
    "f8[1] out",
    "i8[1] out",
    "f4[1]",
    "u4[1]",
    "i8[1]",
    "f8[1]",
    "i8[1]",
    "f8[1]",
    "i8",
    "i8",
    "i8",
    "i8[1] out",
)
def add_up(
    limbs: NDArray[np.float64],
    tops: Indices,
    memory: Floats,
    bits: NDArray[np.uint32],
    starts: Indices,
    weights: NDArray[np.float64],
    exponents: Indices,
    magic: NDArray[np.float64],
    size: int,
    first: int,
    last: int,
    bad: Indices,
) -> None:
    """As ``accumulate``, where buffer k is ``memory[starts[k]:]``."""
    for block in range(first, last):
        start = block * _BLOCK
        count = min(size - start, _BLOCK)
        sums = limbs[_LIMBS * start : _LIMBS * (start + _BLOCK)]
        together = starts.size - starts.size % _TOGETHER
        k = 0
        while k < starts.size:
            step = _TOGETHER if k < together else 1
            top = tops[block]
            for j in range(k, k + step):
                largest = _largest(bits[starts[j] + start :], count)
                if largest >= _NOT_FINITE:
                    bad[0] = 1
                elif largest > 0:
                    exponent = (largest >> 23) - _BIAS + exponents[j]
                    top = max(top, (exponent + 32) // 32 - 1)
            if top > tops[block]:
                _raise(sums, top - tops[block])
                tops[block] = top
            rounding = magic[top - _LOWEST :]
            if step == _TOGETHER:
                _add_four(sums, count, memory, start, starts[k:], weights[k:], rounding)
            else:
                _add(sums, count, memory[starts[k] + start :], weights[k], rounding)
            k += step


@helper()
def _largest(bits: NDArray[np.uint32], size: int) -> np.int64:
    mask = np.uint32(0x7FFFFFFF)
    found = np.uint32(0)
    for i in range(size):
        found = max(found, np.uint32(bits[i] & mask))
    return np.int64(found)


@helper()
def _raise(sums: NDArray[np.float64], by: int) -> None:
    """Limbs move down for larger numbers; the lowest ones are given up."""
    for i in range(_BLOCK):
        high, middle = sums[i], sums[i + _BLOCK]
        sums[i] = 0.0
        sums[i + _BLOCK] = high if by == 1 else 0.0
        sums[i + 2 * _BLOCK] = middle if by == 1 else (high if by == _LIMBS - 1 else 0.0)


@helper()
def _add_four(
    sums: NDArray[np.float64],
    count: int,
    memory: Floats,
    start: int,
    starts: Indices,
    weights: NDArray[np.float64],
    magic: NDArray[np.float64],
) -> None:
    first = memory[starts[0] + start :]
    second = memory[starts[1] + start :]
    third = memory[starts[2] + start :]
    fourth = memory[starts[3] + start :]
    m0, m1, m2 = magic[2], magic[1], magic[0]
    w0, w1, w2, w3 = weights[0], weights[1], weights[2], weights[3]
    for i in range(count):
        a, b = w0 * np.float64(first[i]), w1 * np.float64(second[i])
        c, d = w2 * np.float64(third[i]), w3 * np.float64(fourth[i])
        p, q, r, s = (a + m0) - m0, (b + m0) - m0, (c + m0) - m0, (d + m0) - m0
        sums[i] += (p + q) + (r + s)
        a, b, c, d = a - p, b - q, c - r, d - s
        p, q, r, s = (a + m1) - m1, (b + m1) - m1, (c + m1) - m1, (d + m1) - m1
        sums[i + _BLOCK] += (p + q) + (r + s)
        a, b, c, d = a - p, b - q, c - r, d - s
        p, q, r, s = (a + m2) - m2, (b + m2) - m2, (c + m2) - m2, (d + m2) - m2
        sums[i + 2 * _BLOCK] += (p + q) + (r + s)


@helper()
def _add(
    sums: NDArray[np.float64],
    count: int,
    buffer: Floats,
    weight: float,
    magic: NDArray[np.float64],
) -> None:
    m0, m1, m2 = magic[2], magic[1], magic[0]
    for i in range(count):
        rest = weight * np.float64(buffer[i])
        high = (rest + m0) - m0
        sums[i] += high
        rest -= high
        middle = (rest + m1) - m1
        sums[i + _BLOCK] += middle
        sums[i + 2 * _BLOCK] += ((rest - middle) + m2) - m2


def divide(limbs: NDArray[np.float64], weight: float, out: Floats, first: int, last: int) -> None:
    """``out = sum / weight`` in some blocks, rounded to float32 once."""
    divide_blocks(limbs.reshape(-1), weight, out, first, last)


@kernel("f8[1]", "f8", "f4[1] out", "i8", "i8")
def divide_blocks(
    limbs: NDArray[np.float64], weight: float, out: Floats, first: int, last: int
) -> None:
    """``out = sum / weight`` in some blocks, rounded to float32 once."""
    for block in range(first, last):
        start = block * _BLOCK
        sums = limbs[_LIMBS * start : _LIMBS * (start + _BLOCK)]
        for i in range(min(out.size - start, _BLOCK)):
            total = (sums[i + 2 * _BLOCK] + sums[i + _BLOCK]) + sums[i]
            out[start + i] = np.float32(total / weight)
