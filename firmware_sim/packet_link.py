"""A link between one MQTT client and its broker that can do to packets what networks do.

It listens on loopback, knows where MQTT packets begin and end, and needs no root. TCP hides lost
segments from who uses it: a loss is a stall of the whole stream, here as in life.
"""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

from protofleet.firmware_sim.link_proxy import LinkProfile

_CONNECT, _PUBLISH = 1, 3
_DUP, _QOS = 0x08, 0x06
_SEGMENT_BYTES = 1448
_OVERTAKEN_S = 0.3
"""One that was held back to be overtaken goes out after this time, whether it was or not."""
_MAGIC = b"PFCK"
_CHUNK_HEADER = 32

PacketFault = Literal["duplicated", "reordered", "truncated", "corrupted"]


@dataclass(frozen=True, slots=True)
class Packet:
    """One MQTT control packet; ``five``: of MQTT 5."""

    head: int
    body: bytes
    five: bool

    @property
    def is_publish(self) -> bool:
        """Whether it carries a message."""
        return self.head >> 4 == _PUBLISH

    @property
    def payload_at(self) -> int:
        """Where in the body a message's payload begins."""
        at = 2 + struct.unpack_from(">H", self.body)[0]
        if self.head & _QOS:
            at += 2
        if self.five:
            length, used = _varint(self.body, at)
            at += used + length
        return int(at)

    def with_payload(self, payload: bytes) -> Packet:
        """The same message with another content."""
        return replace(self, body=self.body[: self.payload_at] + payload)

    def again(self) -> Packet:
        """The same message as a repetition."""
        return replace(self, head=self.head | _DUP) if self.head & _QOS else self

    def pack(self) -> bytes:
        """As on the wire."""
        return bytes([self.head]) + _length(len(self.body)) + self.body


@dataclass(slots=True)
class ResentBytes:
    """Chunks that a sender put on its link more than once.

    Attributes:
        total: bytes of them, headers included.
        most: of one transfer between two calls of ``mark``.
    """

    total: int = 0
    most: int = 0
    _seen: set[bytes] = field(default_factory=set)
    _since: Counter[bytes] = field(default_factory=Counter)

    def note(self, payload: bytes) -> None:
        """A message was sent."""
        if not payload.startswith(_MAGIC) or len(payload) < _CHUNK_HEADER:
            return
        transfer, place = payload[8:24], payload[8:28]
        if place in self._seen:
            self.total += len(payload)
            self._since[transfer] += len(payload)
            self.most = max(self.most, self._since[transfer])
        self._seen.add(place)

    def mark(self) -> None:
        """What is sent again from now on follows from something else."""
        self._since.clear()


