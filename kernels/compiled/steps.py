"""Compiled loops of steps on flat buffers.

But for sums of squares, operations keep NumPy's order and rounding (no flags), so both
implementations give the same bits. A block's gradient is completed in the first-level cache before
an optimiser's step: any mixture of terms is one pass over memory, and every loop is short enough to
run in vector lanes.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels.checks import Floats
from protofleet.kernels.native.kernel import REDUCE, helper, kernel

SQUARES = 1 << 12
"""Elements that ``squares`` sums at a time."""

_BLOCK = 1024


@helper()
def _complete(
    params: Floats,
    grads: Floats,
    reference: Floats,
    correction: Floats,
    mu: np.float32,
    out: Floats,
) -> None:
    """``out = grads + mu · (params - reference) + correction`` of one block."""
    for i in range(grads.size):
        out[i] = grads[i]
    for i in range(reference.size):
        out[i] += mu * (params[i] - reference[i])
    for i in range(correction.size):
        out[i] += correction[i]


@kernel("f4[1] out", "f4[1]", "f4[1] out", "f4[1]", "f4[1]", "f8[1]", "f4[1] out")
def sgd(
    params: Floats,
    grads: Floats,
    velocity: Floats,
    reference: Floats,
    correction: Floats,
    numbers: NDArray[np.float64],
    scratch: Floats,
) -> None:
    """As ``bound_sgd``; ``scratch`` holds a block's gradient."""
    decay = np.float32(numbers[0])
    mu = np.float32(numbers[1])
    rate = np.float32(numbers[2])
    keep = np.float32(numbers[3])
    for start in range(0, params.size, _BLOCK):
        stop = start + _BLOCK
        p = params[start:stop]
        v = velocity[start:stop]
        g = grads[start:stop]
        if reference.size or correction.size:
            pull, shift = reference[start:stop], correction[start:stop]
            _complete(p, g, pull, shift, mu, scratch)
            g = scratch
        if v.size:
            for i in range(p.size):
                value = keep * v[i] + (g[i] + decay * p[i])
                v[i] = value
                p[i] -= rate * value
        else:
            for i in range(p.size):
                p[i] -= rate * (g[i] + decay * p[i])


def bound_sgd(
    params: Floats,
    grads: Floats,
    velocity: Floats,
    reference: Floats,
    correction: Floats,
    numbers: NDArray[np.float64],
) -> Callable[[], None]:
    """A step for each call: in float32 ``v = momentum · v + g; p -= lr · v``.

    Without a velocity ``p -= lr · g``.
    ``g = grads + mu · (p - reference) + correction + weight_decay · p``; of velocity, reference
    and correction an empty one is left out. ``numbers``: weight decay, mu, lr, momentum.
    """
    scratch = np.empty(_BLOCK, np.float32)
    return sgd.bound(params, grads, velocity, reference, correction, numbers, scratch)


@kernel("f4[1] out", "f4[1]", "f4[1] out", "f4[1] out", "f4[1]", "f4[1]", "f8[1]", "f4[1] out")
def adam(
    params: Floats,
    grads: Floats,
    m: Floats,
    v: Floats,
    reference: Floats,
    correction: Floats,
    numbers: NDArray[np.float64],
    scratch: Floats,
) -> None:
    """As ``bound_adam``; ``scratch`` holds a block's gradient."""
    decay = np.float32(numbers[0])
    mu = np.float32(numbers[1])
    keep_m = np.float32(numbers[2])
    keep_v = np.float32(numbers[3])
    take_m = np.float32(1.0 - numbers[2])
    take_v = np.float32(1.0 - numbers[3])
    rate = np.float32(numbers[4])
    eps = np.float32(numbers[5])
    for start in range(0, params.size, _BLOCK):
        stop = start + _BLOCK
        p = params[start:stop]
        first = m[start:stop]
        second = v[start:stop]
        g = grads[start:stop]
        if reference.size or correction.size:
            pull, shift = reference[start:stop], correction[start:stop]
            _complete(p, g, pull, shift, mu, scratch)
            g = scratch
        for i in range(p.size):
            gradient = g[i] + decay * p[i]
            # Named before they are stored: loads after stores would keep this loop out of lanes.
            mean = keep_m * first[i] + take_m * gradient
            square = keep_v * second[i] + take_v * (gradient * gradient)
            first[i] = mean
            second[i] = square
            p[i] -= rate * mean / (math.sqrt(square) + eps)


def bound_adam(
    params: Floats,
    grads: Floats,
    m: Floats,
    v: Floats,
    reference: Floats,
    correction: Floats,
    numbers: NDArray[np.float64],
) -> Callable[[], None]:
    """A step for each call: in float32 ``p -= rate · m / (sqrt(v) + eps)``.

    ``m, v`` are moving means of g and g², ``g`` as in ``bound_sgd``. ``numbers``: weight decay,
    mu, beta1, beta2, rate, eps.
    """
    scratch = np.empty(_BLOCK, np.float32)
    return adam.bound(params, grads, m, v, reference, correction, numbers, scratch)


@kernel("f4[1] out", "f4[1]", "f4[1]", "f4[1]", "f8")
def move_control(
    control: Floats,
    server_control: Floats,
    server_params: Floats,
    params: Floats,
    scale: float,
) -> None:
    """``control += scale · (server_params - params) - server_control``."""
    factor = np.float32(scale)
    for i in range(control.size):
        control[i] += factor * (server_params[i] - params[i]) - server_control[i]


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
        weight = max(weight, zero)  # NaN compares false and stays
        weight = min(weight, one)
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
