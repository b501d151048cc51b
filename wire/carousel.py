"""Chunks of one blob for many devices at once: a data carousel on a topic of its own.

A device whose task names the topic subscribes, says that it is ``listening``, and asks for nothing.
A turn of the carousel begins when those who were offered the blob have answered, or answers stop
coming; whoever comes in the middle of it waits for another one, of which there are few, because
all who still listen get every turn. What a device misses it asks for as ever, so the carousel saves
work and decides nothing. (Broadcast file delivery has it so: FLUTE, RFC 6726.)

Pure, as ``sender.py``.
"""

from __future__ import annotations

import hashlib

from protofleet.wire.chunks import MAX_DATA_BYTES, Chunk, ChunkCipher, pack
from protofleet.wire.messages import Need, Receipt, TransferOffer, decode
from protofleet.wire.sender import ContentKey, no_key, read_chunk
from protofleet.wire.transfer import Action, Lane, Rejected, Send, Source

GATHER_S = 0.3
"""A turn begins when nobody has joined for so long ..."""
GATHER_MOST_S = 5.0
"""... or the first one so long ago."""
MOST_TURNS = 3
"""Of one carousel: a slow device's link carries each of them, whether it needs it or not."""
MOST_CHUNKS = 256
"""Of a blob: a slow device's queue at the broker (1000 messages) holds all of them."""


def shared_version(sha256: str, chunk_bytes: int) -> str:
    """What names a blob in a grid on the topic of all, and in its chunks there.

    Returns:
        The first 32 hexadecimal digits of sha256 over ``<sha256>/all/<chunk_bytes>``.
    """
    return hashlib.sha256(f"{sha256}/all/{chunk_bytes}".encode()).hexdigest()[:32]


