"""Loops over a whole model's parameters: weighted means and optimisers."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels._check import Floats, finite, flat, read_only
from protofleet.kernels._switch import backend

EpsForm = Literal["torch", "keras"]
"""Where Adam adds eps; ``adam_step`` documents it."""


class WeightedMean:
    """Weighted mean of buffers that come one at a time; memory does not grow with their number.

    Attributes:
        weight: sum of the weights so far.
    """

    def __init__(self, size: int) -> None:
        self._total = np.zeros(size, np.float64)
        self.weight = 0.0

    def add(self, buffer: NDArray[Any], weight: float) -> None:
        """Add a ``(size,) float32`` buffer; one of weight zero is not even looked at.

        Raises:
            InputError: wrong shape or dtype, a number that is not finite, a negative weight.
                The mean is then as before.
        """
        if not (math.isfinite(weight) and weight >= 0):
            raise InputError(f"weighted mean: expected a weight of at least 0, got {weight}")
        if weight == 0:
            return
        buffer = read_only("weighted mean", buffer, 1)
        if buffer.size != self._total.size:
            raise InputError(
                f"weighted mean: expected {self._total.size} values, got {buffer.size}"
            )
        finite("weighted mean", buffer)
        backend("flat").accumulate(self._total, buffer, float(weight))
        self.weight += weight

    def result(self) -> Floats:
        """The mean so far, ``(size,) float32``.

        Raises:
            InputError: nothing with a positive weight was added.
        """
        if self.weight == 0:
            raise InputError("weighted mean: expected a positive weight, got none")
        return (self._total / self.weight).astype(np.float32)


def sgd_step(  # noqa: PLR0913 - the numbers of the formula, by keyword
    params: Floats,
    grads: NDArray[Any],
    velocity: Floats | None,
    *,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> None:
    """One step of stochastic gradient descent as in ``torch.optim.SGD`` (no dampening).

    ``g = grads + weight_decay · params``, ``velocity = momentum · velocity + g``,
    ``params -= lr · velocity``. A velocity of zeros makes the first step as PyTorch does it.

    Args:
        params: flat float32 buffer, written.
        grads: same shape and dtype.
        velocity: same, written; may be None where ``momentum`` is 0 and is then not needed.
        lr: learning rate.
        momentum: share of the velocity that stays.
        weight_decay: factor of the parameters added to their gradient.

    Raises:
        InputError: a buffer of another shape or dtype, or one that cannot be written.
    """
    size = flat("params", params, params.size).size
    grads = _gradients(grads, size)
    if momentum == 0:
        backend("flat").sgd(params, grads, lr, weight_decay)
        return
    if velocity is None:
        raise InputError(f"sgd: momentum {momentum} needs a velocity buffer, got None")
    flat("velocity", velocity, size)
    backend("flat").momentum_sgd(params, grads, velocity, (lr, momentum, weight_decay))


def adam_step(  # noqa: PLR0913 - the numbers of the formula, by keyword
    params: Floats,
    grads: NDArray[Any],
    m: Floats,
    v: Floats,
    *,
    step: int,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    eps_form: EpsForm = "torch",
) -> None:
    """One step of Adam (Kingma and Ba, arXiv:1412.6980).

    With bias corrections ``c1 = 1 - beta1^step`` and ``c2 = 1 - beta2^step``:

    - ``torch`` (algorithm 1): ``params -= lr · (m / c1) / (sqrt(v / c2) + eps)``;
    - ``keras`` (end of section 2): ``params -= lr · sqrt(c2) / c1 · m / (sqrt(v) + eps)``.

    They differ by the factor ``sqrt(c2)`` on eps, about 1/30 in the first step.

    Args:
        params: flat float32 buffer, written.
        grads: same shape and dtype.
        m: moving mean of the gradients, written; zeros before step 1.
        v: moving mean of their squares, written; zeros before step 1.
        step: number of this step, from 1.
        lr: learning rate.
        beta1: share of ``m`` that stays.
        beta2: share of ``v`` that stays.
        eps: added to the root.
        weight_decay: factor of the parameters added to their gradient (L2, not AdamW).
        eps_form: see above.

    Raises:
        InputError: a buffer of another shape or dtype, one that cannot be written, a step below 1.
    """
    size = flat("params", params, params.size).size
    grads = _gradients(grads, size)
    flat("m", m, size)
    flat("v", v, size)
    if step < 1:
        raise InputError(f"adam: expected a step from 1, got {step}")
    root = math.sqrt(1.0 - beta2**step)
    rate = lr * root / (1.0 - beta1**step)
    inner_eps = eps if eps_form == "keras" else eps * root
    backend("flat").adam(params, grads, m, v, (beta1, beta2, rate, inner_eps, weight_decay))


def _gradients(grads: NDArray[Any], size: int) -> Floats:
    grads = read_only("grads", grads, 1)
    if grads.size != size:
        raise InputError(f"grads: expected ({size},) float32 as params, got {grads.shape}")
    return grads
