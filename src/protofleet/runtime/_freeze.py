"""Programs with a network inside, which a runtime prepares once instead of at each call.

A runtime packs the matrices of a product into the order in which its kernels read them. It does so
while it loads constants, and anew in every call for what is an input.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Manifest, Port
from protofleet.errors import InputError, ProtofleetError, ProvisionError
from protofleet.runtime._backend import ProgramSource
from protofleet.runtime._ports import Tensor, check_port
from protofleet.tensors import Network

Values = Sequence[tuple[Port, NDArray[np.float32]]]
"""Constants, each with the input in whose place it comes."""

_FLOAT = 1  # TensorProto.DataType.FLOAT of the ONNX specification


class Frozen:
    """One program of a bundle with a model inside (``_backend.ProgramSource``).

    Attributes:
        program: its signature, without ports of parameters and buffers.

    Raises:
        InputError: the model does not fit the program.
    """

    def __init__(self, bundle: ProgramSource, name: str, model: Network) -> None:
        program = bundle.manifest.programs[name]
        tensors = {"param": model.params, "state": model.buffers}
        inside = [port for port in program.inputs if port.role in tensors]
        for port in inside:
            found = tensors[port.role].get(port.key)
            if found is None or found.shape != port.shape:
                raise InputError(
                    f"model: expected {port.role} '{port.key}' of {port.shape}, got "
                    f"{'nothing' if found is None else found.shape}"
                )
        rest = tuple(port for port in program.inputs if port.role not in tensors)
        self.program = msgspec.structs.replace(program, inputs=rest)
        self._bundle, self._name = bundle, name
        self._values = [(port, tensors[port.role][port.key]) for port in inside]

    @property
    def manifest(self) -> Manifest:
        """The bundle's."""
        return self._bundle.manifest

    def read(self, name: str, /) -> bytes:
        """The program's file with the model inside."""
        model = self._bundle.read(name)
        try:
            if name == self.program.tflite:
                return freeze_tflite(model, f"{name}:{self._name}", self._values)
            return freeze_onnx(model, name, self._values)
        except (ProtofleetError, ModuleNotFoundError):
            raise
        except Exception as error:  # what reading damaged bytes raises has no narrower root
            raise ProvisionError(f"program '{name}': does not load: {error}") from error


def freeze_onnx(model: bytes, where: str, values: Values) -> bytes:
    """An ONNX model in which ``values`` are initialisers and no longer inputs.

    Args:
        model: the serialised model.
        where: what to call it.
        values: what becomes constant.

    Raises:
        InputError: the protobuf package, which ONNX Runtime's wheel brings, is not installed.
        ProvisionError: the model has no such input, or one of another shape or dtype.
    """
    found = onnx_messages()["Model"]()
    found.ParseFromString(model)
    inputs = {one.name: one for one in found.graph.input}
    for port, value in values:
        check_port(where, port, _declared(inputs.pop(port.name, None)))
        found.graph.initializer.add(
            dims=value.shape, data_type=_FLOAT, name=port.name, raw_data=value.tobytes()
        )
    kept = list(inputs.values())
    del found.graph.input[:]
    found.graph.input.extend(kept)
    data: bytes = found.SerializeToString()
    return data


def _declared(found: Any) -> Tensor | None:
    if found is None:
        return None
    tensor = found.type.tensor_type
    dtype = "float32" if tensor.elem_type == _FLOAT else f"ONNX's type {tensor.elem_type}"
    return Tensor(dtype, [dim.dim_value for dim in tensor.shape.dim])


def _fields(kind: Any) -> dict[str, dict[str, tuple[int, Any, bool]]]:
    """Message → field → its number, its type or message, and whether it is repeated."""
    return {
        "Model": {"graph": (7, "Graph", False), "metadata_props": (14, "Entry", True)},
        "Entry": {"key": (1, kind.TYPE_STRING, False), "value": (2, kind.TYPE_STRING, False)},
        "Graph": {
            "node": (1, "Node", True),
            "initializer": (5, "Tensor", True),
            "input": (11, "Value", True),
            "output": (12, "Value", True),
        },
        "Node": {
            "input": (1, kind.TYPE_STRING, True),
            "output": (2, kind.TYPE_STRING, True),
            "name": (3, kind.TYPE_STRING, False),
            "op_type": (4, kind.TYPE_STRING, False),
        },
        "Value": {"name": (1, kind.TYPE_STRING, False), "type": (2, "Type", False)},
        "Type": {"tensor_type": (1, "TensorType", False)},
        "TensorType": {"elem_type": (1, kind.TYPE_INT32, False), "shape": (2, "Shape", False)},
        "Shape": {"dim": (1, "Dim", True)},
        "Dim": {"dim_value": (1, kind.TYPE_INT64, False)},
        "Tensor": {
            "dims": (1, kind.TYPE_INT64, True),
            "data_type": (2, kind.TYPE_INT32, False),
            "name": (8, kind.TYPE_STRING, False),
            "raw_data": (9, kind.TYPE_BYTES, False),
        },
    }


