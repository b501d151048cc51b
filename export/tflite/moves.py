"""Operators that move entries: shapes, slices, lookups."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import fx

from protofleet.errors import ExportError
from protofleet.export.tflite.graph import I32, Value, elements
from protofleet.export.tflite.lower import Lowering, Result, args_of, axes_of, rule

_aten = torch.ops.aten


@rule(_aten.view.default, _aten.reshape.default, _aten._unsafe_view.default)  # noqa: SLF001 - its name
def _view(low: Lowering, node: fx.Node) -> Result:
    return low.basics.reshape(low.full(_node(node)), low.shape(node))


def _node(node: fx.Node, index: int = 0) -> fx.Node:
    argument: fx.Node = args_of(node)[index]
    return argument


@rule(_aten.as_strided.default)
def _as_strided(low: Lowering, node: fx.Node) -> Result:
    """Another shape of the same memory, as some decompositions put it."""
    source, shape = _node(node), low.shape(node)
    rows = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    same = elements(shape) == elements(low.shape(source)) and source.meta["val"].is_contiguous()
    if not same or list(args_of(node)[2]) != rows or len(args_of(node)) > 3:
        raise ExportError("expected all entries in their order")
    return low.basics.reshape(low.full(source), shape)


@rule(_aten.expand.default)
def _expand(low: Lowering, node: fx.Node) -> Result:
    """Left to the operators that read it; only the number of axes is made right."""
    x = low.small(args_of(node)[0])
    return low.basics.reshape(x, (1,) * (len(low.shape(node)) - len(x.shape)) + x.shape)


@rule(_aten.permute.default)
def _permute(low: Lowering, node: fx.Node) -> Result:
    return low.basics.transpose(low.small(args_of(node)[0]), args_of(node)[1])


@rule(_aten.unsqueeze.default)
def _unsqueeze(low: Lowering, node: fx.Node) -> Result:
    x = low.small(args_of(node)[0])
    axis = args_of(node)[1] % (len(x.shape) + 1)
    return low.basics.reshape(x, (*x.shape[:axis], 1, *x.shape[axis:]))


@rule(_aten.squeeze.dim)
def _squeeze(low: Lowering, node: fx.Node) -> Result:
    x = low.small(args_of(node)[0])
    axis = args_of(node)[1] % max(len(x.shape), 1)
    if low.shape(_node(node))[axis] != 1:
        return x
    return low.basics.reshape(x, (*x.shape[:axis], *x.shape[axis + 1 :]))


@rule(_aten.cat.default)
def _cat(low: Lowering, node: fx.Node) -> Result:
    # A cache begins as a tensor (0,), which joins parts of any shape and adds nothing.
    given = [part for part in args_of(node)[0] if 0 not in low.shape(part)] or args_of(node)[0]
    parts = [low.full(part) for part in given]
    axis = args_of(node)[1] if len(args_of(node)) > 1 else 0
    return low.basics.concat(parts, axis % len(parts[0].shape)) if len(parts) > 1 else parts[0]


@rule(_aten.slice.Tensor)
def _slice(low: Lowering, node: fx.Node) -> Result:
    x = low.full(_node(node))
    axis, start, stop, step = _range(node, x)
    if x.shape[axis] < 0:
        if (start, stop, step) == (0, sys.maxsize, 1):
            return x
        raise ExportError("a part of the batch is not a program")
    return low.basics.slice(x, axis, start, stop, step)


def _range(node: fx.Node, x: Value, first: int = 1) -> tuple[int, int, int, int]:
    """Axis, start, stop and step of ``slice`` and ``slice_scatter``."""
    given = args_of(node)[first:]
    defaults: tuple[Any, ...] = (0, None, None, 1)
    axis, start, stop, step = (*given, *defaults[len(given) :])
    axis = int(axis) % len(x.shape)
    size = x.shape[axis]
    whole = sys.maxsize if size < 0 else size
    low, high = (_clip(bound, default, whole) for bound, default in ((start, 0), (stop, whole)))
    return axis, low, max(low, high), int(step)


def _clip(bound: Any, default: int, size: int) -> int:
    if bound is None:
        return default
    if not isinstance(bound, int):
        raise ExportError(f"expected fixed bounds, got {bound}")
    return min(size, bound if bound >= 0 else max(0, bound + size))


@rule(_aten.select.int)
def _select(low: Lowering, node: fx.Node) -> Result:
    x = low.full(_node(node))
    axis, index = (int(a) for a in args_of(node)[1:])
    axis %= len(x.shape)
    if x.shape[axis] < 0:
        raise ExportError("a part of the batch is not a program")
    index %= x.shape[axis]
    part = low.basics.slice(x, axis, index, index + 1)
    return low.basics.reshape(part, (*x.shape[:axis], *x.shape[axis + 1 :]))


@rule(_aten.split_with_sizes.default)
def _split(low: Lowering, node: fx.Node) -> Result:
    x = low.full(_node(node))
    axis = (args_of(node)[2] if len(args_of(node)) > 2 else 0) % len(x.shape)
    ends = np.cumsum([0, *args_of(node)[1]])
    return tuple(low.basics.slice(x, axis, int(a), int(b)) for a, b in pairwise(ends))


@rule(_aten.slice_scatter.default)
def _slice_scatter(low: Lowering, node: fx.Node) -> Result:
    """``node``'s first argument with a part replaced by the second."""
    x = low.full(_node(node))
    axis, start, stop, step = _range(node, x, first=2)
    part = low.full(_node(node, 1))
    if part.shape == x.shape:
        return part
    if step != 1:
        part, filled = _spread(low, part, axis, step, stop - start)
        kept = low.basics.slice(x, axis, start, stop)
        part = low.basics.select(filled, part, kept)
    size = x.shape[axis]
    pieces = [part]
    if start > 0:
        pieces.insert(0, low.basics.slice(x, axis, 0, start))
    if stop < size:
        pieces.append(low.basics.slice(x, axis, stop, size))
    return low.basics.concat(pieces, axis) if len(pieces) > 1 else part


