"""Blobs of coded tensors: what is coded and how, and reading what came from outside."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.tensors import Tensors, blobs
from protofleet.wire.codecs.int8 import Int8
from protofleet.wire.codecs.registry import CODECS, NAMES, RAW, STREAMS, ZLIB
from protofleet.wire.codecs.streams import PREFIX, Reader, Writer, refused
from protofleet.wire.codecs.tensor_codec import MOST_VALUE, Circumstances, TensorCodec

SMALL = 32
"""Tensors of fewer numbers travel as they are: there is nothing to gain."""
ZLIB_LEVEL = 6
_PARAMS = "params/"
_CHANGE = "change/"
_FOR_ALL = Int8()
"""Codes what a codec cannot."""
_KEY, _REFERENCE = "codec", "base"
_Floats = NDArray[np.float32]
_Bytes = TypeVar("_Bytes", bound=bytes | memoryview)

CheckLayout = Callable[[Tensors], None]
"""Raises RefusedError unless tensors of these names, shapes and dtypes are expected. It is called
before memory is taken for their numbers: it may look at no number."""


@dataclass(frozen=True, slots=True)
class Codec:
    """How a sender encodes.

    Attributes:
        tensors: each of those that are coded; None: all travel bit for bit.
        compressed: whether zlib follows; what is not coded is never compressed.
    """

    tensors: TensorCodec | None = None
    compressed: bool = False

    @property
    def is_raw(self) -> bool:
        """Whether tensors travel bit for bit."""
        return self.tensors is None

    @property
    def name(self) -> str:
        """As an offer names it."""
        if self.tensors is None:
            return RAW
        return self.tensors.name + ZLIB if self.compressed else self.tensors.name

    @property
    def text(self) -> str:
        """For people: with its settings, and without compression, which is common."""
        return RAW if self.tensors is None else self.tensors.text

    @classmethod
    def of(cls, name: str, **settings: float) -> Codec:
        """The codec that a task asks for; ``raw``, which everyone reads, for what is not known."""
        kind = CODECS.get(name.removesuffix(ZLIB))
        if kind is None:
            return cls()
        try:
            return cls(kind.of(**settings), compressed=name.endswith(ZLIB))
        except ValueError:
            return cls()


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """What an offer says of a blob's codec; fields as in ``messages.TransferOffer``."""

    codec: str = RAW
    raw_bytes: int = 0
    reference: str = ""

    @property
    def is_raw(self) -> bool:
        """Whether the blob is the raw one."""
        return self.codec == RAW


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """A blob to send.

    Attributes:
        parts: its bytes, some of them in the memory of the tensors that it is made of.
        codec: as an offer names it.
        raw_bytes: size before compression.
        residual: by tensor, what the sender has to add the next time; empty without memory.
    """

    parts: Sequence[bytes | memoryview]
    codec: str
    raw_bytes: int
    residual: Tensors

    @property
    def blob(self) -> bytes:
        """The parts as one; made anew each time."""
        return b"".join(self.parts)

    def coding(self, reference: str) -> Coding:
        """For the offer; of a raw blob nothing needs to be said."""
        if self.codec == RAW:
            return Coding()
        return Coding(codec=self.codec, raw_bytes=self.raw_bytes, reference=reference)


