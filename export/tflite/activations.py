"""Activations that TFLite's plain operators are put together to."""

from __future__ import annotations

import math

import torch
from torch import fx

from protofleet.export.tflite.basics import Basics
from protofleet.export.tflite.graph import Value
from protofleet.export.tflite.lower import Lowering, Result, args_of, rule

_aten = torch.ops.aten

# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: within 1.5e-7 of erf.
_ERF_P = 0.3275911
_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


@rule(_aten.erf.default)
def _erf(low: Lowering, node: fx.Node) -> Result:
    return _error_function(low.basics, low.small(args_of(node)[0]))


def _error_function(ops: Basics, x: Value) -> Value:
    size = ops.unary("ABS", x)
    t = ops.binary("DIV", 1.0, ops.binary("ADD", ops.binary("MUL", size, _ERF_P), 1.0))
    total = ops.binary("MUL", t, _ERF[-1])
    for factor in _ERF[-2::-1]:
        total = ops.binary("MUL", ops.binary("ADD", total, factor), t)
    tail = ops.binary("MUL", total, ops.unary("EXP", ops.unary("NEG", ops.binary("MUL", x, x))))
    positive = ops.binary("SUB", 1.0, tail)
    return ops.select(ops.compare("LESS", x, 0.0), ops.unary("NEG", positive), positive)


@rule(_aten.gelu.default)
def _gelu(low: Lowering, node: fx.Node) -> Result:
    x, ops = low.small(args_of(node)[0]), low.basics
    if node.kwargs.get("approximate", "none") == "none":
        share = _error_function(ops, ops.binary("MUL", x, math.sqrt(0.5)))
    else:
        cube = ops.binary("MUL", ops.binary("MUL", ops.binary("MUL", x, x), x), 0.044715)
        share = ops.unary(
            "TANH", ops.binary("MUL", ops.binary("ADD", x, cube), math.sqrt(2 / math.pi))
        )
    return ops.binary("MUL", ops.binary("MUL", x, 0.5), ops.binary("ADD", share, 1.0))


@rule(_aten.leaky_relu.default)
def _leaky_relu(low: Lowering, node: fx.Node) -> Result:
    x, *rest = args_of(node)
    value = low.small(x)
    falling = low.basics.binary("MUL", value, float(rest[0]) if rest else 0.01)
    return low.basics.select(low.basics.compare("GREATER", value, 0.0), value, falling)


@rule(_aten.elu.default)
def _elu(low: Lowering, node: fx.Node) -> Result:
    x, *rest = args_of(node)
    alpha, scale, input_scale = (float(v) for v in [*rest, *[1.0] * (3 - len(rest))])
    ops, value = low.basics, low.small(x)
    below = ops.binary("MINIMUM", value, 0.0)
    if input_scale != 1:
        below = ops.binary("MUL", below, input_scale)
    bent = ops.binary("MUL", ops.binary("SUB", ops.unary("EXP", below), 1.0), alpha * scale)
    straight = value if scale == 1 else ops.binary("MUL", value, scale)
    return ops.select(ops.compare("GREATER", value, 0.0), straight, bent)


@rule(_aten.expm1.default)
def _expm1(low: Lowering, node: fx.Node) -> Result:
    return low.basics.binary("SUB", low.basics.unary("EXP", low.small(args_of(node)[0])), 1.0)
