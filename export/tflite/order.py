"""Operators that order entries or run along them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import fx

from protofleet.errors import ExportError
from protofleet.export.tflite.graph import I32, I64, Value
from protofleet.export.tflite.lower import Lowering, Result, args_of, rule

_aten = torch.ops.aten


@rule(_aten.argmax.default, _aten.argmin.default)
def _argmax(low: Lowering, node: fx.Node) -> Result:
    source, axis, keep = (*args_of(node), None, False)[:3]
    x = low.full(source)
    if axis is None:
        raise ExportError("expected an axis: the batch is no part of an example; give dim=")
    if node.target is _aten.argmin.default:
        x = low.basics.unary("NEG", x)
    axis %= len(x.shape)
    found = low.basics.argmax(x, axis)
    return low.basics.reshape(found, (*x.shape[:axis], 1, *x.shape[axis + 1 :])) if keep else found


@rule(_aten.topk.default)
def _topk(low: Lowering, node: fx.Node) -> Result:
    source, count, axis, largest = (*args_of(node), -1, True)[:4]
    return _ordered(low, low.full(source), int(axis), count=int(count), largest=bool(largest))


@rule(_aten.sort.default)
def _sort(low: Lowering, node: fx.Node) -> Result:
    source, axis, descending = (*args_of(node), -1, False)[:3]
    x = low.full(source)
    return _ordered(low, x, axis, count=x.shape[axis], largest=bool(descending))


@rule(_aten.sort.stable)
def _stable_sort(low: Lowering, node: fx.Node) -> Result:
    x = low.full(args_of(node)[0])
    options: dict[str, Any] = dict(node.kwargs)
    axis, descending = int(options.get("dim", -1)), bool(options.get("descending", False))
    return _ordered(low, x, axis, count=x.shape[axis], largest=descending)


def _ordered(
    low: Lowering, x: Value, axis: int, *, count: int, largest: bool
) -> tuple[Value, Value]:
    """The first entries in order, and their places, int64."""
    ops, rank = low.basics, len(x.shape)
    axis %= rank
    if x.shape[axis] < 0:
        raise ExportError("the batch's examples have no order in a program")
    order = [*(k for k in range(rank) if k != axis), axis]
    back = [order.index(k) for k in range(rank)]
    rows = ops.transpose(x if largest else ops.unary("NEG", x), order)
    shape = (*rows.shape[:-1], count)
    number = low.graph.constant(np.array(count, np.int32), I32)
    values, places = low.graph.add_many(
        "TOPK_V2", [rows, number], [(shape, rows.dtype), (shape, I32)]
    )
    values = values if largest else ops.unary("NEG", values)
    return ops.transpose(values, back), ops.cast(ops.transpose(places, back), I64)


@rule(_aten.cumsum.default)
def _cumsum(low: Lowering, node: fx.Node) -> Result:
    source, axis = args_of(node)[:2]
    x = low.basics.cast(low.full(source), low.dtype(node))
    place = low.graph.constant(np.array(int(axis) % len(x.shape), np.int32), I32)
    return low.graph.add("CUMSUM", [x, place], x.shape, exclusive=False, reverse=False)
