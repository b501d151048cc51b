"""paho's client where it is enough, and the three packets that nearly all traffic consists of.

PUBLISH with QoS 1 in both directions, and PUBACK. For each paho makes records, conditions and
properties so that it can repeat messages on later connections; here nothing outlives a connection
(``connection.py``), and a coordinator spends most of its time on small packets.

It takes from paho what has no public name: ``tests/wire/test_mqtt_client.py`` and the test of the
byte counters fail with a version that has renamed any of it.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from paho.mqtt.client import Client
from paho.mqtt.enums import MQTTErrorCode, MQTTProtocolVersion

from protofleet.wire.transfers.outbox import Outgoing

SMALL_READ_BYTES = 1024
"""A read below it ends a small packet; the next may be held back until TCP acknowledges it."""
READ_AHEAD_BYTES = 16 * 1024
"""Of small packets many at once; what a chunk has beyond it is read into its own place."""
_PUBLISH_ONCE = 0x32
"""PUBLISH, QoS 1; the last bit: retained."""
_QOS, _QOS_1, _RETAIN = 0x06, 0x02, 0x01
_FIVE = MQTTProtocolVersion.MQTTv5


@dataclass(slots=True)
class Counters:
    """Bytes over all connections of a link."""

    socket_up: int = 0
    socket_down: int = 0
    payload_up: int = 0
    payload_down: int = 0


class MqttClient(Client):
    """Counts what passes its socket, tells when its thread ends, and is brief about QoS 1.

    Attributes:
        counters: of the socket.
        on_exit: called when ``loop_forever`` ends.
        on_broken: called with what paho makes of a packet that no broker sends.
        on_delivery: called with topic, payload and whether it is retained.
        on_acknowledged: called with what ``send`` has sent, and the reason code of its PUBACK.
    """

    counters: Counters
    on_exit: Callable[[], None]
    on_broken: Callable[[Exception], None]
    on_delivery: Callable[[str, bytes, bool], None]
    on_acknowledged: Callable[[Outgoing, int], None]
    _read_ahead = b""
    _taken = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._unacknowledged: dict[int, Outgoing] = {}
        self.on_message = lambda _client, _data, message: self.on_delivery(
            message.topic, bytes(message.payload), message.retain
        )

    def send(self, message: Outgoing) -> None:
        """Publish with QoS 1 on this connection; ``on_acknowledged`` comes at most once."""
        if self._sock is None:
            return
        mid = self._mid_generate()
        while mid in self._unacknowledged:
            mid = self._mid_generate()
        self._unacknowledged[mid] = message
        name = message.topic.encode()
        body = b"".join(
            (
                struct.pack("!H", len(name)),
                name,
                struct.pack("!H", mid),
                b"\0" if self._protocol == _FIVE else b"",  # no properties
                message.payload,
            )
        )
        packet = bytearray([_PUBLISH_ONCE | message.retain])
        self._pack_remaining_length(packet, len(body))
        packet += body
        self._packet_queue(_PUBLISH_ONCE, packet, mid, 1)

    def _handle_publish(self) -> MQTTErrorCode:
        head, packet = self._in_packet["command"], self._in_packet["packet"]
        if head & _QOS != _QOS_1:
            return super()._handle_publish()
        behind = 2 + int.from_bytes(packet[:2], "big")
        start = behind + (3 if self._protocol == _FIVE else 2)
        if len(packet) < start or behind == 2 or (self._protocol == _FIVE and packet[start - 1]):
            return super()._handle_publish()  # too short, has an alias, or properties
        topic = packet[2:behind].decode()
        with self._in_callback_mutex:
            self.on_delivery(topic, bytes(memoryview(packet)[start:]), bool(head & _RETAIN))
        return self._send_puback(int.from_bytes(packet[behind : behind + 2], "big"))

    def _handle_pubackcomp(self, cmd: Any) -> MQTTErrorCode:
        packet = self._in_packet["packet"]
        mid = int.from_bytes(packet[:2], "big")
        if cmd != "PUBACK" or len(packet) < 2 or mid not in self._unacknowledged:
            return super()._handle_pubackcomp(cmd)
        message = self._unacknowledged.pop(mid)
        with self._in_callback_mutex:
            self.on_acknowledged(message, packet[2] if len(packet) > 2 else 0)
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    def _sock_recv(self, bufsize: int) -> bytes:
        """As much as is asked for, of what was read at once: paho asks for single bytes."""
        if self._taken == len(self._read_ahead):
            self._read_ahead, self._taken = self._sock_read(max(bufsize, READ_AHEAD_BYTES)), 0
        data = self._read_ahead[self._taken : self._taken + bufsize]
        self._taken += len(data)
        return data

    def _sock_read(self, bufsize: int) -> bytes:
        data: bytes = super()._sock_recv(bufsize)
        self.counters.socket_down += len(data)
        if 1 < len(data) < SMALL_READ_BYTES:
            _acknowledge(self.socket())
        return data

    def loop_read(self, max_packets: int = 1) -> MQTTErrorCode:
        """Go on while there is something that nobody would see at the socket any more."""
        code = super().loop_read(max_packets)
        while code == MQTTErrorCode.MQTT_ERR_SUCCESS and self._taken < len(self._read_ahead):
            code = super().loop_read(max_packets)
        return code

    def _sock_send(self, buf: bytes | bytearray) -> int:
        sent: int = super()._sock_send(buf)
        self.counters.socket_up += sent
        return sent

    def loop_forever(
        self,
        timeout: float = 1.0,
        retry_first_connection: bool = False,  # noqa: FBT001, FBT002 - paho's signature
    ) -> MQTTErrorCode:
        """As paho's, telling its end."""
        try:
            return super().loop_forever(timeout, retry_first_connection)
        except Exception as error:  # noqa: BLE001 - whatever paho makes of what no broker sends
            self.on_broken(error)
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        finally:
            self.on_exit()


def _acknowledge(sock: Any) -> None:
    # A broker without TCP_NODELAY (Mosquitto's default) sends its next small packet only after
    # this acknowledgement, which the kernel delays by 40 ms; bulk data needs no such help.
    if hasattr(socket, "TCP_QUICKACK") and isinstance(sock, socket.socket):
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
