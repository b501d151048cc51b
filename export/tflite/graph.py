"""One program as a subgraph of a TFLite model, built operator by operator.

Shapes are tuples of integers; ``-k`` stands for k times the batch size. The file says batch 1 and
leaves those axes open, and no operator holds a number that the batch size decides: a device resizes
the inputs, and every other shape follows before anything runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema

from protofleet.errors import ExportError
from protofleet.export.capture.limits import MAX_CONSTANT_BYTES, MAX_TABLE_BYTES

Shape = tuple[int, ...]


_TYPES = {
    np.dtype(np.float32): schema.TensorType.FLOAT32,
    np.dtype(np.int64): schema.TensorType.INT64,
    np.dtype(np.int32): schema.TensorType.INT32,
    np.dtype(np.bool_): schema.TensorType.BOOL,
}
F32, I64, I32, BOOL = (np.dtype(t) for t in (np.float32, np.int64, np.int32, np.bool_))

# Operators whose options are not called as they are.
_OPTIONS = {
    "ARG_MAX": "ArgMax",
    "ATAN2": "ATan2",
    "BATCH_MATMUL": "BatchMatMul",
    "CONV_2D": "Conv2D",
    "FULLY_CONNECTED": "FullyConnected",
    "AVERAGE_POOL_2D": "Pool2D",
    "LOG_SOFTMAX": "LogSoftmax",
    "MAX_POOL_2D": "Pool2D",
    "MAXIMUM": "MaximumMinimum",
    "MEAN": "Reducer",
    "MINIMUM": "MaximumMinimum",
    "ONE_HOT": "OneHot",
    "PADV2": "PadV2",
    "REVERSE_V2": "ReverseV2",
    "REDUCE_ALL": "Reducer",
    "REDUCE_ANY": "Reducer",
    "REDUCE_MAX": "Reducer",
    "REDUCE_MIN": "Reducer",
    "SCATTER_ND": "ScatterNd",
    "SELECT_V2": "SelectV2",
    "STRIDED_SLICE": "StridedSlice",
    "SUM": "Reducer",
    "TOPK_V2": "TopKV2",
}
_WITHOUT_OPTIONS = {
    "CEIL",
    "FLOOR",
    "LOG",
    "LOGISTIC",
    "RELU",
    "ROUND",
    "RSQRT",
    "SIN",
    "SQRT",
    "TANH",
}


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the subgraph: its index, shape and dtype."""

    tensor: int
    shape: Shape
    dtype: np.dtype[Any]


class SharedTables:
    """What the subgraphs of one file share: operator codes and the contents of constants."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._buffers: dict[bytes, int] = {b"": 0}

    def code(self, operator: str) -> int:
        """Index of an operator's code."""
        return self._codes.setdefault(operator, len(self._codes))

    def buffer(self, content: bytes) -> int:
        """Index of a buffer with this content."""
        return self._buffers.setdefault(content, len(self._buffers))

    def codes(self) -> list[Any]:
        """The file's operator codes."""
        return [_code(operator) for operator in self._codes]

    def buffers(self) -> list[Any]:
        """The file's buffers."""
        contents = (np.frombuffer(c, np.uint8) if c else None for c in self._buffers)
        return [schema.BufferT(data=content) for content in contents]


def _code(operator: str) -> Any:
    number = getattr(schema.BuiltinOperator, operator)
    return schema.OperatorCodeT(
        builtinCode=number, deprecatedBuiltinCode=min(number, 127), version=1
    )


