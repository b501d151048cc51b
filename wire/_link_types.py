"""Records of ``link.py``."""

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
        url: ``mqtt://[user:password@]host[:port]`` or ``mqtts://…``; 1883 and 8883 by default;
            ``?version=3.1.1`` spares brokers that do not answer MQTT 5 the first attempt.
        client_id: durable MQTT client id; two links with the same one throw each other out.
        filters: subscribed with QoS 1 after each connect, before ``Connected`` is reported.
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
    """Connected and subscribed with this protocol, ``5`` or ``3.1.1``; deliveries follow."""

    protocol: str


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is gone or was refused; the link tries again unless ``final``."""

    reason: str
    final: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message arrived; ``retained`` if it is older than our subscription."""

    topic: str
    payload: bytes
    retained: bool


@dataclass(frozen=True, slots=True)
class Drained:
    """There is room again for chunks (``Link.room``)."""


@dataclass(frozen=True, slots=True)
class Woken:
    """``Link.wake`` was called."""


LinkEvent = Connected | Disconnected | Delivery | Drained | Woken


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
