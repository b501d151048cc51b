"""Chunks of one blob for many devices at once: a data carousel on a topic of its own.

A device whose task names the topic subscribes, says that it is ``listening`` and what it lacks, and
asks for nothing. A turn of the carousel begins when those who were offered the blob have answered,
or answers stop coming, and brings what nobody has had yet. A chunk goes to all once, and again only
if our own link may have lost it, or if many lack it: no device's window holds a turn back, so a
second one for a few may be the whole blob. Those few are offered it anew and ask for the rest. So
the carousel saves work and decides nothing. (Broadcast file delivery has it so: FLUTE, RFC 6726.)

Pure, as ``sender.py``.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable

from protofleet.errors import RefusedError
from protofleet.wire.messages import Need, Receipt, TransferOffer, decode
from protofleet.wire.transfers.chunks import MAX_DATA_BYTES, Chunk, ChunkCipher, pack
from protofleet.wire.transfers.sender import WINDOW_MAX, ContentKey, no_key, read_chunk
from protofleet.wire.transfers.transfer import Action, Lane, Ranges, Rejected, Send, Source

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
AGAIN_FROM = 8
"""So many that lack a chunk which went to all get it in another turn. Fewer ask, each for its own:
there a connection that breaks costs a window, in a turn whatever has passed meanwhile."""
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
        asking: those of them that no turn is for any more.
        starts: when ``tick`` has something to do if it stands still then, monotonic seconds.
        chunk_bytes: of its grid.
        left: chunks that it may still send.
    """

    def __init__(self, version: str, source: Source, offer: TransferOffer, key: str) -> None:
        self.transfers: dict[str, str] = {}
        self.silent: set[str] = set()
        self.asking: set[str] = set()
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
        # What nobody has had yet, as far as is known; and what our link may lose if it ends now.
        self._ahead = set(self._everything)
        self._on_link: deque[int] = deque(maxlen=WINDOW_MAX)

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
        self._ahead &= lacks
        if key in self.asking:
            return  # it has not heard that yet, or has forgotten it
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

    def tick(self, now: float, most_s: float, *, offering: bool) -> list[str]:
        """Begin a turn if it is time; transfers that are to ask in place of one.

        Args:
            now: the time.
            most_s: how long to gather at most.
            offering: whether offers wait to be sent, whose answers are yet to come.
        """
        if now < self.starts or self._queue:
            return []
        overdue = now >= self._first + most_s
        if offering and self.silent and not overdue:
            self._wait(now, most_s)
            return []
        lacking = self._lacking()
        wanted = lacking.keys() & self._ahead
        again = {index for index, devices in lacking.items() if devices >= AGAIN_FROM} - wanted
        if again and not self._mostly_served:
            wanted |= again
        elif again and not wanted and not overdue:
            self._wait(now, most_s)
            return []
        if not wanted or len(wanted) > self.left:
            return self._let_ask()
        self._begin(sorted(wanted), now)
        return []

    def stop(self) -> None:
        """Our link is new: nobody is known to listen, and what was on it may be lost."""
        self._queue.clear()
        self._ahead.update(self._on_link)
        self._on_link.clear()
        self._lacks.clear()
        self._served.clear()
        self.starts = self._first = float("inf")
        self.left = MOST_TURNS * self._count
        self.silent = set(self.transfers)

    def has_all(self, key: str) -> None:
        """A transfer's receiver has all of it: if that is its first word, from an earlier turn."""
        if key in self.silent:
            self._ahead.clear()

    def leave(self, key: str) -> None:
        """A transfer is over."""
        for those in (self.silent, self.asking, self._served):
            those.discard(key)
        self.transfers.pop(key, None)
        self._wait_no_more_for(key)

    def next_chunk(self) -> bytes:
        """The packet payload of the chunk whose turn it is.

        Raises:
            OSError: the source file is gone or too short.
        """
        index = self._queue.popleft()
        self._ahead.discard(index)
        self._on_link.append(index)
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

    def _lacking(self) -> Counter[int]:
        """By how many of those who wait each chunk is lacked."""
        lacking: Counter[int] = Counter()
        for lacks, devices in Counter(self._lacks.values()).items():
            for index in lacks:
                lacking[index] += devices
        return lacking

    def _begin(self, wanted: list[int], now: float) -> None:
        """Turn; who lacks more than that is looked at again behind it."""
        self.left -= len(wanted)
        self._queue.extend(wanted)
        left = {key: lacks.difference(wanted) for key, lacks in self._lacks.items()}
        self._served.update(key for key, lacks in left.items() if not lacks)
        self._lacks = {key: lacks for key, lacks in left.items() if lacks}
        self.starts = self._first = now if self._lacks else float("inf")

    def _let_ask(self) -> list[str]:
        """From here on those who wait get what they lack by asking for it."""
        keys = list(self._lacks)
        self._lacks.clear()
        self.asking.update(keys)
        self._served.update(keys)  # they still hear every turn
        self.starts = self._first = float("inf")
        return keys

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


LetAsk = Callable[[str, float], None]
"""Tells a transfer's receiver that no turn is for it."""


def _say_nothing(_key: str, _now: float) -> None:
    """Whoever is silent long enough asks, too."""


class Carousels:
    """All carousels of a coordinator; what it hands out goes to nobody in particular.

    Args:
        content_key: what seals chunks.
        offering: whether there are offers that have not gone out.
        let_ask: tells a listener to ask for what it lacks.

    Attributes:
        spread_s: over how long the fleet's answers may be spread.
    """

    def __init__(
        self,
        content_key: ContentKey = no_key,
        *,
        offering: Callable[[], bool] = lambda: False,
        let_ask: LetAsk = _say_nothing,
    ) -> None:
        self.spread_s = 0.0
        self._content_key = content_key
        self._offering, self._let_ask = offering, let_ask
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
        if carousel.left <= 0 or offer.transfer_id in carousel.asking:
            return ""
        carousel.transfers[offer.transfer_id] = device_id
        carousel.silent.add(offer.transfer_id)
        self._of_transfer[offer.transfer_id] = carousel
        return version

    def has(self, offer: TransferOffer) -> bool:
        """Whether a transfer was offered with a version before."""
        carousel = self._of_transfer.get(offer.transfer_id)
        return carousel is not None and carousel.chunk_bytes == offer.chunk_bytes

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
            if message.status == "done":
                carousel.has_all(key)
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
            for key in carousel.tick(now, self._most_s, offering=self._offering()):
                self._let_ask(key, now)
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
