"""Trigonometry, logarithms, powers and remainders, put together from TFLite's operators."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from protofleet.export.tflite.basics import Basics, Operand
from protofleet.export.tflite.graph import Value
from protofleet.export.tflite.lower import Lowering, Result, args_of, rule

_aten = torch.ops.aten


def _tan(ops: Basics, x: Value) -> Value:
    return ops.binary("DIV", ops.unary("SIN", x), ops.unary("COS", x))


def _cofactor(ops: Basics, x: Value) -> Value:
    """sqrt(1 - x²); as a product it is exact where x is nearly one."""
    product = ops.binary("MUL", ops.binary("SUB", 1.0, x), ops.binary("ADD", 1.0, x))
    return ops.unary("SQRT", product)


def _asin(ops: Basics, x: Value) -> Value:
    return ops.binary("ATAN2", x, _cofactor(ops, x))


def _acos(ops: Basics, x: Value) -> Value:
    return ops.binary("ATAN2", _cofactor(ops, x), x)


def _atan(ops: Basics, x: Value) -> Value:
    # ATAN2 repeats no entries.
    ones = ops.reshape(ops.value(1.0), (1,) * len(x.shape))
    return ops.binary("ATAN2", x, ops.expand(ones, x.shape))


def _both_exponentials(named: str) -> Callable[[Basics, Value], Value]:
    """Half of exp(x) plus or minus exp(-x)."""

    def write(ops: Basics, x: Value) -> Value:
        falling = ops.unary("EXP", ops.unary("NEG", x))
        return ops.binary("MUL", ops.binary(named, ops.unary("EXP", x), falling), 0.5)

    return write


def _asinh(ops: Basics, x: Value) -> Value:
    """sign(x) · log1p(a + a² / (1 + sqrt(1 + a²))) with a the size of x."""
    size = ops.unary("ABS", x)
    square = ops.binary("MUL", size, size)
    root = ops.unary("SQRT", ops.binary("ADD", square, 1.0))
    more = ops.binary("DIV", square, ops.binary("ADD", root, 1.0))
    return ops.binary("MUL", ops.unary("SIGN", x), log1p(ops, ops.binary("ADD", size, more)))


def _acosh(ops: Basics, x: Value) -> Value:
    product = ops.binary("MUL", ops.binary("SUB", x, 1.0), ops.binary("ADD", x, 1.0))
    return ops.unary("LOG", ops.binary("ADD", x, ops.unary("SQRT", product)))


def _atanh(ops: Basics, x: Value) -> Value:
    """Half of log1p(2x / (1 - x))."""
    share = ops.binary("DIV", ops.binary("MUL", x, 2.0), ops.binary("SUB", 1.0, x))
    return ops.binary("MUL", log1p(ops, share), 0.5)


def log1p(ops: Basics, x: Value) -> Value:
    """log(1 + x), as exact for small ``x``: log(u) · x / (u - 1) with the rounded u = 1 + x.

    Source: Higham, Accuracy and Stability of Numerical Algorithms, 1.14.1.
    """
    u = ops.binary("ADD", x, 1.0)
    rounded = ops.binary("SUB", u, 1.0)
    # Of an infinite x the quotient is none, and of a tiny one too.
    exact = ops.compare("EQUAL", rounded, x)
    quotient = ops.binary("DIV", x, ops.select(exact, 1.0, rounded))
    share = ops.select(exact, 1.0, quotient)
    result = ops.binary("MUL", ops.unary("LOG", u), share)
    return ops.select(ops.compare("EQUAL", rounded, 0.0), x, result)


def _trunc(ops: Basics, x: Value) -> Value:
    return ops.select(ops.compare("LESS", x, 0.0), ops.unary("CEIL", x), ops.unary("FLOOR", x))


def _times(factor: float, named: str) -> Callable[[Basics, Value], Value]:
    """A logarithm to another base."""
    return lambda ops, x: ops.binary("MUL", ops.unary(named, x), factor)


def _isnan(ops: Basics, x: Value) -> Value:
    return ops.compare("NOT_EQUAL", x, x)


def _isinf(ops: Basics, x: Value) -> Value:
    return ops.compare("EQUAL", ops.unary("ABS", x), math.inf)


_FUNCTIONS: dict[Any, Callable[[Basics, Value], Value]] = {
    _aten.acos.default: _acos,
    _aten.acosh.default: _acosh,
    _aten.asin.default: _asin,
    _aten.asinh.default: _asinh,
    _aten.atan.default: _atan,
    _aten.atanh.default: _atanh,
    _aten.cosh.default: _both_exponentials("ADD"),
    _aten.exp2.default: lambda ops, x: ops.unary("EXP", ops.binary("MUL", x, math.log(2))),
    _aten.isinf.default: _isinf,
    _aten.isnan.default: _isnan,
    _aten.log10.default: _times(1 / math.log(10), "LOG"),
    _aten.log1p.default: log1p,
    _aten.log2.default: _times(1 / math.log(2), "LOG"),
    _aten.sinh.default: _both_exponentials("SUB"),
    _aten.tan.default: _tan,
    _aten.trunc.default: _trunc,
}


@rule(*_FUNCTIONS)
def _function(low: Lowering, node: fx.Node) -> Result:
    return _FUNCTIONS[node.target](low.basics, low.small(args_of(node)[0]))


@rule(_aten.atan2.default)
def _atan2(low: Lowering, node: fx.Node) -> Result:
    shape = low.shape(node)
    y, x = (low.basics.expand(low.small(a), shape) for a in args_of(node))
    return low.basics.binary("ATAN2", y, x)


@rule(_aten.pow.Scalar)
def _power_of_number(low: Lowering, node: fx.Node) -> Result:
    base, value = args_of(node)[0], low.small(args_of(node)[1])
    if base <= 0:
        return low.basics.binary("POW", float(base), value)
    return low.basics.unary("EXP", low.basics.binary("MUL", value, math.log(base)))


@rule(_aten.remainder.Scalar, _aten.remainder.Tensor, _aten.remainder.Scalar_Tensor)
def _remainder(low: Lowering, node: fx.Node) -> Result:
    """With the divisor's sign."""
    return low.basics.binary("FLOOR_MOD", *_pair(low, node))


@rule(_aten.fmod.Scalar, _aten.fmod.Tensor)
def _fmod(low: Lowering, node: fx.Node) -> Result:
    """With the dividend's sign."""
    x, y = _pair(low, node)
    ops = low.basics
    size = ops.unary("ABS", y) if isinstance(y, Value) else abs(y)
    x = ops.value(x)
    left = ops.binary("FLOOR_MOD", ops.unary("ABS", x), size)
    return ops.select(ops.compare("LESS", x, 0.0), ops.unary("NEG", left), left)


@rule(_aten.div.Tensor_mode, _aten.div.Scalar_mode)
def _rounded_quotient(low: Lowering, node: fx.Node) -> Result:
    x, y = _pair(low, node)
    mode = node.kwargs["rounding_mode"]
    if mode == "floor":
        return low.basics.binary("FLOOR_DIV", x, y)
    return _trunc(low.basics, low.basics.binary("DIV", x, y))


def _pair(low: Lowering, node: fx.Node) -> tuple[Operand, Operand]:
    """Both arguments in the result's dtype: operators of TFLite do not mix dtypes."""
    dtype = low.dtype(node)
    x, y = (low.operand(a) for a in args_of(node)[:2])
    return (
        low.basics.cast(x, dtype) if isinstance(x, Value) else x,
        low.basics.cast(y, dtype) if isinstance(y, Value) else y,
    )