class _Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One coded tensor, in the order of the streams."""

    name: str
    shape: tuple[int, ...]
    kind: str
    delta: bool


def encode(  # noqa: PLR0913 - what and for whom; all but the first three have defaults
    tensors: Tensors,
    baseline: Tensors,
    codec: Codec,
    *,
    residual: Tensors | None = None,
    metadata: Mapping[str, str] | None = None,
    reference: str = "",
) -> Encoded:
    """The blob of ``tensors``.

    Args:
        tensors: what the other end is to have.
        baseline: what it has already, by name; used where dtype and shape are the same.
        codec: how.
        residual: what earlier calls returned; empty at first. Of tensors that this blob does not
            code it is handed on. None: what is lost stays lost, as it may where the next
            baseline is what this blob decodes to.
        metadata: of the blob.
        reference: name of the baseline. It stands in the blob, so that equal codes that refer to
            different things are different blobs.

    Raises:
        InputError: a name, a dtype or a number of tensors that ``blobs.encode`` refuses.
    """
    about = dict(metadata or {})
    if codec.tensors is None:
        parts = blobs.encoded_parts(tensors, about)
        return Encoded(parts=parts, codec=RAW, raw_bytes=sum(map(len, parts)), residual={})
    coder = _Coder(codec.tensors, baseline, residual)
    # In one order, whatever order the sender holds them in: a restart sends the same bytes.
    plain = {name: value for name, value in sorted(tensors.items()) if not coder.take(name, value)}
    if taken := [name for name in plain if name.startswith(PREFIX)]:
        raise InputError(f"tensor '{taken[0]}': expected no name that starts with '{PREFIX}'")
    about[_KEY] = msgspec.json.encode(coder.entries).decode()
    if reference:
        about[_REFERENCE] = reference
    blob = blobs.encode({**plain, **coder.streams.tensors()}, about)
    sent = zlib.compress(blob, ZLIB_LEVEL) if codec.compressed else blob
    return Encoded(parts=[sent], codec=codec.name, raw_bytes=len(blob), residual=coder.left)


class _Coder:
    """Codes tensor after tensor."""

    def __init__(self, codec: TensorCodec, baseline: Tensors, residual: Tensors | None) -> None:
        self._codec, self._baseline, self._residual = codec, baseline, residual
        self.entries: list[_Entry] = []
        self.streams = Writer()
        self.left: dict[str, NDArray[Any]] = dict(residual or {})

    def take(self, name: str, value: NDArray[Any]) -> bool:
        """Code a tensor; False: it travels as it is."""
        if value.dtype != np.float32 or value.size < SMALL:
            return False
        known = None if self._increment(name) else _known(self._baseline, name, value.shape)
        remembered = self._remembered(name, known)
        with np.errstate(over="ignore", invalid="ignore"):
            wanted = value.reshape(-1) if known is None else (value - known).reshape(-1)
            if remembered is not None and name in remembered:
                wanted = wanted + remembered[name]
        peak = float(np.abs(wanted).max())
        # Numbers (almost) without end are the receiver's to refuse, not ours to hide.
        if not peak <= MOST_VALUE:
            return False
        corrected = self._residual is None and known is not None
        # What the server adds up must be near in every round, not only in the end.
        difference = remembered is not None and known is not None
        told = Circumstances(peak=peak, remembered=difference, corrected=corrected)
        codec = self._codec if self._codec.fits(told) else _FOR_ALL
        sent = codec.write(wanted, self.streams)
        if remembered is not None:
            self.left[name] = wanted - sent
        entry = _Entry(name=name, shape=value.shape, kind=codec.name, delta=known is not None)
        self.entries.append(entry)
        return True

    def _remembered(self, name: str, known: _Floats | None) -> Tensors | None:
        """The residual, where this tensor has one."""
        difference = known is not None and name.startswith(_PARAMS)
        return self._residual if difference or self._increment(name) else None

    def _increment(self, name: str) -> bool:
        """Only an update has any, and only an update has a residual."""
        return self._residual is not None and name.startswith(_CHANGE)


def decode(
    data: bytes | memoryview,
    baseline: Tensors,
    coding: Coding,
    *,
    max_bytes: int,
    check: CheckLayout | None = None,
) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Tensors and metadata of a blob that came from outside.

    Args:
        data: the blob.
        baseline: what its sender took for ours.
        coding: what its offer says.
        max_bytes: largest blob, and largest sum of decoded tensors, the caller is ready for.
        check: what the decoded tensors must be; None: the blob is our own.

    Raises:
        RefusedError: a rule of ``blobs.decode`` or of ``check``, or ``codec``: what no encoder
            writes, or a tensor that refers to one that we do not have.
    """
    if coding.codec == RAW:
        tensors, metadata = blobs.decode(data, max_bytes=max_bytes)
        if check is not None:
            check(tensors)
        return tensors, metadata
    if coding.codec not in NAMES:
        raise refused(f"expected one of {', '.join(NAMES)}, got '{coding.codec[:64]}'")
    raw_bytes = coding.raw_bytes
    if not 0 < raw_bytes <= max_bytes:
        raise refused(f"expected 1 to {max_bytes} bytes before compression, got {raw_bytes}")
    if coding.codec.endswith(ZLIB):
        data = _inflated(data, raw_bytes)
    if len(data) != raw_bytes:
        raise refused(f"expected {raw_bytes} bytes before compression, got {len(data)}")
    tensors, metadata = blobs.decode(data, max_bytes=max_bytes)
    metadata.pop(_REFERENCE, None)
    entries = _checked_entries(metadata.pop(_KEY, ""), tensors, baseline, max_bytes)
    plain = {key: value for key, value in tensors.items() if not key.startswith(PREFIX)}
    if check is not None:
        check(plain | {entry.name: _hollow(entry.shape) for entry in entries})
    try:
        reader = Reader(tensors, STREAMS)
        decoded = {entry.name: _read(reader, entry, baseline) for entry in entries}
        reader.finish()
    except InputError as error:
        raise refused(str(error)) from error
    return {**plain, **decoded}, metadata


