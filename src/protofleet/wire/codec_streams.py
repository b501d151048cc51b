"""Numbers of coded tensors, each kind behind one another: what ``codecs`` writes into a blob.

A quantised tensor has one float32 scale for every 256 numbers: one outlier must not take all bits
from a layer, and 4 bytes among 256 are little.
"""

from __future__ import annotations

import math
from typing import Any, Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import RefusedError
from protofleet.kernels import (
    fp16_decode,
    fp16_encode,
    int8_decode,
    int8_encode,
    shuffle_decode,
    shuffle_encode,
    topk_encode,
)
from protofleet.tensors import Tensors

Coded = Literal["fp16", "int8", "int4", "topk"]
"""How one tensor is coded."""

PREFIX = "codec/"
"""Of the streams' names in a blob."""

BLOCK = 256
_DTYPES = {
    "halves": np.uint8,  # float16, byte planes
    "codes": np.int8,
    "nibbles": np.uint8,  # codes of 1 to 15 (for -7 to 7), the first of two in the high half
    "scales": np.float32,  # of codes and nibbles, in the order of the tensors
    "bitmaps": np.uint8,  # most significant bit first
}
_MOST_SCALE = np.finfo(np.float32).max / 8
MOST_VALUE = float(7 * _MOST_SCALE)
"""Largest magnitude that every kind can write."""
_LEAST_SCALE = np.finfo(np.float32).tiny  # below, arithmetic differs between machines
_Floats = NDArray[np.float32]


