"""The loops of ``_flat_numba`` in plain NumPy, in blocks that stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels._check import Floats

_BLOCK = 1 << 15


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, size, _BLOCK))


def accumulate(total: NDArray[np.float64], buffer: Floats, weight: float) -> None:
    """``total += weight · buffer`` in float64."""
    for part in _blocks(total.size):
        total[part] += weight * buffer[part].astype(np.float64)


def sgd(params: Floats, grads: Floats, lr: float, weight_decay: float) -> None:
    """``p -= lr · (g + weight_decay · p)`` in float32."""
    for part in _blocks(params.size):
        step = grads[part] + np.float32(weight_decay) * params[part]
        params[part] -= np.float32(lr) * step


def momentum_sgd(
    params: Floats, grads: Floats, velocity: Floats, numbers: tuple[float, float, float]
) -> None:
    """``v = momentum · v + g + weight_decay · p; p -= lr · v`` in float32.

    ``numbers``: lr, momentum, weight decay.
    """
    rate, keep, decay = (np.float32(number) for number in numbers)
    for part in _blocks(params.size):
        velocity[part] = keep * velocity[part] + (grads[part] + decay * params[part])
        params[part] -= rate * velocity[part]


def adam(params: Floats, grads: Floats, m: Floats, v: Floats, numbers: tuple[float, ...]) -> None:
    """``m, v`` = moving means of g and g²; ``p -= rate · m / (sqrt(v) + eps)`` in float32.

    ``numbers``: beta1, beta2, rate, eps, weight decay.
    """
    keep_m, keep_v, rate, eps, decay = (np.float32(number) for number in numbers)
    take_m, take_v = (np.float32(1.0 - beta) for beta in numbers[:2])
    for part in _blocks(params.size):
        g = grads[part] + decay * params[part]
        m[part] = keep_m * m[part] + take_m * g
        v[part] = keep_v * v[part] + take_v * (g * g)
        params[part] -= rate * m[part] / (np.sqrt(v[part]) + eps)
