"""Compiled loops of weighted means.

Their operations keep NumPy's order and rounding (no flags), so both give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels.checks import Floats, Indices
from protofleet.kernels.native.kernel import REDUCE, helper, kernel

_BLOCK = 1 << 16  # half a megabyte of sums stays in the second-level cache
_MEASURED_BLOCK = 1 << 14  # with what they are measured from
_TOGETHER = 4  # buffers read at once, so that a sum is loaded and stored once for all of them


class _Memory:
    """Memory that belongs to others, for NumPy to make a read-only array of."""

    def __init__(self, address: int, size: int) -> None:
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "typestr": np.dtype(np.float32).str,
            "data": (address, True),
            "shape": (size,),
        }


def memory_of(buffers: Sequence[Floats], size: int) -> tuple[Floats, Indices]:
    """An array over all memory from the lowest buffer to the highest, and where in it each starts.

    Kernels take no lists: one that gets this touches nothing of it besides the buffers.
    """
    addresses = [buffer.__array_interface__["data"][0] for buffer in buffers]
    lowest = min(addresses)
    starts = (np.array(addresses) - lowest) // 4
    return np.asarray(_Memory(lowest, int(starts.max()) + size)), starts


def accumulate(
    total: NDArray[np.float64],
    buffers: Sequence[Floats],
    weights: NDArray[np.float64],
    bad: Indices,
) -> None:
    """``total += Σ_k weights[k] · buffers[k]`` in float64, one after the other.

    ``bad[0]`` becomes 1 if a sum is not finite.
    """
    memory, starts = memory_of(buffers, total.size)
    add_up(total, memory, starts, weights, bad)


@kernel("f8[1] out", "f4[1]", "i8[1]", "f8[1]", "i8[1] out")
def add_up(
    total: NDArray[np.float64],
    memory: Floats,
    starts: Indices,
    weights: NDArray[np.float64],
    bad: Indices,
) -> None:
    """As ``accumulate``, where buffer k is ``memory[starts[k]:]``."""
    for start in range(0, total.size, _BLOCK):
        sums = total[start : start + _BLOCK]
        together = starts.size - starts.size % _TOGETHER
        for k in range(0, together, _TOGETHER):
            _add_four(sums, memory, start, starts[k:], weights[k:])
        for k in range(together, starts.size):
            _add(sums, memory[starts[k] + start :], weights[k])
        if not _all_finite(sums):
            bad[0] = 1


@helper()
def _add_four(
    sums: NDArray[np.float64],
    memory: Floats,
    start: int,
    starts: Indices,
    weights: NDArray[np.float64],
) -> None:
    first = memory[starts[0] + start :]
    second = memory[starts[1] + start :]
    third = memory[starts[2] + start :]
    fourth = memory[starts[3] + start :]
    for i in range(sums.size):
        value = sums[i] + weights[0] * np.float64(first[i])
        value += weights[1] * np.float64(second[i])
        value += weights[2] * np.float64(third[i])
        sums[i] = value + weights[3] * np.float64(fourth[i])


@helper()
def _add(sums: NDArray[np.float64], buffer: Floats, weight: float) -> None:
    for i in range(sums.size):
        sums[i] += weight * np.float64(buffer[i])


def accumulate_measured(
    total: NDArray[np.float64],
    buffers: Sequence[Floats],
    weights: NDArray[np.float64],
    origin: Floats,
    bad: Indices,
) -> NDArray[np.float64]:
    """``accumulate``, in the same order, and the squares of the buffers' distances to ``origin``.

    Those are summed in any order, in the same pass over memory.
    """
    memory, starts = memory_of(buffers, total.size)
    squares = np.zeros(len(buffers))
    add_up_measured(total, memory, starts, weights, origin, squares, bad)
    return squares


@kernel("f8[1] out", "f4[1]", "i8[1]", "f8[1]", "f4[1]", "f8[1] out", "i8[1] out")
def add_up_measured(
    total: NDArray[np.float64],
    memory: Floats,
    starts: Indices,
    weights: NDArray[np.float64],
    origin: Floats,
    squares: NDArray[np.float64],
    bad: Indices,
) -> None:
    """As ``accumulate_measured``, where buffer k is ``memory[starts[k]:]``."""
    for start in range(0, total.size, _MEASURED_BLOCK):
        sums = total[start : start + _MEASURED_BLOCK]
        near = origin[start : start + _MEASURED_BLOCK]
        together = starts.size - starts.size % _TOGETHER
        for k in range(0, together, _TOGETHER):
            _measure_four(sums, memory[start:], starts[k:], weights[k:], near, squares[k:])
        for k in range(together, starts.size):
            _measure(sums, memory[starts[k] + start :], weights[k], near, squares[k:])
        if not _all_finite(sums):
            bad[0] = 1


@helper()
def _measure_four(
    sums: NDArray[np.float64],
    memory: Floats,
    starts: Indices,
    weights: NDArray[np.float64],
    origin: Floats,
    squares: NDArray[np.float64],
) -> None:
    first, second = memory[starts[0] :], memory[starts[1] :]
    third, fourth = memory[starts[2] :], memory[starts[3] :]
    a = b = c = d = 0.0
    for i in range(sums.size):
        start = np.float64(origin[i])
        value = np.float64(first[i])
        total = sums[i] + weights[0] * value
        a = _plus_square(a, value - start)
        value = np.float64(second[i])
        total += weights[1] * value
        b = _plus_square(b, value - start)
        value = np.float64(third[i])
        total += weights[2] * value
        c = _plus_square(c, value - start)
        value = np.float64(fourth[i])
        sums[i] = total + weights[3] * value
        d = _plus_square(d, value - start)
    squares[0] += a
    squares[1] += b
    squares[2] += c
    squares[3] += d


@helper()
def _measure(
    sums: NDArray[np.float64],
    buffer: Floats,
    weight: float,
    origin: Floats,
    squares: NDArray[np.float64],
) -> None:
    square = 0.0
    for i in range(sums.size):
        value = np.float64(buffer[i])
        sums[i] += weight * value
        square = _plus_square(square, value - np.float64(origin[i]))
    squares[0] += square


@helper(REDUCE)
def _plus_square(total: float, apart: float) -> float:
    """Flags of its own: these sums may run in vector lanes, those of the mean keep their order."""
    return total + apart * apart


@helper()
def _all_finite(sums: NDArray[np.float64]) -> bool:
    wrong = 0
    for i in range(sums.size):
        wrong += 1 if sums[i] - sums[i] != 0.0 else 0
    return wrong == 0


@kernel("f8[1]", "f8", "f4[1] out")
def divide(total: NDArray[np.float64], weight: float, out: Floats) -> None:
    """``out = total / weight``, rounded to float32 once."""
    for i in range(total.size):
        out[i] = np.float32(total[i] / weight)
