"""Numba loop of top-k. ``_topk_numpy`` has the same function in plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels._check import Floats, Indices
from protofleet.kernels._native import helper, kernel

_BLOCK = 64  # four vectors of 512 bits; most blocks hold nothing to collect


@helper()
def _bits(a: Any, b: Any) -> Any:
    return np.int32(np.float32(a + b).view(np.int32) & np.int32(0x7FFFFFFF))


@kernel("f4[1]", "f4[1]", "u4[1] out", "f4[1] out", "i8[1] out")
def collect(
    delta: Floats, residual: Floats, indices: NDArray[Any], values: Floats, numbers: Indices
) -> None:
    """Entries of ``delta + residual`` that reach a threshold, in ascending order.

    ``numbers``: threshold as bits without sign and index of the first entry; becomes, in the
    places after, how many entries were found and the largest bits of all.
    """
    threshold = np.int32(numbers[0])
    count = 0
    worst = np.int32(0)
    for start in range(0, delta.size, _BLOCK):
        a = delta[start : start + _BLOCK]
        b = residual[start : start + _BLOCK]
        top = np.int32(0)
        if a.size == _BLOCK:
            for i in range(_BLOCK):
                bits = _bits(a[i], b[i])
                top = bits if bits > top else top
        else:
            for i in range(a.size):
                bits = _bits(a[i], b[i])
                top = bits if bits > top else top
        worst = top if top > worst else worst
        if top >= threshold:
            for i in range(a.size):
                indices[count] = np.uint32(numbers[1] + start + i)
                values[count] = np.float32(a[i] + b[i])
                count += 1 if _bits(a[i], b[i]) >= threshold else 0
    numbers[2] = count
    numbers[3] = worst
