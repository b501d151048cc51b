"""A broker that cannot be trusted: it stands before a real one and does what it likes to messages.

Each ``PUBLISH`` that passes, in either direction, may be dropped, repeated, altered, put on another
device's topic, or held back until others have overtaken it; what is dropped is acknowledged, as a
lying broker would.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

_PUBLISH, _PUBACK, _CONNECT = 3, 4, 1


@dataclass(frozen=True)
class Packet:
    """A ``PUBLISH``; ``packet_id`` is 0 at QoS 0."""

    topic: str
    payload: bytes
    flags: int
    packet_id: int
    properties: bytes

    def pack(self) -> bytes:
        topic = self.topic.encode()
        body = struct.pack(">H", len(topic)) + topic
        if self.flags & 6:
            body += struct.pack(">H", self.packet_id)
        body += self.properties + self.payload
        return bytes([_PUBLISH << 4 | self.flags]) + _length(len(body)) + body

    def again(self) -> Packet:
        """The same once more, at QoS 0, so that no acknowledgement is missing."""
        return replace(self, flags=0, packet_id=0)


@dataclass
class Malice:
    """What the broker does; each act with its probability.

    Attributes:
        rng: decides.
        acts: name and probability; names are the methods below.
        done: how often each was done.
        devices: whose topics are swapped.
    """

    rng: random.Random
    acts: dict[str, float]
    devices: tuple[str, ...]
    done: Counter[str] = field(default_factory=Counter)
    seen: list[Packet] = field(default_factory=list)
    held: list[Packet] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, packet: Packet) -> list[Packet]:
        """What to pass on in the packet's place."""
        told = packet.topic.endswith("/all/ctl") or "/st/" in packet.topic
        with self.lock:
            for name, probability in self.acts.items():
                # One that is lost costs up to a minute: tests of the roll call have no time here.
                spared = told and name not in ("replay", "swap")
                if self.rng.random() < probability and not spared:
                    self.done[name] += 1
                    return getattr(self, name)(packet)
            self.seen = [*self.seen[-500:], packet]
            late, self.held = self.held, []
            return [packet, *late]

    def drop(self, _packet: Packet) -> list[Packet]:
        return []

    def alter(self, packet: Packet) -> list[Packet]:
        payload = bytearray(packet.payload)
        for _ in range(self.rng.randint(1, 4)):
            payload[self.rng.randrange(len(payload))] ^= self.rng.randint(1, 255)
        return [replace(packet, payload=bytes(payload))]

    def cut(self, packet: Packet) -> list[Packet]:
        return [replace(packet, payload=packet.payload[: self.rng.randrange(len(packet.payload))])]

    def replay(self, packet: Packet) -> list[Packet]:
        """An old message of any direction and device, on its own topic, beside the new one."""
        old = self.rng.choice(self.seen or [packet])
        return [packet, old.again()]

    def swap(self, packet: Packet) -> list[Packet]:
        """One device's message on another's topic."""
        topic = packet.topic
        for ours, theirs in zip(self.devices, self.devices[::-1], strict=True):
            if f"/{ours}" in topic:
                return [replace(packet, topic=topic.replace(f"/{ours}", f"/{theirs}"))]
        return [packet]

    def reorder(self, packet: Packet) -> list[Packet]:
        """Later, behind the next that passes."""
        self.held.append(packet.again())
        return []


@contextmanager
def hostile_broker(port: int, malice: Callable[[Packet], list[Packet]]) -> Iterator[str]:
    """Stand before the broker at ``port``; yields the URL of the hostile one."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def accept() -> None:
            while not stop.is_set():
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                upstream = socket.create_connection(("127.0.0.1", port))
                wire = _Wire(client, upstream, malice)
                for run in (wire.up, wire.down):
                    threading.Thread(target=run, daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"mqtt://127.0.0.1:{server.getsockname()[1]}"
        stop.set()


class _Wire:
    """One client's connection."""

    def __init__(
        self,
        client: socket.socket,
        broker: socket.socket,
        malice: Callable[[Packet], list[Packet]],
    ) -> None:
        self._client, self._broker, self._malice = client, broker, malice
        self._five = False
        self._locks = {client: threading.Lock(), broker: threading.Lock()}

    def up(self) -> None:
        self._run(self._client, self._broker)

    def down(self) -> None:
        self._run(self._broker, self._client)

    def _run(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError, EOFError):
            while True:
                head, body = _read(source)
                if head >> 4 == _CONNECT:
                    self._five = body[6] == 5
                if head >> 4 == _PUBLISH:
                    self._publish(source, target, _parse(head, body, five=self._five))
                else:
                    self._send(target, bytes([head]) + _length(len(body)) + body)
        for sock in (source, target):
            sock.close()

    def _publish(self, source: socket.socket, target: socket.socket, packet: Packet) -> None:
        passed = self._malice(packet)
        if packet.packet_id and not any(one.packet_id == packet.packet_id for one in passed):
            self._send(source, bytes([_PUBACK << 4, 2]) + struct.pack(">H", packet.packet_id))
        for one in passed:
            self._send(target, one.pack())

    def _send(self, target: socket.socket, data: bytes) -> None:
        with self._locks[target]:
            target.sendall(data)


def _parse(head: int, body: bytes, *, five: bool) -> Packet:
    flags = head & 15
    size = struct.unpack_from(">H", body)[0]
    place = 2 + size
    packet_id = 0
    if flags & 6:
        packet_id = struct.unpack_from(">H", body, place)[0]
        place += 2
    start = place
    if five:
        length, used = _varint(body, place)
        place += used + length
    return Packet(body[2 : 2 + size].decode(), body[place:], flags, packet_id, body[start:place])


def _read(sock: socket.socket) -> tuple[int, bytes]:
    head = _exactly(sock, 1)[0]
    length = shift = 0
    while True:
        byte = _exactly(sock, 1)[0]
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return head, _exactly(sock, length)


def _exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = used = 0
    while True:
        byte = data[place + used]
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
