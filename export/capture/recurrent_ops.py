"""One layer and direction of a recurrent network as one operator over all steps, with its gradient.

Step by step in ATen a layer of 128 steps is some 5 000 operators, forward and backward. Here it is
one of each; every writer spells out the steps its own way. Only what depends on the step before
stays inside: products of all inputs at once, and gradients of weights, are ordinary operators
around it.

T steps, B examples, I inputs, H hidden units, G gates (LSTM 4: i, f, g, o; GRU 3: r, z, n; RNN 1),
stacked along an axis G·H as in PyTorch.

| symbol | name | shape | dtype |
|---|---|---|---|
| x | ``x`` | (T, B, I) | float32 |
| W_ih·x + b | ``gates`` | (T, B, G·H) | float32 |
| W_ih, W_hh | ``w_ih``, ``w_hh`` | (G·H, I), (G·H, H) | float32 |
| b_hn + W_hn·h | ``inner``, the GRU's part under the reset gate | (T, B, H) | float32 |
| h, c | ``h``, ``c``: before the first step | (B, H) | float32 |
| y, cells | h and c after every step | (T, B, H) | float32 |
| the same before every step | ``before`` | (T, B, H) | float32 |
| dL/dh, dL/dc | ``grad_h``, ``grad_c``: by the states after the last step | (B, H) | float32 |

``reverse`` runs from the last step to the first. Results of single steps lie in the inputs' order
either way.

Source: the equations of ``torch.nn.LSTM``, ``GRU`` and ``RNN``. The functions here are their
definition in any precision, for the parity check; nothing trains with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

NAMESPACE = "protofleet"


def _steps(x: Tensor, *, reverse: bool) -> Sequence[int]:
    return range(len(x))[::-1] if reverse else range(len(x))


def _stacked(rows: Sequence[tuple[Tensor, ...]], *, reverse: bool) -> list[Tensor]:
    """What every step gave, in the order of the inputs."""
    ordered = rows[::-1] if reverse else rows
    return [torch.stack(values) for values in zip(*ordered, strict=True)]


def _like(x: Tensor, *shape: Any) -> Tensor:
    return x.new_empty(shape)


@torch.library.custom_op(
    f"{NAMESPACE}::lstm_forward",
    mutates_args=(),
    schema="(Tensor gates, Tensor w_hh, Tensor h, Tensor c, bool reverse) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def lstm_forward(gates: Tensor, w_hh: Tensor, h: Tensor, c: Tensor, reverse: bool) -> Any:  # noqa: FBT001 - the operator's signature
    """y, final h and c, and for the backward pass cells, i, f, g and o."""
    rows = []
    for step in _steps(gates, reverse=reverse):
        inputs, forgets, news, outputs = (gates[step] + h @ w_hh.T).chunk(4, -1)
        i, f, g, o = inputs.sigmoid(), forgets.sigmoid(), news.tanh(), outputs.sigmoid()
        c = f * c + i * g
        h = o * c.tanh()
        rows.append((h, c, i, f, g, o))
    y, *rest = _stacked(rows, reverse=reverse)
    return (y, h, c, *rest)


@lstm_forward.register_fake
def _(gates: Tensor, w_hh: Tensor, h: Tensor, c: Tensor, reverse: bool) -> Any:  # noqa: ARG001, FBT001 - as above
    steps, batch, hidden = *gates.shape[:2], w_hh.shape[1]
    y, *rest = (_like(gates, steps, batch, hidden) for _ in range(6))
    return (y, *(_like(gates, batch, hidden) for _ in range(2)), *rest)


@torch.library.custom_op(
    f"{NAMESPACE}::lstm_backward",
    mutates_args=(),
    schema="(Tensor grad_y, Tensor grad_h, Tensor grad_c, Tensor w_hh, Tensor cells, Tensor before,"
    " Tensor i, Tensor f, Tensor g, Tensor o, bool reverse) -> (Tensor, Tensor, Tensor)",
)
def lstm_backward(  # noqa: PLR0913, PLR0917 - the operator's signature
    grad_y: Tensor,
    grad_h: Tensor,
    grad_c: Tensor,
    w_hh: Tensor,
    cells: Tensor,
    before: Tensor,
    i: Tensor,
    f: Tensor,
    g: Tensor,
    o: Tensor,
    reverse: bool,  # noqa: FBT001 - as above
) -> Any:
    """Gradients by ``gates``, ``h`` and ``c`` of ``lstm_forward``; ``before`` are the cells."""
    rows = []
    for step in _steps(grad_y, reverse=not reverse):
        bent, by_h = cells[step].tanh(), grad_h + grad_y[step]
        by_o = by_h * o[step]
        by_c = grad_c + by_o * (1 - bent * bent)
        by_i, grad_c = by_c * i[step], by_c * f[step]
        parts = (
            by_i * g[step] * (1 - i[step]),
            grad_c * before[step] * (1 - f[step]),
            by_i * (1 - g[step] * g[step]),
            by_o * bent * (1 - o[step]),
        )
        rows.append((torch.cat(parts, -1),))
        grad_h = rows[-1][0] @ w_hh
    return (*_stacked(rows, reverse=not reverse), grad_h, grad_c)


@lstm_backward.register_fake
def _(grad_y: Tensor, grad_h: Tensor, grad_c: Tensor, w_hh: Tensor, *_: Any) -> Any:
    return _like(grad_y, *grad_y.shape[:2], len(w_hh)), grad_h.clone(), grad_c.clone()


@torch.library.custom_op(
    f"{NAMESPACE}::gru_forward",
    mutates_args=(),
    schema="(Tensor gates, Tensor w_hh, Tensor b_hh, Tensor h, bool reverse) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def gru_forward(gates: Tensor, w_hh: Tensor, b_hh: Tensor, h: Tensor, reverse: bool) -> Any:  # noqa: FBT001 - the operator's signature
    """y, final h, and for the backward pass r, z, n and inner."""
    rows = []
    for step in _steps(gates, reverse=reverse):
        resets, updates, news = gates[step].chunk(3, -1)
        own_resets, own_updates, inner = torch.addmm(b_hh, h, w_hh.T).chunk(3, -1)
        r, z = (resets + own_resets).sigmoid(), (updates + own_updates).sigmoid()
        n = (news + r * inner).tanh()
        h = n + z * (h - n)
        rows.append((h, r, z, n, inner))
    y, *rest = _stacked(rows, reverse=reverse)
    return (y, h, *rest)


@gru_forward.register_fake
def _(gates: Tensor, w_hh: Tensor, b_hh: Tensor, h: Tensor, reverse: bool) -> Any:  # noqa: ARG001, FBT001 - as above
    steps, batch, hidden = *gates.shape[:2], w_hh.shape[1]
    y, *rest = (_like(gates, steps, batch, hidden) for _ in range(5))
    return (y, _like(gates, batch, hidden), *rest)


@torch.library.custom_op(
    f"{NAMESPACE}::gru_backward",
    mutates_args=(),
    schema="(Tensor grad_y, Tensor grad_h, Tensor w_hh, Tensor before, Tensor r, Tensor z, "
    "Tensor n, Tensor inner, bool reverse) -> (Tensor, Tensor, Tensor)",
)
def gru_backward(  # noqa: PLR0913, PLR0917 - the operator's signature
    grad_y: Tensor,
    grad_h: Tensor,
    w_hh: Tensor,
    before: Tensor,
    r: Tensor,
    z: Tensor,
    n: Tensor,
    inner: Tensor,
    reverse: bool,  # noqa: FBT001 - as above
) -> Any:
    """Gradients by ``gates``, by W_hh·h + b_hh, and by ``h``; ``before`` are the hidden states."""
    rows = []
    for step in _steps(grad_y, reverse=not reverse):
        by_h = grad_h + grad_y[step]
        moved = by_h * (1 - z[step])
        by_n = moved * (1 - n[step] * n[step])
        by_inner = by_n * r[step]
        by_r = by_inner * inner[step] * (1 - r[step])
        by_z = moved * z[step] * (before[step] - n[step])
        own = torch.cat((by_r, by_z, by_inner), -1)
        rows.append((torch.cat((by_r, by_z, by_n), -1), own))
        grad_h = by_h * z[step] + own @ w_hh
    return (*_stacked(rows, reverse=not reverse), grad_h)


@gru_backward.register_fake
def _(grad_y: Tensor, grad_h: Tensor, w_hh: Tensor, *_: Any) -> Any:
    by_gates, own = (_like(grad_y, *grad_y.shape[:2], len(w_hh)) for _ in range(2))
    return by_gates, own, grad_h.clone()


@torch.library.custom_op(
    f"{NAMESPACE}::rnn_forward",
    mutates_args=(),
    schema="(Tensor gates, Tensor w_hh, Tensor h, bool relu, bool reverse) -> (Tensor, Tensor)",
)
def rnn_forward(gates: Tensor, w_hh: Tensor, h: Tensor, relu: bool, reverse: bool) -> Any:  # noqa: FBT001 - the operator's signature
    """Y and the final h, by ReLU or tanh."""
    rows = []
    for step in _steps(gates, reverse=reverse):
        total = gates[step] + h @ w_hh.T
        h = total.relu() if relu else total.tanh()
        rows.append((h,))
    return (*_stacked(rows, reverse=reverse), h)


@rnn_forward.register_fake
def _(gates: Tensor, w_hh: Tensor, h: Tensor, relu: bool, reverse: bool) -> Any:  # noqa: ARG001, FBT001 - as above
    steps, batch, hidden = *gates.shape[:2], w_hh.shape[1]
    return _like(gates, steps, batch, hidden), _like(gates, batch, hidden)


@torch.library.custom_op(
    f"{NAMESPACE}::rnn_backward",
    mutates_args=(),
    schema="(Tensor grad_y, Tensor grad_h, Tensor w_hh, Tensor y, bool relu, bool reverse) -> "
    "(Tensor, Tensor)",
)
def rnn_backward(  # noqa: PLR0913, PLR0917 - the operator's signature
    grad_y: Tensor,
    grad_h: Tensor,
    w_hh: Tensor,
    y: Tensor,
    relu: bool,  # noqa: FBT001 - as above
    reverse: bool,  # noqa: FBT001 - as above
) -> Any:
    """Gradients by ``gates`` and ``h`` of ``rnn_forward``."""
    rows = []
    for step in _steps(grad_y, reverse=not reverse):
        slope = (y[step] > 0).to(y.dtype) if relu else 1 - y[step] * y[step]
        rows.append(((grad_h + grad_y[step]) * slope,))
        grad_h = rows[-1][0] @ w_hh
    return (*_stacked(rows, reverse=not reverse), grad_h)


@rnn_backward.register_fake
def _(grad_y: Tensor, grad_h: Tensor, w_hh: Tensor, *_: Any) -> Any:
    return _like(grad_y, *grad_y.shape[:2], len(w_hh)), grad_h.clone()


# Without a gradient: runtimes have these as operators of their own.


@torch.library.custom_op(
    f"{NAMESPACE}::lstm",
    mutates_args=(),
    schema="(Tensor x, Tensor w_ih, Tensor w_hh, Tensor bias, Tensor h, Tensor c, bool reverse) -> "
    "(Tensor, Tensor, Tensor)",
)
def lstm(  # noqa: PLR0913, PLR0917 - the operator's signature
    x: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    bias: Tensor,
    h: Tensor,
    c: Tensor,
    reverse: bool,  # noqa: FBT001 - as above
) -> Any:
    """y, final h and c; ``bias`` (4·H) is both of PyTorch's together."""
    results: Any = lstm_forward(functional.linear(x, w_ih, bias), w_hh, h, c, reverse)
    return results[:3]