class Graph:
    """A subgraph under construction; an operator that was added before is not added again."""

    def __init__(self, tables: SharedTables, name: str) -> None:
        self._tables = tables
        self._name = name
        self._tensors: list[Any] = []
        self._operators: list[Any] = []
        self._known: dict[Any, tuple[Value, ...]] = {}
        self._inputs: dict[str, int] = {}
        self._origins: dict[int, Any] = {}
        self.origin: Any = None
        """What the operators that are added now are of."""

    def input(self, name: str, shape: Shape, dtype: np.dtype[Any]) -> Value:
        """A new input."""
        value = self._tensor(shape, dtype, name=name)
        self._inputs[name] = value.tensor
        return value

    def constant(self, content: Any, dtype: np.dtype[Any] = F32) -> Value:
        """A constant.

        Raises:
            ExportError: it is as large as a weight.
        """
        array = np.ascontiguousarray(content, dtype)
        most = MAX_CONSTANT_BYTES if array.dtype.kind == "f" else 2 * MAX_TABLE_BYTES
        if array.nbytes > most:
            raise ExportError(
                f"constant of shape {array.shape}: expected at most {most} bytes, "
                f"got {array.nbytes}"
            )
        key = ("constant", np.shape(content), array.dtype, array.tobytes())
        if key not in self._known:
            buffer = self._tables.buffer(array.tobytes())
            self._known[key] = (self._tensor(np.shape(content), array.dtype, buffer=buffer),)
        return self._known[key][0]

    def add(
        self,
        operator: str,
        inputs: Sequence[Value],
        shape: Shape,
        dtype: np.dtype[Any] | None = None,
        **options: Any,
    ) -> Value:
        """Add an operator with one result; dtype None: that of the first input."""
        (result,) = self.add_many(operator, inputs, [(shape, dtype or inputs[0].dtype)], **options)
        return result

    def add_many(
        self,
        operator: str,
        inputs: Sequence[Value],
        results: Sequence[tuple[Shape, np.dtype[Any]]],
        **options: Any,
    ) -> tuple[Value, ...]:
        """Add an operator with several results."""
        indices = tuple(value.tensor for value in inputs)
        key = (operator, indices, tuple(results), tuple(sorted(options.items())))
        if key not in self._known:
            self._known[key] = self._append(operator, indices, results, options)
        return self._known[key]

    def copy(self, value: Value) -> Value:
        """The same numbers in a tensor that nothing else shares."""
        sizes = np.array([max(axis, -1) for axis in value.shape], np.int32)
        inputs = (value.tensor, self.constant(sizes, I32).tensor)
        result = [(value.shape, value.dtype)]
        return self._append("RESHAPE", inputs, result, {"newShape": tuple(sizes.tolist())})[0]

    def _append(
        self,
        operator: str,
        inputs: tuple[int, ...],
        results: Sequence[tuple[Shape, np.dtype[Any]]],
        options: Mapping[str, Any],
    ) -> tuple[Value, ...]:
        values = tuple(self._tensor(shape, dtype) for shape, dtype in results)
        self._operators.append(
            schema.OperatorT(
                opcodeIndex=self._tables.code(operator),
                inputs=list(inputs),
                outputs=[value.tensor for value in values],
                **_options(operator, options),
            )
        )
        self._origins[id(self._operators[-1])] = self.origin
        return values

    def origins(self, subgraph: Any) -> list[Any]:
        """``origin`` of each operator of the finished subgraph, in its order."""
        return [self._origins[id(operator)] for operator in subgraph.operators]

    def finish(self, outputs: Mapping[str, Value]) -> tuple[Any, Any]:
        """The subgraph without what no output needs, and its signature but for the index.

        Args:
            outputs: results by name; no two share a tensor, and none is an input.
        """
        for name, value in outputs.items():
            self._tensors[value.tensor].name = name
        needed = {value.tensor for value in outputs.values()}
        kept = []
        for operator in reversed(self._operators):
            if needed.intersection(operator.outputs):
                kept.append(operator)
                needed.update(operator.inputs)
        needed.update(self._inputs.values())
        return self._compact(kept[::-1], sorted(needed), outputs)

    def _compact(
        self, operators: Sequence[Any], tensors: Sequence[int], outputs: Mapping[str, Value]
    ) -> tuple[Any, Any]:
        for operator in operators:
            tensors = sorted({*tensors, *operator.outputs})
        place = {old: new for new, old in enumerate(tensors)}
        for operator in operators:
            operator.inputs = [place[i] for i in operator.inputs]
            operator.outputs = [place[i] for i in operator.outputs]
        inputs = {name: place[index] for name, index in self._inputs.items()}
        results = {name: place[value.tensor] for name, value in outputs.items()}
        subgraph = schema.SubGraphT(
            tensors=[self._tensors[i] for i in tensors],
            inputs=list(inputs.values()),
            outputs=list(results.values()),
            operators=list(operators),
            name=self._name,
        )
        signature = schema.SignatureDefT(
            inputs=_tensor_map(inputs), outputs=_tensor_map(results), signatureKey=self._name
        )
        return subgraph, signature

    def _tensor(
        self, shape: Shape, dtype: np.dtype[Any], *, name: str = "", buffer: int = 0
    ) -> Value:
        self._tensors.append(
            schema.TensorT(
                shape=[abs(axis) for axis in shape],
                shapeSignature=[max(axis, -1) for axis in shape]
                if min(shape, default=0) < 0
                else None,
                type=_TYPES[dtype],
                buffer=buffer,
                name=name or f"t{len(self._tensors)}",
                hasRank=True,
            )
        )
        return Value(len(self._tensors) - 1, tuple(shape), dtype)


def _tensor_map(indices: Mapping[str, int]) -> list[Any]:
    return [schema.TensorMapT(name=name, tensorIndex=i) for name, i in indices.items()]


def _options(operator: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Both fields that carry an operator's options."""
    if operator in _WITHOUT_OPTIONS:
        return {}
    words = "".join(word.capitalize() for word in operator.split("_"))
    name = _OPTIONS.get(operator, words) + "Options"
    record = getattr(schema, name + "T")(**options)
    return {
        "builtinOptionsType": getattr(schema.BuiltinOptions, name),
        "builtinOptions": record,
    }


def elements(shape: Shape) -> int:
    """Number of entries, ``-k`` if it is k times the batch size."""
    open_axes = sum(axis < 0 for axis in shape)
    return math.prod(abs(axis) for axis in shape) * (-1 if open_axes else 1)
