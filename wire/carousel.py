"""Chunks of one blob for many devices at once: a data carousel on a topic of its own.

A device whose task names the topic subscribes, says that it is ``listening`` and what it lacks, and
asks for nothing. A turn of the carousel begins when those who were offered the blob have answered,
or answers stop coming, and brings what somebody lacks. Who comes in the middle of it waits for
another one if that is worth it, because all who still listen get every turn; else it is sent what
it lacks by itself. What a device misses it asks for as ever, so the carousel saves work and decides
nothing. (Broadcast file delivery has it so: FLUTE, RFC 6726.)

Pure, as ``sender.py``.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

from protofleet.errors import RefusedError
from protofleet.wire.chunks import MAX_DATA_BYTES, Chunk, ChunkCipher, pack
from protofleet.wire.messages import Need, Receipt, TransferOffer, decode
from protofleet.wire.sender import WINDOW_MAX, ContentKey, no_key, read_chunk
from protofleet.wire.transfer import Action, Lane, Ranges, Rejected, Send, Source, ranges_of

GATHER_S = 0.3
"""A turn begins when nobody has joined for so long ..."""
GATHER_SHARE = 0.1
"""... or for this share of the time since the first one joined, if that is more ..."""
GATHER_MOST_S = 5.0
"""... or the first one joined so long ago, and the fleet's spread (``most_spread``)."""
SPREAD_MAX_S = 30.0
"""More is not added to what either end waits for a turn, however large the fleet is."""
MOST_TURNS = 3
"""Of one carousel, in chunks: a slow device's link carries all of them, whether it needs them or
not."""
MOST_CHUNKS = 256
"""Of a blob: a slow device's queue at the broker (1000 messages) holds all of them."""


def shared_version(sha256: str, chunk_bytes: int) -> str:
    """What names a blob in a grid on the topic of all, and in its chunks there.

    Returns:
        The first 32 hexadecimal digits of sha256 over ``<sha256>/all/<chunk_bytes>``.
    """
    return hashlib.sha256(f"{sha256}/all/{chunk_bytes}".encode()).hexdigest()[:32]


def most_spread(seconds: float) -> float:
    """Of an announcement's ``spread_s``, by which fleets differ, what a turn is waited longer."""
    return min(max(seconds, 0.0), SPREAD_MAX_S)


