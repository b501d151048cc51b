"""A hub in a thread of the test's process, and WebSockets that say exactly what a test wants."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

import msgspec
from brokers import answers, wait_until
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_bundle
from wsproto import WSConnection
from wsproto.connection import ConnectionType
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Request,
)

from protofleet.federation.settings import FederationConfig
from protofleet.hub.run import Hub, HubOptions
from protofleet.wire.mqtt.broker_access import BrokerAccess

HASHED = "/assets/page-0123456789.js"
"""A file of the test's page whose name says its content."""
_PATIENCE_S = 20.0


def federation(folder: Path, broker: str | BrokerAccess, **changes) -> FederationConfig:
    """A federation of a tiny bundle without keys."""
    config = FederationConfig(
        federation="home",
        broker=BrokerAccess(url=broker) if isinstance(broker, str) else broker,
        bundle=tiny_bundle(folder / "tiny.pfb", Ed25519PrivateKey.generate()),
        run_dir=folder / "run",
        rounds=1,
    )
    return msgspec.structs.replace(config, **changes)


@contextmanager
def running_hub(config: FederationConfig, **options) -> Iterator[Hub]:
    """The hub answers on a free port while the block lasts."""
    hub = Hub(config, HubOptions(port=0, **options))
    thread = threading.Thread(target=hub.run)
    thread.start()
    try:
        wait_until(lambda: answers(hub.port))
        yield hub
    finally:
        hub.stop()
        thread.join(_PATIENCE_S)
        assert not thread.is_alive()


def get(
    port: int, path: str, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    """Answer and body; ``if_none_match`` is the header ``if-none-match``."""
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)) as link:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        link.request(method, path, headers=named)
        answer = link.getresponse()
        return answer, answer.read()


def connections_to(port: int) -> list[int]:
    """The other ends' ports of this machine's connections to ``port`` that are not closed."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    wanted, established = f":{port:04X}", "01"
    return [
        int(local.rpartition(":")[2], 16)
        for _, local, remote, state, *_ in rows
        if remote.endswith(wanted) and state == established
    ]


class RawSocket:
    """A WebSocket to ``/mqtt``; without its handshake until ``opened`` is called.

    Attributes:
        link: the TCP connection.
        conn: wsproto's state of it.
    """

    def __init__(self, port: int) -> None:
        self.link = socket.create_connection(("127.0.0.1", port), _PATIENCE_S)
        self.conn = WSConnection(ConnectionType.CLIENT)
        self._events: list[Event] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()

    def ask(self, **changes) -> Event:
        """Send the handshake; what comes back."""
        request = {"host": "localhost", "target": "/mqtt", "subprotocols": ["mqtt"], **changes}
        self.send(Request(**request))
        return self.next()

    def opened(self) -> Self:
        assert isinstance(self.ask(), AcceptConnection)
        return self

    def send(self, event: Event) -> None:
        self.link.sendall(self.conn.send(event))

    def say(self, data: bytes) -> None:
        self.send(BytesMessage(data=data))

    def next(self) -> Event:
        """The next event; ``CloseConnection`` (1006) where the other end just closes."""
        while not self._events:
            try:
                data = self.link.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                return CloseConnection(code=1006, reason="")
            self.conn.receive_data(data)
            self._events = list(self.conn.events())
        return self._events.pop(0)

    def heard(self, count: int) -> bytes:
        """At least so many bytes of binary messages."""
        found = b""
        while len(found) < count:
            event = self.next()
            assert isinstance(event, BytesMessage), event
            found += bytes(event.data)
        return found
