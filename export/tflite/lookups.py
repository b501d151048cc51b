"""Operators that look entries up, or add to them, by their places."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import fx

from protofleet.errors import ExportError
from protofleet.export.tflite.graph import F32, I32, I64, Value
from protofleet.export.tflite.lower import Lowering, Result, args_of, rule

_aten = torch.ops.aten


def _node(node: fx.Node, index: int = 0) -> fx.Node:
    argument: fx.Node = args_of(node)[index]
    return argument


@rule(_aten.index_select.default)
def _index_select(low: Lowering, node: fx.Node) -> Result:
    table = low.full(_node(node))
    axis = int(args_of(node)[1]) % len(table.shape)
    return low.basics.gather(table, low.full(_node(node, 2)), axis)


@rule(_aten.embedding.default)
def _embedding(low: Lowering, node: fx.Node) -> Result:
    return low.basics.gather(low.full(_node(node)), low.full(_node(node, 1)))


@rule(_aten.gather.default)
def _gather(low: Lowering, node: fx.Node) -> Result:
    """Of every row all entries become zero but the one that is looked up, and the row is summed."""
    table, axis, index = (low.full(_node(node)), int(args_of(node)[1]), low.small(_node(node, 2)))
    axis %= len(table.shape)
    for other, size in enumerate(low.shape(_node(node, 2))):
        if other != axis and size != table.shape[other]:
            table = low.basics.slice(table, other, 0, size)
    rows = _last(low, table, axis)
    hot = _hot(low, _last(low, index, axis), rows.shape[-1])
    wide = low.basics.reshape(rows, (*rows.shape[:-1], 1, rows.shape[-1]))
    picked = low.basics.select(hot, wide, _zero(rows))
    return _from_last(low, low.basics.reduce("SUM", picked, [len(picked.shape) - 1]), axis)


@rule(_aten.scatter.value, _aten.scatter.src)
def _scatter(low: Lowering, node: fx.Node) -> Result:
    """Entries replaced, no two in the same place."""
    x, axis, index, hot = _table(low, node)
    if any(size != x.shape[k] for k, size in enumerate(index.shape) if k != axis):
        raise ExportError(
            f"expected places for all of {x.shape} but along axis {axis}, got {index.shape}: "
            "narrow the tensor first"
        )
    source = low.operand(args_of(node)[3])
    rows = _last(low, x, axis)
    if index.shape[axis] == 1:
        chosen = low.basics.reshape(hot, (*hot.shape[:-2], hot.shape[-1]))
        value = _last(low, source, axis) if isinstance(source, Value) else source
        return _from_last(low, low.basics.select(chosen, value, rows), axis)
    if not isinstance(source, Value):
        source = low.basics.expand(
            low.basics.reshape(low.basics.value(source, x.dtype), (1,) * len(x.shape)), index.shape
        )
    filled = low.basics.reduce("REDUCE_ANY", hot, [len(hot.shape) - 2])
    added = _added(low, _last(low, source, axis), hot)
    return _from_last(low, low.basics.select(filled, added, rows), axis)


@rule(_aten.scatter_add.default)
def _scatter_add(low: Lowering, node: fx.Node) -> Result:
    """Rows added to rows of a table by number, or entries to entries."""
    found = low.small(_node(node, 2))
    if args_of(node)[1] == 0 and len(found.shape) == 2 and found.shape[-1] == 1:
        shape = low.shape(node)
        where = low.basics.cast(found, I32)
        sizes = low.graph.constant(np.array(shape, np.int32), I32)
        rows = low.full(_node(node, 3))
        added = low.graph.add("SCATTER_ND", [where, rows, sizes], shape, F32)
        return low.basics.binary("ADD", low.small(_node(node)), added)
    x, axis, index, hot = _table(low, node)
    source = low.full(_node(node, 3))
    for other, size in enumerate(index.shape):
        if other != axis and size != source.shape[other]:
            source = low.basics.slice(source, other, 0, size)
    added = _from_last(low, _added(low, _last(low, source, axis), hot), axis)
    widths = [
        (0, size - part if part > 0 else 0) for size, part in zip(x.shape, added.shape, strict=True)
    ]
    return low.basics.binary("ADD", x, low.basics.pad(added, widths))


def _table(low: Lowering, node: fx.Node) -> tuple[Value, int, Value, Value]:
    """What is written to, the axis, the places, and where they point."""
    x, index = low.full(_node(node)), low.full(_node(node, 2))
    axis = int(args_of(node)[1]) % len(x.shape)
    return x, axis, index, _hot(low, _last(low, index, axis), x.shape[axis])


def _hot(low: Lowering, index: Value, size: int) -> Value:
    """(…, m) → (…, m, size): whether a place is the one that the index names."""
    if size < 0:
        raise ExportError("a lookup along the batch is not a program")
    columns = low.graph.constant(np.arange(size), I64)
    return low.basics.compare("EQUAL", low.basics.reshape(index, (*index.shape, 1)), columns)


def _added(low: Lowering, source: Value, hot: Value) -> Value:
    """(…, m) → (…, size): every value at its place."""
    wide = low.basics.reshape(source, (*source.shape, 1))
    picked = low.basics.select(hot, wide, _zero(source))
    return low.basics.reduce("SUM", picked, [len(picked.shape) - 2])


def _zero(like: Value) -> Any:
    return 0.0 if like.dtype == F32 else 0


def _last(low: Lowering, x: Any, axis: int) -> Value:
    order = [k for k in range(len(x.shape)) if k != axis]
    return low.basics.transpose(x, [*order, axis])


def _from_last(low: Lowering, x: Value, axis: int) -> Value:
    order = list(range(len(x.shape) - 1))
    order.insert(axis, len(x.shape) - 1)
    return low.basics.transpose(x, order)