class Carousel:
    """One blob in one grid.

    Attributes:
        version: names it.
        transfers: that offer it, and to whom.
        silent: those of them that have not answered yet.
        starts: when ``tick`` has something to do if it stands still then, monotonic seconds.
        chunk_bytes: of its grid.
        left: chunks that it may still send.
    """

    def __init__(self, version: str, source: Source, offer: TransferOffer, key: str) -> None:
        self.transfers: dict[str, str] = {}
        self.silent: set[str] = set()
        self.starts = self._first = float("inf")
        self.chunk_bytes = offer.chunk_bytes
        self.version, self._source, self._offer = version, source, offer
        self._count = -(-offer.total_bytes // offer.chunk_bytes)
        self._everything = frozenset(range(self._count))
        self._cipher = ChunkCipher(key, version) if key else None
        self.left = MOST_TURNS * self._count
        self._queue: deque[int] = deque()
        # By transfer, what no turn will have brought; and who was sent all that it lacked.
        self._lacks: dict[str, frozenset[int]] = {}
        self._served: set[str] = set()
        self._turned = False

    @property
    def turns(self) -> bool:
        """Whether ``next_chunk`` has one."""
        return bool(self._queue)

    def join(self, key: str, missing: Ranges, now: float, most_s: float) -> None:
        """A transfer listens from here on, and lacks ``missing`` (nothing named: everything).

        Raises:
            RefusedError: rule ``need-range``: a range is empty or outside the blob.
        """
        lacks = self._indices(missing)
        self.silent.discard(key)
        if self._queue:
            lacks -= frozenset(self._queue)
        if not lacks:
            self._serve(key)
            return
        self._served.discard(key)
        self._lacks[key] = self._everything if lacks == self._everything else lacks
        self._first = min(self._first, now)
        self._wait(now, most_s)
        self.hurry(now)

    def asks(self, key: str, now: float) -> None:
        """A transfer has answered, and does not wait for a turn."""
        self.silent.discard(key)
        if key in self._lacks:
            self._serve(key)  # it still hears every turn
        self.hurry(now)

    def hurry(self, now: float) -> None:
        """Nobody is waited for who has answered."""
        if self._lacks and not self.silent:
            self.starts = now

    def tick(self, now: float, most_s: float, *, offering: bool) -> dict[str, frozenset[int]]:
        """Begin a turn if it is time; what to send to single transfers in place of one.

        Args:
            now: the time.
            most_s: how long to gather at most.
            offering: whether offers wait to be sent, whose answers are yet to come.
        """
        if now < self.starts or self._queue:
            return {}
        overdue = now >= self._first + most_s
        if offering and self.silent and not overdue:
            self._wait(now, most_s)
            return {}
        if self._turned and (len(self._lacks) == 1 or self._mostly_served):
            if len(self._lacks) > 1 and not overdue:
                self._wait(now, most_s)
                return {}
            return self._stop_waiting()
        wanted = frozenset[int]().union(*self._lacks.values())
        if len(wanted) > self.left:
            return self._stop_waiting()
        self.left -= len(wanted)
        self._queue.extend(sorted(wanted))
        self._turned = True
        self._stop_waiting()
        return {}

    def stop(self) -> None:
        """Nobody is known to listen."""
        self._queue.clear()
        self._lacks.clear()
        self._served.clear()
        self.starts = self._first = float("inf")
        self.left, self._turned = MOST_TURNS * self._count, False
        self.silent = set(self.transfers)

    def leave(self, key: str) -> None:
        """A transfer is over."""
        for those in (self.silent, self._served):
            those.discard(key)
        self.transfers.pop(key, None)
        self._wait_no_more_for(key)

    def next_chunk(self) -> bytes:
        """The packet payload of the chunk whose turn it is.

        Raises:
            OSError: the source file is gone or too short.
        """
        index = self._queue.popleft()
        chunk = Chunk(
            transfer_id=self.version,
            index=index,
            last=index == self._count - 1,
            data=read_chunk(self._source, self._offer, index),
        )
        return pack(chunk if self._cipher is None else self._cipher.seal(chunk))

    def _serve(self, key: str) -> None:
        self._served.add(key)
        self._wait_no_more_for(key)

    def _wait_no_more_for(self, key: str) -> None:
        self._lacks.pop(key, None)
        if not self._lacks:
            self.starts = self._first = float("inf")

    @property
    def _mostly_served(self) -> bool:
        """Whether a turn would go to more who do not need it than to others."""
        return len(self._served) > len(self._lacks)

    def _wait(self, now: float, most_s: float) -> None:
        quiet_s = max(GATHER_S, GATHER_SHARE * (now - self._first))
        self.starts = min(now + quiet_s, self._first + most_s)

    def _stop_waiting(self) -> dict[str, frozenset[int]]:
        """From here on all are taken to get what they lack; what that is."""
        lacks, self._lacks = self._lacks, {}
        self._served.update(lacks)
        self.starts = self._first = float("inf")
        return lacks

    def _indices(self, missing: Ranges) -> frozenset[int]:
        for start, stop in missing:
            if not 0 <= start < stop <= self._count:
                raise RefusedError(
                    "need-range",
                    f"need: expected ranges within 0..{self._count}, got {start}..{stop}",
                )
        if not missing:
            return self._everything
        return frozenset(index for start, stop in missing for index in range(start, stop))


Push = Callable[[str, Need, float], None]
"""Sends a transfer's receiver the chunks of a need that it has not sent."""


def _no_push(_key: str, _need: Need, _now: float) -> None:
    """Whoever lacks chunks asks for them."""


class Carousels:
    """All carousels of a coordinator; what it hands out goes to nobody in particular.

    Args:
        content_key: what seals chunks.
        offering: whether there are offers that have not gone out.
        push: sends a listener by itself what no turn brings.

    Attributes:
        spread_s: over how long the fleet's answers may be spread.
    """

    def __init__(
        self,
        content_key: ContentKey = no_key,
        *,
        offering: Callable[[], bool] = lambda: False,
        push: Push = _no_push,
    ) -> None:
        self.spread_s = 0.0
        self._content_key = content_key
        self._offering, self._push = offering, push
        self._carousels: dict[str, Carousel] = {}
        # Of each device there is one: with little for each.
        self._of_transfer: dict[str, Carousel] = {}
        self._latest: dict[str, dict[str, str]] = {}

    def add(self, device_id: str, source: Source, offer: TransferOffer) -> str:
        """A device will be offered ``source``; the version for its task, '' if no turn is for it.

        As on the wire it replaces the device's transfer of that kind before it.
        """
        if offer.total_bytes > MOST_CHUNKS * offer.chunk_bytes:
            return ""
        version = shared_version(offer.sha256, offer.chunk_bytes)
        latest = self._latest.setdefault(offer.kind, {})
        before = latest.get(device_id, "")
        known = self._of_transfer.get(before)
        if before != offer.transfer_id or known is None or known.version != version:
            self.forget(before)
        latest[device_id] = offer.transfer_id
        carousel = self._carousels.get(version)
        if carousel is None:
            key = self._content_key(offer.sha256, offer.chunk_bytes)
            carousel = self._carousels[version] = Carousel(version, source, offer, key)
        if carousel.left <= 0:
            return ""
        carousel.transfers[offer.transfer_id] = device_id
        carousel.silent.add(offer.transfer_id)
        self._of_transfer[offer.transfer_id] = carousel
        return version

    @property
    def idle(self) -> bool:
        """Whether no answer can be for it."""
        return not self._carousels

    def answer(self, device_id: str, payload: bytes, now: float) -> list[Action]:
        """Take a need or a receipt; only who listens, or is through, matters here.

        Raises:
            RefusedError: it is neither, or names chunks that there are not.
        """
        message: Need | Receipt = decode(payload, Need | Receipt)
        key = message.transfer_id
        carousel = self._of_transfer.get(key)
        if carousel is None or carousel.transfers[key] != device_id:
            return []
        if isinstance(message, Receipt):
            self.forget(key)
            return []
        if message.listening:
            carousel.join(key, message.missing, now, self._most_s)
        else:
            carousel.asks(key, now)
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

    def tick(self, now: float, most: float = float("inf")) -> list[Action]:  # noqa: ARG002 - as of Sender
        """Start what has waited long enough."""
        for carousel in list(self._carousels.values()):
            if now < carousel.starts:
                continue
            alone = carousel.tick(now, self._most_s, offering=self._offering())
            for key, lacks in alone.items():
                missing = ranges_of(sorted(lacks))
                self._push(key, Need(transfer_id=key, missing=missing, credit=WINDOW_MAX), now)
        return []

    @property
    def _most_s(self) -> float:
        return GATHER_MOST_S + most_spread(self.spread_s)

    def due(self) -> float | None:
        """When ``tick`` has something to do; None: only after another call."""
        waiting = (one.starts for one in self._carousels.values() if not one.turns)
        first = min(waiting, default=float("inf"))
        return None if first == float("inf") else first

    def reconnected(self, now: float, max_chunk_bytes: int = MAX_DATA_BYTES) -> None:  # noqa: ARG002 - as of Sender
        """Our link is new: all are offered theirs again, and listen again if its grid fits."""
        for version, carousel in list(self._carousels.items()):
            if carousel.chunk_bytes > max_chunk_bytes:
                self._drop(version)
            carousel.stop()

    def device_returned(self, device_id: str, now: float) -> None:
        """It is offered its transfer again, and listens again."""

    def forget(self, key: str) -> None:
        """A transfer is over; so is its carousel when it was the last."""
        carousel = self._of_transfer.pop(key, None)
        if carousel is None:
            return
        carousel.leave(key)
        if not carousel.transfers:
            del self._carousels[carousel.version]

    def _drop(self, version: str) -> None:
        for key in self._carousels.pop(version).transfers:
            self._of_transfer.pop(key, None)