@dataclass(slots=True, eq=False)
class _Connection:
    """One connection of the client; ``dead``: open to both ends, and nothing passes."""

    writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]
    dead: bool = False
    five: bool = False

    def close(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class PacketLink:
    """One client's way to the broker; its methods are for the loop's thread.

    Args:
        port: the broker's, on loopback.
        profile: rates and delay.
        rng: decides what is lost and altered.

    Attributes:
        port: where the client connects.
        loss: share of TCP segments that are lost on the way; each costs ``stall_s``.
        done: how many faults of each kind have happened.
        resent: what the client sent again.
    """

    def __init__(self, port: int, profile: LinkProfile, rng: random.Random) -> None:
        self._target, self._rng = port, rng
        self.profile = profile
        self.loss, self.stall_s = 0.0, 0.0
        self.port = 0
        self.done: Counter[str] = Counter()
        self.resent = ResentBytes()
        self._connections: set[_Connection] = set()
        self._armed: deque[PacketFault] = deque()
        self._held_until = 0.0

    async def serve(self) -> asyncio.Server:
        """Listen on a free port."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        return server

    @property
    def is_up(self) -> bool:
        """Whether the client is connected, and something passes."""
        return any(not one.dead for one in self._connections)

    def cut(self) -> bool:
        """Reset every connection now; whether there was one."""
        found = [one for one in self._connections if not one.dead]
        for connection in found:
            connection.close()
        return bool(found)

    def half_open(self) -> bool:
        """Let every connection stay open, and nothing pass; whether there was one."""
        found = [one for one in self._connections if not one.dead]
        for connection in found:
            connection.dead = True
        return bool(found)

    def delay(self, seconds: float) -> bool:
        """Hold back everything for so long."""
        self._held_until = asyncio.get_running_loop().time() + seconds
        return bool(self._connections)

    def arm(self, fault: PacketFault) -> bool:
        """Do this to the next message, whichever way it goes."""
        self._armed.append(fault)
        return True

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection((writer, far_writer))
        self._connections.add(connection)
        try:
            await asyncio.gather(
                self._pump(connection, reader, far_writer, up=True),
                self._pump(connection, far_reader, writer, up=False),
            )
        except asyncio.CancelledError:
            return  # the link closes; asyncio would report a cancelled handler as a failure
        finally:
            connection.close()
            self._connections.discard(connection)

    async def _pump(
        self,
        connection: _Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        up: bool,
    ) -> None:
        """One direction: the reader is paced by the rate, a second task delays what was read."""
        clock = asyncio.get_running_loop().time
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)
        sender = asyncio.create_task(_deliver(queue, writer, connection))
        turn, held, free_at = _Overtaken(), None, clock()
        try:
            while (packet := await _read(reader, connection, turn.wait_s(clock()))) is not None:
                if connection.dead:
                    continue
                passed = turn.late(clock()) if packet is _NOTHING else self._pass(packet, turn, up)
                for data in (one.pack() for one in passed):
                    free_at, held = await self._pace(len(data), free_at, up=up)
                    await queue.put((held, data))
        finally:
            with suppress(asyncio.CancelledError):
                await queue.put((0.0, b""))
                await sender
            if not connection.dead:
                connection.close()

    def _pass(self, packet: Packet, turn: _Overtaken, up: bool) -> list[Packet]:  # noqa: FBT001
        """What goes on in the packet's place."""
        if not packet.is_publish:
            return [packet]
        if up:
            self.resent.note(packet.body[packet.payload_at :])
        now = asyncio.get_running_loop().time()
        if not self._armed or (self._armed[0] == "reordered" and turn.full):
            return [packet, *turn.take()]
        fault = self._armed.popleft()
        self.done[fault] += 1
        if fault == "reordered":
            turn.hold(packet, now)
            return []
        return [*_FAULTS[fault](packet, self._rng), *turn.take()]

    async def _pace(self, size: int, free_at: float, *, up: bool) -> tuple[float, float]:
        """When the link is free again, and when these bytes are at the other end."""
        clock = asyncio.get_running_loop().time
        kbit_s = self.profile.up_kbit_s if up else self.profile.down_kbit_s
        if kbit_s:
            free_at = max(free_at, clock()) + size / (kbit_s * 125.0)
            await asyncio.sleep(free_at - clock())
        if self.loss:
            lost = sum(self._rng.random() < self.loss for _ in range(-(-size // _SEGMENT_BYTES)))
            self.done["lost"] += lost
            if lost:
                await asyncio.sleep(lost * self.stall_s)
        return free_at, max(clock() + self.profile.delay_ms / 1000, self._held_until)


class _Overtaken:
    """A message that waits until another has overtaken it."""

    def __init__(self) -> None:
        self._packet: Packet | None = None
        self._until = 0.0

    @property
    def full(self) -> bool:
        return self._packet is not None

    def hold(self, packet: Packet, now: float) -> None:
        self._packet, self._until = packet, now + _OVERTAKEN_S

    def wait_s(self, now: float) -> float | None:
        return None if self._packet is None else max(0.0, self._until - now)

    def late(self, now: float) -> list[Packet]:
        return self.take() if now >= self._until else []

    def take(self) -> list[Packet]:
        found, self._packet = self._packet, None
        return [] if found is None else [found]


_NOTHING = Packet(0, b"", five=False)


def _duplicated(packet: Packet, _rng: random.Random) -> list[Packet]:
    return [packet, packet.again()]


def _truncated(packet: Packet, rng: random.Random) -> list[Packet]:
    payload = packet.body[packet.payload_at :]
    return [packet.with_payload(payload[: rng.randrange(max(1, len(payload)))])]


def _corrupted(packet: Packet, rng: random.Random) -> list[Packet]:
    payload = bytearray(packet.body[packet.payload_at :])
    for _ in range(rng.randint(1, 4) if payload else 0):
        payload[rng.randrange(len(payload))] ^= rng.randint(1, 255)
    return [packet.with_payload(bytes(payload))]


_FAULTS: dict[PacketFault, Callable[[Packet, random.Random], list[Packet]]] = {
    "duplicated": _duplicated,
    "truncated": _truncated,
    "corrupted": _corrupted,
}


async def _read(
    reader: asyncio.StreamReader, connection: _Connection, wait_s: float | None
) -> Packet | None:
    """The next packet; ``_NOTHING`` if none began in time; None at the end."""
    try:
        head = (await asyncio.wait_for(reader.readexactly(1), wait_s))[0]
    except TimeoutError:
        return _NOTHING
    except (OSError, asyncio.IncompleteReadError):
        return None
    try:
        length = shift = 0
        while True:
            byte = (await reader.readexactly(1))[0]
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        body = await reader.readexactly(length)
    except (OSError, asyncio.IncompleteReadError):
        return None
    if head >> 4 == _CONNECT:
        connection.five = body[6] == 5
    return Packet(head, body, connection.five)


async def _deliver(
    queue: asyncio.Queue[tuple[float, bytes]],
    writer: asyncio.StreamWriter,
    connection: _Connection,
) -> None:
    clock = asyncio.get_running_loop().time
    broken = False
    while True:
        due_s, data = await queue.get()
        if not data:
            return
        if broken or connection.dead:
            continue
        await asyncio.sleep(max(0.0, due_s - clock()))
        try:
            writer.write(data)
            await writer.drain()
        except OSError:
            broken = True  # keep emptying the queue so that the reader can end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = used = 0
    while True:
        byte = data[at + used]
        value |= (byte & 127) << shift
        shift += 7
        used += 1
        if byte < 128:
            return value, used


def _length(size: int) -> bytes:
    found = bytearray()
    while True:
        size, byte = size >> 7, size & 127
        found.append(byte | (128 if size else 0))
        if not size:
            return bytes(found)
