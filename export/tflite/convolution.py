"""Convolutions as matrix products of shifted images.

TFLite's own convolution packs its filter once, and is slow where the filter is an input. XNNPACK
multiplies two inputs at full speed. The forward pass and the gradient by the weights need the same
shifted images, which are then made once.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx

from protofleet.errors import ExportError
from protofleet.export.tflite.basics import Basics
from protofleet.export.tflite.graph import I32, Shape, Value
from protofleet.export.tflite.lower import Lowering, Result, args_of, rule
from protofleet.export.tflite.moves import spread

_aten = torch.ops.aten
_WIDE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sizes:
    """Of a convolution over two axes without padding."""

    stride: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def out(self, image: Shape, kernel: Shape) -> tuple[int, int]:
        """Rows and columns of the result."""
        high, wide = (
            (size - gap * (width - 1) - 1) // step + 1
            for size, width, step, gap in zip(
                image[2:], kernel[2:], self.stride, self.dilation, strict=True
            )
        )
        return high, wide


@rule(_aten.convolution.default)
def _convolution(low: Lowering, node: fx.Node) -> Result:
    x, weight, bias, stride, padding, dilation, transposed, extra, groups = args_of(node)
    image, kernel = low.full(x), low.full(weight)
    result = (
        _transposed(low, image, kernel, (stride, padding, dilation, extra), groups)
        if transposed
        else _straight(low.basics, image, kernel, (stride, padding, dilation), groups)
    )
    if bias is None:
        return result
    column = low.basics.reshape(low.small(bias), (1, result.shape[1], *[1] * len(stride)))
    return low.basics.binary("ADD", result, column)


def _straight(ops: Basics, image: Value, kernel: Value, sizes: Any, groups: int) -> Value:
    """Any convolution over one or two axes, or over three where the first is not one really."""
    stride, padding, dilation = sizes
    spatial = len(stride)
    image = ops.pad(image, [(0, 0), (0, 0), *((p, p) for p in padding)])
    if spatial == 1:
        image, kernel = (ops.reshape(v, (*v.shape, 1)) for v in (image, kernel))
        plane = _Sizes(stride=(stride[0], 1), dilation=(dilation[0], 1), groups=groups)
        flat = _plane(ops, image, kernel, plane)
        return ops.reshape(flat, flat.shape[:3])
    if spatial == 2:
        plane = _Sizes(stride=tuple(stride), dilation=tuple(dilation), groups=groups)
        return _plane(ops, image, kernel, plane)
    if spatial > 3 or image.shape[0] != 1 or kernel.shape[2] != 1 or stride[0] != 1:
        raise ExportError("expected one or two spatial axes")
    # The first axis takes the batch's place.
    images = ops.transpose(ops.reshape(image, image.shape[1:]), (1, 0, 2, 3))
    window = ops.reshape(kernel, (*kernel.shape[:2], *kernel.shape[3:]))
    plane = _Sizes(stride=tuple(stride[1:]), dilation=tuple(dilation[1:]), groups=groups)
    result = ops.transpose(_plane(ops, images, window, plane), (1, 0, 2, 3))
    return ops.reshape(result, (1, *result.shape))


def _plane(ops: Basics, image: Value, kernel: Value, sizes: _Sizes) -> Value:
    """(B, C, H, W) and (O, C/groups, h, w) → (B, O, H', W')."""
    if math.prod(sizes.out(image.shape, kernel.shape)) < math.prod(kernel.shape[2:]):
        return _by_position(ops, image, kernel, sizes)
    return _by_offset(ops, image, kernel, sizes)


def _by_offset(ops: Basics, image: Value, kernel: Value, sizes: _Sizes) -> Value:
    """A shifted image for each entry of the kernel's window, in columns side by side."""
    high, wide = sizes.out(image.shape, kernel.shape)
    groups, outputs, inputs = sizes.groups, kernel.shape[0], kernel.shape[1]
    last = ops.transpose(image, (0, 2, 3, 1))
    columns = _columns(ops, last, kernel.shape[2:], sizes.dilation, (high, wide), sizes.stride)
    window = math.prod(kernel.shape[2:])
    grouped = ops.reshape(kernel, (groups, outputs // groups, inputs, window))
    if groups == 1:
        rows = ops.reshape(columns, (columns.shape[0], window * inputs))
        weights = ops.reshape(ops.transpose(grouped, (0, 1, 3, 2)), (outputs, window * inputs))
        product = ops.matmul(rows, weights, b_transposed=True)
    else:
        split = ops.reshape(columns, (columns.shape[0], window, groups, inputs))
        rows = ops.reshape(
            ops.transpose(split, (2, 0, 1, 3)), (groups, columns.shape[0], window * inputs)
        )
        weights = ops.reshape(
            ops.transpose(grouped, (0, 1, 3, 2)), (groups, outputs // groups, window * inputs)
        )
        product = ops.transpose(ops.matmul(rows, weights, b_transposed=True), (1, 0, 2))
    return ops.transpose(ops.reshape(product, (image.shape[0], high, wide, outputs)), (0, 3, 1, 2))


def _by_position(ops: Basics, image: Value, kernel: Value, sizes: _Sizes) -> Value:
    """A window of the image for each entry of a result that is smaller than the kernel.

    The windows of a weights' gradient are the forward pass's shifted images: batch and channels
    have changed places.
    """
    high, wide = sizes.out(image.shape, kernel.shape)
    groups, outputs, images = sizes.groups, kernel.shape[0], image.shape[0]
    length = kernel.shape[1] * math.prod(kernel.shape[2:])
    last = ops.transpose(image, (1, 2, 3, 0))
    columns = _columns(ops, last, (high, wide), sizes.stride, kernel.shape[2:], sizes.dilation)
    rows = ops.reshape(columns, (groups, length, high * wide * images))
    weights = ops.reshape(kernel, (groups, outputs // groups, length))
    product = ops.reshape(ops.matmul(weights, rows), (outputs, high * wide, images))
    return ops.reshape(ops.transpose(product, (2, 0, 1)), (images, outputs, high, wide))


def _columns(  # noqa: PLR0913, PLR0917 - two nested ranges over two axes
    ops: Basics, x: Value, outer: Any, outer_step: Any, inner: Any, inner_step: Any
) -> Value:
    """(B, H, W, C) → (B·inner, outer, C): the image at every outer shift."""
    rows = x.shape[0] * math.prod(inner)
    shifted = []
    for places in itertools.product(*map(range, outer)):
        part = x
        for axis, place, far, count, step in zip(
            (1, 2), places, outer_step, inner, inner_step, strict=True
        ):
            start = place * far
            part = ops.slice(part, axis, start, start + (count - 1) * step + 1, step)
        shifted.append(ops.reshape(part, (1, rows, x.shape[3])))
    if len(shifted) == 1:
        return ops.reshape(shifted[0], (rows, 1, x.shape[3]))
    if x.shape[3] >= _WIDE:
        beside = [ops.reshape(part, (rows, 1, x.shape[3])) for part in shifted]
        return ops.concat(beside, 1)
    # Copying one or a few entries at a time is slower than copying images and transposing.
    return ops.transpose(ops.concat(shifted, 0), (1, 0, 2))


def _transposed(low: Lowering, image: Value, kernel: Value, sizes: Any, groups: int) -> Value:
    """A plain convolution of the image with zeros between and around its entries."""
    stride, padding, dilation, extra = sizes
    turned = _turned(low.basics, kernel, groups)
    widths = [(0, 0), (0, 0)]
    for axis, (step, pad, gap, more) in enumerate(
        zip(stride, padding, dilation, extra, strict=True), start=2
    ):
        image = spread(low, image, axis, step)
        around = gap * (turned.shape[axis] - 1) - pad
        widths.append((around, around + more))
    for axis, (before, after) in enumerate(widths):
        if before < 0 or after < 0:
            end = image.shape[axis] + min(after, 0)
            image = low.basics.slice(image, axis, max(0, -before), end)
    image = low.basics.pad(image, [(max(a, 0), max(b, 0)) for a, b in widths])
    plain = ([1] * len(stride), [0] * len(stride), dilation)
    return _straight(low.basics, image, turned, plain, groups)


def _turned(ops: Basics, kernel: Value, groups: int) -> Value:
    """(I, O/groups, …) → (O, I/groups, …) with every spatial axis reversed."""
    inside, outside, *window = kernel.shape
    grouped = ops.reshape(kernel, (groups, inside // groups, outside, math.prod(window)))
    swapped = ops.transpose(grouped, (0, 2, 1, 3))
    axis = ops.graph.constant(np.array([3], np.int32), I32)
    turned = ops.graph.add("REVERSE_V2", [swapped, axis], swapped.shape)
    return ops.reshape(turned, (groups * outside, inside // groups, *window))
