"""Transfers of blobs over a lossy channel, without sockets or clocks: what both ends share.

A ``Sender`` runs all outgoing transfers of one process, a ``Receiver`` all incoming ones, on a
device as on the coordinator: feed them what arrives and the time, and carry out the ``Action``
records that they return. Times are seconds of a monotonic clock. The rules are specified in
``docs/protocol.md``, section Transfer.

The receiving side (a coordinator gets ``TransferOffer``, a device gets ``Task``)::

    actions = receiver.expect(device_id, offer, now)       # answers need, or done again, or reject
    Received(device_id, offer, path)                       # later, from chunk(): complete, right
    actions = receiver.accept(offer.transfer_id, now)      # after it is stored durably

The sending side::

    offer = describe(source, kind="update", device_id="pi-7", round_id=3)
    actions = sender.send(device_id, source, offer, now)   # repeats until answered
    sender.next_chunk()                                    # as fast as the link drains
    Delivered(device_id, offer) / Rejected(device_id, offer, rule, reason)
"""

from __future__ import annotations

import hashlib
import heapq
import os
import time
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Generic, Literal, TypeVar

from protofleet.errors import InputError
from protofleet.wire.codecs import Coding
from protofleet.wire.messages import TransferOffer
from protofleet.wire.refusals import Hindered
from protofleet.wire.transfers.chunks import MAX_DATA_BYTES

Source = Path | bytes
"""A blob to send: a file that stays until ``Delivered``, or bytes."""

Ranges = tuple[tuple[int, int], ...]
"""Chunk indices as half-open ranges, ascending."""

SETTLED_NS = 1_000_000_000
DIGESTS_KEPT = 64

K = TypeVar("K", bound=Hashable)