def _hollow(shape: tuple[int, ...]) -> _Floats:
    """A float32 tensor of this shape that takes no memory."""
    return np.broadcast_to(np.zeros((), np.float32), shape)


def _inflated(data: bytes | memoryview, size: int) -> bytes:
    """At most ``size`` bytes are ever made, whatever the stream says."""
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(data, size)
        # What is left may be no more than the checksum.
        rest = stream.decompress(stream.unconsumed_tail, 1)
    except zlib.error as error:
        raise refused(f"zlib: {error}") from error
    if rest or not stream.eof or stream.unused_data:
        raise refused(f"zlib: expected one whole stream of {size} bytes")
    return found


def _checked_entries(
    text: str, tensors: Tensors, baseline: Tensors, max_bytes: int
) -> list[_Entry]:
    """The table of coded tensors; every shape is checked before anything is made of it."""
    try:
        entries = msgspec.json.decode(text, type=list[_Entry])
    except (msgspec.DecodeError, RecursionError) as error:
        raise refused(f"table of tensors: {error}") from error
    _check_names(entries, tensors)
    total = 0
    for entry in entries:
        # Numbers of thousands of digits are never multiplied, nor written into a message.
        sizes = all(1 <= size <= max_bytes for size in entry.shape)
        if len(entry.shape) > blobs.MAX_DIMENSIONS or not sizes:
            raise refused(f"tensor '{entry.name[:64]}': impossible shape")
        total += 4 * math.prod(entry.shape)
        if entry.delta and _known(baseline, entry.name, entry.shape) is None:
            raise refused(
                f"tensor '{entry.name[:64]}': {entry.shape} refers to one that is not here"
            )
    if total > max_bytes:
        raise refused(f"expected tensors of at most {max_bytes} bytes in all, got {total}")
    return entries


def _check_names(entries: list[_Entry], tensors: Tensors) -> None:
    names = [entry.name for entry in entries]
    plain = sum(not name.startswith(PREFIX) for name in tensors)
    if len(entries) + plain > blobs.MAX_TENSORS:
        raise refused(f"table of tensors: expected at most {blobs.MAX_TENSORS} in all")
    if not all(map(blobs.name_allowed, names)):
        raise refused("table of tensors: a name is not allowed")
    if len(set(names)) < len(names) or not tensors.keys().isdisjoint(names):
        raise refused("table of tensors: expected each name once")
    if any(name.startswith(PREFIX) for name in names):
        raise refused(f"table of tensors: a name starts with '{PREFIX}'")
    if unknown := {entry.kind for entry in entries} - CODECS.keys():
        raise refused(f"table of tensors: no codec is called '{min(unknown)[:64]}'")


def to_raw(
    data: _Bytes,
    baseline: Tensors,
    coding: Coding,
    *,
    max_bytes: int,
    check: CheckLayout | None = None,
) -> _Bytes | bytes:
    """The raw blob that a coded one stands for; raw ones as they are, unread.

    Raises:
        RefusedError: as ``decode``.
    """
    if coding.codec == RAW:
        return data
    tensors, metadata = decode(data, baseline, coding, max_bytes=max_bytes, check=check)
    try:
        return blobs.encode(tensors, metadata)
    except InputError as error:
        raise refused(str(error)) from error


def _read(reader: Reader, entry: _Entry, baseline: Tensors) -> NDArray[np.float32]:
    values = CODECS[entry.kind].read(math.prod(entry.shape), reader).reshape(entry.shape)
    if entry.delta:
        with np.errstate(over="ignore"):
            np.add(baseline[entry.name], values, out=values)
    return values


def _known(baseline: Tensors, name: str, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
    found = baseline.get(name)
    same = found is not None and found.dtype == np.float32 and found.shape == shape
    return found if same else None
