"""The loops of ``compiled/steps.py`` in NumPy, in blocks that stay in the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels.checks import Floats

SQUARES = 1 << 12
"""Elements that ``squares`` sums at a time."""

_BLOCK = 1 << 14
_silent = np.errstate(all="ignore")  # as compiled loops are


@_silent
def _sgd(
    params: Floats,
    grads: Floats,
    velocity: Floats,
    reference: Floats,
    correction: Floats,
    numbers: NDArray[np.float64],
) -> None:
    """``v = momentum · v + g; p -= lr · v`` in float32, without a velocity ``p -= lr · g``.

    ``g = grads + mu · (p - reference) + correction + weight_decay · p``; of velocity, reference
    and correction an empty one is left out. ``numbers``: weight decay, mu, lr, momentum.
    """
    decay, mu, rate, keep = numbers.astype(np.float32)
    for part in _blocks(params.size):
        g = _complete(params, grads, reference, correction, decay, mu, part)
        if velocity.size:
            g += keep * velocity[part]
            velocity[part] = g
        params[part] -= rate * g


@_silent
def _adam(
    params: Floats,
    grads: Floats,
    m: Floats,
    v: Floats,
    reference: Floats,
    correction: Floats,
    numbers: NDArray[np.float64],
) -> None:
    """``m, v`` = moving means of g and g²; ``p -= rate · m / (sqrt(v) + eps)`` in float32.

    ``g`` as in ``_sgd``. ``numbers``: weight decay, mu, beta1, beta2, rate, eps.
    """
    decay, mu, keep_m, keep_v, rate, eps = numbers.astype(np.float32)
    take_m, take_v = (1.0 - numbers[2:4]).astype(np.float32)
    for part in _blocks(params.size):
        g = _complete(params, grads, reference, correction, decay, mu, part)
        m[part] = keep_m * m[part] + take_m * g
        v[part] = keep_v * v[part] + take_v * (g * g)
        params[part] -= rate * m[part] / (np.sqrt(v[part]) + eps)


def bound_sgd(*values: NDArray[Any]) -> Callable[[], None]:
    """A step for each call: what ``_sgd`` takes."""
    return partial(_sgd, *values)


def bound_adam(*values: NDArray[Any]) -> Callable[[], None]:
    """A step for each call: what ``_adam`` takes."""
    return partial(_adam, *values)


def _complete(
    params: Floats,
    grads: Floats,
    reference: Floats,
    correction: Floats,
    decay: np.float32,
    mu: np.float32,
    part: slice,
) -> Floats:
    g = grads[part]
    if reference.size:
        g = g + mu * (params[part] - reference[part])
    if correction.size:
        g = g + correction[part]
    return g + decay * params[part]


def move_control(
    control: Floats,
    server_control: Floats,
    server_params: Floats,
    params: Floats,
    scale: float,
) -> None:
    """``control += scale · (server_params - params) - server_control``."""
    for part in _blocks(control.size):
        moved = np.float32(scale) * (server_params[part] - params[part])
        control[part] += moved - server_control[part]


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
