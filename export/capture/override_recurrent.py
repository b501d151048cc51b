"""Recurrent layers while a model is traced: an operator for each layer and direction.

``torch.nn.LSTM``, ``GRU`` and ``RNN`` call one function of PyTorch each, which breaks down to its
steps before a trace sees it. Here that function is replaced: what is the same for all steps
becomes ordinary operators, the recurrence one of ``recurrent_ops``. A cell
(``torch.nn.LSTMCell``, ``GRUCell``, ``RNNCell``) in the user's own loop is a layer of one step; the
loop is traced as it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from protofleet.errors import ExportError
from protofleet.export.capture import recurrent_ops as ops


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weights:
    """One layer and direction: matrices, and their biases, zero where there are none."""

    w_ih: Tensor
    w_hh: Tensor
    b_ih: Tensor
    b_hh: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class _Network:
    """The remaining arguments of PyTorch's function."""

    weights: Sequence[_Weights]
    layers: int
    directions: int
    dropout: float
    training: bool
    batch_first: bool


Layer = Callable[[Tensor, _Weights, Sequence[Tensor], bool], tuple[Tensor, ...]]
"""Input (T, B, I), weights, states (B, H), reverse → y (T, B, H) and the final states."""


def _refuse_packed(*_: Any) -> Any:
    raise ExportError(
        "packed sequences: expected sequences of one length, got packed ones, whose lengths are "
        "data: pad them, give the padded batch to the recurrent layer, and mask its output (mean "
        "over the steps that count, or torch.where)"
    )


def _run(layer: Layer, x: Tensor, states: Any, params: Any, *rest: Any) -> tuple[Tensor, ...]:
    if not isinstance(params, list):  # else these are lengths, states, parameters
        _refuse_packed()
    network = _network(params, rest)
    first = (states,) if isinstance(states, Tensor) else states
    y = x.transpose(0, 1) if network.batch_first else x
    if not isinstance(y.shape[0], int):
        raise ExportError(
            "recurrent layer: expected a fixed number of steps, got one that grows with the batch: "
            "an input (batch, steps, features) needs batch_first=True"
        )
    y, finals = _layers(layer, y, first, network)
    if network.batch_first:
        y = y.transpose(0, 1)
    return (y, *(torch.stack(values) for values in zip(*finals, strict=True)))


def _run_cell(layer: Layer, x: Tensor, states: Any, *group: Tensor | None) -> Any:
    weights = _weights([value for value in group if value is not None])
    first = (states,) if isinstance(states, Tensor) else states
    _, *finals = layer(x.unsqueeze(0), weights, first, False)  # noqa: FBT003 - from the first step
    return finals[0] if len(finals) == 1 else tuple(finals)


def _network(params: Sequence[Tensor], rest: Sequence[Any]) -> _Network:
    biased, layers, dropout, training, bidirectional, batch_first = rest
    directions = 2 if bidirectional else 1
    each = 4 if biased else 2
    if len(params) != each * layers * directions:
        raise ExportError(
            "torch.nn.LSTM with proj_size: has no program: leave proj_size out, and put a "
            "torch.nn.Linear behind the layer"
        )
    groups = (params[i : i + each] for i in range(0, len(params), each))
    return _Network(
        weights=[_weights(group) for group in groups],
        layers=layers,
        directions=directions,
        dropout=dropout,
        training=training,
        batch_first=batch_first,
    )


def _weights(group: Sequence[Tensor]) -> _Weights:
    w_ih, w_hh, *biases = group
    b_ih, b_hh = biases or (torch.zeros(len(w_ih), dtype=w_ih.dtype) for _ in range(2))
    return _Weights(w_ih=w_ih, w_hh=w_hh, b_ih=b_ih, b_hh=b_hh)


def _layers(
    layer: Layer, y: Tensor, first: Sequence[Tensor], network: _Network
) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
    """The last layer's output, and the final states of every layer and direction."""
    finals: list[tuple[Tensor, ...]] = []
    for number in range(network.layers):
        if number and network.dropout and network.training:
            # As PyTorch: on the whole output of the layer below, steps first.
            y = functional.dropout(y, network.dropout)
        outputs = []
        for direction in range(network.directions):
            place = len(finals)
            states = [state[place] for state in first]
            output, *final = layer(y, network.weights[place], states, direction == 1)
            outputs.append(output)
            finals.append(tuple(final))
        y = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
    return y, finals


def _trains(x: Tensor, weights: _Weights, states: Sequence[Tensor]) -> bool:
    """Whether a gradient will be asked for."""
    read = (x, weights.w_ih, weights.w_hh, weights.b_ih, weights.b_hh, *states)
    return torch.is_grad_enabled() and any(value.requires_grad for value in read)


def _projected(x: Tensor, w_ih: Tensor, bias: Tensor) -> Tensor:
    """W_ih·x + b of all steps, as one product with its bias."""
    return functional.linear(x.flatten(0, 1), w_ih, bias).reshape(*x.shape[:2], len(w_ih))


def _lstm(
    x: Tensor,
    weights: _Weights,
    states: Sequence[Tensor],
    reverse: bool,  # noqa: FBT001 - as the operator
) -> tuple[Tensor, ...]:
    bias = weights.b_ih + weights.b_hh
    results: tuple[Tensor, ...]
    if not _trains(x, weights, states):
        results = ops.lstm(x, weights.w_ih, weights.w_hh, bias, *states, reverse)
        return results
    gates = _projected(x, weights.w_ih, bias)
    results = ops.lstm_forward(gates, weights.w_hh, *states, reverse)
    return results[:3]


def _gru(
    x: Tensor,
    weights: _Weights,
    states: Sequence[Tensor],
    reverse: bool,  # noqa: FBT001 - as the operator
) -> tuple[Tensor, ...]:
    results: tuple[Tensor, ...]
    if not _trains(x, weights, states):
        matrices = (weights.w_ih, weights.w_hh, weights.b_ih, weights.b_hh)
        results = ops.gru(x, *matrices, *states, reverse)
        return results
    gates = _projected(x, weights.w_ih, weights.b_ih)
    results = ops.gru_forward(gates, weights.w_hh, weights.b_hh, *states, reverse)
    return results[:2]


def _rnn(*, relu: bool) -> Layer:
    def layer(
        x: Tensor,
        weights: _Weights,
        states: Sequence[Tensor],
        reverse: bool,  # noqa: FBT001 - as the operator
    ) -> tuple[Tensor, ...]:
        bias = weights.b_ih + weights.b_hh
        results: tuple[Tensor, ...]
        if not _trains(x, weights, states):
            results = ops.rnn(x, weights.w_ih, weights.w_hh, bias, *states, relu, reverse)
            return results
        gates = _projected(x, weights.w_ih, bias)
        results = ops.rnn_forward(gates, weights.w_hh, *states, relu, reverse)
        return results

    return layer


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.lstm: partial(_run, _lstm),
    torch.gru: partial(_run, _gru),
    torch.rnn_tanh: partial(_run, _rnn(relu=False)),
    torch.rnn_relu: partial(_run, _rnn(relu=True)),
    torch.lstm_cell: partial(_run_cell, _lstm),
    torch.gru_cell: partial(_run_cell, _gru),
    torch.rnn_tanh_cell: partial(_run_cell, _rnn(relu=False)),
    torch.rnn_relu_cell: partial(_run_cell, _rnn(relu=True)),
    torch._VF._pack_padded_sequence: _refuse_packed,  # noqa: SLF001 - its name
}
