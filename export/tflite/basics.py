"""What lowering needs again and again: arithmetic that broadcasts, shapes, the batch itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from protofleet.errors import ExportError
from protofleet.export.tflite.graph import BOOL, F32, I32, I64, Graph, Shape, Value, elements

Operand = Value | float | int | bool


def broadcast(*shapes: Shape) -> Shape:
    """The common shape; an axis of 1 fits every other."""
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    axes = []
    for found in zip(*padded, strict=True):
        sizes = {axis for axis in found if axis != 1}
        if len(sizes) > 1:
            raise ExportError(f"shapes {shapes}: expected shapes that broadcast")
        axes.append(sizes.pop() if sizes else 1)
    return tuple(axes)


class Basics:
    """Operators on values of one graph.

    Args:
        graph: takes the operators.
        batch: an input whose first axis is the batch.
    """

    def __init__(self, graph: Graph, batch: Value) -> None:
        self.graph = graph
        self._batch = batch
        self._origins: dict[int, tuple[str, Value, tuple[int, ...]]] = {}

    def value(self, operand: Operand, dtype: np.dtype[Any] = F32) -> Value:
        """A value as it is; a number as a constant of shape ()."""
        return operand if isinstance(operand, Value) else self.graph.constant(operand, dtype)

    def binary(self, operator: str, a: Operand, b: Operand, **options: Any) -> Value:
        """``ADD``, ``SUB``, ``MUL``, ``DIV``, ``MAXIMUM``, ``MINIMUM``, ``POW``."""
        dtype = a.dtype if isinstance(a, Value) else b.dtype if isinstance(b, Value) else F32
        left, right = self.value(a, dtype), self.value(b, dtype)
        return self.graph.add(
            operator, [left, right], broadcast(left.shape, right.shape), **options
        )

    def compare(self, operator: str, a: Operand, b: Operand) -> Value:
        """``LESS``, ``EQUAL``, …: a bool for every entry."""
        dtype = a.dtype if isinstance(a, Value) else b.dtype if isinstance(b, Value) else F32
        left, right = self.value(a, dtype), self.value(b, dtype)
        return self.graph.add(operator, [left, right], broadcast(left.shape, right.shape), BOOL)

    def unary(self, operator: str, x: Value) -> Value:
        """One number from each: ``EXP``, ``LOG``, ``RSQRT``, …, without options."""
        return self.graph.add(operator, [x], x.shape)

    def select(self, condition: Value, a: Operand, b: Operand) -> Value:
        """``a`` where the condition holds, ``b`` elsewhere."""
        dtype = a.dtype if isinstance(a, Value) else b.dtype if isinstance(b, Value) else F32
        yes, no = self.value(a, dtype), self.value(b, dtype)
        shape = broadcast(condition.shape, yes.shape, no.shape)
        return self.graph.add("SELECT_V2", [condition, yes, no], shape, dtype)

    def cast(self, x: Value, dtype: np.dtype[Any]) -> Value:
        """Another dtype."""
        if x.dtype == dtype:
            return x
        return self.graph.add("CAST", [x], x.shape, dtype)

    def reshape(self, x: Value, shape: Shape) -> Value:
        """The same entries in another shape.

        Raises:
            ExportError: two axes of ``shape`` depend on the batch size.
        """
        if x.shape == shape:
            return x
        if sum(axis < 0 for axis in shape) > 1:
            return self._with_ones(x, shape)
        x = self._origin("RESHAPE", x)
        if x.shape == shape:
            return x
        target = [max(axis, -1) for axis in shape]
        sizes = self.graph.constant(np.array(target, np.int32), I32)
        result = self.graph.add("RESHAPE", [x, sizes], shape, newShape=tuple(target))
        self._origins[result.tensor] = ("RESHAPE", x, ())
        return result

    def _with_ones(self, x: Value, shape: Shape) -> Value:
        """The same axes with other ones between them, whichever grow with the batch."""
        kept = tuple(size for size in shape if size != 1)
        ones = [axis for axis, size in enumerate(x.shape) if size == 1]
        if tuple(size for size in x.shape if size != 1) != kept:
            raise ExportError(f"reshape to {shape}: expected one axis that grows with the batch")
        if ones:
            x = self.graph.add("SQUEEZE", [x], kept, squeezeDims=tuple(ones))
        for axis, size in enumerate(shape):
            if size == 1:
                place = self.graph.constant(np.array(axis, np.int32), I32)
                wider = (*x.shape[:axis], 1, *x.shape[axis:])
                x = self.graph.add("EXPAND_DIMS", [x, place], wider)
        return x

    def _origin(self, operator: str, x: Value) -> Value:
        """What ``x`` was made of by this operator; else ``x``."""
        found, source, _ = self._origins.get(x.tensor, ("", x, ()))
        return source if found == operator else x

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        """Axes in another order."""
        order = [axis % len(x.shape) for axis in order]
        found, source, before = self._origins.get(x.tensor, ("", x, ()))
        if found == "TRANSPOSE":
            return self.transpose(source, [before[axis] for axis in order])
        if order == sorted(order):
            return x
        shape = tuple(x.shape[axis] for axis in order)
        moved = [axis for axis in order if x.shape[axis] != 1]
        if moved == sorted(moved) and sum(axis < 0 for axis in shape) <= 1:
            return self.reshape(x, shape)
        result = self.graph.add(
            "TRANSPOSE", [x, self.graph.constant(np.array(order, np.int32), I32)], shape
        )
        self._origins[result.tensor] = ("TRANSPOSE", x, tuple(order))
        return result

    def reduce(self, operator: str, x: Value, axes: Sequence[int], *, keep: bool = False) -> Value:
        """``SUM``, ``MEAN`` or ``REDUCE_MAX`` over axes."""
        found = sorted({axis % len(x.shape) for axis in axes}) if x.shape else []
        if not found:
            return x
        shape = tuple(
            1 if axis in found else size
            for axis, size in enumerate(x.shape)
            if keep or axis not in found
        )
        indices = self.graph.constant(np.array(found, np.int32), I32)
        return self.graph.add(operator, [x, indices], shape, keepDims=keep)

    def slice(self, x: Value, axis: int, start: int, stop: int, step: int = 1) -> Value:
        """A part of one axis of fixed size."""
        size = x.shape[axis]
        if (start, stop, step) == (0, size, 1):
            return x
        if step > 1:
            return self._every(x, axis, start, -(-(stop - start) // step), step)
        shape = (*x.shape[:axis], -(-(stop - start) // step), *x.shape[axis + 1 :])
        rank = len(shape)
        begin, end, strides = ([fill] * rank for fill in (0, 0, 1))
        begin[axis], end[axis], strides[axis] = start, stop, step
        others = sum(1 << i for i in range(rank) if i != axis)
        where = [self.graph.constant(np.array(v, np.int32), I32) for v in (begin, end, strides)]
        return self.graph.add("STRIDED_SLICE", [x, *where], shape, beginMask=others, endMask=others)

    def _every(self, x: Value, axis: int, start: int, count: int, step: int) -> Value:
        """``count`` entries, ``step`` apart: the first of as many groups of neighbours.

        TFLite's own slice with a step goes entry by entry.
        """
        before, behind = x.shape[:axis], x.shape[axis + 1 :]
        missing = max(0, start + count * step - x.shape[axis])
        x = self.pad(x, [(0, missing if i == axis else 0) for i in range(len(x.shape))])
        groups = self.slice(x, axis, start, start + count * step)
        split = self.reshape(groups, (elements((*before, count)), step, elements(behind)))
        return self.reshape(self.slice(split, 1, 0, 1), (*before, count, *behind))

    def concat(self, values: Sequence[Value], axis: int) -> Value:
        """Values one behind the other along an axis."""
        sizes = [value.shape[axis] for value in values]
        if len({size < 0 for size in sizes}) > 1:
            raise ExportError("concatenation: expected sizes that are fixed or grow with the batch")
        shape = (*values[0].shape[:axis], sum(sizes), *values[0].shape[axis + 1 :])
        return self.graph.add("CONCATENATION", values, shape, axis=axis)

    def pad(self, x: Value, widths: Sequence[tuple[int, int]], fill: float = 0.0) -> Value:
        """Entries ``fill`` before and behind every axis of fixed size."""
        if not any(map(any, widths)):
            return x
        shape = tuple(
            size + before + after if before or after else size
            for size, (before, after) in zip(x.shape, widths, strict=True)
        )
        where = self.graph.constant(np.array(widths, np.int32), I32)
        if fill == 0.0:
            return self.graph.add("PAD", [x, where], shape)
        return self.graph.add("PADV2", [x, where, self.graph.constant(fill)], shape)

    def gather(self, table: Value, indices: Value, axis: int = 0) -> Value:
        """Entries along an axis of ``table``; rows, if it is the first."""
        shape = (*table.shape[:axis], *indices.shape, *table.shape[axis + 1 :])
        return self.graph.add("GATHER", [table, indices], shape, axis=axis, batchDims=0)

    def argmax(self, x: Value, axis: int) -> Value:
        """Index of the first largest entry, int64."""
        shape = tuple(size for i, size in enumerate(x.shape) if i != axis)
        where = self.graph.constant(np.array(axis, np.int32), I32)
        x = self.cast(x, I32) if x.dtype == I64 else x  # of int64 LiteRT has no form
        return self.graph.add("ARG_MAX", [x, where], shape, I64, outputType=schema.TensorType.INT64)

    def matmul(self, a: Value, b: Value, *, b_transposed: bool = False) -> Value:
        """Products of matrices (…, m, k) and (…, k, n), or (…, n, k) if ``b_transposed``.

        A batch of one matrix: XNNPACK computes ``BATCH_MATMUL`` of two inputs, but leaves
        ``FULLY_CONNECTED`` without fixed weights to slower code.
        """
        rows, columns = a.shape[-2], b.shape[-2 if b_transposed else -1]
        left, right = (self.reshape(v, (1, *v.shape)) if len(v.shape) == 2 else v for v in (a, b))
        shape = (*broadcast(left.shape[:-2], right.shape[:-2]), rows, columns)
        product = self.graph.add(
            "BATCH_MATMUL", [left, right], shape, adjX=False, adjY=b_transposed
        )
        return self.reshape(product, (*broadcast(a.shape[:-2], b.shape[:-2]), rows, columns))

    @cached_property
    def _never(self) -> Value:
        """False for every example, (B,): no number is below minus infinity."""
        first = self._batch
        for axis in range(1, len(first.shape)):
            first = self.slice(first, axis, 0, 1)
        numbers = self.cast(self.reshape(first, (-1,)), F32)
        return self.compare("LESS", numbers, float("-inf"))

    def count(self) -> Value:
        """The batch size, () float32."""
        ones = self.binary("ADD", self.cast(self._never, F32), 1.0)
        return self.reduce("SUM", ones, [0])

    def running_count(self, size: int) -> Value:
        """1, 2, … up to a multiple of the batch size, (size, 1) float32."""
        ones = self.expand(self.graph.constant([[1.0]]), (size, 1))
        axis = self.graph.constant(np.array(0, np.int32), I32)
        return self.graph.add("CUMSUM", [ones, axis], ones.shape, exclusive=False, reverse=False)

    def expand(self, x: Value, shape: Shape) -> Value:
        """Repeat axes of 1 until the shape is ``shape``."""
        if x.shape == shape:
            return x
        x = self.reshape(x, (1,) * (len(shape) - len(x.shape)) + x.shape)
        for axis, (old, new) in enumerate(zip(x.shape, shape, strict=True)):
            if old != new:
                x = self._repeat(x, self._zeros(new, axis, len(shape), x.dtype))
        return x

    def _repeat(self, x: Value, zeros: Value) -> Value:
        return self.binary("LOGICAL_OR" if x.dtype == BOOL else "ADD", x, zeros)

    def _zeros(self, size: int, axis: int, rank: int, dtype: np.dtype[Any]) -> Value:
        """Zeros along one axis."""
        shape = [1] * rank
        shape[axis] = size
        if size > 0:
            return self.graph.constant(np.zeros(shape, dtype), dtype)
        none = self._never if dtype == BOOL else self.cast(self._never, dtype)
        if size != -1:
            fixed = self.graph.constant(np.zeros((1, -size), dtype), dtype)
            none = self._repeat(self.reshape(none, (-1, 1)), fixed)
        return self.reshape(none, tuple(shape))
