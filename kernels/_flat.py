"""Optimisers on flat buffers, with the terms that federated strategies add to the gradient.

NaN is neither looked for nor hidden here: whoever computes the loss sees it there first. A buffer
that is written must not overlap another one.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels._check import Floats, flat
from protofleet.kernels._switch import backend
from protofleet.kernels._updates import alike, in_parts

EpsForm = Literal["torch", "keras"]
"""Where Adam adds eps; ``adam_step`` documents it."""

_NONE = np.empty(0, np.float32)


def sgd_step(  # noqa: PLR0913 - the numbers of the formula, by keyword
    params: Floats,
    grads: NDArray[Any],
    velocity: Floats | None,
    *,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    proximal: tuple[float, NDArray[Any]] | None = None,
    correction: NDArray[Any] | None = None,
) -> None:
    """One step of stochastic gradient descent as in ``torch.optim.SGD`` (no dampening).

    ``g = grads + mu · (params - reference) + correction + weight_decay · params``,
    ``velocity = momentum · velocity + g``, ``params -= lr · velocity``, in one pass over memory.
    A velocity of zeros makes the first step as PyTorch does it.

    Args:
        params: flat float32 buffer, written.
        grads: same shape and dtype.
        velocity: same, written; may be None where ``momentum`` is 0 and is then not needed.
        lr: learning rate.
        momentum: share of the velocity that stays.
        weight_decay: factor of the parameters added to their gradient.
        proximal: mu and reference, as FedProx (arXiv:1812.06127v5, eq. 2) and Ditto
            (arXiv:2012.04221v3, algorithm 1) pull towards the server's parameters.
        correction: added to the gradient; SCAFFOLD's c - c_i (``control_update``).

    Raises:
        InputError: a buffer of another shape or dtype, or one that cannot be written.
    """
    size = flat("params", params, params.size).size
    grads = alike("grads", grads, size)
    mu, reference, correction = _terms(proximal, correction, size)
    if momentum == 0:
        velocity = _NONE
    elif velocity is None:
        raise InputError(f"sgd: momentum {momentum} needs a velocity buffer, got None")
    else:
        flat("velocity", velocity, size)
    numbers = np.array((weight_decay, mu, lr, momentum))
    in_parts(backend("flat").sgd_step, (params, grads, velocity, reference, correction), numbers)


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
    proximal: tuple[float, NDArray[Any]] | None = None,
    correction: NDArray[Any] | None = None,
) -> None:
    """One step of Adam (Kingma and Ba, arXiv:1412.6980), in one pass over memory.

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
        proximal: added to the gradient before the moments, as in ``sgd_step``.
        correction: likewise.

    Raises:
        InputError: a buffer of another shape or dtype, one that cannot be written, a setting out of
            range.
    """
    size = flat("params", params, params.size).size
    grads = alike("grads", grads, size)
    mu, reference, correction = _terms(proximal, correction, size)
    flat("m", m, size)
    flat("v", v, size)
    if eps_form not in get_args(EpsForm):
        known = ", ".join(get_args(EpsForm))
        raise InputError(f"adam eps_form: expected one of {known}; got '{eps_form}'")
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise InputError(f"adam: expected betas in [0, 1), got {beta1} and {beta2}")
    if step < 1:
        raise InputError(f"adam: expected a step from 1, got {step}")
    root = math.sqrt(1.0 - beta2**step)
    rate = lr * root / (1.0 - beta1**step)
    inner_eps = eps if eps_form == "keras" else eps * root
    numbers = np.array((weight_decay, mu, beta1, beta2, rate, inner_eps))
    in_parts(backend("flat").adam_step, (params, grads, m, v, reference, correction), numbers)


def _terms(
    proximal: tuple[float, NDArray[Any]] | None, correction: NDArray[Any] | None, size: int
) -> tuple[float, Floats, Floats]:
    """Factor, reference and correction; an empty buffer for what is left out."""
    mu, reference = proximal or (0.0, None)
    return (
        mu,
        _NONE if reference is None else alike("proximal reference", reference, size),
        _NONE if correction is None else alike("correction", correction, size),
    )
