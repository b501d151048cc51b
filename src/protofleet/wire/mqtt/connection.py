"""One MQTT connection, from CONNECT to its end; ``link.py`` makes the next one.

A new paho client per connection: nothing of the old one's queue or state can leak into the next.
"""

from __future__ import annotations

import logging
import secrets
import socket
import string
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from protofleet.wire.mqtt.broker_access import BrokerAccess, BrokerAddress
from protofleet.wire.mqtt.mqtt_client import Counters, MqttClient
from protofleet.wire.refusals import FAILURE, NOT_AUTHORIZED, Refusal
from protofleet.wire.transfers.outbox import IN_FLIGHT_MAX, Outbox, Outgoing

if TYPE_CHECKING:
    import ssl

    from paho.mqtt.properties import Properties

_log = logging.getLogger(__name__)

OPEN_TIMEOUT_S = 15.0
"""A broker that takes this long to greet is overloaded or no broker."""
USER_TIMEOUT_MS = 60_000
"""The kernel gives up unacknowledged data after two keep-alives, not after 15 minutes."""
_FORBIDDING = frozenset({NOT_AUTHORIZED, 0x80})
"""MQTT 3.1.1 knows one refusal of a subscription, which is the list's."""
CLIENT_ID_CHARS = 23
"""Every broker of MQTT 3.1.1 takes so many of ``0-9a-zA-Z``, and not more surely."""
_CLIENT_ID = string.digits + string.ascii_letters

