"""Matrix products, pooling, normalisation and softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from ai_edge_litert import schema_py_generated as schema
from torch import fx

from protofleet.errors import ExportError
from protofleet.export.tflite.graph import Value
from protofleet.export.tflite.lower import Lowering, Result, args_of, rule

_aten = torch.ops.aten
_VALID = schema.Padding.VALID
_LOWEST = float(np.finfo(np.float32).min)


@rule(_aten.mm.default)
def _mm(low: Lowering, node: fx.Node) -> Result:
    return _product(low, *args_of(node))


@rule(_aten.bmm.default)
def _bmm(low: Lowering, node: fx.Node) -> Result:
    return _product(low, *args_of(node))


@rule(_aten.addmm.default)
def _addmm(low: Lowering, node: fx.Node) -> Result:
    bias, a, b = args_of(node)
    if node.kwargs:
        raise ExportError("expected no scaling factors")
    return low.basics.binary("ADD", _product(low, a, b), low.small(bias))


def _product(low: Lowering, a: Any, b: Any) -> Value:
    """The second factor's transposition is taken into the operator."""
    straight = _untransposed(b)
    if straight is not None:
        return low.basics.matmul(low.full(a), low.full(straight), b_transposed=True)
    return low.basics.matmul(low.full(a), low.full(b))


def _untransposed(node: fx.Node) -> fx.Node | None:
    """What ``node`` swaps the last two axes of, if that is all it does."""
    while node.target in (_aten.alias.default, _aten.clone.default):
        (node,) = node.all_input_nodes
    if node.target is not _aten.permute.default:
        return None
    rank = len(args_of(node)[1])
    swapped = [*range(rank - 2), rank - 1, rank - 2]
    order = [axis % rank for axis in args_of(node)[1]]
    return args_of(node)[0] if order == swapped else None


@rule(_aten.max_pool2d_with_indices.default)
def _max_pool(low: Lowering, node: fx.Node) -> Result:
    """The largest entries; their places have no form here, and nothing may ask for them."""
    x, kernel, stride, padding, dilation, ceil = _pooling(node)
    if dilation != [1, 1] or ceil:
        raise ExportError("expected pooling without dilation and ceil_mode")
    widths = [(0, 0), (0, 0), *((p, p) for p in padding)]
    padded = low.basics.pad(low.full(x), widths, _LOWEST)
    return _pool(low, "MAX_POOL_2D", padded, kernel, stride), None


@rule(_aten.avg_pool2d.default)
def _avg_pool(low: Lowering, node: fx.Node) -> Result:
    x, kernel, *rest = args_of(node)
    defaults: tuple[Any, ...] = ([], [0, 0], False, True, None)
    stride, padding, ceil, include, divisor = (*rest, *defaults[len(rest) :])
    if any(padding) or ceil or not include or divisor:
        raise ExportError("expected average pooling without padding, ceil_mode and divisor")
    return _pool(low, "AVERAGE_POOL_2D", low.full(x), kernel, stride or kernel)


def _pooling(node: fx.Node) -> tuple[Any, ...]:
    x, kernel, *rest = args_of(node)
    defaults: tuple[Any, ...] = (list(kernel), [0, 0], [1, 1], False)
    stride, padding, dilation, ceil = (*rest, *defaults[len(rest) :])
    return x, list(kernel), list(stride or kernel), list(padding), list(dilation), ceil


def _pool(low: Lowering, named: str, x: Value, kernel: Sequence[int], stride: Any) -> Value:
    moved = low.basics.transpose(x, (0, 2, 3, 1))
    sizes = [
        (size - width) // step + 1
        for size, width, step in zip(moved.shape[1:3], kernel, stride, strict=True)
    ]
    pooled = low.graph.add(
        named,
        [moved],
        (moved.shape[0], *sizes, moved.shape[3]),
        padding=_VALID,
        strideH=stride[0],
        strideW=stride[1],
        filterHeight=kernel[0],
        filterWidth=kernel[1],
    )
    return low.basics.transpose(pooled, (0, 3, 1, 2))


@rule(_aten.native_layer_norm.default)
def _layer_norm(low: Lowering, node: fx.Node) -> Result:
    """The normalised values, the means, and the reciprocals of the deviations."""
    x, normalised, weight, bias, epsilon = args_of(node)
    value = low.full(x)
    rank = len(value.shape)
    axes = list(range(rank - len(normalised), rank))
    basics = low.basics
    mean = basics.reduce("MEAN", value, axes, keep=True)
    centred = basics.binary("SUB", value, mean)
    squares = basics.binary("MUL", centred, centred)
    variance = basics.reduce("MEAN", squares, axes, keep=True)
    inverse = basics.unary("RSQRT", basics.binary("ADD", variance, float(epsilon)))
    result = basics.binary("MUL", centred, inverse)
    if weight is not None:
        result = basics.binary("MUL", result, low.small(weight))
    if bias is not None:
        result = basics.binary("ADD", result, low.small(bias))
    return result, mean, inverse


@rule(_aten._softmax.default)  # noqa: SLF001 - its name
def _softmax(low: Lowering, node: fx.Node) -> Result:
    return _over_last(low, node, "SOFTMAX", beta=1.0)


@rule(_aten._log_softmax.default)  # noqa: SLF001 - its name
def _log_softmax(low: Lowering, node: fx.Node) -> Result:
    return _over_last(low, node, "LOG_SOFTMAX")


def _over_last(low: Lowering, node: fx.Node, named: str, **options: Any) -> Value:
    """TFLite computes both over the last axis."""
    x = low.full(args_of(node)[0])
    rank = len(x.shape)
    axis = args_of(node)[1] % rank
    order = [*(i for i in range(rank) if i != axis), axis]
    moved = low.basics.transpose(x, order)
    result = low.graph.add(named, [moved], moved.shape, **options)
    return low.basics.transpose(result, [order.index(i) for i in range(rank)])
