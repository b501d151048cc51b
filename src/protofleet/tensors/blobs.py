"""Blobs: named arrays as safetensors, written with one byte order and read without trust.

The format is safetensors 0.x: an 8-byte little-endian header length, a JSON header, then the
arrays. Writing here is deterministic, which the reference library is not (the order of its
metadata varies), and reading makes no copy: the arrays are views into the blob.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError, RefusedError
from protofleet.tensors import Packed, Tensors, strict_json

MAX_TENSORS = 4096
MAX_NAME_CHARS = 256
MAX_HEADER_BYTES = 2 * 1024 * 1024
MAX_DIMENSIONS = 8

_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2",
    "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1",
    "BOOL": "|b1",
}  # fmt: skip
_CODES = {np.dtype(form): code for code, form in _DTYPES.items()}
_METADATA = "__metadata__"


def encode(tensors: Tensors, metadata: Mapping[str, str] | None = None) -> bytes:
    """Safetensors bytes; equal input gives equal bytes, in whatever order it comes.

    Arrays stand widest dtype first, then by name, so that each is aligned.

    Raises:
        InputError: a name, a dtype or a number of tensors that ``decode`` would refuse.
    """
    return b"".join(encoded_parts(tensors, metadata))


def encoded_parts(
    tensors: Tensors, metadata: Mapping[str, str] | None = None
) -> list[bytes | memoryview]:
    """The bytes of ``encode`` in parts: the header, then each array's own memory, not a copy.

    Raises:
        InputError: as there.
    """
    arrays = {name: np.asarray(value, order="C") for name, value in tensors.items()}
    table = _table_of(arrays)
    parts = [_little_endian(arrays[name]).reshape(-1).view(np.uint8).data for name in table.order]
    return [_header(table, metadata), *parts]


def nested_parts(
    contents: Mapping[str, Sequence[bytes | memoryview]],
    metadata: Mapping[str, str] | None = None,
) -> list[bytes | memoryview]:
    """The parts of a blob of byte arrays whose content is given in parts, which are not copied.

    Joined, they are ``encode`` of an array of uint8 for each content.

    Raises:
        InputError: as there.
    """
    forms = [
        (name, np.dtype(np.uint8), (sum(map(len, parts)),)) for name, parts in contents.items()
    ]
    table = _table.__wrapped__(tuple(forms))  # of other sizes each time
    return [_header(table, metadata), *(part for name in table.order for part in contents[name])]


def in_order(tensors: Tensors) -> list[str]:
    """The names as their arrays stand in a blob."""
    return sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))


def encoded_size(tensors: Tensors) -> int:
    """Bytes of the blob that ``encode`` would make, which is not made.

    Raises:
        InputError: as there.
    """
    table = _table_of(tensors)
    return len(_header(table, None)) + table.size


class _Table(NamedTuple):
    """What a header says of tensors.

    Attributes:
        order: their names as they stand in the blob.
        text: their entries, without braces.
        size: of all their bytes.
    """

    order: tuple[str, ...]
    text: str
    size: int


def _table_of(tensors: Tensors) -> _Table:
    return _table(tuple((name, value.dtype, value.shape) for name, value in tensors.items()))


@lru_cache(maxsize=256)
def _table(forms: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]) -> _Table:
    """The same for all tensors of these names, dtypes and shapes: clients' models are alike."""
    known = {name: (_code(name, dtype, shape), shape) for name, dtype, shape in forms}
    order = sorted(known, key=lambda name: (-np.dtype(_DTYPES[known[name][0]]).itemsize, name))
    entries, offset = {}, 0
    for name in order:
        code, shape = known[name]
        end = offset + math.prod(shape) * np.dtype(_DTYPES[code]).itemsize
        entries[name] = {"dtype": code, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    return _Table(tuple(order), _json(entries)[1:-1], offset)


def _header(table: _Table, metadata: Mapping[str, str] | None) -> bytes:
    about = [f'"{_METADATA}":{_json(dict(sorted(metadata.items())))}'] if metadata else []
    joined = ",".join([*about, table.text] if table.text else about)
    text = f"{{{joined}}}".encode()
    text += b" " * (-len(text) % 8)
    if len(table.order) > MAX_TENSORS or len(text) > MAX_HEADER_BYTES:
        raise InputError(
            f"blob: expected at most {MAX_TENSORS} tensors and {MAX_HEADER_BYTES} bytes of header, "
            f"got {len(table.order)} and {len(text)}"
        )
    return len(text).to_bytes(8, "little") + text


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def decode(
    data: bytes | memoryview, *, max_bytes: int
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Arrays and metadata of a blob.

    Args:
        data: safetensors bytes.
        max_bytes: largest blob the caller is ready for.

    Returns:
        The arrays, READ-ONLY views into ``data`` (copy before writing), and the metadata.

    Raises:
        RefusedError: with rule ``blob-size``, ``blob-header``, ``blob-name``, ``blob-dtype``,
            ``blob-shape``, ``blob-offsets`` or ``blob-bool``.
    """
    if len(data) > max_bytes:
        raise RefusedError("blob-size", f"blob: {len(data)} bytes > {max_bytes} allowed")
    text = _header_text(data)
    entries, size, metadata, places = _known_header(text)
    start = 8 + len(text)
    if size != len(data) - start:
        raise RefusedError(
            "blob-offsets", f"blob: tensors fill {size} bytes of {len(data) - start}"
        )
    body = np.frombuffer(data, np.uint8, offset=start)
    body.flags.writeable = False
    views = {
        name: _view(name, body[begin:end], dtype, shape)
        for name, (dtype, shape, begin, end) in entries.items()
    }
    return Packed(body, places, views), dict(metadata)


def check_finite(tensors: Tensors, *, rule: str = "finite") -> None:
    """Raise RefusedError if a float tensor holds a NaN or an infinity."""
    for name, value in tensors.items():
        if not is_finite(value):
            raise RefusedError(rule, f"tensor '{name}': expected finite numbers, got NaN or inf")


def is_finite(value: NDArray[Any]) -> bool:
    """Whether no number is NaN or infinite; integers are none."""
    if value.dtype.kind != "f":
        return True
    return (value.dtype == np.float32 and _has_finite_norm(value)) or bool(np.isfinite(value).all())


def _has_finite_norm(value: NDArray[np.float32]) -> bool:
    """Whether the sum of squares is finite, so that every number is: one pass without a copy."""
    flat = value.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        return math.isfinite(np.dot(flat, flat))


_Entry = tuple[np.dtype[Any], tuple[int, ...], int, int]


def _code(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    """The dtype as a header names it."""
    code = _CODES.get(dtype.newbyteorder("<"))
    if code is None:
        raise InputError(f"tensor '{name}': expected one of {sorted(_DTYPES)}, got {dtype}")
    if not name_allowed(name):
        raise InputError(
            f"tensor {name[:40]!r}: expected a name of 1 to {MAX_NAME_CHARS} printable characters, "
            f"letters of any script, other than '{_METADATA}'"
        )
    if len(shape) > MAX_DIMENSIONS:
        raise InputError(f"tensor '{name}': expected <= {MAX_DIMENSIONS} axes, got {len(shape)}")
    return code


def _little_endian(array: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(array, dtype=array.dtype.newbyteorder("<"))


def name_allowed(name: str) -> bool:
    """Whether a tensor may be called so: printable, not too long, not the metadata's name."""
    return 0 < len(name) <= MAX_NAME_CHARS and name.isprintable() and name != _METADATA


def _header_text(data: bytes | memoryview) -> bytes:
    if len(data) < 8:
        raise RefusedError("blob-header", f"blob: expected at least 8 bytes, got {len(data)}")
    length = int.from_bytes(data[:8], "little")
    if length > min(MAX_HEADER_BYTES, len(data) - 8):
        raise RefusedError(
            "blob-header", f"blob: header of {length} bytes in a blob of {len(data)} bytes"
        )
    return bytes(data[8 : 8 + length])


class _Header(NamedTuple):
    """What a header says.

    Attributes:
        entries: by name.
        size: bytes that they fill.
        metadata: as it is.
        places: of the entries in the body.
    """

    entries: Mapping[str, _Entry]
    size: int
    metadata: Mapping[str, str]
    places: Mapping[str, tuple[int, int]]


def _read_header(text: bytes) -> _Header:
    header = strict_json.loads(text, rule="blob-header", what="blob header")
    if not isinstance(header, dict):
        raise RefusedError("blob-header", "blob header: expected an object")
    metadata = _checked_metadata(header.pop(_METADATA, {}))
    if len(header) > MAX_TENSORS:
        raise RefusedError("blob-header", f"blob: {len(header)} tensors > {MAX_TENSORS} allowed")
    entries = {name: _checked_entry(name, entry) for name, entry in header.items()}
    places = {name: (begin, end) for name, (_, _, begin, end) in entries.items()}
    return _Header(entries, _filled(entries), metadata, places)


_MOST_KEPT = 1 << 15
_FIRST = f'{{"{_METADATA}":'


def _known_header(text: bytes) -> _Header:
    """``_read_header``, which takes long, with as little reading as it needs."""
    if len(text) > _MOST_KEPT:
        return _read_header(text)
    try:
        found = _read_beside_metadata(text.decode())
    except (ValueError, RecursionError):
        found = None  # whatever is wrong is said by whoever reads it whole
    return found or _kept_header(text)


def _read_beside_metadata(text: str) -> _Header | None:
    """The same of a header that begins with its metadata, as those of updates do; None: another.

    What stands behind it is alike in all updates of a round, and so in all rounds.
    """
    if not text.startswith(_FIRST):
        return None
    metadata, end = strict_json.head(text, len(_FIRST))
    rest = text[end:]
    if not rest.startswith(',"') or f'"{_METADATA}"' in rest:
        return None
    alike = _kept_header(f"{{{rest[1:]}".encode())
    return alike._replace(metadata=_checked_metadata(metadata))


_kept_header = lru_cache(maxsize=64)(_read_header)
"""Of up to 32 KiB: those of a client's states are the same in every round."""


def _checked_metadata(metadata: Any) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise RefusedError("blob-header", "blob header: expected metadata of strings")
    return metadata


def _checked_entry(name: str, entry: Any) -> _Entry:
    if not name_allowed(name):
        raise RefusedError("blob-name", f"blob: tensor name {name[:40]!r} is not allowed")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise RefusedError("blob-header", f"tensor '{name}': expected dtype, shape, data_offsets")
    dtype = entry["dtype"]
    form = _DTYPES.get(dtype) if isinstance(dtype, str) else None
    if form is None:
        # A nested value is not written out: that may be deeper than the interpreter goes.
        got = repr(dtype[:20]) if isinstance(dtype, str) else "no text"
        raise RefusedError("blob-dtype", f"tensor '{name}': expected a dtype's name, got {got}")
    shape = _checked_ints(name, entry["shape"], "blob-shape")
    offsets = _checked_ints(name, entry["data_offsets"], "blob-offsets")
    if len(shape) > MAX_DIMENSIONS:
        raise RefusedError("blob-shape", f"tensor '{name}': {len(shape)} axes > {MAX_DIMENSIONS}")
    if math.prod(max(axis, 1) for axis in shape) >= 2**60:
        raise RefusedError("blob-shape", f"tensor '{name}': shape {shape} overflows")
    if len(offsets) != 2:
        raise RefusedError("blob-offsets", f"tensor '{name}': expected two offsets")
    return np.dtype(form), shape, offsets[0], offsets[1]


def _checked_ints(name: str, values: Any, rule: str) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(v) is int and 0 <= v < 2**63 for v in values):
        raise RefusedError(rule, f"tensor '{name}': expected a list of counts in its header")
    return tuple(values)


def _filled(entries: Mapping[str, _Entry]) -> int:
    """Bytes of the body: each belongs to exactly one tensor, and each shape fills its bytes."""
    position = 0
    for name, (dtype, shape, begin, end) in sorted(entries.items(), key=lambda e: e[1][2:]):
        if begin != position or end < begin:
            raise RefusedError(
                "blob-offsets", f"tensor '{name}': bytes {begin} to {end}, expected from {position}"
            )
        if math.prod(shape) * dtype.itemsize != end - begin:
            raise RefusedError(
                "blob-shape", f"tensor '{name}': {shape} {dtype} does not fill {end - begin} bytes"
            )
        position = end
    return position


def _view(
    name: str, raw: NDArray[np.uint8], dtype: np.dtype[Any], shape: tuple[int, ...]
) -> NDArray[Any]:
    if dtype.kind == "b" and raw.size and raw.max() > 1:
        raise RefusedError("blob-bool", f"tensor '{name}': a bool is neither 0 nor 1")
    # A foreign writer may have placed an array off its alignment: only that one is copied.
    view = raw.view(dtype).reshape(shape)
    if not view.flags.aligned:
        view = view.copy()
        view.flags.writeable = False
    return view