_NO_ANSWER = (
    "the broker closed the connection before it answered; it may have as many as it takes "
    "(Mosquitto: max_connections), or expect TLS (mqtts://)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Will:
    """The message that the broker publishes, retained, when this client vanishes."""

    topic: str
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkOptions:
    """How to reach the broker, and as whom.

    Attributes:
        broker: where it is, and our credentials.
        filters: subscribed with QoS 1 after each connect, before ``Connected`` is reported.
        will: retained last will.
        keepalive_s: MQTT keep-alive.
    """

    broker: BrokerAccess
    filters: tuple[str, ...] = ()
    will: Will | None = None
    keepalive_s: int = 30


@dataclass(frozen=True, slots=True)
class Connected:
    """Connected and subscribed with this protocol, ``5`` or ``3.1.1``; deliveries follow."""

    protocol: str


@dataclass(frozen=True, slots=True)
class MqttMessage:
    """A message arrived; ``retained`` if it is older than our subscription."""

    topic: str
    payload: bytes
    retained: bool


@dataclass(frozen=True, slots=True)
class Drained:
    """There is room again for chunks (``Link.room``)."""


ConnectionEvent = Connected | MqttMessage | Drained | Refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why a connection ended.

    Attributes:
        reason: for people.
        code: MQTT reason code, 0 if the socket just closed.
        greeted: whether the socket was connected at all.
        opened: whether the broker had accepted us.
        forbidden: whether the account was let in, and the access list refuses what it did.
        stable_s: for how long.
    """

    reason: str
    code: int = 0
    greeted: bool = False
    opened: bool = False
    forbidden: bool = False
    stable_s: float = 0.0


class Connection:
    """Connects once and reports what arrives through ``put``.

    Attributes:
        max_packet_bytes: the broker's limit; None if it states none.
        asking: whether a filter of ``ask`` is subscribed, or about to be.
    """

    def __init__(
        self,
        options: LinkOptions,
        protocol: MQTTProtocolVersion,
        counters: Counters,
        put: Callable[[ConnectionEvent], None],
    ) -> None:
        self.max_packet_bytes: int | None = None
        self.asking = False
        self._unanswered: set[int] = set()
        self._asked: dict[int, str] = {}
        self._outbox = Outbox()
        self._pause: threading.Timer | None = None
        self._options = options
        self._protocol = protocol
        self._counters = counters
        self._put = put
        self._lock = threading.Lock()
        self._early: list[ConnectionEvent] = []
        self._opened_at: float | None = None
        self._progress = threading.Event()
        self._ended = threading.Event()
        self._ending: Ending | None = None
        self._answered = False
        self._where, self._open_by = "", float("inf")
        self._client = self._make_client()

    @property
    def open(self) -> bool:
        """Whether we are connected and subscribed."""
        return self._opened_at is not None and not self._ended.is_set()

    @property
    def room(self) -> int:
        """How many chunks may be published before the next acknowledgement."""
        with self._lock:
            return self._outbox.room

    @property
    def unanswered(self) -> bool:
        """Whether the broker has not answered a subscription of ``listen``."""
        with self._lock:  # it may have ended us before ``listen`` has noted what it sent
            return bool(self._unanswered)

    @property
    def unacknowledged(self) -> int:
        """How many publishes the broker has not acknowledged, or not been sent."""
        with self._lock:
            return self._outbox.unacknowledged

    def run(self, address: BrokerAddress, tls: ssl.SSLContext | None) -> Ending:
        """Connect, and return when the connection has ended."""
        refused = self.begin(address, tls)
        if refused is not None:
            return refused
        self._client.loop_start()
        if not self._progress.wait(OPEN_TIMEOUT_S):
            self.abort(Ending(reason=f"{self._where}: no answer from the broker"))
        self._ended.wait()
        self._client.loop_stop()
        return self._as_it_ended()

    def begin(self, address: BrokerAddress, tls: ssl.SSLContext | None) -> Ending | None:
        """Reach the broker and greet it; why that failed.

        From then on ``turn`` does what there is to do, for callers that watch many connections.
        """
        client = self._client
        if tls is not None:
            client.tls_set_context(tls)
        if address.user is not None:
            client.username_pw_set(address.user, address.password)
        self._where = f"{address.host}:{address.port}"
        self._open_by = time.monotonic() + OPEN_TIMEOUT_S
        try:
            client.connect(address.host, address.port, self._options.keepalive_s)
        except (OSError, ValueError) as error:
            self._on_exit()
            return Ending(reason=f"{self._where}: {getattr(error, 'strerror', None) or error}")
        return None

    @property
    def socket(self) -> socket.socket | None:
        """To be watched after ``begin``, and only for reading unless ``wants_to_write``."""
        found = self._client.socket()
        return found if isinstance(found, socket.socket) else None

    @property
    def wants_to_write(self) -> bool:
        """Whether the socket takes no more now, and something waits for it."""
        return self._client.want_write()

    @property
    def _holds_back(self) -> bool:
        """Whether TLS has read more than it has handed out, which nobody sees at the socket."""
        found: Any = self._client.socket()
        return hasattr(found, "pending") and found.pending() > 0

    def turn(self, *, readable: bool) -> Ending | None:
        """Read a packet, write what waits, and ping the broker if that is due; how it has ended.

        Args:
            readable: whether the socket is.
        """
        client = self._client
        try:
            while readable:
                client.loop_read()
                readable = self._holds_back
            if client.want_write():
                client.loop_write()
            client.loop_misc()
        except Exception as error:  # noqa: BLE001 - whatever paho makes of what no broker sends
            self._on_broken(error)
        if self._opened_at is None and time.monotonic() >= self._open_by:
            self.abort(Ending(reason=f"{self._where}: no answer from the broker"))
        if client.socket() is not None:
            return None
        self._on_exit()
        return self._as_it_ended()

    def _as_it_ended(self) -> Ending:
        ending = self._ending or Ending(reason=f"{self._where}: connection lost")
        stable_s = 0.0 if self._opened_at is None else time.monotonic() - self._opened_at
        opened = self._opened_at is not None
        return replace(ending, greeted=True, opened=opened, stable_s=stable_s)

    def publish(self, topic: str, payload: bytes, *, retain: bool) -> bool:
        """Send now or when the broker has acknowledged enough; False: too large for it."""
        if self.max_packet_bytes and len(payload) + len(topic) + 16 > self.max_packet_bytes:
            return False
        self._counters.payload_up += len(payload)
        with self._lock:
            following = self._outbox.put(Outgoing(topic, payload, retain))
        self._send(following)
        return True

    def subscribe(self) -> None:
        """Subscribe to our own filters; once more makes the broker send what it retains again."""
        five = self._protocol == MQTTProtocolVersion.MQTTv5
        quality: Any = SubscribeOptions(qos=1) if five else 1
        self._client.subscribe([(name, quality) for name in self._options.filters])

    def listen(self, topics: str) -> None:
        """Subscribe to one filter more; the broker's refusal is a ``Refusal`` and nothing else."""
        with self._lock:  # the answer may come before ``subscribe`` returns
            _, packet_id = self._client.subscribe(topics, 1)
            if packet_id is not None:
                self._unanswered.add(packet_id)
                self._asked[packet_id] = topics

    def stop_listening(self, topics: str) -> None:
        """Unsubscribe from what ``listen`` subscribed to."""
        self._client.unsubscribe(topics)

    def ask(self, topics: str) -> None:
        """As ``listen``; that the connection may end over it is expected."""
        self.asking = True
        with self._lock:
            _, packet_id = self._client.subscribe(topics, 1)
            if packet_id is not None:
                self._asked[packet_id] = topics

    def stop_asking(self, topics: str) -> None:
        """Unsubscribe from what ``ask`` subscribed to."""
        self.asking = False
        self._client.unsubscribe(topics)

    def close(self, timeout_s: float) -> None:
        """Wait until everything is acknowledged, say DISCONNECT, end."""
        deadline = time.monotonic() + timeout_s
        while self.open and self.unacknowledged and time.monotonic() < deadline:
            self._ended.wait(0.005)
        self.say_goodbye()
        if not self._ended.wait(max(0.1, deadline - time.monotonic())):
            self.abort(Ending(reason="closed"))

    def say_goodbye(self) -> None:
        """Say DISCONNECT without waiting for anything; ``turn`` then tells the end."""
        self._ending = self._ending or Ending(reason="closed")
        self._client.disconnect()

    def abort(self, ending: Ending) -> None:
        """End now, without a word to the broker."""
        self._ending = self._ending or ending
        if self.socket is not None:
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)

    def _make_client(self) -> MqttClient:
        options = self._options
        client = MqttClient(
            CallbackAPIVersion.VERSION2,
            client_id=_draw_client_id(),
            protocol=self._protocol,
            clean_session=None if self._protocol == MQTTProtocolVersion.MQTTv5 else True,
            reconnect_on_failure=False,
        )
        client.counters = self._counters
        client.on_exit = self._on_exit
        client.on_broken = self._on_broken
        if options.will is not None:
            client.will_set(options.will.topic, options.will.payload, 1, retain=True)
        client.on_socket_open = _tune
        client.on_connect = self._on_connect
        client.on_subscribe = self._on_subscribe
        client.on_delivery = self._on_delivery
        client.on_acknowledged = self._on_acknowledged
        client.on_disconnect = self._on_disconnect
        return client

    def _on_connect(
        self,
        _client: Client,
        _data: Any,
        _flags: Any,
        code: ReasonCode,
        properties: Properties | None,
    ) -> None:
        self._answered = True
        if code.is_failure:
            self.abort(Ending(reason=f"broker refused: {code}", code=code.value))
            return
        self._outbox = Outbox(getattr(properties, "ReceiveMaximum", IN_FLIGHT_MAX))
        self.max_packet_bytes = getattr(properties, "MaximumPacketSize", None)
        if self._options.filters:
            self.subscribe()
        else:
            self._opened()

    def _on_subscribe(
        self, _client: Client, _data: Any, mid: int, codes: list[ReasonCode], _props: Any
    ) -> None:
        with self._lock:
            self._unanswered.discard(mid)
            asked = self._asked.pop(mid, "")
        refused = [code for code in codes if code.is_failure]
        if self._opened_at is not None:
            if refused:
                self._put(Refusal(refused[0].value, asked or " ".join(self._options.filters)))
            return
        if refused:
            self.abort(_refused(f"subscription refused: {refused[0]}", refused[0].value))
            return
        self._opened()

    def _opened(self) -> None:
        self._opened_at = time.monotonic()
        self._progress.set()
        five = self._protocol == MQTTProtocolVersion.MQTTv5
        self._put(Connected("5" if five else "3.1.1"))
        for event in self._early:
            self._put(event)

    def _on_delivery(self, topic: str, payload: bytes, retained: bool) -> None:  # noqa: FBT001 - as called
        self._counters.payload_down += len(payload)
        event = MqttMessage(topic, payload, retained)
        if self._opened_at is None:
            self._early.append(event)
        else:
            self._put(event)

    def _on_acknowledged(self, message: Outgoing, code: int) -> None:
        if code == NOT_AUTHORIZED:
            reason = f"publish refused: {ReasonCode(PacketTypes.PUBACK, identifier=code)}"
            self.abort(_refused(reason, code))
            return
        if code >= FAILURE:
            self._put(Refusal(code, message.topic, message.payload))
        with self._lock:
            full = self._outbox.room == 0
            following, pause_s = self._outbox.acknowledged(message, code)
            drained = full and self._outbox.room > 0
            if pause_s:
                self._pause = threading.Timer(pause_s, self._resume)
                self._pause.daemon = True
                self._pause.start()
        self._send(following)
        if drained:
            self._put(Drained())

    def _resume(self) -> None:
        with self._lock:
            following = self._outbox.resume()
            drained = self._outbox.room > 0
        if self.open:
            self._send(following)
            if drained:
                self._put(Drained())

    def _send(self, messages: list[Outgoing]) -> None:
        for message in messages:
            self._client.send(message)

    def _on_disconnect(
        self, _client: Client, _data: Any, flags: Any, code: ReasonCode, _props: Any
    ) -> None:
        if flags.is_disconnect_packet_from_server:
            ending = Ending(reason=f"broker closed: {code}", code=code.value)
        elif self._answered:
            ending = Ending(reason=f"connection lost: {code}")
        else:
            ending = Ending(reason=f"{self._where}: {_NO_ANSWER}")
        self._ending = self._ending or ending

    def _on_broken(self, error: Exception) -> None:
        _log.debug("MQTT connection", exc_info=error)
        self.abort(Ending(reason=f"broker broke the protocol: {error}"))

    def _on_exit(self) -> None:
        self._ended.set()
        self._progress.set()
        if self._pause is not None:
            self._pause.cancel()


def _refused(what: str, code: int) -> Ending:
    """The end of a connection that the broker had let in."""
    forbidden = code in _FORBIDDING
    why = " (the account is let in; the broker's access list forbids this topic)"
    reason = f"{what}{why if forbidden else ''}"
    return Ending(reason=reason, code=NOT_AUTHORIZED, forbidden=forbidden)


def _draw_client_id() -> str:
    """New for each connection: whoever knew it could end the connection by taking it."""
    return "".join(secrets.choice(_CLIENT_ID) for _ in range(CLIENT_ID_CHARS))


def _tune(_client: Client, _data: Any, sock: Any) -> None:
    """Send small packets at once; notice a dead peer; prefer BBR, which loss does not stall."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
    if hasattr(socket, "TCP_CONGESTION"):
        with suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
