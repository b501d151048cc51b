"""The sending side of transfers: offers blobs and hands out the chunks that are asked for.

Pure: bytes and times in, actions out. The receiver decides the pace; this end repeats what was not
answered.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from protofleet.errors import RefusedError
from protofleet.printable import printable
from protofleet.wire.messages import (
    BundleOffer,
    Need,
    Receipt,
    Task,
    TransferOffer,
    decode,
    encode,
)
from protofleet.wire.mqtt.passage import Passage
from protofleet.wire.refusals import silence
from protofleet.wire.transfers.allowance import Allowance
from protofleet.wire.transfers.chunks import (
    MAX_CHUNKS,
    MAX_DATA_BYTES,
    MIN_DATA_BYTES,
    Chunk,
    ChunkCipher,
    pack,
)
from protofleet.wire.transfers.transfer import (
    Action,
    Delivered,
    Lane,
    Rejected,
    Send,
    Source,
    Timers,
)

REPEAT_S = 3.0
"""First repetition of an unanswered offer: long against a round trip, short for a person."""
ANSWERS = 4.0
"""An offer is not repeated before so many times as long as others were answered in: where thousands
are offered something, or answer on a busy machine, repetitions would only make it busier."""
REPEAT_MAX_S = 60.0
"""Doubling stops here; an absent receiver costs one small packet a minute."""
OFFER_GAP_S = 1.0
"""However often a device says that it is back, it is offered no more often."""
ANSWERED_REPEAT_S = 15.0
"""After an answer the receiver asks by itself; this only helps one that lost its memory."""
WINDOW_MAX = 16
UNANSWERED_MAX = 256
"""First offers without an answer yet; with those of 32 uploads' chunks the answers stay below a
broker's queue of 1000, which drops what is more. Offers that are repeated no longer count."""
REASON_CHARS = 500
"""Of a receipt; the rest is not for people."""

ContentKey = Callable[[str, int], str]
"""From a blob's SHA-256 and the grid: the key that seals its chunks; '': they are not sealed."""


def no_key(_sha256: str, _chunk_bytes: int) -> str:
    """Of a federation without keys."""
    return ""


def read_chunk(source: Source, offer: TransferOffer, index: int) -> bytes | memoryview:
    """The data of a blob's chunk.

    Raises:
        OSError: the source file is gone or too short.
    """
    start = index * offer.chunk_bytes
    stop = min(start + offer.chunk_bytes, offer.total_bytes)
    if isinstance(source, bytes):
        return memoryview(source)[start:stop]
    with source.open("rb", buffering=0) as blob:
        blob.seek(start)
        data = blob.read(stop - start)
    if len(data) != stop - start:
        raise OSError(f"{source}: expected {stop} bytes, the file ended before")
    return data


