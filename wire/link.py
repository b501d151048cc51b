"""The MQTT link: one connection kept alive by paho, seen as a queue of events.

Publishing never blocks and never queues across a reconnect: what was not sent when the link broke
is lost, and the transfer rules (``transfer.py``) send it again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Will:
    """The message that the broker publishes, retained, when this client vanishes."""

    topic: str
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """How to reach the broker.

    Attributes:
        url: ``mqtt://[user:password@]host[:port]`` or ``mqtts://…``; 1883 and 8883 by default.
        client_id: durable MQTT client id; two links with the same one throw each other out.
        filters: subscribed QoS 1 after each connect, before ``Connected`` is reported.
        will: retained last will.
        keepalive_s: MQTT keep-alive.
        ca_file, cert_file, key_file: for ``mqtts``; without ``ca_file`` the system's.
    """

    url: str
    client_id: str
    filters: tuple[str, ...] = ()
    will: Will | None = None
    keepalive_s: int = 30
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Connected:
    """Connected and subscribed. Retained messages follow as ``Message`` events."""

    protocol: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is gone; the link tries again unless ``final``."""

    reason: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message arrived."""

    topic: str
    payload: bytes
    retained: bool


LinkEvent = Connected | Disconnected | Delivery


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes since the link was made, over reconnects.

    Attributes:
        socket_up_bytes, socket_down_bytes: as handed to and from the socket (before TLS).
        payload_up_bytes, payload_down_bytes: MQTT payloads only.
    """

    socket_up_bytes: int
    socket_down_bytes: int
    payload_up_bytes: int
    payload_down_bytes: int


class Link:
    """Keeps one MQTT session; thread-safe.

    Raises:
        InputError: the URL or a certificate file cannot be used.
    """

    def __init__(self, options: LinkOptions) -> None: ...

    def start(self) -> None:
        """Begin to connect, in a thread of its own."""

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Send with QoS 1; False if the link is down (the message is dropped)."""
        return False

    def get(self, timeout_s: float | None = None) -> LinkEvent | None:
        """The next event, waiting at most ``timeout_s``; None if none came."""
        return None

    def wake(self) -> None:
        """Make a waiting ``get`` return None now (from another thread or a signal handler)."""

    @property
    def connected(self) -> bool:
        """Whether ``publish`` would send now."""
        return False

    @property
    def chunk_bytes(self) -> int:
        """Largest chunk data this broker takes; halves after a refused packet."""
        return 0

    @property
    def window(self) -> int:
        """Chunks in flight that this broker takes (its Receive Maximum, at most 16)."""
        return 16

    @property
    def traffic(self) -> Traffic:
        """The byte counters now."""
        return Traffic(
            socket_up_bytes=0, socket_down_bytes=0, payload_up_bytes=0, payload_down_bytes=0
        )

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what is queued, disconnect without firing the will, stop the thread."""
