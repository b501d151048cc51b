"""The loop of ``_topk_numba`` in plain NumPy, in blocks that stay in the cache."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels._check import Floats, Indices

_BLOCK = 1 << 15


def collect(
    delta: Floats, residual: Floats, indices: NDArray[Any], values: Floats, numbers: Indices
) -> None:
    """Entries of ``delta + residual`` that reach a threshold, in ascending order.

    ``numbers``: threshold as bits without sign and index of the first entry; becomes, in the
    places after, how many entries were found and the largest bits of all.
    """
    threshold, offset = numbers[:2]
    count = worst = 0
    for start in range(0, delta.size, _BLOCK):
        with np.errstate(over="ignore", invalid="ignore"):
            sums = delta[start : start + _BLOCK] + residual[start : start + _BLOCK]
        bits = sums.view(np.uint32) & np.uint32(0x7FFFFFFF)
        worst = max(worst, int(bits.max()))
        found = np.flatnonzero(bits >= threshold)
        indices[count : count + found.size] = found + (offset + start)
        values[count : count + found.size] = sums[found]
        count += found.size
    numbers[2:] = count, worst