@lstm.register_fake
def _(x: Tensor, w_ih: Tensor, w_hh: Tensor, *_: Any) -> Any:  # noqa: ARG001 - the operator's signature
    batch, hidden = x.shape[1], w_hh.shape[1]
    final = (_like(x, batch, hidden) for _ in range(2))
    return (_like(x, len(x), batch, hidden), *final)


@torch.library.custom_op(
    f"{NAMESPACE}::gru",
    mutates_args=(),
    schema="(Tensor x, Tensor w_ih, Tensor w_hh, Tensor b_ih, Tensor b_hh, Tensor h, bool reverse)"
    " -> (Tensor, Tensor)",
)
def gru(  # noqa: PLR0913, PLR0917 - the operator's signature
    x: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor,
    b_hh: Tensor,
    h: Tensor,
    reverse: bool,  # noqa: FBT001 - as above
) -> Any:
    """Y and the final h."""
    results: Any = gru_forward(functional.linear(x, w_ih, b_ih), w_hh, b_hh, h, reverse)
    return results[:2]


@torch.library.custom_op(
    f"{NAMESPACE}::rnn",
    mutates_args=(),
    schema="(Tensor x, Tensor w_ih, Tensor w_hh, Tensor bias, Tensor h, bool relu, bool reverse) "
    "-> (Tensor, Tensor)",
)
def rnn(  # noqa: PLR0913, PLR0917 - the operator's signature
    x: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    bias: Tensor,
    h: Tensor,
    relu: bool,  # noqa: FBT001 - as above
    reverse: bool,  # noqa: FBT001 - as above
) -> Any:
    """Y and the final h; ``bias`` (H) is both of PyTorch's together."""
    return rnn_forward(functional.linear(x, w_ih, bias), w_hh, h, relu, reverse)


