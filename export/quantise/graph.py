"""One signature of a TFLite file as a graph that can be rewritten.

Tensors are numbers, as in the file; what no output needs any more is left out when it is packed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from protofleet.errors import ExportError
from protofleet.runtime import open_interpreter

_SCHEMA_VERSION = 3
_NAMES = {
    number: name
    for name, number in vars(schema.BuiltinOperator).items()
    if not name.startswith("_")
}
_DTYPES = {
    schema.TensorType.FLOAT32: np.float32,
    schema.TensorType.FLOAT16: np.float16,
    schema.TensorType.INT64: np.int64,
    schema.TensorType.INT32: np.int32,
    schema.TensorType.INT8: np.int8,
    schema.TensorType.BOOL: np.bool_,
}
_TYPES = {np.dtype(dtype): number for number, dtype in _DTYPES.items()}


class Operation:
    """An operator: its name, its tensors, and the file's own record with its options."""

    def __init__(self, name: str, record: Any) -> None:
        self.name = name
        self.record = record
        self.inputs = [int(i) for i in record.inputs]
        self.outputs = [int(i) for i in record.outputs]


class TfliteGraph:
    """A signature's subgraph.

    Attributes:
        operations: in the order of execution.
        inputs, outputs: tensor by name.
        constants: content by tensor.
        tensors: the file's own records.
    """

    def __init__(self, model: bytes, signature: str) -> None:
        record = schema.ModelT.InitFromPackedBuf(model, 0)
        found = {_text(one.signatureKey): one for one in record.signatureDefs or ()}
        if signature not in found:
            raise ExportError(
                f"TFLite file: expected a signature '{signature}', got {sorted(found)}"
            )
        subgraph = record.subgraphs[found[signature].subgraphIndex]
        codes = [_NAMES[max(c.builtinCode, c.deprecatedBuiltinCode)] for c in record.operatorCodes]
        self.tensors = list(subgraph.tensors)
        self.operations = [Operation(codes[o.opcodeIndex], o) for o in subgraph.operators]
        self.inputs = {_text(m.name): int(m.tensorIndex) for m in found[signature].inputs}
        self.outputs = {_text(m.name): int(m.tensorIndex) for m in found[signature].outputs}
        self.constants = {
            index: _content(tensor, record.buffers[tensor.buffer].data)
            for index, tensor in enumerate(self.tensors)
            if record.buffers[tensor.buffer].data is not None
        }

    def shape(self, tensor: int) -> tuple[int, ...]:
        """Of one example."""
        shape = self.tensors[tensor].shape
        return () if shape is None else tuple(int(axis) for axis in shape)

    def signature(self, tensor: int) -> tuple[int, ...]:
        """The shape, with -1 for the axis that the batch decides."""
        record = self.tensors[tensor]
        if record.shapeSignature is None or not len(record.shapeSignature):
            return self.shape(tensor)
        return tuple(int(axis) for axis in record.shapeSignature)

    def set_constant(self, tensor: int, content: NDArray[Any]) -> None:
        """Turn a tensor into a constant."""
        if content.shape != self.shape(tensor):
            raise ExportError(
                f"TFLite tensor '{_text(self.tensors[tensor].name)}': expected "
                f"{self.shape(tensor)}, got {content.shape}"
            )
        self.tensors[tensor].shapeSignature = None
        self.constants[tensor] = content

    def new_constant(self, content: NDArray[Any]) -> int:
        """A further tensor with this content."""
        tensor = schema.TensorT(
            shape=list(content.shape),
            type=_TYPES[content.dtype],
            name=f"c{len(self.tensors)}",
            hasRank=True,
        )
        self.tensors.append(tensor)
        self.constants[len(self.tensors) - 1] = content
        return len(self.tensors) - 1

    def new_tensor(self, signature: tuple[int, ...]) -> int:
        """A further float32 tensor, -1 standing for the batch."""
        tensor = schema.TensorT(
            shape=[abs(axis) for axis in signature],
            shapeSignature=list(signature),
            type=schema.TensorType.FLOAT32,
            name=f"n{len(self.tensors)}",
            hasRank=True,
        )
        self.tensors.append(tensor)
        return len(self.tensors) - 1

    def new_reshape(self, source: int, result: int) -> Operation:
        """An operator that brings ``source`` into the shape of ``result``."""
        shape = self.new_constant(np.array(self.signature(result), np.int32))
        return self.new_operation("RESHAPE", [source, shape], [result])

    def new_operation(self, name: str, inputs: list[int], outputs: list[int]) -> Operation:
        """An operator without options; the caller puts it into ``operations``."""
        return Operation(name, schema.OperatorT(inputs=inputs, outputs=outputs))

    def rename(self, tensor: int, name: str) -> None:
        """Call an inner tensor ``name``."""
        self.tensors[tensor].name = name

    def producers(self) -> dict[int, Operation]:
        """Which operator makes a tensor."""
        return {tensor: one for one in self.operations for tensor in one.outputs}

    def consumers(self) -> dict[int, list[Operation]]:
        """Which operators read a tensor, as often as they do."""
        found: dict[int, list[Operation]] = {}
        for one in self.operations:
            for tensor in one.inputs:
                found.setdefault(tensor, []).append(one)
        return found

    def sweep(self) -> None:
        """Drop operators whose results nothing needs."""
        needed = set(self.outputs.values())
        kept = []
        for one in reversed(self.operations):
            if needed.intersection(one.outputs):
                kept.append(one)
                needed.update(one.inputs)
        self.operations = kept[::-1]

    def compute(
        self,
        operations: list[Operation],
        wanted: Iterable[int],
        given: Mapping[int, NDArray[Any]] | None = None,
    ) -> dict[int, Any]:
        """What operators write into the tensors ``wanted``.

        Args:
            operations: they read constants and ``given`` only.
            wanted: tensors.
            given: content of further tensors, of any batch size.
        """
        part = copy.copy(self)
        part.operations, part.inputs = operations, {}
        part.outputs = {str(tensor): tensor for tensor in wanted}
        if not part.outputs:
            return {}
        if given:
            part.constants, part.tensors = {**self.constants, **given}, list(self.tensors)
            for tensor, content in given.items():
                part.tensors[tensor] = copy.copy(self.tensors[tensor])
                part.tensors[tensor].shape = list(content.shape)
                part.tensors[tensor].shapeSignature = None
        interpreter = open_interpreter(part.pack("constants"))
        results = interpreter.get_signature_runner("constants")()
        return {int(name): value for name, value in results.items()}

    def pack(self, signature: str) -> bytes:
        """The graph as a file with one signature of this name."""
        used = {t for one in self.operations for t in (*one.inputs, *one.outputs) if t >= 0}
        kept = sorted(used | {*self.inputs.values(), *self.outputs.values()})
        place = {-1: -1, **{old: new for new, old in enumerate(kept)}}
        codes: dict[str, int] = {}
        buffers: dict[bytes, int] = {b"": 0}
        operators = [_packed(one, place, codes) for one in self.operations]
        tensors = []
        for old in kept:
            content = self.constants[old].tobytes() if old in self.constants else b""
            tensor = self.tensors[old]
            tensor.buffer = buffers.setdefault(content, len(buffers))
            tensors.append(tensor)
        inputs = {name: place[tensor] for name, tensor in self.inputs.items()}
        outputs = {name: place[tensor] for name, tensor in self.outputs.items()}
        model = schema.ModelT(
            version=_SCHEMA_VERSION,
            operatorCodes=[_code(name) for name in codes],
            subgraphs=[
                schema.SubGraphT(
                    tensors=tensors,
                    inputs=list(inputs.values()),
                    outputs=list(outputs.values()),
                    operators=operators,
                    name=signature,
                )
            ],
            buffers=[_buffer(content) for content in buffers],
            signatureDefs=[
                schema.SignatureDefT(
                    inputs=_map(inputs), outputs=_map(outputs), signatureKey=signature
                )
            ],
            description="protofleet",
        )
        builder = flatbuffers.Builder(1 << 20)
        builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
        return bytes(builder.Output())


