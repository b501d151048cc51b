"""ONNX files hold all their tensors: a tensor may name another file, whose bytes nobody signed.

A reader of the protobuf wire format that knows just the way from a model to its tensors
(``onnx.proto``), because a device has no package ``onnx``. It keeps a list of what is still to be
read, so that nesting costs no stack, and looks at each field once.
"""

from __future__ import annotations

from typing import NamedTuple

from protofleet.errors import RefusedError

MAX_FIELDS = 2_000_000
MAX_DEPTH = 64
"""Of messages within messages; ``onnx`` and ONNX Runtime read no more than 100."""

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT_BYTES = 10
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14  # of a TensorProto
_TENSOR = "TensorProto"
_INNER: dict[str, dict[int, str]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "GraphProto": {1: "NodeProto", 5: _TENSOR, 15: "SparseTensorProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: _TENSOR,
        6: "GraphProto",
        10: _TENSOR,
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: _TENSOR, 2: _TENSOR},
    _TENSOR: {},
}
"""Messages that lead to tensors: by field number, what stands in the field."""


class _Part(NamedTuple):
    kind: str
    start: int
    end: int
    depth: int


def check_onnx(data: bytes, file: str) -> None:
    """Refuse an ONNX model that is not complete in itself.

    Args:
        data: the serialised ``ModelProto``.
        file: what to call it in a message.

    Raises:
        RefusedError: rule ``onnx``: a tensor's values lie in another file, or the bytes are no
            plain protobuf message of bounded size.
    """
    parts = [_Part("ModelProto", 0, len(data), 0)]
    fields = 0
    while parts:
        part = parts.pop()
        if part.depth > MAX_DEPTH:
            raise _refused(file, f"messages within messages, more than {MAX_DEPTH} deep")
        inner, at = _INNER[part.kind], part.start
        while at < part.end:
            fields += 1
            if fields > MAX_FIELDS:
                raise _refused(file, f"more than {MAX_FIELDS} fields")
            key, at = _varint(data, at, part.end, file)
            number, wire = key >> 3, key & 7
            value, start, at = _value(data, wire, at, part.end, file)
            if part.kind == _TENSOR and (
                number == _EXTERNAL_DATA or (number == _DATA_LOCATION and (wire or value))
            ):
                raise _refused(
                    file, "a tensor with its values in another file, which nobody has signed"
                )
            if wire == _BYTES and number in inner:
                parts.append(_Part(inner[number], start, at, part.depth + 1))


def _value(data: bytes, wire: int, at: int, end: int, file: str) -> tuple[int, int, int]:
    """A field's number (of a varint), where its content begins, and where it ends."""
    value, start = 0, at
    if wire == _VARINT:
        value, stop = _varint(data, at, end, file)
    elif wire == _BYTES:
        length, start = _varint(data, at, end, file)
        stop = start + length
    elif wire in _FIXED:
        stop = at + _FIXED[wire]
    else:
        raise _refused(file, f"protobuf wire type {wire}, which no ONNX file has")
    if stop > end:
        raise _refused(file, "a field ends behind its message")
    return value, start, stop


def _varint(data: bytes, at: int, end: int, file: str) -> tuple[int, int]:
    """The number that begins at ``at``, and where it ends."""
    if at < end and (first := data[at]) < 0x80:
        return first, at + 1
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if at + index >= end:
            break
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise _refused(file, "a number that does not end")


def _refused(file: str, what: str) -> RefusedError:
    return RefusedError("onnx", f"bundle file '{file}': expected a whole ONNX model, got {what}")