@gru.register_fake
@rnn.register_fake
def _(x: Tensor, w_ih: Tensor, w_hh: Tensor, *_: Any) -> Any:  # noqa: ARG001 - the operators' signature
    batch, hidden = x.shape[1], w_hh.shape[1]
    return _like(x, len(x), batch, hidden), _like(x, batch, hidden)


def _before(values: Tensor, first: Tensor, *, reverse: bool) -> Tensor:
    """A state before every step, of its values after every step."""
    if len(values) == 1:
        return first.unsqueeze(0)
    if reverse:
        return torch.cat((values[1:], first.unsqueeze(0)))
    return torch.cat((first.unsqueeze(0), values[:-1]))


def _by_weight(by_sums: Tensor, before: Tensor) -> Tensor:
    """The gradient of ``w_hh``: one product over all steps and examples."""
    return by_sums.flatten(0, 1).T @ before.flatten(0, 1)


def _given(grad: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if grad is None else grad


def _keep_lstm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, w_hh, h, c, ctx.reverse = inputs
    y, _, _, *saved = output
    ctx.save_for_backward(w_hh, h, c, y, *saved)


def _lstm_gradients(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    w_hh, h, c, y, cells, *saved = ctx.saved_tensors
    given = [_given(grad, like) for grad, like in zip(grads, (y, h, c), strict=False)]
    before = _before(cells, c, reverse=ctx.reverse)
    by_gates, by_h, by_c = lstm_backward(*given, w_hh, cells, before, *saved, ctx.reverse)
    by_weight = _by_weight(by_gates, _before(y, h, reverse=ctx.reverse))
    return by_gates, by_weight, by_h, by_c, None


def _keep_gru(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, w_hh, _, h, ctx.reverse = inputs
    y, _, *saved = output
    ctx.save_for_backward(w_hh, h, y, *saved)


def _gru_gradients(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    w_hh, h, y, *saved = ctx.saved_tensors
    given = [_given(grad, like) for grad, like in zip(grads, (y, h), strict=False)]
    before = _before(y, h, reverse=ctx.reverse)
    by_gates, own, by_h = gru_backward(*given, w_hh, before, *saved, ctx.reverse)
    return by_gates, _by_weight(own, before), own.sum((0, 1)), by_h, None


def _keep_rnn(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    _, w_hh, h, ctx.relu, ctx.reverse = inputs
    ctx.save_for_backward(w_hh, h, output[0])


def _rnn_gradients(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    w_hh, h, y = ctx.saved_tensors
    given = [_given(grad, like) for grad, like in zip(grads, (y, h), strict=False)]
    by_gates, by_h = rnn_backward(*given, w_hh, y, ctx.relu, ctx.reverse)
    by_weight = _by_weight(by_gates, _before(y, h, reverse=ctx.reverse))
    return by_gates, by_weight, by_h, None, None


lstm_forward.register_autograd(_lstm_gradients, setup_context=_keep_lstm)
gru_forward.register_autograd(_gru_gradients, setup_context=_keep_gru)
rnn_forward.register_autograd(_rnn_gradients, setup_context=_keep_rnn)
