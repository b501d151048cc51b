"""Recurrent layers in TFLite: the steps written out, one behind the other.

Symbols as in ``protofleet.export.capture.recurrent_ops``. TFLite's loop copies what it carries in
every turn, and its own LSTM keeps no cells and wants fixed weights; XNNPACK computes a few
thousand small operators with little to spare for each. What needs no step before is computed for
all steps at once, so that a step has seven operators in the backward pass of an LSTM and twelve in
its forward pass: some 40 kB of a program for every hundred steps and layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import fx

from protofleet.export.tflite.basics import Basics
from protofleet.export.tflite.graph import F32, I32, Value
from protofleet.export.tflite.lower import Lowering, Result, args_of, rule

_ops = torch.ops.protofleet


def _arguments(low: Lowering, node: fx.Node) -> tuple[list[Value], list[bool]]:
    """Tensors and flags, in their order."""
    tensors = [low.full(one) for one in args_of(node) if isinstance(one, fx.Node)]
    return tensors, [one for one in args_of(node) if isinstance(one, bool)]


@rule(_ops.lstm_forward.default)
def _lstm_forward(low: Lowering, node: fx.Node) -> Result:
    tensors, (reverse,) = _arguments(low, node)
    return _lstm(low.basics, *tensors, reverse=reverse)


@rule(_ops.lstm.default)
def _lstm_without_gradient(low: Lowering, node: fx.Node) -> Result:
    (x, w_ih, w_hh, bias, *states), (reverse,) = _arguments(low, node)
    gates = _projected(low.basics, x, w_ih, bias)
    return _lstm(low.basics, gates, w_hh, *states, reverse=reverse)[:3]


@rule(_ops.lstm_backward.default)
def _lstm_backward(low: Lowering, node: fx.Node) -> Result:
    tensors, (reverse,) = _arguments(low, node)
    return _lstm_gradients(low.basics, tensors, reverse=reverse)


@rule(_ops.gru_forward.default)
def _gru_forward(low: Lowering, node: fx.Node) -> Result:
    tensors, (reverse,) = _arguments(low, node)
    return _gru(low.basics, *tensors, reverse=reverse)


@rule(_ops.gru.default)
def _gru_without_gradient(low: Lowering, node: fx.Node) -> Result:
    (x, w_ih, w_hh, b_ih, *rest), (reverse,) = _arguments(low, node)
    gates = _projected(low.basics, x, w_ih, b_ih)
    return _gru(low.basics, gates, w_hh, *rest, reverse=reverse)[:2]


@rule(_ops.gru_backward.default)
def _gru_backward(low: Lowering, node: fx.Node) -> Result:
    tensors, (reverse,) = _arguments(low, node)
    return _gru_gradients(low.basics, tensors, reverse=reverse)


@rule(_ops.rnn_forward.default)
def _rnn_forward(low: Lowering, node: fx.Node) -> Result:
    tensors, (relu, reverse) = _arguments(low, node)
    return _rnn(low.basics, tensors, "RELU" if relu else "TANH", reverse=reverse)


@rule(_ops.rnn.default)
def _rnn_without_gradient(low: Lowering, node: fx.Node) -> Result:
    (x, w_ih, w_hh, bias, h), (relu, reverse) = _arguments(low, node)
    gates = _projected(low.basics, x, w_ih, bias)
    return _rnn(low.basics, [gates, w_hh, h], "RELU" if relu else "TANH", reverse=reverse)


@rule(_ops.rnn_backward.default)
def _rnn_backward(low: Lowering, node: fx.Node) -> Result:
    tensors, (relu, reverse) = _arguments(low, node)
    return _rnn_gradients(low.basics, tensors, relu=relu, reverse=reverse)


def _projected(ops: Basics, x: Value, w_ih: Value, bias: Value) -> Value:
    """W_ih·x + b of all steps: (T, B, I) → (T, B, G·H)."""
    steps, batch, inputs = x.shape
    flat = ops.reshape(x, (steps * batch, inputs))
    product = ops.binary("ADD", ops.matmul(flat, w_ih, b_transposed=True), bias)
    return ops.reshape(product, (steps, batch, w_ih.shape[0]))


def _rows(ops: Basics, x: Value, *, reverse: bool = False) -> list[Value]:
    """Every step as (1, B, ·), in the order in which they are computed."""
    steps = x.shape[0]
    if steps == 1:
        return [x]
    axis = ops.graph.constant(np.array(0, np.int32), I32)
    results = [((1, *x.shape[1:]), F32)] * steps
    rows = list(ops.graph.add_many("SPLIT", [axis, x], results, numSplits=steps))
    return rows[::-1] if reverse else rows


def _joined(ops: Basics, rows: Sequence[Value], *, reverse: bool) -> Value:
    """What every step gave, in the order of the inputs."""
    ordered = list(rows[::-1] if reverse else rows)
    return ops.concat(ordered, 0) if len(ordered) > 1 else ordered[0]


def _gates(ops: Basics, x: Value, number: int) -> tuple[Value, ...]:
    """Equal parts of the last axis."""
    last = len(x.shape) - 1
    axis = ops.graph.constant(np.array(last, np.int32), I32)
    part = (*x.shape[:last], x.shape[last] // number)
    return ops.graph.add_many("SPLIT", [axis, x], [(part, F32)] * number, numSplits=number)


def _row(ops: Basics, state: Value) -> Value:
    return ops.reshape(state, (1, *state.shape))


def _state(ops: Basics, row: Value) -> Value:
    return ops.reshape(row, row.shape[1:])


def _lstm(  # noqa: PLR0913 - the operator's arguments
    ops: Basics, gates: Value, w_hh: Value, h: Value, c: Value, *, reverse: bool
) -> tuple[Value, ...]:
    weight, h, c = (_row(ops, value) for value in (w_hh, h, c))
    rows = []
    for inputs in _rows(ops, gates, reverse=reverse):
        total = ops.binary("ADD", inputs, ops.matmul(h, weight, b_transposed=True))
        i_sum, f_sum, g_sum, o_sum = _gates(ops, total, 4)
        i, f, o = (ops.unary("LOGISTIC", value) for value in (i_sum, f_sum, o_sum))
        g = ops.unary("TANH", g_sum)
        c = ops.binary("ADD", ops.binary("MUL", f, c), ops.binary("MUL", i, g))
        h = ops.binary("MUL", o, ops.unary("TANH", c))
        rows.append((h, c, i, f, g, o))
    y, *rest = (_joined(ops, values, reverse=reverse) for values in zip(*rows, strict=True))
    return (y, _state(ops, h), _state(ops, c), *rest)


def _lstm_gradients(ops: Basics, tensors: Sequence[Value], *, reverse: bool) -> tuple[Value, ...]:
    grad_y, grad_h, grad_c, w_hh, cells, before, i, f, g, o = tensors
    bent = ops.unary("TANH", cells)
    through = ops.binary("MUL", o, _slope(ops, bent))
    factors = ops.concat(
        [
            ops.binary("MUL", _bump(ops, i), g),
            ops.binary("MUL", _bump(ops, f), before),
            ops.binary("MUL", i, _slope(ops, g)),
            ops.binary("MUL", _bump(ops, o), bent),
        ],
        2,
    )
    read = [_rows(ops, x, reverse=not reverse) for x in (grad_y, through, f, factors)]
    weight, by_h, by_c = (_row(ops, value) for value in (w_hh, grad_h, grad_c))
    rows = []
    for outer, to_cell, forget, factor in zip(*read, strict=True):
        by_y = ops.binary("ADD", by_h, outer)
        by_cell = ops.binary("ADD", by_c, ops.binary("MUL", by_y, to_cell))
        by_c = ops.binary("MUL", by_cell, forget)
        rows.append(ops.binary("MUL", ops.concat([by_cell] * 3 + [by_y], 2), factor))
        by_h = ops.matmul(rows[-1], weight)
    return _joined(ops, rows, reverse=not reverse), _state(ops, by_h), _state(ops, by_c)


def _slope(ops: Basics, bent: Value) -> Value:
    """The derivative of tanh where it is ``bent``."""
    return ops.binary("SUB", 1.0, ops.binary("MUL", bent, bent))


def _bump(ops: Basics, share: Value) -> Value:
    """The derivative of a sigmoid where it is ``share``."""
    return ops.binary("MUL", share, ops.binary("SUB", 1.0, share))


def _gru(  # noqa: PLR0913 - the operator's arguments
    ops: Basics, gates: Value, w_hh: Value, b_hh: Value, h: Value, *, reverse: bool
) -> tuple[Value, ...]:
    weight, h = (_row(ops, value) for value in (w_hh, h))
    hidden = w_hh.shape[1]
    both, news = (ops.slice(gates, 2, a, b) for a, b in ((0, 2 * hidden), (2 * hidden, 3 * hidden)))
    rows = []
    pairs = zip(*(_rows(ops, x, reverse=reverse) for x in (both, news)), strict=True)
    for both_sum, n_sum in pairs:
        product = ops.binary("ADD", ops.matmul(h, weight, b_transposed=True), b_hh)
        own = ops.slice(product, 2, 0, 2 * hidden)
        inner = ops.slice(product, 2, 2 * hidden, 3 * hidden)
        r, z = _gates(ops, ops.unary("LOGISTIC", ops.binary("ADD", both_sum, own)), 2)
        n = ops.unary("TANH", ops.binary("ADD", n_sum, ops.binary("MUL", r, inner)))
        h = ops.binary("ADD", n, ops.binary("MUL", z, ops.binary("SUB", h, n)))
        rows.append((h, r, z, n, inner))
    y, *rest = (_joined(ops, values, reverse=reverse) for values in zip(*rows, strict=True))
    return (y, _state(ops, h), *rest)


def _gru_gradients(ops: Basics, tensors: Sequence[Value], *, reverse: bool) -> tuple[Value, ...]:
    grad_y, grad_h, w_hh, before, r, z, n, inner = tensors
    rest = ops.binary("SUB", 1.0, z)
    to_n = ops.binary("MUL", rest, _slope(ops, n))
    to_inner = ops.binary("MUL", to_n, r)
    to_r = ops.binary("MUL", to_inner, ops.binary("MUL", inner, ops.binary("SUB", 1.0, r)))
    to_z = ops.binary("MUL", ops.binary("MUL", rest, z), ops.binary("SUB", before, n))
    factors = ops.concat([to_r, to_z, to_inner], 2)
    weight, by_h = (_row(ops, value) for value in (w_hh, grad_h))
    read = [_rows(ops, x, reverse=not reverse) for x in (grad_y, z, factors)]
    rows = []
    for outer, update, factor in zip(*read, strict=True):
        by_y = ops.binary("ADD", by_h, outer)
        own = ops.binary("MUL", ops.concat([by_y] * 3, 2), factor)
        by_h = ops.binary("ADD", ops.binary("MUL", by_y, update), ops.matmul(own, weight))
        rows.append((by_y, own))
    by_all, own = (_joined(ops, values, reverse=not reverse) for values in zip(*rows, strict=True))
    own_both = ops.slice(own, 2, 0, 2 * w_hh.shape[1])
    by_gates = ops.concat([own_both, ops.binary("MUL", by_all, to_n)], 2)
    return by_gates, own, _state(ops, by_h)


def _rnn(ops: Basics, tensors: Sequence[Value], bend: str, *, reverse: bool) -> tuple[Value, ...]:
    gates, w_hh, h = tensors
    weight, h = (_row(ops, value) for value in (w_hh, h))
    rows = []
    for inputs in _rows(ops, gates, reverse=reverse):
        product = ops.matmul(h, weight, b_transposed=True)
        h = ops.unary(bend, ops.binary("ADD", inputs, product))
        rows.append(h)
    return _joined(ops, rows, reverse=reverse), _state(ops, h)


def _rnn_gradients(
    ops: Basics, tensors: Sequence[Value], *, relu: bool, reverse: bool
) -> tuple[Value, ...]:
    grad_y, grad_h, w_hh, y = tensors
    slope = ops.cast(ops.compare("GREATER", y, 0.0), F32) if relu else _slope(ops, y)
    weight, by_h = (_row(ops, value) for value in (w_hh, grad_h))
    rows = []
    read = [_rows(ops, x, reverse=not reverse) for x in (grad_y, slope)]
    for outer, factor in zip(*read, strict=True):
        rows.append(ops.binary("MUL", ops.binary("ADD", by_h, outer), factor))
        by_h = ops.matmul(rows[-1], weight)
    return _joined(ops, rows, reverse=not reverse), _state(ops, by_h)