class Carousel:
    """One blob in one grid.

    Attributes:
        transfers: that offer it.
        silent: those of them that have not answered yet.
        starts: when its next turn begins if it stands still then, monotonic seconds.
        chunk_bytes: of its grid.
        left: turns that it may still make.
    """

    def __init__(self, version: str, source: Source, offer: TransferOffer, key: str) -> None:
        self.transfers: set[str] = set()
        self.silent: set[str] = set()
        self.starts = float("inf")
        self.chunk_bytes = offer.chunk_bytes
        self._version, self._source, self._offer = version, source, offer
        self._count = -(-offer.total_bytes // offer.chunk_bytes)
        self._cipher = ChunkCipher(key, version) if key else None
        self.left = MOST_TURNS
        self._position = self._until = 0
        self._first = float("inf")

    @property
    def turns(self) -> bool:
        """Whether ``next_chunk`` has one."""
        return self._position < self._until

    def join(self, now: float) -> None:
        """Somebody listens from here on for a whole turn."""
        self._first = min(self._first, now)
        if self.left:
            self.starts = min(now + GATHER_S, self._first + GATHER_MOST_S)
        self.hurry(now)

    def hurry(self, now: float) -> None:
        """Nobody is waited for who has answered."""
        if self.starts < float("inf") and not self.silent:
            self.starts = now

    def tick(self, now: float) -> None:
        """Begin a turn if it is time."""
        if now >= self.starts and not self.turns:
            self._until = self._position + self._count
            self.left -= 1
            self.starts = self._first = float("inf")

    def stop(self) -> None:
        """Nobody is known to listen."""
        self._until, self.left = self._position, MOST_TURNS
        self.starts = self._first = float("inf")
        self.silent = set(self.transfers)

    def next_chunk(self) -> bytes:
        """The packet payload of the chunk whose turn it is.

        Raises:
            OSError: the source file is gone or too short.
        """
        index = self._position % self._count
        chunk = Chunk(
            transfer_id=self._version,
            index=index,
            last=index == self._count - 1,
            data=read_chunk(self._source, self._offer, index),
        )
        self._position += 1
        return pack(chunk if self._cipher is None else self._cipher.seal(chunk))


class Carousels:
    """All carousels of a coordinator; what it hands out goes to nobody in particular.

    Args:
        content_key: what seals chunks.
    """

    def __init__(self, content_key: ContentKey = no_key) -> None:
        self._content_key = content_key
        self._carousels: dict[str, Carousel] = {}
        self._of_transfer: dict[str, tuple[str, str]] = {}
        self._latest: dict[tuple[str, str], str] = {}

    def add(self, device_id: str, source: Source, offer: TransferOffer) -> str:
        """A device will be offered ``source``; the version for its task, '' if no turn is for it.

        As on the wire it replaces the device's transfer of that kind before it.
        """
        if offer.total_bytes > MOST_CHUNKS * offer.chunk_bytes:
            return ""
        version = shared_version(offer.sha256, offer.chunk_bytes)
        before = self._latest.get((device_id, offer.kind), "")
        if before != offer.transfer_id or self._of_transfer.get(before) != (device_id, version):
            self.forget(before)
        self._latest[device_id, offer.kind] = offer.transfer_id
        carousel = self._carousels.get(version)
        if carousel is None:
            key = self._content_key(offer.sha256, offer.chunk_bytes)
            carousel = self._carousels[version] = Carousel(version, source, offer, key)
        if not carousel.left:
            return ""
        carousel.transfers.add(offer.transfer_id)
        carousel.silent.add(offer.transfer_id)
        self._of_transfer[offer.transfer_id] = (device_id, version)
        return version

    @property
    def idle(self) -> bool:
        """Whether no answer can be for it."""
        return not self._carousels

    def answer(self, device_id: str, payload: bytes, now: float) -> list[Action]:
        """Take a need or a receipt; only who listens, or is through, matters here.

        Raises:
            RefusedError: it is neither.
        """
        message: Need | Receipt = decode(payload, Need | Receipt)
        key = message.transfer_id
        owner, version = self._of_transfer.get(key, ("", ""))
        if owner != device_id:
            return []
        if isinstance(message, Receipt):
            self.forget(key)
            return []
        carousel = self._carousels[version]
        carousel.silent.discard(key)
        if message.listening:
            carousel.join(now)
        else:
            carousel.hurry(now)
        return []

    def next_chunk(self) -> Send | Rejected | None:
        """The next chunk to publish, carousels taking turns; None if none turns."""
        for version in [name for name, one in self._carousels.items() if one.turns]:
            carousel = self._carousels[version]
            try:
                payload = carousel.next_chunk()
            except OSError:
                self._drop(version)  # whoever asks for its chunks is told
                continue
            self._carousels[version] = self._carousels.pop(version)
            return Send(version, Lane.SHARED, payload)
        return None

    def tick(self, now: float) -> list[Action]:
        """Start what has waited long enough."""
        for carousel in self._carousels.values():
            carousel.tick(now)
        return []

    def due(self) -> float | None:
        """When ``tick`` has something to do; None: only after another call."""
        waiting = (one.starts for one in self._carousels.values() if not one.turns)
        first = min(waiting, default=float("inf"))
        return None if first == float("inf") else first

    def reconnected(self, now: float, max_chunk_bytes: int = MAX_DATA_BYTES) -> list[Action]:  # noqa: ARG002 - as of Sender
        """Our link is new: all are offered theirs again, and listen again if its grid fits."""
        for version, carousel in list(self._carousels.items()):
            if carousel.chunk_bytes > max_chunk_bytes:
                self._drop(version)
            carousel.stop()
        return []

    def device_returned(self, device_id: str, now: float) -> list[Action]:  # noqa: ARG002 - as of Sender
        """It is offered its transfer again, and listens again."""
        return []

    def forget(self, key: str) -> None:
        """A transfer is over; so is its carousel when it was the last."""
        _, version = self._of_transfer.pop(key, ("", ""))
        carousel = self._carousels.get(version)
        if carousel is None:
            return
        carousel.transfers.discard(key)
        carousel.silent.discard(key)
        if not carousel.transfers:
            del self._carousels[version]

    def _drop(self, version: str) -> None:
        for key in self._carousels.pop(version).transfers:
            self._of_transfer.pop(key, None)