class Lane(Enum):
    """The ways of a transfer; ``endpoint.py`` maps them to topics."""

    OFFER = "offer"
    BUNDLE = "bundle"
    """The offer of a bundle, which has a transfer of its own beside the round's."""
    CHUNK = "chunk"
    SHARED = "shared"
    """Chunks for everyone who listens, on a topic of their blob."""
    ANSWER = "answer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one process grants those who send to it.

    Attributes:
        max_blob_bytes: largest blob accepted.
        window: chunks in flight per transfer, at most 16.
        concurrent: incoming transfers that may have chunks in flight; the others wait their turn,
            for which slow ones make room. ``concurrent * window`` stays below the broker's queue
            (1000 messages).
        waiting: offers that may wait for a turn; more are left unanswered and come again.
        settled: receipts remembered for blobs that were here, so that a repeated offer is answered
            again without another fetch.
    """

    max_blob_bytes: int = 256 * 1024 * 1024
    window: int = 16
    concurrent: int = 32
    waiting: int = 100_000
    settled: int = 10_000

    def __post_init__(self) -> None:
        if not 1 <= self.window <= 16:
            raise InputError(f"window: expected 1 to 16 chunks, got {self.window}")


@dataclass(frozen=True, slots=True)
class Send:
    """Action: publish ``payload`` on a lane of the transfers with this device.

    On the lane SHARED ``device_id`` is the version of the blob (``carousel.shared_version``).
    """

    device_id: str
    lane: Lane
    payload: bytes


@dataclass(frozen=True, slots=True)
class Received:
    """Event: a blob is complete and its sha256 right; ``path`` is yours until accept/reject."""

    device_id: str
    offer: TransferOffer
    path: Path


@dataclass(frozen=True, slots=True)
class Delivered:
    """Event: the other end has the blob and stored it; the source is no longer needed."""

    device_id: str
    offer: TransferOffer


@dataclass(frozen=True, slots=True)
class Rejected:
    """Event: a blob we offered will never be taken (or its source file is gone).

    Attributes:
        device_id: the device at the other end; on a device: its own id, as in all events.
        offer: what was offered.
        rule: name of the broken rule, for programs; '' where the receipt named none.
        reason: for people.
    """

    device_id: str
    offer: TransferOffer
    rule: str
    reason: str


Action = Send | Received | Delivered | Rejected | Hindered


def transfer_id(sha256: str, device_id: str, round_id: int) -> str:
    """Identity of a transfer, the same after every restart.

    Returns:
        The first 32 hexadecimal digits of sha256 over ``<sha256>/<device_id>/<round_id>``.
    """
    return hashlib.sha256(f"{sha256}/{device_id}/{round_id}".encode()).hexdigest()[:32]


def ranges_of(indices: Iterable[int]) -> Ranges:
    """Ascending indices as half-open ranges."""
    ranges: list[tuple[int, int]] = []
    for index in indices:
        if ranges and ranges[-1][1] == index:
            ranges[-1] = (ranges[-1][0], index + 1)
        else:
            ranges.append((index, index + 1))
    return tuple(ranges)


def describe(  # noqa: PLR0913 - fields of the offer, each named at the call
    source: Source,
    *,
    kind: Literal["payload", "update", "bundle"],
    device_id: str,
    round_id: int,
    chunk_bytes: int = MAX_DATA_BYTES,
    coding: Coding | None = None,
) -> TransferOffer:
    """The offer of ``source``, raw unless ``coding`` says how it is coded; hashes a file once.

    Raises:
        InputError: the blob is empty.
    """
    if isinstance(source, bytes):
        size, digest = len(source), hashlib.sha256(source).hexdigest()
    else:
        size, digest = _digest_of(source)
    if size == 0:
        raise InputError(f"blob for {device_id}, round {round_id}: expected bytes, got none")
    coding = coding or Coding()
    return TransferOffer(
        transfer_id=transfer_id(digest, device_id, round_id),
        kind=kind,
        round_id=round_id,
        total_bytes=size,
        sha256=digest,
        chunk_bytes=chunk_bytes,
        codec=coding.codec,
        raw_bytes=coding.raw_bytes,
        reference=coding.reference,
    )


_digests: OrderedDict[tuple[Path, int, int, int], str] = OrderedDict()


def note_digest(source: Path, sha256: str) -> None:
    """Spare ``describe`` the reading of a file that was hashed before it was written.

    It must not be written again.
    """
    status = source.stat()
    _note_digest((source, status.st_ino, status.st_size, status.st_mtime_ns), sha256)


def _note_digest(key: tuple[Path, int, int, int], sha256: str) -> None:
    _digests[key] = sha256
    while len(_digests) > DIGESTS_KEPT:
        _digests.popitem(last=False)


def _digest_of(source: Path) -> tuple[int, str]:
    """Size and SHA-256 of a file; a payload for many devices is read once."""
    with source.open("rb") as blob:
        status = os.fstat(blob.fileno())
        key = (source, status.st_ino, status.st_size, status.st_mtime_ns)
        digest = _digests.get(key)
        if digest is None:
            digest = hashlib.file_digest(blob, "sha256").hexdigest()
            # A file just written may be written again within the clock's resolution.
            if time.time_ns() - status.st_mtime_ns > SETTLED_NS:
                _note_digest(key, digest)
    return status.st_size, digest


class Timers(Generic[K]):
    """Due times of many transfers, one per key; the earliest in logarithmic time.

    Moving a time later is free; the heap learns of it when it pops.
    """

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._queued: dict[K, float] = {}
        self._serial = 0

    def set(self, key: K, due: float) -> None:
        """``key`` is due at ``due``, whatever was set before."""
        self._due[key] = due
        if due < self._queued.get(key, float("inf")):
            self._push(key, due)

    def drop(self, key: K) -> None:
        """``key`` is never due."""
        self._due.pop(key, None)
        self._queued.pop(key, None)

    def expired(self, now: float) -> Iterator[K]:
        """Every key due by ``now``; each is dropped before it is given out."""
        while self._heap and self._heap[0][0] <= now:
            queued, _, key = heapq.heappop(self._heap)
            if self._queued.get(key) != queued:
                continue
            del self._queued[key]
            if self._due[key] <= now:
                del self._due[key]
                yield key
            elif self._due[key] < float("inf"):
                self._push(key, self._due[key])

    def next(self) -> float | None:
        """A time not later than the earliest due time; None if nothing is."""
        return self._heap[0][0] if self._heap else None

    def _push(self, key: K, due: float) -> None:
        self._serial += 1
        self._queued[key] = due
        heapq.heappush(self._heap, (due, self._serial, key))
