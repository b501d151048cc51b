"""A simulated channel between a sender and a receiver: loss, duplication, delay, virtual time."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from protofleet.wire.messages import Need, Receipt, TransferOffer, decode
from protofleet.wire.refusals import Hindered
from protofleet.wire.transfers.chunks import MAX_PAYLOAD_BYTES, Chunk, pack, parse
from protofleet.wire.transfers.receiver import Receiver
from protofleet.wire.transfers.sender import Sender
from protofleet.wire.transfers.transfer import (
    Delivered,
    Lane,
    Limits,
    Received,
    Rejected,
    Send,
    describe,
)

DEVICE = "pi-7"
CHUNK = 256


def offer_of(blob: bytes, *, round_id: int = 1, chunk_bytes: int = CHUNK) -> TransferOffer:
    return describe(
        blob, kind="update", device_id=DEVICE, round_id=round_id, chunk_bytes=chunk_bytes
    )


def blob_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def count_of(blob: bytes) -> int:
    return -(-len(blob) // CHUNK)


def chunks_of(blob: bytes, offer: TransferOffer) -> list[bytes]:
    """The packets that carry a blob."""
    step = offer.chunk_bytes
    count = -(-len(blob) // step)
    return [
        pack(
            Chunk(
                transfer_id=offer.transfer_id,
                index=i,
                last=i == count - 1,
                data=blob[i * step : (i + 1) * step],
            )
        )
        for i in range(count)
    ]


def answers_in(actions: list) -> list:
    return [decode(a.payload, Need | Receipt) for a in actions if isinstance(a, Send)]


@dataclass
class Faults:
    """What the channel does to a packet, and how often at most."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    corrupt: float = 0.0
    budget: int = 40
    done: int = 0

    def strikes(self, rng: random.Random, rate: float) -> bool:
        if self.done >= self.budget or rng.random() >= rate:
            return False
        self.done += 1
        return True


@dataclass
class Channel:
    """Carries one blob from ``sender`` to ``receiver`` (both on one device id).

    What is sent within ``held_s``, from and until, arrives behind it, in its order; chunks are at
    least ``spacing_s`` apart. Chunks of more than ``most_bytes`` are dropped.
    """

    folder: Path
    rng: random.Random
    faults: Faults = field(default_factory=Faults)
    limits: Limits = field(default_factory=Limits)
    device_id: str = DEVICE
    held_s: tuple[float, float] = (0.0, 0.0)
    spacing_s: float = 0.0
    most_bytes: int = MAX_PAYLOAD_BYTES
    now: float = 0.0
    chunks_sent: int = 0
    received: bytes | None = None
    outcome: Delivered | Rejected | None = None

    def __post_init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.sender = Sender(self.rng)
        self.hindered: list[str] = []
        self._wire: list[tuple[float, int, str, Send]] = []
        self._serial = 0
        self._free_at = 0.0
        self.restart_receiver()

    def restart_receiver(self) -> None:
        """As after SIGKILL: nothing is closed or flushed."""
        self.receiver = Receiver(self.folder / "in", self.limits)

    def send(self, blob: bytes, offer: TransferOffer) -> None:
        self.sender.send(self.device_id, blob, offer, self.now)

    def run(self, until: int | None = None) -> None:
        """Let time pass until the sender has its receipt, or ``until`` chunks were sent."""
        while self.outcome is None and (until is None or self.chunks_sent < until):
            self._step()
            if self.now > 3600:
                raise TimeoutError(f"no receipt after an hour: {dict(self.kinds)}")

    def _step(self) -> None:
        while (chunk := self.sender.next_chunk()) is not None:
            self.chunks_sent += 1
            self._carry("sender", [chunk])
        due = [t for t in (self.sender.due(), self.receiver.due()) if t is not None]
        arrival = self._wire[0][0] if self._wire else float("inf")
        self.now = max(self.now, min([arrival, *due]))
        self._carry("sender", self.sender.tick(self.now))
        self._carry("receiver", self.receiver.tick(self.now))
        while self._wire and self._wire[0][0] <= self.now:
            _, _, origin, packet = heapq.heappop(self._wire)
            self._arrive(origin, packet)

    def _arrive(self, origin: str, packet: Send) -> None:
        if origin == "receiver":
            self._carry("sender", self.sender.answer(self.device_id, packet.payload, self.now))
        elif packet.lane is Lane.OFFER:
            offer = decode(packet.payload, TransferOffer)
            self._carry("receiver", self.receiver.expect(self.device_id, offer, self.now))
        else:
            self._carry("receiver", self._chunk(packet))

    def _chunk(self, packet: Send) -> list:
        try:
            return self.receiver.chunk(self.device_id, packet.payload, self.now)
        except ValueError as error:
            raise AssertionError from error
        except Exception as error:
            if getattr(error, "rule", "").startswith("chunk-"):
                self.kinds["refused"] += 1
                return []
            raise

    def _carry(self, origin: str, actions: list) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._put(origin, action)
            elif isinstance(action, Received):
                self.received = action.path.read_bytes()
                key = action.offer.transfer_id
                self._carry("receiver", self.receiver.accept(key, self.now))
            elif isinstance(action, Hindered):
                self.hindered.append(action.reason)
            else:
                self.outcome = action

    def _put(self, origin: str, packet: Send) -> None:
        self.kinds[packet.lane.value] += 1
        too_large = packet.lane is Lane.CHUNK and len(packet.payload) > self.most_bytes
        if too_large or self.faults.strikes(self.rng, self.faults.loss):
            return
        began, ended = self.held_s
        delay = 0.01 if not began <= self.now < ended else ended - self.now
        if self.faults.strikes(self.rng, self.faults.reorder):
            delay += self.rng.uniform(0.0, 0.5)
        if packet.lane is Lane.CHUNK and self.faults.strikes(self.rng, self.faults.corrupt):
            packet = Send(packet.device_id, packet.lane, _flip(packet.payload, self.rng))
        if packet.lane is Lane.CHUNK:
            self._free_at = max(self._free_at + self.spacing_s, self.now + delay)
            delay = self._free_at - self.now if self.spacing_s else delay
        for _ in range(2 if self.faults.strikes(self.rng, self.faults.duplicate) else 1):
            self._serial += 1
            heapq.heappush(self._wire, (self.now + delay, self._serial, origin, packet))


def _flip(payload: bytes, rng: random.Random) -> bytes:
    parse(payload)
    damaged = bytearray(payload)
    damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)
