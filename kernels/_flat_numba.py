"""Numba loops over flat buffers. ``_flat_numpy`` has the same functions in plain NumPy.

Their operations keep NumPy's order and rounding (no flags), so both give the same bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels._check import Floats
from protofleet.kernels._switch import jit


@jit()
def accumulate(total: NDArray[np.float64], buffer: Floats, weight: float) -> None:
    """``total += weight · buffer`` in float64."""
    for i in range(total.size):
        total[i] += weight * np.float64(buffer[i])


@jit()
def sgd(params: Floats, grads: Floats, lr: float, weight_decay: float) -> None:
    """``p -= lr · (g + weight_decay · p)`` in float32."""
    rate = np.float32(lr)
    decay = np.float32(weight_decay)
    for i in range(params.size):
        params[i] -= rate * (grads[i] + decay * params[i])


@jit()
def momentum_sgd(
    params: Floats, grads: Floats, velocity: Floats, numbers: tuple[float, float, float]
) -> None:
    """``v = momentum · v + g + weight_decay · p; p -= lr · v`` in float32.

    ``numbers``: lr, momentum, weight decay.
    """
    rate = np.float32(numbers[0])
    keep = np.float32(numbers[1])
    decay = np.float32(numbers[2])
    for i in range(params.size):
        velocity[i] = keep * velocity[i] + (grads[i] + decay * params[i])
        params[i] -= rate * velocity[i]


@jit()
def adam(params: Floats, grads: Floats, m: Floats, v: Floats, numbers: tuple[float, ...]) -> None:
    """``m, v`` = moving means of g and g²; ``p -= rate · m / (sqrt(v) + eps)`` in float32.

    ``numbers``: beta1, beta2, rate, eps, weight decay.
    """
    keep_m = np.float32(numbers[0])
    keep_v = np.float32(numbers[1])
    take_m = np.float32(1.0 - numbers[0])
    take_v = np.float32(1.0 - numbers[1])
    rate = np.float32(numbers[2])
    eps = np.float32(numbers[3])
    decay = np.float32(numbers[4])
    for i in range(params.size):
        g = grads[i] + decay * params[i]
        m[i] = keep_m * m[i] + take_m * g
        v[i] = keep_v * v[i] + take_v * (g * g)
        params[i] -= rate * m[i] / (np.sqrt(v[i]) + eps)