def _packed(one: Operation, place: Mapping[int, int], codes: dict[str, int]) -> Any:
    one.record.opcodeIndex = codes.setdefault(one.name, len(codes))
    one.record.inputs = [place[tensor] for tensor in one.inputs]
    one.record.outputs = [place[tensor] for tensor in one.outputs]
    return one.record


def _code(name: str) -> Any:
    number = getattr(schema.BuiltinOperator, name)
    return schema.OperatorCodeT(
        builtinCode=number, deprecatedBuiltinCode=min(number, 127), version=_version(name)
    )


def _version(name: str) -> int:
    """DEQUANTIZE reads float16 from its third version on; everything else is float32 here."""
    return 3 if name == "DEQUANTIZE" else 1


def _buffer(content: bytes) -> Any:
    return schema.BufferT(data=np.frombuffer(content, np.uint8) if content else None)


def _map(tensors: Mapping[str, int]) -> list[Any]:
    return [schema.TensorMapT(name=name, tensorIndex=tensor) for name, tensor in tensors.items()]


def _content(tensor: Any, data: Any) -> NDArray[Any]:
    shape = () if tensor.shape is None else tuple(tensor.shape)
    return np.frombuffer(bytes(data), _DTYPES[tensor.type]).reshape(shape)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


Rewrite = Callable[[TfliteGraph], bool]
"""Changes a graph in one place and says whether it did."""


def until_done(graph: TfliteGraph, rewrite: Rewrite) -> None:
    """Apply a rewrite as often as it changes something."""
    while rewrite(graph):
        pass
