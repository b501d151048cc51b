"""Steps on flat parameter buffers: SGD, Adam, control variates, mixing weights, clipping.

The optimisers take the terms that federated strategies add to the gradient. NaN is neither looked
for nor hidden here: whoever computes the loss sees it there first. A buffer that is written must
not overlap another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels.checks import Floats, flat, read_only
from protofleet.kernels.native.pool import spread, threads
from protofleet.kernels.native.switch import backend

EpsForm = Literal["torch", "keras"]
"""Where Adam adds eps; ``adam_step`` documents it."""

_NONE = np.empty(0, np.float32)
_GRAIN = 1 << 14  # a multiple of the blocks of ``squares``: its sums are cut nowhere else
_WORTH_THREADS = 1 << 20  # below, a step ends before a second thread is awake


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
    bound_sgd(
        params,
        grads,
        velocity,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        proximal=proximal,
        correction=correction,
    )()


def bound_sgd(  # noqa: PLR0913 - as above
    params: Floats,
    grads: NDArray[Any],
    velocity: Floats | None,
    *,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    proximal: tuple[float, NDArray[Any]] | None = None,
    correction: NDArray[Any] | None = None,
) -> Callable[[], None]:
    """What makes a step of ``sgd_step`` with these very buffers at each call; checked once, here.

    Args, Raises: as there.
    """
    size = flat("params", params, params.size).size
    grads = _sized("grads", grads, size)
    mu, reference, correction = _terms(proximal, correction, size)
    if momentum == 0:
        velocity = _NONE
    elif velocity is None:
        raise InputError(f"sgd: momentum {momentum} needs a velocity buffer, got None")
    else:
        flat("velocity", velocity, size)
    numbers = np.array((weight_decay, mu, lr, momentum))
    buffers = (params, grads, velocity, reference, correction)
    return _bound_in_parts(backend("steps").bound_sgd, buffers, numbers)


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
    bound_adam(
        params,
        grads,
        m,
        v,
        lr=lr,
        beta1=beta1,
        beta2=beta2,
        eps=eps,
        weight_decay=weight_decay,
        eps_form=eps_form,
        proximal=proximal,
        correction=correction,
    )(step)


def bound_adam(  # noqa: PLR0913 - as above
    params: Floats,
    grads: NDArray[Any],
    m: Floats,
    v: Floats,
    *,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    eps_form: EpsForm = "torch",
    proximal: tuple[float, NDArray[Any]] | None = None,
    correction: NDArray[Any] | None = None,
) -> Callable[[int], None]:
    """What makes the step of a number as ``adam_step`` does, with these very buffers.

    Everything but the number is checked once, here.

    Args, Raises: as there.
    """
    size = flat("params", params, params.size).size
    grads = _sized("grads", grads, size)
    mu, reference, correction = _terms(proximal, correction, size)
    flat("m", m, size)
    flat("v", v, size)
    if eps_form not in get_args(EpsForm):
        known = ", ".join(get_args(EpsForm))
        raise InputError(f"adam eps_form: expected one of {known}; got '{eps_form}'")
    if not (0 <= beta1 < 1 and 0 <= beta2 < 1):
        raise InputError(f"adam: expected betas in [0, 1), got {beta1} and {beta2}")
    numbers = np.array((weight_decay, mu, beta1, beta2, lr, eps))
    buffers = (params, grads, m, v, reference, correction)
    move = _bound_in_parts(backend("steps").bound_adam, buffers, numbers)

    def run(step: int) -> None:
        if step < 1:
            raise InputError(f"adam: expected a step from 1, got {step}")
        root = math.sqrt(1.0 - beta2**step)
        numbers[4] = lr * root / (1.0 - beta1**step)
        numbers[5] = eps if eps_form == "keras" else eps * root
        move()

    return run


def _terms(
    proximal: tuple[float, NDArray[Any]] | None, correction: NDArray[Any] | None, size: int
) -> tuple[float, Floats, Floats]:
    """Factor, reference and correction; an empty buffer for what is left out."""
    mu, reference = proximal or (0.0, None)
    return (
        mu,
        _NONE if reference is None else _sized("proximal reference", reference, size),
        _NONE if correction is None else _sized("correction", correction, size),
    )


def control_update(  # noqa: PLR0913 - the symbols of the formula
    control: Floats,
    server_control: NDArray[Any],
    server_params: NDArray[Any],
    params: NDArray[Any],
    *,
    steps: int,
    lr: float,
) -> None:
    """A client's control variate after local training: SCAFFOLD, option II.

    ``control += (server_params - params) / (steps · lr) - server_control``, after Karimireddy et
    al., arXiv:1910.06378v4, algorithm 1, line 12. The steps before it take
    ``correction=server_control - control``.

    Args:
        control: c_i, ``(size,) float32``, written.
        server_control: c, same shape and dtype.
        server_params: x, with which training began; same.
        params: y_i, with which it ended; same.
        steps: K, steps made.
        lr: learning rate of each.

    Raises:
        InputError: a buffer of another shape or dtype or one that cannot be written, no step, or
            a learning rate that is not positive.
    """
    size = flat("control", control, control.size).size
    server_control = _sized("server_control", server_control, size)
    server_params = _sized("server_params", server_params, size)
    params = _sized("params", params, size)
    if steps < 1:
        raise InputError(f"control variate: expected steps >= 1, got {steps}")
    if not lr > 0:
        raise InputError(f"control variate: expected a positive lr, got {lr}")
    buffers = (control, server_control, server_params, params)
    _in_parts(backend("steps").move_control, buffers, 1.0 / (steps * lr))


def ala_step(  # noqa: PLR0913 - the symbols of the formula
    weights: Floats,
    local: NDArray[Any],
    global_: NDArray[Any],
    grads: NDArray[Any],
    out_params: Floats,
    *,
    eta: float = 1.0,
) -> None:
    """One step of adaptive local aggregation: FedALA, Zhang et al., AAAI 2023, eqs. 5 and 6.

    ``weights = clip(weights - eta · grads · (global_ - local), 0, 1)``, then
    ``out_params = local + (global_ - local) · weights``. NaN stays NaN.

    Args:
        weights: W, ``(size,) float32``, written.
        local: the client's own parameters, same shape and dtype.
        global_: the server's; same.
        grads: of the loss at the mixed parameters; same.
        out_params: the mixed parameters, written; same.
        eta: learning rate of the weights.

    Raises:
        InputError: a buffer of another shape or dtype, or one that cannot be written.
    """
    size = flat("weights", weights, weights.size).size
    local = _sized("local", local, size)
    global_ = _sized("global_", global_, size)
    grads = _sized("grads", grads, size)
    flat("out_params", out_params, size)
    _in_parts(backend("steps").ala, (weights, local, global_, grads, out_params), float(eta))


def clip_by_norm(grads: Floats, max_norm: float) -> float:
    """Scale ``grads`` in place to a Euclidean norm of at most ``max_norm``; returns the old norm.

    The factor is ``max_norm / (norm + 1e-6)`` as in ``torch.nn.utils.clip_grad_norm_``; the norm
    is summed in float64. NaN stays NaN.

    Raises:
        InputError: not a flat, writable float32 buffer, or a norm that is not positive.
    """
    size = flat("grads", grads, grads.size).size
    if not max_norm > 0:
        raise InputError(f"clipping: expected a positive norm, got {max_norm}")
    module = backend("steps")
    sums = np.zeros(-(-size // module.SQUARES), np.float64)

    def part(start: int, stop: int) -> None:
        blocks = sums[start // module.SQUARES : -(-stop // module.SQUARES)]
        module.squares(grads[start:stop], blocks)

    spread(part, size, _grain(size))
    norm = math.sqrt(sums.sum())
    factor = max_norm / (norm + 1e-6)
    if factor < 1:
        _in_parts(_scale, (grads,), np.float32(factor))
    return norm


def _sized(name: str, array: NDArray[Any], size: int) -> Floats:
    """``array`` to read from.

    Raises:
        InputError: it is not ``(size,) float32``.
    """
    array = read_only(name, array, 1)
    if array.size != size:
        raise InputError(f"{name}: expected ({size},) float32, got {array.shape}")
    return array


def _bound_in_parts(
    bind: Callable[..., Callable[[], None]], buffers: Sequence[Floats], numbers: NDArray[np.float64]
) -> Callable[[], None]:
    """What ``bind`` makes of these buffers, on several threads if they are large."""
    if buffers[0].size < _WORTH_THREADS or threads() == 1:
        return bind(*buffers, numbers)
    return lambda: _in_parts(lambda *parts: bind(*parts)(), buffers, numbers)


def _in_parts(loop: Callable[..., Any], buffers: Sequence[Floats], *numbers: object) -> None:
    """``loop(*buffers, *numbers)``, on several threads if the buffers are large.

    All buffers are as long as the first, or empty.
    """
    size = buffers[0].size
    spread(
        lambda start, stop: loop(*(buffer[start:stop] for buffer in buffers), *numbers),
        size,
        _grain(size),
    )


def _grain(size: int) -> int:
    return _GRAIN if size >= _WORTH_THREADS else max(size, 1)


def _scale(buffer: Floats, factor: np.float32) -> None:
    buffer *= factor
