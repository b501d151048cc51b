"""A graph that takes values from outside the bundle, and bytes that are no ONNX model."""

from __future__ import annotations

import pytest
from attacks.hostile import INFER, assert_refused

from protofleet.bundle import onnx_files

_GRAPH, _TRAINING, _FUNCTION = 7, 20, 25  # of a ModelProto


def _varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _within(content: bytes, *numbers: int) -> bytes:
    """``content`` in these fields, the outermost first."""
    for number in reversed(numbers):
        content = _field(number, content)
    return content


_ENTRY = _field(1, b"location") + _field(2, b"secret.bin")
_TENSOR = b"\x08\x03\x10\x01" + _field(8, b"stolen") + _field(13, _ENTRY) + b"\x70\x01"
_LOCATED = b"\x70\x81\x80\x80\x80\x10"  # 2³² + 1: an enumeration keeps the lower 32 bits
_LONG_KEY = b"\xf0\x00\x01"  # the same field with a key of two bytes


@pytest.mark.parametrize(
    "path",
    [
        (_GRAPH, 5),
        (_GRAPH, 15, 1),
        (_GRAPH, 15, 2),
        (_GRAPH, 1, 5, 5),
        (_GRAPH, 1, 5, 10),
        (_GRAPH, 1, 5, 22, 1),
        (_GRAPH, 1, 5, 23, 2),
        (_GRAPH, 1, 5, 6, 5),
        (_GRAPH, 1, 5, 11, 1, 5, 6, 15, 1),
        (_FUNCTION, 7, 5, 5),
        (_FUNCTION, 11, 5),
        (_TRAINING, 1, 5),
        (_TRAINING, 2, 1, 5, 5),
    ],
    ids=str,
)
def test_a_tensor_whose_values_lie_in_another_file_is_refused_wherever_it_stands(forge, path):
    forge.files[INFER] += _within(_TENSOR, *path)
    assert_refused("onnx", forge.declare().single(), match="nobody has signed")


@pytest.mark.parametrize("tensor", [_field(13, _ENTRY), _LOCATED, _LONG_KEY], ids=len)
def test_each_sign_of_another_file_suffices(forge, tensor):
    forge.files[INFER] += _within(tensor, _GRAPH, 5)
    assert_refused("onnx", forge.declare().single(), match="another file")


@pytest.mark.parametrize(
    ("surplus", "match"),
    [
        (b"\x3b", "wire type 3"),
        (b"\x3a\x05", "ends behind"),
        (b"\x3a" + b"\xff" * 9 + b"\x01", "ends behind"),
        (b"\x38" + b"\xff" * 11, "does not end"),
        (_within(b"", _GRAPH, *(1, 5, 6) * 40), "deep"),
    ],
)
def test_bytes_that_are_no_bounded_message_are_refused(forge, surplus, match):
    forge.files[INFER] += surplus
    assert_refused("onnx", forge.declare().single(), match=match)


def test_the_number_of_fields_is_bounded(forge, monkeypatch):
    monkeypatch.setattr(onnx_files, "MAX_FIELDS", 100)
    forge.files[INFER] += b"\x08\x00" * 100
    assert_refused("onnx", forge.declare().single(), match="more than 100 fields")
