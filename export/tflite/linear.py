"""Matrix products, convolutions, pooling, normalisation and softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from ai_edge_litert import schema_py_generated as schema
from torch import fx

from protofleet.errors import ExportError
from protofleet.export.tflite.graph import Shape, Value
from protofleet.export.tflite.lower import Lowering, Result, args_of, rule
from protofleet.export.tflite.moves import spread

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


@rule(_aten.convolution.default)
def _convolution(low: Lowering, node: fx.Node) -> Result:
    """Channels move to the end for it, and back."""
    x, weight, bias, stride, padding, dilation, transposed, extra, groups = args_of(node)
    spatial = len(stride)
    image, kernel = low.full(x), low.full(weight)
    if spatial == 3 and not transposed:  # noqa: PLR2004 - axes
        return _along(low, image, kernel, (stride, padding, dilation), bias)
    if spatial > 2:  # noqa: PLR2004 - axes
        raise ExportError("expected one or two spatial axes")
    if transposed:
        kernel = _turned(low, kernel, int(groups))
        image = _opened(low, image, kernel.shape, stride, padding, dilation, extra)
        stride = [1] * spatial
    else:
        widths = [(0, 0), (0, 0), *((p, p) for p in padding)]
        image = low.basics.pad(image, widths)
    result = _plain(low, image, kernel, stride, dilation)
    if bias is None:
        return result
    column = low.basics.reshape(low.small(bias), (1, result.shape[1], *[1] * spatial))
    return low.basics.binary("ADD", result, column)


def _along(low: Lowering, image: Value, kernel: Value, sizes: Any, bias: Any) -> Value:
    """Three axes, the kernel one entry long on the first: that axis takes the batch's place."""
    (one, *stride), (none, *padding), (_, *dilation) = sizes
    if image.shape[0] != 1 or kernel.shape[2] != 1 or one != 1 or none or bias is not None:
        raise ExportError("expected one or two spatial axes")
    folded = low.basics.reshape(kernel, (*kernel.shape[:2], *kernel.shape[3:]))
    moved = low.basics.transpose(image, (0, 2, 1, 3, 4))
    images = low.basics.reshape(moved, moved.shape[1:])
    widths = [(0, 0), (0, 0), *((p, p) for p in padding)]
    result = _plain(low, low.basics.pad(images, widths), folded, stride, dilation)
    swapped = low.basics.transpose(result, (1, 0, 2, 3))
    return low.basics.reshape(swapped, (1, *swapped.shape))


def _plain(low: Lowering, image: Value, kernel: Value, stride: Any, dilation: Any) -> Value:
    """(B, C, …) and (O, C/groups, …), without padding."""
    flat = len(stride) == 1
    if flat:
        image, kernel = (low.basics.reshape(v, (*v.shape, 1)) for v in (image, kernel))
        stride, dilation = ([*sizes, 1] for sizes in (stride, dilation))
    sizes = [
        (size - gap * (width - 1) - 1) // step + 1
        for size, width, step, gap in zip(
            image.shape[2:], kernel.shape[2:], stride, dilation, strict=True
        )
    ]
    shape: Shape = (image.shape[0], *sizes, kernel.shape[0])
    moved = low.graph.add(
        "CONV_2D",
        [low.basics.transpose(v, (0, 2, 3, 1)) for v in (image, kernel)]
        + [low.basics.expand(low.graph.constant([0.0]), (kernel.shape[0],))],
        shape,
        padding=_VALID,
        strideH=stride[0],
        strideW=stride[1],
        dilationHFactor=dilation[0],
        dilationWFactor=dilation[1],
    )
    result = low.basics.transpose(moved, (0, 3, 1, 2))
    return low.basics.reshape(result, result.shape[:3]) if flat else result


def _turned(low: Lowering, kernel: Value, groups: int) -> Value:
    """(I, O/groups, …) → (O, I/groups, …) with every spatial axis reversed."""
    inside, outside, *window = kernel.shape
    grouped = low.basics.reshape(kernel, (groups, inside // groups, outside, int(np.prod(window))))
    swapped = low.basics.transpose(grouped, (0, 2, 1, 3))
    axis = low.graph.constant(np.array([3], np.int32), np.dtype(np.int32))
    turned = low.graph.add("REVERSE_V2", [swapped, axis], swapped.shape)
    return low.basics.reshape(turned, (groups * outside, inside // groups, *window))


def _opened(  # noqa: PLR0913, PLR0917 - what a convolution is described by
    low: Lowering,
    image: Value,
    kernel: Shape,
    stride: Any,
    padding: Any,
    dilation: Any,
    extra: Any,
) -> Value:
    """The image with zeros between and around, so that a plain convolution transposes one."""
    widths = [(0, 0), (0, 0)]
    for axis, (step, pad, gap, more) in enumerate(
        zip(stride, padding, dilation, extra, strict=True), start=2
    ):
        image = spread(low, image, axis, step)
        around = gap * (kernel[axis] - 1) - pad
        widths.append((around, around + more))
    for axis, (before, after) in enumerate(widths):
        if before < 0 or after < 0:
            end = image.shape[axis] + min(after, 0)
            image = low.basics.slice(image, axis, max(0, -before), end)
    return low.basics.pad(image, [(max(a, 0), max(b, 0)) for a, b in widths])


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