class Writer:
    """Takes tensor after tensor."""

    def __init__(self) -> None:
        self._parts: dict[str, list[NDArray[Any]]] = {name: [] for name in _DTYPES}

    def write(self, kind: Coded, values: _Floats, keep: float) -> _Floats:
        """Add a tensor's finite ``values (n,)``; returns what the reader will give for them.

        Args:
            kind: how.
            values: what to write.
            keep: share of the values that ``topk`` writes; the others read as zero.
        """
        match kind:
            case "fp16":
                halves = fp16_encode(values)
                self._parts["halves"].append(halves)
                return fp16_decode(halves)
            case "int8":
                return self._int8(values)
            case "int4":
                return self._int4(values)
            case "topk":
                return self._topk(values, keep)
            case _:
                assert_never(kind)

    def _topk(self, values: _Floats, keep: float) -> _Floats:
        indices, largest = topk_encode(values, np.zeros_like(values), math.ceil(keep * values.size))
        chosen = np.zeros(values.size, np.bool_)
        chosen[indices] = True
        self._parts["bitmaps"].append(np.packbits(chosen))
        sent = np.zeros_like(values)
        sent[indices] = self._int8(largest)
        return sent

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The streams as they stand in the blob; empty ones are left out."""
        found = {
            PREFIX + name: np.concatenate(parts) for name, parts in self._parts.items() if parts
        }
        if PREFIX + "halves" in found:
            found[PREFIX + "halves"] = shuffle_encode(found[PREFIX + "halves"])
        return found

    def _int8(self, values: _Floats) -> _Floats:
        blocks = _blocks(values.size)
        codes, scales = int8_encode(values, blocks, rounding="nearest")
        self._parts["codes"].append(codes)
        self._parts["scales"].append(scales)
        return int8_decode(codes, scales, blocks)

    def _int4(self, values: _Floats) -> _Floats:
        blocks = _blocks(values.size)
        peaks = np.maximum.reduceat(np.abs(values), blocks[:-1]) / np.float32(7)
        scales = np.maximum(peaks, _LEAST_SCALE)
        codes = np.zeros(values.size + values.size % 2, np.uint8)
        codes[: values.size] = np.rint(values / _spread(scales, blocks)) + 8
        nibbles = codes[::2] << 4 | codes[1::2]
        self._parts["nibbles"].append(nibbles)
        self._parts["scales"].append(scales)
        return _from_nibbles(nibbles, scales, blocks)


class Reader:
    """Gives tensor after tensor, from streams that came from outside.

    Raises:
        RefusedError: rule ``codec``: a stream that no writer knows, of another dtype or more than
            one axis.
    """

    def __init__(self, tensors: Tensors) -> None:
        known = {PREFIX + name for name in _DTYPES}
        for name in tensors:
            if name.startswith(PREFIX) and name not in known:
                raise refused(f"tensor '{name[:64]}': no such stream")
        self._streams = {name: _stream(tensors, name) for name in _DTYPES}
        self._streams["halves"] = shuffle_decode(self._streams["halves"], np.float16)

    def read(self, kind: Coded, size: int) -> _Floats:
        """The next tensor's values ``(size,)``, writable.

        Raises:
            RefusedError: rule ``codec``: the streams are too short, or no writer writes them.
            InputError: a number of them is not finite or out of its range.
        """
        match kind:
            case "fp16":
                return fp16_decode(self._take("halves", size))
            case "int8":
                return self._int8(size)
            case "int4":
                blocks = _blocks(size)
                nibbles = self._take("nibbles", -(-size // 2))
                return _from_nibbles(nibbles, self._take("scales", len(blocks) - 1), blocks)
            case "topk":
                return self._topk(size)
            case _:
                assert_never(kind)

    def _topk(self, size: int) -> _Floats:
        chosen = np.unpackbits(self._take("bitmaps", -(-size // 8))).view(np.bool_)
        if chosen[size:].any():
            raise refused("bitmap: expected zeros behind the last number")
        values = np.zeros(size, np.float32)
        values[chosen[:size]] = self._int8(int(np.count_nonzero(chosen)))
        return values

    def finish(self) -> None:
        """Raise RefusedError if a stream has more than its tensors."""
        for name, stream in self._streams.items():
            if len(stream):
                raise refused(f"{name}: {len(stream)} numbers belong to no tensor")

    def _int8(self, size: int) -> _Floats:
        blocks = _blocks(size)
        codes = self._take("codes", size)
        return int8_decode(codes, self._take("scales", len(blocks) - 1), blocks)

    def _take(self, name: str, size: int) -> NDArray[Any]:
        stream = self._streams[name]
        if len(stream) < size:
            raise refused(f"{name}: expected {size} more numbers, got {len(stream)}")
        self._streams[name] = stream[size:]
        return stream[:size]


def refused(text: str) -> RefusedError:
    """What no encoder writes."""
    return RefusedError("codec", f"codec: {text}")


def _stream(tensors: Tensors, name: str) -> NDArray[Any]:
    found = tensors.get(PREFIX + name, np.empty(0, _DTYPES[name]))
    if found.dtype != _DTYPES[name] or found.ndim != 1:
        expected = np.dtype(_DTYPES[name])
        raise refused(f"{name}: expected one axis of {expected}, got {found.shape} {found.dtype}")
    return found


def _blocks(size: int) -> NDArray[np.int64]:
    """Boundaries of what shares a scale."""
    return np.array([*range(0, size, BLOCK), size], np.int64)


def _spread(scales: NDArray[Any], blocks: NDArray[np.int64]) -> NDArray[Any]:
    return np.repeat(scales, np.diff(blocks))


def _from_nibbles(
    nibbles: NDArray[Any], scales: NDArray[Any], blocks: NDArray[np.int64]
) -> _Floats:
    size = int(blocks[-1])
    codes = np.stack([nibbles >> 4, nibbles & 15], axis=1).reshape(-1)
    if codes[size:].any() or codes[:size].min(initial=1) == 0:
        raise refused("nibbles: expected codes of 1 to 15, and 0 behind the last")
    if not ((scales >= 0) & (scales <= _MOST_SCALE)).all():
        raise refused(f"scales: expected finite numbers from 0 to {_MOST_SCALE:g}")
    values: _Floats = codes[:size].astype(np.float32) - np.float32(8)
    values *= _spread(scales, blocks)
    return values