def _spread(low: Lowering, part: Value, axis: int, step: int, size: int) -> tuple[Value, Value]:
    """Entries ``step`` places apart on an axis of ``size``, and which places they fill."""
    wide = spread(low, part, axis, step)
    filled = np.zeros([size if i == axis else 1 for i in range(len(part.shape))], np.bool_)
    np.moveaxis(filled, axis, 0)[::step] = True
    if wide.shape[axis] < size:
        missing = [(0, size - wide.shape[axis] if i == axis else 0) for i in range(filled.ndim)]
        wide = low.basics.pad(wide, missing)
    return low.basics.slice(wide, axis, 0, size), low.graph.constant(filled, np.dtype(np.bool_))


def spread(low: Lowering, x: Value, axis: int, step: int) -> Value:
    """``step - 1`` zeros between neighbours of an axis of fixed size (and none behind the last)."""
    if step == 1:
        return x
    before, size, behind = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    outer = elements(before)
    inner = int(np.prod(behind)) if behind else 1
    rows = low.basics.reshape(x, (outer * size, 1, inner))
    padded = low.basics.pad(rows, [(0, 0), (0, step - 1), (0, 0)])
    wide = low.basics.reshape(padded, (*before, size * step, *behind))
    return low.basics.slice(wide, axis, 0, (size - 1) * step + 1)


@rule(_aten.constant_pad_nd.default)
def _pad(low: Lowering, node: fx.Node) -> Result:
    x = low.full(_node(node))
    amounts = list(args_of(node)[1])
    fill = float(args_of(node)[2]) if len(args_of(node)) > 2 else 0.0
    pairs = list(zip(amounts[::2], amounts[1::2], strict=True))[::-1]
    widths = [(0, 0)] * (len(x.shape) - len(pairs)) + pairs
    for axis, (before, after) in enumerate(widths):
        if before < 0 or after < 0:
            end = x.shape[axis] + min(after, 0)
            x = low.basics.slice(x, axis, max(0, -before), end)
    return low.basics.pad(x, [(max(a, 0), max(b, 0)) for a, b in widths], fill)


@rule(_aten.flip.default)
def _flip(low: Lowering, node: fx.Node) -> Result:
    x = low.full(_node(node))
    for axis in axes_of(args_of(node)[1], len(x.shape)):
        x = low.graph.add(
            "REVERSE_V2", [x, low.graph.constant(np.array([axis], np.int32), I32)], x.shape
        )
    return x


@rule(torch.ops.prims.broadcast_in_dim.default)
def _broadcast_in_dim(low: Lowering, node: fx.Node) -> Result:
    """Axes of 1 between the given ones; repeated by whoever reads it."""
    source, shape, places = args_of(node)
    x = low.small(source)
    sizes = [1] * len(shape)
    for place, size in zip(places, x.shape, strict=True):
        sizes[place] = size
    return low.basics.reshape(x, tuple(sizes))