class OutboundTransfer:
    """One blob on its way out.

    Attributes:
        device_id: of the transfer; on a device: its own.
        offer: what is offered.
        due: when to offer again.
        offered_at: when it was offered last on this connection.
        wanted: chunk indices asked for and not yet handed out, in order, without repetition.
        narrowed: whether larger ones were not.
    """

    __slots__ = (  # there is one for each device
        "_cipher",
        "_content_key",
        "_passage",
        "_repeat_s",
        "_source",
        "_task",
        "allowance",
        "device_id",
        "due",
        "narrowed",
        "offer",
        "offered_at",
        "wanted",
    )

    def __init__(  # noqa: PLR0913 - what is sent, each named at the call
        self,
        *,
        device_id: str,
        source: Source,
        offer: TransferOffer,
        task: Task | BundleOffer | None,
        allowance: Allowance,
        content_key: ContentKey = no_key,
    ) -> None:
        self.device_id = device_id
        self.allowance = allowance
        self._content_key = content_key
        self.narrowed = False
        self._passage: Passage | None = None  # of most nothing was asked yet
        self._cut(offer)
        self.due = float("inf")
        self.offered_at = float("-inf")
        self.wanted: dict[int, None] = {}
        self._task = task
        self._source = source
        self._repeat_s = REPEAT_S

    @property
    def _count(self) -> int:
        return -(-self.offer.total_bytes // self.offer.chunk_bytes)

    def announce(self, now: float, rng: random.Random, patience_s: float = 0.0) -> bytes:
        """The offer, sent now; the next one is due later and later, with jitter.

        ``patience_s``: not before so long, by and large.
        """
        self.offered_at = now
        self._repeat_s = min(REPEAT_MAX_S, max(self._repeat_s, patience_s))
        self._schedule(now, rng)
        return encode(replace(self._task, payload=self.offer) if self._task else self.offer)

    def reset(self, max_chunk_bytes: int, now: float) -> None:
        """The link is new: nothing asked for before counts, and chunks must fit it."""
        self.wanted.clear()
        self._repeat_s = REPEAT_S
        self._passage = None
        self.narrow(max_chunk_bytes)
        self.allowance = Allowance(self.offer, now)

    def narrow(self, max_chunk_bytes: int) -> None:
        """Take a grid of chunks that are no larger."""
        if self.offer.chunk_bytes > max_chunk_bytes:
            self._cut(replace(self.offer, chunk_bytes=max_chunk_bytes))
            self.share_no_more()  # that was of the other grid

    def blocked(self, need: Need, now: float) -> int:
        """Bytes of the chunks to try instead, if those of now do not seem to pass; else 0."""
        shared = self._task is not None and bool(self._task.shared)
        if self._passage is None:
            self._passage = Passage(self.offer)
        if not self._passage.is_blocked(need, now, shared=shared):
            return 0
        total = self.offer.total_bytes
        least = max(MIN_DATA_BYTES, -(-total // MAX_CHUNKS))
        smaller = max(least, min(total, self.offer.chunk_bytes) // 2)
        return smaller if smaller < self.offer.chunk_bytes else 0

    @property
    def passes(self) -> bool:
        """Whether its chunks are known to arrive."""
        return self._passage is not None and self._passage.arrived

    def silent_s(self, now: float) -> float:
        """How long ago its chunks were asked for first."""
        return 0.0 if self._passage is None else self._passage.silent_s(now)

    def share_no_more(self) -> None:
        """From here on the offer names no version whose chunks come to all."""
        if self._task is not None:
            self._task = replace(self._task, shared="")

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
        credit = min(need.credit, WINDOW_MAX, self._affordable(now))
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
        data = read_chunk(self._source, self.offer, index)
        self.allowance.spend(len(data))
        if self._passage is not None:
            self._passage.sent(index)
        chunk = Chunk(
            transfer_id=self.offer.transfer_id,
            index=index,
            last=index == self._count - 1,
            data=data,
        )
        return pack(chunk if self._cipher is None else self._cipher.seal(chunk))

    def _cut(self, offer: TransferOffer) -> None:
        """Take a grid, which has a key of its own: a nonce names one place of one grid."""
        key = self._content_key(offer.sha256, offer.chunk_bytes)
        self.offer = offer if offer.key == key else replace(offer, key=key)
        self._cipher = ChunkCipher(key, offer.transfer_id) if key else None
        self._passage = None

    def _affordable(self, now: float) -> int:
        chunk_bytes = min(self.offer.chunk_bytes, self.offer.total_bytes)
        return max(0, self.allowance.left(now) // chunk_bytes - len(self.wanted))

    def _schedule(self, now: float, rng: random.Random) -> None:
        self.due = now + self._repeat_s * rng.uniform(0.75, 1.25)
        self._repeat_s = min(REPEAT_MAX_S, self._repeat_s * 2.0)


class Sender:
    """All outgoing transfers of one process; per device one blob, which a newer one replaces.

    Args:
        rng: jitter of repetitions.
        content_key: what seals chunks.
        offers: the lane of its offers.
        passes: data of the largest chunks that are known to pass, by device for which larger ones
            were not; learnt here, and perhaps shared with other senders.
        settled: whether our own link has handed over all that it was given.
    """

    def __init__(
        self,
        rng: random.Random | None = None,
        *,
        content_key: ContentKey = no_key,
        offers: Lane = Lane.OFFER,
        passes: dict[str, int] | None = None,
        settled: Callable[[], bool] = lambda: True,
    ) -> None:
        self._content_key, self._lane = content_key, offers
        self._passes, self._settled = {} if passes is None else passes, settled
        self._told_silence = False
        self._rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        self._open: dict[str, OutboundTransfer] = {}
        self._of_device: dict[str, str] = {}
        self._delivered: dict[str, TransferOffer] = {}
        self._allowances: dict[str, Allowance] = {}
        self._ready: dict[str, None] = {}
        self._timers: Timers[str] = Timers()
        self._fresh: dict[str, None] = {}
        self._unanswered: set[str] = set()
        self._answer_s = 0.0

    def send(
        self,
        device_id: str,
        source: Source,
        offer: TransferOffer,
        now: float,
        *,
        task: Task | BundleOffer | None = None,
    ) -> None:
        """Have ``tick`` offer ``source`` from now on, until the receipt comes.

        Args:
            device_id: who it is for; on a device: its own id.
            source: the blob; a file must stay as it is until Delivered or Rejected.
            offer: from ``describe``.
            now: the time.
            task: travels with the offer as its ``payload``; None: the offer itself announces.
        """
        key = offer.transfer_id
        before = self._open.get(key)
        self.forget(self._of_device.get(device_id, ""))
        self._delivered.pop(device_id, None)
        allowance = self._allowances.get(device_id)
        if allowance is None or allowance.key != key:
            allowance = self._allowances[device_id] = Allowance(offer, now)
        transfer = OutboundTransfer(
            device_id=device_id,
            source=source,
            offer=offer,
            task=task,
            allowance=allowance,
            content_key=self._content_key,
        )
        self._open[key] = transfer
        self._of_device[device_id] = key
        transfer.narrow(self._passes.get(device_id, MAX_DATA_BYTES))
        if before is not None:
            transfer.offered_at = before.offered_at
            if before.narrowed:
                transfer.narrowed = True
                transfer.narrow(before.offer.chunk_bytes)
        self._offer_soon(key, now)

    @property
    def idle(self) -> bool:
        """Whether no answer can be for it."""
        return not self._open and not self._delivered

    def offers(self) -> Iterator[tuple[str, TransferOffer]]:
        """Each device whose transfer is not over, and what it is offered."""
        return ((one.device_id, one.offer) for one in self._open.values())

    def answer(self, device_id: str, payload: bytes, now: float) -> list[Action]:
        """Take a need or a receipt from the lane ANSWER; unknown transfers are ignored.

        A blob that was delivered may still be rejected: it was stored, but cannot be used.

        Raises:
            RefusedError: it broke a rule; nothing has changed.
        """
        message: Need | Receipt = decode(payload, Need | Receipt)
        key = message.transfer_id
        transfer = self._open.get(key)
        if transfer is None or transfer.device_id != device_id:
            return self._rejected_late(device_id, message)
        if key in self._unanswered:  # of one that was repeated nobody knows which was answered
            self._unanswered.discard(key)
            self._answer_s += (now - transfer.offered_at - self._answer_s) / 8
        if isinstance(message, Receipt):
            self.forget(key)
            if message.status == "done":
                self._note_passage(transfer, arrived=True)
                self._delivered[device_id] = transfer.offer
                return [Delivered(device_id, transfer.offer)]
            return [_rejected(device_id, transfer.offer, message)]
        transfer.asked(message, now, self._rng)
        smaller = transfer.blocked(message, now)
        if smaller and self._settled():
            return self._narrow(transfer, smaller, now)
        self._note_passage(transfer, arrived=transfer.passes)
        self._timers.set(key, transfer.due)
        if transfer.wanted:
            self._ready.setdefault(key)
        return []

    def _narrow(self, transfer: OutboundTransfer, smaller: int, now: float) -> list[Action]:
        """Offer it anew in smaller chunks; the larger ones do not seem to pass."""
        key, was = transfer.offer.transfer_id, transfer.offer.chunk_bytes
        waited_s = transfer.silent_s(now)
        transfer.narrowed = True
        transfer.wanted.clear()
        transfer.narrow(smaller)  # with what is left of its allowance: whoever asks cannot renew it
        self._ready.pop(key, None)
        self._offer_soon(key, now)
        if self._told_silence:
            return []
        self._told_silence = True
        return [silence(transfer.device_id, was, waited_s, smaller)]

    def _note_passage(self, transfer: OutboundTransfer, *, arrived: bool) -> None:
        if arrived and transfer.narrowed:
            self._passes[transfer.device_id] = transfer.offer.chunk_bytes

    def let_ask(self, key: str, now: float) -> None:
        """Offer a transfer anew as one whose chunks do not come to all: its receiver asks."""
        transfer = self._open.get(key)
        if transfer is not None:
            transfer.share_no_more()
            self._offer_soon(key, now)

    def _rejected_late(self, device_id: str, message: Need | Receipt) -> list[Action]:
        offer = self._delivered.get(device_id)
        if offer is None or offer.transfer_id != message.transfer_id:
            return []
        if not isinstance(message, Receipt) or message.status == "done":
            return []
        del self._delivered[device_id]
        return [_rejected(device_id, offer, message)]

    def next_chunk(self) -> Send | Rejected | None:
        """The next chunk to publish, transfers taking turns; None if none is wanted.

        Call it when the link has room. ``Rejected`` says that a source file is gone.
        """
        if not self._ready:
            return None
        key = next(iter(self._ready))
        del self._ready[key]
        transfer = self._open[key]
        try:
            payload = transfer.next_chunk()
        except OSError as error:
            self.forget(key)
            return Rejected(transfer.device_id, transfer.offer, "source", str(error))
        if transfer.wanted:
            self._ready[key] = None
        return Send(transfer.device_id, Lane.CHUNK, payload)

    @property
    def offering(self) -> bool:
        """Whether there are offers that have not gone out on this connection."""
        return bool(self._fresh)

    def tick(self, now: float, most: float = float("inf")) -> list[Action]:
        """Offer what was not offered, and repeat what was not answered, ``most`` at a time.

        Encoded offers take memory until the link has sent them; so call it with the link's room.
        """
        offers: list[Action] = []
        while len(offers) < most and self._may_begin:
            key = next(iter(self._fresh))
            del self._fresh[key]
            self._unanswered.add(key)
            offers.append(self._offer(key, now))
        repeated = self._timers.expired(now)
        while len(offers) < most and (again := next(repeated, None)) is not None:
            self._unanswered.discard(again)
            offers.append(self._offer(again, now))
        return offers

    def due(self) -> float | None:
        """When ``tick`` has something to do; may be early; None: only after another call."""
        return float("-inf") if self._may_begin else self._timers.next()

    @property
    def _may_begin(self) -> bool:
        return bool(self._fresh) and len(self._unanswered) < UNANSWERED_MAX

    def reconnected(self, now: float, max_chunk_bytes: int = MAX_DATA_BYTES) -> None:
        """Our link is new, what was in flight is lost: offer again, in chunks that fit."""
        for those in (self._ready, self._fresh, self._unanswered):
            those.clear()
        for key, transfer in self._open.items():
            transfer.reset(max_chunk_bytes, now)
            self._allowances[transfer.device_id] = transfer.allowance
            self._timers.drop(key)
            self._fresh[key] = None

    def device_returned(self, device_id: str, now: float) -> None:
        """It has a new connection, perhaps a new life: offer again what it may not know."""
        key = self._of_device.get(device_id)
        if key is not None:
            self._offer_soon(key, now)

    def forget(self, key: str) -> None:
        """Stop offering."""
        transfer = self._open.pop(key, None)
        if transfer is not None:
            self._of_device.pop(transfer.device_id, None)
            self._ready.pop(key, None)
            self._fresh.pop(key, None)
            self._unanswered.discard(key)
            self._timers.drop(key)

    def _offer_soon(self, key: str, now: float) -> None:
        soonest = self._open[key].offered_at + OFFER_GAP_S
        if now >= soonest:
            self._timers.drop(key)
            self._fresh[key] = None
        elif key not in self._fresh:
            self._timers.set(key, soonest)

    def _offer(self, key: str, now: float) -> Send:
        transfer = self._open[key]
        payload = transfer.announce(now, self._rng, ANSWERS * self._answer_s)
        self._timers.set(key, transfer.due)
        return Send(transfer.device_id, self._lane, payload)


def _rejected(device_id: str, offer: TransferOffer, receipt: Receipt) -> Rejected:
    rule, reason = printable(receipt.rule[:64]), printable(receipt.reason[:REASON_CHARS])
    return Rejected(device_id, offer, rule, reason)