@cache
def onnx_messages() -> dict[str, Any]:
    """The messages of the ONNX specification (onnx.proto3) as far as they are changed here.

    The package onnx is not for devices. What a message does not name, protobuf keeps as it is.
    """
    try:
        from google.protobuf import (  # noqa: PLC0415 only who freezes pays for it
            descriptor_pb2,
            descriptor_pool,
            message_factory,
        )
    except ImportError as error:
        raise InputError(
            "an ONNX file with a model inside: protobuf is not installed: pip install protobuf, or "
            "on Debian: sudo apt install python3-protobuf"
        ) from error
    package = "protofleet.onnx"
    kind = descriptor_pb2.FieldDescriptorProto
    fields = _fields(kind)
    file = descriptor_pb2.FileDescriptorProto(name=package, package=package, syntax="proto3")
    for message, its_fields in fields.items():
        described = file.message_type.add(name=message)
        for name, (number, of, repeated) in its_fields.items():
            label = kind.LABEL_REPEATED if repeated else kind.LABEL_OPTIONAL
            field = described.field.add(name=name, number=number, label=label)
            if isinstance(of, str):
                field.type, field.type_name = kind.TYPE_MESSAGE, f".{package}.{of}"
            else:
                field.type = of
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    # Debian 13 has protobuf 4.21, which spells it otherwise.
    get = getattr(message_factory, "GetMessageClass", None)
    get = get or message_factory.MessageFactory(pool).GetPrototype
    return {name: get(pool.FindMessageTypeByName(f"{package}.{name}")) for name in fields}


def freeze_tflite(model: bytes, where: str, values: Values) -> bytes:
    """A TFLite model of one signature in which ``values`` are constants and no longer inputs.

    Args:
        model: the file's bytes.
        where: what to call it, with the signature behind a colon.
        values: what becomes constant.

    Raises:
        ProvisionError: the file has no such signature, or that no such input, or one of another
            shape or dtype.
    """
    import flatbuffers  # noqa: PLC0415 only who freezes pays for it
    from ai_edge_litert import schema_py_generated as schema  # noqa: PLC0415 as above

    root = schema.Model.GetRootAs(model)
    definitions = (root.SignatureDefs(i) for i in range(root.SignatureDefsLength()))
    signatures = {one.SignatureKey().decode(): one for one in definitions}
    chosen = signatures.get(where.rpartition(":")[2])
    if chosen is None:
        names = sorted(signatures)
        raise ProvisionError(f"program '{where}': the file has the signatures {names} only")
    described = schema.SignatureDefT.InitFromObj(chosen)
    graph = schema.SubGraphT.InitFromObj(root.Subgraphs(described.subgraphIndex))
    described.subgraphIndex = 0
    buffers = [schema.BufferT.InitFromObj(root.Buffers(i)) for i in range(root.BuffersLength())]
    named = {entry.name.decode(): entry.tensorIndex for entry in described.inputs}
    fixed = set()
    for port, value in values:
        index = named.get(port.name)
        tensor: Any = None if index is None else graph.tensors[index]
        check_port(where, port, tensor and _described(tensor, schema.TensorType.FLOAT32))
        fixed.add(index)
        tensor.buffer = len(buffers)
        buffers.append(schema.BufferT(data=value.reshape(-1).view(np.uint8)))
    graph.inputs = [index for index in graph.inputs if index not in fixed]
    described.inputs = [entry for entry in described.inputs if entry.tensorIndex not in fixed]
    frozen = schema.ModelT(
        version=root.Version(),
        operatorCodes=[
            schema.OperatorCodeT.InitFromObj(root.OperatorCodes(i))
            for i in range(root.OperatorCodesLength())
        ],
        subgraphs=[graph],
        buffers=buffers,
        signatureDefs=[described],
    )
    builder = flatbuffers.Builder(sum(value.nbytes for _, value in values) + len(model))
    builder.Finish(frozen.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _described(tensor: Any, float32: int) -> Tensor:
    dtype = "float32" if tensor.type == float32 else f"TFLite's type {tensor.type}"
    return Tensor(dtype, [] if tensor.shape is None else [int(dim) for dim in tensor.shape])
