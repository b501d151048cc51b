"""Codecs: what stands between a strategy's tensors and the blob that travels.

``raw`` is the blob of ``blobs.encode`` itself, bit for bit. The others send float32 tensors of 32
and more finite numbers with fewer bits, and everything else as it is:

========  =================================================================================
codec     a float32 tensor travels as
========  =================================================================================
``fp16``  float16, its bytes in planes
``int8``  8-bit codes, with one float32 scale for every 256 of a tensor
``int4``  4-bit codes with such scales, where what they lose is made up for; else as in ``int8``
``topk``  a parameter of an update: a bitmap of its largest entries and their 8-bit codes; any
          other tensor: as in ``int8``
========  =================================================================================

What both ends know already is subtracted first, tensor by tensor: the *baseline*, which its
*reference* names. What coding loses is made up for in one of two ways. A payload refers to what an
earlier one decoded to, so the next one corrects it. Of an update's parameters, the sender keeps
what was lost and adds it the next time (Stich et al., arXiv:1809.07599v2); likewise of its
increments, the tensors whose names begin with ``change/``: the server adds them up, so they have no
baseline, and no less than 8 bits. Other tensors of an update get no such memory: a class mean or a
prototype is stated anew every round, and an old error is no part of it.

``+zlib`` behind a codec's name says that the whole blob is compressed. ``docs/protocol.md``
specifies the format, section Codecs.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar, assert_never, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.tensors import Tensors, blobs
from protofleet.wire.codec_streams import MOST_VALUE, PREFIX, Coded, Reader, Writer, refused

Kind = Literal["raw", "fp16", "int8", "int4", "topk"]
"""What a file may ask for."""

RAW: Final = "raw"
_ZLIB = "+zlib"
_KINDS: tuple[Kind, ...] = get_args(Kind)
NAMES = (RAW, *(kind + end for kind in _KINDS if kind != RAW for end in ("", _ZLIB)))
"""What an offer may name."""

SMALL = 32
"""Tensors of fewer numbers travel as they are: there is nothing to gain."""
ZLIB_LEVEL = 6
_PARAMS = "params/"
_CHANGE = "change/"
# Of normal float16 numbers: beyond, values are cut off, and below, they lose their bits.
_MOST_HALF, _LEAST_HALF = float(np.finfo(np.float16).max), float(np.finfo(np.float16).tiny)
_KEY, _REFERENCE = "codec", "base"
_Floats = NDArray[np.float32]
_Bytes = TypeVar("_Bytes", bound=bytes | memoryview)

CheckLayout = Callable[[Tensors], None]
"""Raises RefusedError unless tensors of these names, shapes and dtypes are expected. It is called
before memory is taken for their numbers: it may look at no number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """How a sender encodes.

    Attributes:
        kind: which codec.
        compressed: whether zlib follows; ``raw`` is never compressed.
        keep: share of a parameter's entries that ``topk`` sends, in (0, 1].
    """

    kind: Kind = RAW
    compressed: bool = False
    keep: float = 0.1

    @property
    def is_raw(self) -> bool:
        """Whether tensors travel bit for bit."""
        return self.kind == RAW

    @property
    def name(self) -> str:
        """As an offer names it."""
        return self.kind + _ZLIB if self.compressed and self.kind != RAW else self.kind

    @classmethod
    def of(cls, name: str, keep: float = 0.1) -> Codec:
        """The codec that a task asks for; ``raw``, which everyone reads, for what is not known."""
        kinds = {name: kind for kind in _KINDS for name in (kind, kind + _ZLIB) if kind != RAW}
        if name not in kinds or not 0 < keep <= 1:
            return cls()
        return cls(kind=kinds[name], compressed=name.endswith(_ZLIB), keep=keep)


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
    kind: Coded
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
    if codec.kind == RAW:
        parts = blobs.encoded_parts(tensors, about)
        return Encoded(parts=parts, codec=RAW, raw_bytes=sum(map(len, parts)), residual={})
    coder = _Coder(codec, baseline, residual)
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

    def __init__(self, codec: Codec, baseline: Tensors, residual: Tensors | None) -> None:
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
        kind = self._kind(peak, remembered=difference, corrected=corrected)
        sent = self.streams.write(kind, wanted, self._codec.keep)
        if remembered is not None:
            self.left[name] = wanted - sent
        entry = _Entry(name=name, shape=value.shape, kind=kind, delta=known is not None)
        self.entries.append(entry)
        return True

    def _remembered(self, name: str, known: _Floats | None) -> Tensors | None:
        """The residual, where this tensor has one."""
        difference = known is not None and name.startswith(_PARAMS)
        return self._residual if difference or self._increment(name) else None

    def _increment(self, name: str) -> bool:
        """Only an update has any, and only an update has a residual."""
        return self._residual is not None and name.startswith(_CHANGE)

    def _kind(self, peak: float, *, remembered: bool, corrected: bool) -> Coded:
        """The codec's own, if something makes up for what it loses, and it can hold ``peak``."""
        kind = self._codec.kind
        match kind:
            case "fp16":
                fits = peak == 0 or _LEAST_HALF <= peak <= _MOST_HALF
            case "topk":
                fits = remembered
            case "int4":
                fits = remembered or corrected
            case "int8":
                fits = True
            case "raw":
                raise AssertionError("tensors that travel raw are not coded")
            case _:
                assert_never(kind)
        return kind if fits else "int8"


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
        raise refused(f"expected one of {NAMES}, got '{coding.codec[:64]}'")
    raw_bytes = coding.raw_bytes
    if not 0 < raw_bytes <= max_bytes:
        raise refused(f"expected 1 to {max_bytes} bytes before compression, got {raw_bytes}")
    if coding.codec.endswith(_ZLIB):
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
        reader = Reader(tensors)
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
    values = reader.read(entry.kind, math.prod(entry.shape)).reshape(entry.shape)
    if entry.delta:
        with np.errstate(over="ignore"):
            np.add(baseline[entry.name], values, out=values)
    return values


def _known(baseline: Tensors, name: str, shape: tuple[int, ...]) -> NDArray[np.float32] | None:
    found = baseline.get(name)
    same = found is not None and found.dtype == np.float32 and found.shape == shape
    return found if same else None
