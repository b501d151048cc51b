"""The sending half of one transfer: offers a blob and hands out the chunks that are asked for."""

from __future__ import annotations

import random

from msgspec.structs import replace

from protofleet.errors import RefusedError
from protofleet.wire._transfer_types import Source
from protofleet.wire.chunks import Chunk, pack
from protofleet.wire.messages import Manifest, Need, Task, encode

REPEAT_S = 3.0
"""First repetition of an unanswered offer: long against a round trip, short for a person."""
REPEAT_MAX_S = 60.0
"""Doubling stops here; an absent peer costs one small packet a minute."""
ANSWERED_REPEAT_S = 15.0
"""After an answer the receiver asks by itself; this only helps one that lost its memory."""
WINDOW_MAX = 16

Offer = Manifest | Task
"""What announces a blob: its manifest alone, or a task that contains it."""


class Outgoing:
    """One blob on its way out. The receiver decides the pace; this end only counts repetitions.

    Attributes:
        peer: device id of the other end (on a device: its own).
        manifest: what is offered.
        due: when to offer again.
        wanted: chunk indices asked for and not yet handed out, in order, without repetition.
    """

    def __init__(self, peer: str, source: Source, manifest: Manifest, offer: Offer) -> None:
        self.peer = peer
        self.manifest = manifest
        self._offer = offer
        self.due = float("inf")
        self.wanted: dict[int, None] = {}
        self._source = source
        self._repeat_s = REPEAT_S

    @property
    def _count(self) -> int:
        return -(-self.manifest.total_bytes // self.manifest.chunk_bytes)

    def offered(self, now: float, rng: random.Random) -> bytes:
        """The offer, sent now; the next one is due later and later, with jitter."""
        self._schedule(now, rng)
        return encode(self._offer)

    def reset(self, max_chunk_bytes: int) -> None:
        """The link is new: nothing asked for before counts, and chunks must fit it."""
        self.wanted.clear()
        self._repeat_s = REPEAT_S
        if self.manifest.chunk_bytes > max_chunk_bytes:
            self.manifest = replace(self.manifest, chunk_bytes=max_chunk_bytes)
            task = self._offer if isinstance(self._offer, Task) else None
            self._offer = replace(task, payload=self.manifest) if task else self.manifest

    def asked(self, need: Need, now: float, rng: random.Random) -> None:
        """Queue the first ``credit`` chunks of the ranges that are not queued already.

        Raises:
            RefusedError: rule ``need-range``: a range is empty or outside the blob.
        """
        for start, stop in need.missing:
            if not 0 <= start < stop <= self._count:
                raise RefusedError(
                    "need-range",
                    f"need: expected ranges within 0..{self._count}, got {start}..{stop}",
                )
        credit = min(need.credit, WINDOW_MAX)
        for start, stop in need.missing:
            for index in range(start, min(stop, start + credit)):
                self.wanted[index] = None
                credit -= 1
        while len(self.wanted) > WINDOW_MAX:
            self.wanted.popitem()
        self._repeat_s = ANSWERED_REPEAT_S if need.credit else REPEAT_MAX_S
        self._schedule(now, rng)

    def next_chunk(self) -> bytes:
        """The packet payload of the first wanted chunk, which is wanted no longer.

        Raises:
            OSError: the source file is gone or too short.
        """
        index = next(iter(self.wanted))
        del self.wanted[index]
        chunk = Chunk(
            transfer_id=self.manifest.transfer_id,
            index=index,
            last=index == self._count - 1,
            data=self._read(index * self.manifest.chunk_bytes),
        )
        return pack(chunk)

    def _read(self, start: int) -> bytes | memoryview:
        stop = min(start + self.manifest.chunk_bytes, self.manifest.total_bytes)
        if isinstance(self._source, bytes):
            return memoryview(self._source)[start:stop]
        with self._source.open("rb", buffering=0) as blob:
            blob.seek(start)
            data = blob.read(stop - start)
        if len(data) != stop - start:
            raise OSError(f"{self._source}: expected {stop} bytes, the file ended before")
        return data

    def _schedule(self, now: float, rng: random.Random) -> None:
        self.due = now + self._repeat_s * rng.uniform(0.75, 1.25)
        self._repeat_s = min(REPEAT_MAX_S, self._repeat_s * 2.0)
