"""Numba loops over flat buffers. ``_updates_numpy`` has the same functions in plain NumPy.

But for sums of squares, operations keep NumPy's order and rounding: both give the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels._check import Floats
from protofleet.kernels._native import REDUCE, kernel

SQUARES = 1 << 12
"""Elements that ``squares`` sums at a time."""


@kernel("f4[1] out", "f4[1]", "f4[1]", "f4[1]", "f4[1] out", "f8")
def move_control(
    control: Floats,
    server_control: Floats,
    server_params: Floats,
    params: Floats,
    delta: Floats,
    scale: float,
) -> None:
    """``delta = scale · (server_params - params) - server_control; control += delta``."""
    factor = np.float32(scale)
    for i in range(control.size):
        added = factor * (server_params[i] - params[i]) - server_control[i]
        delta[i] = added
        control[i] += added


@kernel("f4[1] out", "f4[1]", "f4[1]", "f4[1]", "f4[1] out", "f8")
def ala(
    weights: Floats, local: Floats, global_: Floats, grads: Floats, out: Floats, eta: float
) -> None:
    """``w = clip(w - eta · g · (global - local), 0, 1); out = local + (global - local) · w``."""
    rate = np.float32(eta)
    zero = np.float32(0)
    one = np.float32(1)
    for i in range(weights.size):
        base = local[i]
        way = global_[i] - base
        weight = weights[i] - rate * (grads[i] * way)
        weight = zero if weight < zero else weight  # NaN compares false and stays
        weight = one if weight > one else weight
        weights[i] = weight
        out[i] = base + way * weight


@kernel("f4[1]", "f8[1] out", flags=REDUCE)
def squares(x: Floats, sums: NDArray[np.float64]) -> None:
    """``sums[b]`` = sum of the squares of block b in float64."""
    for b in range(sums.size):
        block = x[b * SQUARES : (b + 1) * SQUARES]
        total = 0.0
        for i in range(block.size):
            total += np.float64(block[i]) * np.float64(block[i])
        sums[b] = total
