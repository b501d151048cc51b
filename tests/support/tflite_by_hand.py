"""TFLite files written operator by operator, for what the runtime must do with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema

from protofleet.bundle.manifest import Port

_TYPES = {
    "float32": schema.TensorType.FLOAT32,
    "int32": schema.TensorType.INT32,
    "int64": schema.TensorType.INT64,
}
Shape = tuple[int | str, ...]


@dataclass
class Graph:
    """One signature: ports and operators; tensors are known by name."""

    inputs: Sequence[Port]
    outputs: Sequence[Port]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    operators: list[tuple[str, list[str], list[str], Any]] = field(default_factory=list)

    def add(self, kind: str, inputs: list[str], output: str, shape: Shape, **options: Any) -> None:
        """An operator with one output; ``options`` are fields of its options table."""
        self.shapes[output] = shape
        self.operators.append((kind, inputs, [output], options))


def tflite_bytes(graphs: Mapping[str, Graph]) -> bytes:
    """A file with a signature for each graph."""
    model = schema.ModelT()
    model.version = 3
    model.buffers = [schema.BufferT()]
    model.operatorCodes, model.subgraphs, model.signatureDefs = [], [], []
    for name, graph in graphs.items():
        _add(model, name, graph)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _add(model: Any, name: str, graph: Graph) -> None:
    subgraph = schema.SubGraphT()
    subgraph.name, subgraph.tensors, subgraph.operators = name, [], []
    index: dict[str, int] = {}

    def tensor(name: str, shape: Shape, dtype: str, buffer: int = 0) -> None:
        one = schema.TensorT()
        one.name, one.type, one.buffer = name, _TYPES[dtype], buffer
        one.shape = [d if isinstance(d, int) else int(d.partition("*")[2] or 1) for d in shape]
        one.shapeSignature = [d if isinstance(d, int) else -1 for d in shape]
        index[name] = len(subgraph.tensors)
        subgraph.tensors.append(one)

    for port in (*graph.inputs, *graph.outputs):
        tensor(port.name, port.shape, port.dtype)
    for constant, value in graph.constants.items():
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(value.tobytes(), np.uint8)
        tensor(constant, value.shape, str(value.dtype), len(model.buffers))
        model.buffers.append(buffer)
    for inner, shape in graph.shapes.items():
        if inner not in index:
            tensor(inner, shape, "float32")
    subgraph.inputs = [index[port.name] for port in graph.inputs]
    subgraph.outputs = [index[port.name] for port in graph.outputs]
    for kind, inputs, outputs, options in graph.operators:
        operator = _operator(model, kind, options)
        operator.inputs = [index[i] for i in inputs]
        operator.outputs = [index[o] for o in outputs]
        subgraph.operators.append(operator)
    model.subgraphs.append(subgraph)
    model.signatureDefs.append(_signature(name, len(model.subgraphs) - 1, graph, index))


def _operator(model: Any, kind: str, fields: Mapping[str, Any]) -> Any:
    code = schema.OperatorCodeT()
    code.builtinCode = getattr(schema.BuiltinOperator, kind)
    code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), 1
    operator = schema.OperatorT()
    operator.opcodeIndex = len(model.operatorCodes)
    model.operatorCodes.append(code)
    if "options" in fields:
        table = fields["options"]
        operator.builtinOptionsType = getattr(schema.BuiltinOptions, table)
        operator.builtinOptions = getattr(schema, f"{table}T")()
        for name, value in fields.items():
            if name != "options":
                setattr(operator.builtinOptions, name, value)
    return operator


def _signature(name: str, subgraph: int, graph: Graph, index: Mapping[str, int]) -> Any:
    signature = schema.SignatureDefT()
    signature.signatureKey, signature.subgraphIndex = name, subgraph

    def entries(ports: Sequence[Port]) -> list[Any]:
        found = []
        for port in ports:
            entry = schema.TensorMapT()
            entry.name, entry.tensorIndex = port.name, index[port.name]
            found.append(entry)
        return found

    signature.inputs, signature.outputs = entries(graph.inputs), entries(graph.outputs)
    return signature
