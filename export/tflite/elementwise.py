"""Operators on single entries, and reductions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from protofleet.errors import ExportError
from protofleet.export.tflite.basics import Operand
from protofleet.export.tflite.graph import BOOL, F32, Value
from protofleet.export.tflite.lower import Lowering, Result, args_of, axes_of, dtype_of, rule

_aten = torch.ops.aten
_prims = torch.ops.prims

_BINARY: dict[Any, str] = {
    _aten.mul.Tensor: "MUL",
    _aten.mul.Scalar: "MUL",
    _aten.div.Tensor: "DIV",
    _aten.div.Scalar: "DIV",
    _prims.div.default: "DIV",
    _aten.maximum.default: "MAXIMUM",
    _aten.minimum.default: "MINIMUM",
    _aten.pow.Tensor_Tensor: "POW",
}
_OF_BOOLS = {"MUL": "LOGICAL_AND", "MAXIMUM": "LOGICAL_OR", "MINIMUM": "LOGICAL_AND"}
_COMPARISONS: dict[Any, str] = {
    getattr(getattr(_aten, name), kind): named
    for name, named in {
        "eq": "EQUAL",
        "ne": "NOT_EQUAL",
        "lt": "LESS",
        "le": "LESS_EQUAL",
        "gt": "GREATER",
        "ge": "GREATER_EQUAL",
    }.items()
    for kind in ("Scalar", "Tensor")
}
_UNARY: dict[Any, str] = {
    _aten.abs.default: "ABS",
    _aten.ceil.default: "CEIL",
    _aten.cos.default: "COS",
    _aten.exp.default: "EXP",
    _aten.floor.default: "FLOOR",
    _aten.log.default: "LOG",
    _aten.neg.default: "NEG",
    _aten.relu.default: "RELU",
    _aten.round.default: "ROUND",
    _aten.rsqrt.default: "RSQRT",
    _aten.sigmoid.default: "LOGISTIC",
    _aten.sign.default: "SIGN",
    _aten.sin.default: "SIN",
    _aten.sqrt.default: "SQRT",
    _aten.tanh.default: "TANH",
}
_SAME = (
    _aten.alias.default,
    _aten.clone.default,
    _aten.detach.default,
    _aten.lift_fresh_copy.default,
)


@rule(*_BINARY)
def _binary(low: Lowering, node: fx.Node) -> Result:
    left, right = (_as(low, low.operand(a), node) for a in args_of(node)[:2])
    named = _BINARY[node.target]
    return low.basics.binary(_OF_BOOLS[named] if low.dtype(node) == BOOL else named, left, right)


def _as(low: Lowering, operand: Operand, node: fx.Node) -> Operand:
    """A tensor in the dtype of the result: operators of TFLite do not mix dtypes."""
    if isinstance(operand, Value):
        return low.basics.cast(operand, low.dtype(node))
    return operand


@rule(_aten.add.Tensor, _aten.sub.Tensor, _aten.add.Scalar, _aten.sub.Scalar)
def _sum_of_two(low: Lowering, node: fx.Node) -> Result:
    left, right = (_as(low, low.operand(a), node) for a in args_of(node)[:2])
    alpha = node.kwargs.get("alpha", 1)
    if alpha != 1:
        right = low.basics.binary("MUL", right, low.operand(alpha))
    named = "ADD" if node.target in (_aten.add.Tensor, _aten.add.Scalar) else "SUB"
    return low.basics.binary(named, left, right)


@rule(*_COMPARISONS)
def _compare(low: Lowering, node: fx.Node) -> Result:
    named = _COMPARISONS[node.target]
    left, right = (low.operand(a) for a in args_of(node)[:2])
    if isinstance(left, Value) and isinstance(right, Value) and left.dtype != right.dtype:
        left, right = (low.basics.cast(v, F32) for v in (left, right))
    return low.basics.compare(named, left, right)


@rule(_aten.logical_and.default, _aten.bitwise_and.Tensor)
def _both(low: Lowering, node: fx.Node) -> Result:
    return low.basics.binary("LOGICAL_AND", *(low.small(a) for a in args_of(node)))


@rule(_aten.logical_or.default, _aten.bitwise_or.Tensor)
def _either(low: Lowering, node: fx.Node) -> Result:
    return low.basics.binary("LOGICAL_OR", *(low.small(a) for a in args_of(node)))


@rule(_aten.logical_xor.default, _aten.bitwise_xor.Tensor)
def _one_of_both(low: Lowering, node: fx.Node) -> Result:
    return low.basics.compare("NOT_EQUAL", *(low.small(a) for a in args_of(node)))


@rule(_aten.logical_not.default, _aten.bitwise_not.default)
def _negation(low: Lowering, node: fx.Node) -> Result:
    return low.basics.unary("LOGICAL_NOT", low.small(args_of(node)[0]))


@rule(*_UNARY)
def _unary(low: Lowering, node: fx.Node) -> Result:
    x = low.small(args_of(node)[0])
    if node.target is _aten.abs.default and low.dtype(node) != F32:
        return low.basics.binary("MAXIMUM", x, low.basics.unary("NEG", x))
    return low.basics.unary(_UNARY[node.target], x)


@rule(*_SAME)
def _same(low: Lowering, node: fx.Node) -> Result:
    return low.get(args_of(node)[0])


@rule(_aten._to_copy.default, _prims.convert_element_type.default)  # noqa: SLF001 - its name
def _cast(low: Lowering, node: fx.Node) -> Result:
    return low.basics.cast(low.small(args_of(node)[0]), low.dtype(node))


@rule(_aten.reciprocal.default)
def _reciprocal(low: Lowering, node: fx.Node) -> Result:
    return low.basics.binary("DIV", 1.0, low.small(args_of(node)[0]))


@rule(_aten.pow.Tensor_Scalar)
def _power(low: Lowering, node: fx.Node) -> Result:
    x, exponent = low.small(args_of(node)[0]), args_of(node)[1]
    if exponent == 2:
        return low.basics.binary("MUL", x, x)
    return low.basics.binary("POW", x, float(exponent))


@rule(_aten.clamp.default, _aten.clamp_min.default)
def _clamp(low: Lowering, node: fx.Node) -> Result:
    x, *bounds = args_of(node)
    result: Operand = low.small(x)
    names = ("MAXIMUM", "MINIMUM")
    given = [*bounds, *(node.kwargs.get(k) for k in ("min", "max")[len(bounds) :])]
    for named, bound in zip(names, given, strict=False):
        if bound is not None:
            result = low.basics.binary(named, result, low.operand(bound))
    return result


@rule(_aten.where.self)
def _where(low: Lowering, node: fx.Node) -> Result:
    condition, yes, no = args_of(node)
    dtype = low.dtype(node)
    picked = [low.basics.cast(low.small(v), dtype) for v in (yes, no)]
    return low.basics.select(low.small(condition), *picked)


@rule(_aten.scalar_tensor.default)
def _scalar(low: Lowering, node: fx.Node) -> Result:
    number = low.get(args_of(node)[0])
    if isinstance(number, Value):
        return low.basics.cast(number, low.dtype(node))
    return low.graph.constant(number, low.dtype(node))


@rule(_aten.full.default, _aten.full_like.default)
def _full(low: Lowering, node: fx.Node) -> Result:
    return (
        low.graph.constant(low.get(args_of(node)[1]), low.dtype(node))
        if not low.shape(node)
        else low.basics.reshape(
            low.graph.constant(low.get(args_of(node)[1]), low.dtype(node)),
            (1,) * len(low.shape(node)),
        )
    )


@rule(_aten.arange.start_step)
def _arange(low: Lowering, node: fx.Node) -> Result:
    numbers, kwargs = args_of(node), {k: v for k, v in node.kwargs.items() if k == "dtype"}
    if any(isinstance(low.get(number), Value) for number in numbers):
        raise ExportError(
            "a range as long as the batch is no constant: pick from each example by gather or "
            "torch.take_along_dim, in place of x[torch.arange(len(x)), places]"
        )
    made = _aten.arange.start_step(*numbers, **kwargs)
    return low.graph.constant(made.numpy(), dtype_of(made.dtype))


@rule(_aten.sym_size.int)
def _size(low: Lowering, node: fx.Node) -> Result:  # noqa: ARG001 - a rule's arguments
    return low.basics.count()


_NUMBERS: dict[Any, tuple[str, Callable[[Any, Any], Any]]] = {
    operator.mul: ("MUL", operator.mul),
    operator.add: ("ADD", operator.add),
    operator.sub: ("SUB", operator.sub),
    operator.truediv: ("DIV", operator.truediv),
}


@rule(*_NUMBERS)
def _number(low: Lowering, node: fx.Node) -> Result:
    """Arithmetic on the batch size, which is a float32 here."""
    named, compute = _NUMBERS[node.target]
    left, right = (low.operand(a) for a in args_of(node))
    if not isinstance(left, Value) and not isinstance(right, Value):
        return compute(left, right)
    return low.basics.binary(named, left, right)


@rule(torch.sym_float)
def _number_as_it_is(low: Lowering, node: fx.Node) -> Result:
    return low.get(args_of(node)[0])


@rule(operator.getitem)
def _item(low: Lowering, node: fx.Node) -> Result:
    return low.get(args_of(node)[0])[args_of(node)[1]]


@rule(_aten.sum.dim_IntList, _prims.sum.default, _aten.sum.default)
def _sum(low: Lowering, node: fx.Node) -> Result:
    return _reduced(low, node, "SUM")


@rule(_aten.mean.dim, _aten.mean.default)
def _mean(low: Lowering, node: fx.Node) -> Result:
    return _reduced(low, node, "MEAN")


@rule(_aten.any.dim, _aten.any.dims)
def _any(low: Lowering, node: fx.Node) -> Result:
    return _reduced(low, node, "REDUCE_ANY")


@rule(_aten.all.dim, _aten.all.dims)
def _all(low: Lowering, node: fx.Node) -> Result:
    return _reduced(low, node, "REDUCE_ALL")


@rule(_aten.amax.default)
def _amax(low: Lowering, node: fx.Node) -> Result:
    return _reduced(low, node, "REDUCE_MAX")


@rule(_aten.amin.default)
def _amin(low: Lowering, node: fx.Node) -> Result:
    return _reduced(low, node, "REDUCE_MIN")


def _reduced(low: Lowering, node: fx.Node, named: str) -> Value:
    source, *rest = args_of(node)
    x = low.full(source)
    if x.dtype == BOOL and named not in ("REDUCE_ANY", "REDUCE_ALL"):
        x = low.basics.cast(x, dtype_of(node.meta["val"].dtype))
    axes = axes_of(rest[0] if rest else None, len(x.shape))
    keep = bool(rest[1]) if len(rest) > 1 else bool(node.kwargs.get("keepdim", False))
    return low.basics.reduce(named, x, axes, keep=keep)


@rule(_prims.var.default)
def _variance(low: Lowering, node: fx.Node) -> Result:
    """Mean square of the differences to the mean, times n / (n - correction)."""
    source, axes, *rest = args_of(node)
    correction: Any = rest[0] if rest else node.kwargs.get("correction", 1)
    x = low.full(source)
    listed = axes_of(axes, len(x.shape))
    centred = low.basics.binary("SUB", x, low.basics.reduce("MEAN", x, listed, keep=True))
    squares = low.basics.binary("MUL", centred, centred)
    mean = low.basics.reduce("MEAN", squares, listed)
    if correction == 0:
        return mean
    count: Operand = 1.0
    for axis in listed:
        size = x.shape[axis]
        factor: Operand = float(abs(size))
        count = low.basics.binary("MUL", count, factor)
        if size < 0:
            count = low.basics.binary("MUL", count, low.basics.count())
    fewer = low.basics.binary("SUB", count, float(correction))
    return low.basics.binary("MUL", mean, low.basics.binary("DIV", count, fewer))
