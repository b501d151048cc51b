"""Updates of flat parameter buffers: control variates, mixing weights, clipping."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels._check import Floats, flat, read_only
from protofleet.kernels._pool import spread
from protofleet.kernels._switch import backend

_GRAIN = 1 << 14  # a multiple of the blocks of ``squares``: its sums are cut nowhere else
_WORTH_THREADS = 1 << 20  # below, a step ends before a second thread is awake


def control_update(  # noqa: PLR0913 - the symbols of the formula
    control: Floats,
    server_control: NDArray[Any],
    server_params: NDArray[Any],
    params: NDArray[Any],
    *,
    steps: int,
    lr: float,
    out: Floats | None = None,
) -> Floats:
    """A client's control variate after local training: SCAFFOLD, option II.

    ``control += (server_params - params) / (steps · lr) - server_control``, after Karimireddy et
    al., arXiv:1910.06378v4, algorithm 1, line 12. Returns what was added, the client's delta.
    The steps before it take ``correction=server_control - control``.

    Args:
        control: c_i, ``(size,) float32``, written.
        server_control: c, same shape and dtype.
        server_params: x, with which training began; same.
        params: y_i, with which it ended; same.
        steps: K, steps made.
        lr: learning rate of each.
        out: where to write the delta; None for a new buffer.

    Raises:
        InputError: a buffer of another shape or dtype or one that cannot be written, no step, or
            a learning rate that is not positive.
    """
    size = flat("control", control, control.size).size
    server_control = alike("server_control", server_control, size)
    server_params = alike("server_params", server_params, size)
    params = alike("params", params, size)
    if steps < 1:
        raise InputError(f"control variate: expected steps >= 1, got {steps}")
    if not lr > 0:
        raise InputError(f"control variate: expected a positive lr, got {lr}")
    out = np.empty_like(control) if out is None else flat("out", out, size)
    buffers = (control, server_control, server_params, params, out)
    in_parts(backend("updates").move_control, buffers, 1.0 / (steps * lr))
    return out


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
    local = alike("local", local, size)
    global_ = alike("global_", global_, size)
    grads = alike("grads", grads, size)
    flat("out_params", out_params, size)
    in_parts(backend("updates").ala, (weights, local, global_, grads, out_params), float(eta))


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
    module = backend("updates")
    sums = np.zeros(-(-size // module.SQUARES), np.float64)

    def part(start: int, stop: int) -> None:
        blocks = sums[start // module.SQUARES : -(-stop // module.SQUARES)]
        module.squares(grads[start:stop], blocks)

    spread(part, size, _grain(size))
    norm = math.sqrt(sums.sum())
    factor = max_norm / (norm + 1e-6)
    if factor < 1:
        in_parts(_scale, (grads,), np.float32(factor))
    return norm


def alike(name: str, array: NDArray[Any], size: int) -> Floats:
    """``array`` to read from.

    Raises:
        InputError: it is not ``(size,) float32``.
    """
    array = read_only(name, array, 1)
    if array.size != size:
        raise InputError(f"{name}: expected ({size},) float32, got {array.shape}")
    return array


def in_parts(loop: Callable[..., Any], buffers: Sequence[Floats], *numbers: object) -> None:
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
