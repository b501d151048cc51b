"""The loops of ``_updates_numba`` in plain NumPy, in blocks that stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels._check import Floats

SQUARES = 1 << 12
"""Elements that ``squares`` sums at a time."""

_BLOCK = 1 << 14


def move_control(
    control: Floats,
    server_control: Floats,
    server_params: Floats,
    params: Floats,
    delta: Floats,
    scale: float,
) -> None:
    """``delta = scale · (server_params - params) - server_control; control += delta``."""
    for part in _blocks(control.size):
        moved = np.float32(scale) * (server_params[part] - params[part])
        delta[part] = moved - server_control[part]
        control[part] += delta[part]


def ala(
    weights: Floats, local: Floats, global_: Floats, grads: Floats, out: Floats, eta: float
) -> None:
    """``w = clip(w - eta · g · (global - local), 0, 1); out = local + (global - local) · w``."""
    for part in _blocks(weights.size):
        way = global_[part] - local[part]
        weights[part] -= np.float32(eta) * (grads[part] * way)
        np.clip(weights[part], np.float32(0), np.float32(1), out=weights[part])
        out[part] = local[part] + way * weights[part]


def squares(x: Floats, sums: NDArray[np.float64]) -> None:
    """``sums[b]`` = sum of the squares of block b in float64."""
    for b in range(sums.size):
        block = x[b * SQUARES : (b + 1) * SQUARES].astype(np.float64)
        sums[b] = block @ block


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, size, _BLOCK))
