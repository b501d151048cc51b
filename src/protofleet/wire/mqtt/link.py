"""The MQTT link: one connection kept alive by paho, seen as a queue of events.

Publishing never blocks and nothing is queued across a reconnect: what was not sent when the link
broke is lost, and the transfer rules (``transfer.py``) send it again. MQTT 5 where the broker
speaks it, else 3.1.1.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from dataclasses import dataclass

from paho.mqtt.enums import MQTTProtocolVersion

from protofleet.wire.mqtt.connection import (
    Connected,
    Connection,
    ConnectionEvent,
    Drained,
    Ending,
    LinkOptions,
    MqttMessage,
    Will,
)
from protofleet.wire.mqtt.mqtt_client import Counters
from protofleet.wire.refusals import NOT_AUTHORIZED, PACKET_TOO_LARGE, Hindered, Refusal
from protofleet.wire.transfers.chunks import (
    HEADER_BYTES,
    MAX_DATA_BYTES,
    MIN_DATA_BYTES,
    RESERVED_BYTES,
    TAG_BYTES,
)

__all__ = [
    "Connected",
    "Disconnected",
    "Drained",
    "Hindered",
    "Link",
    "LinkEvent",
    "LinkOptions",
    "MqttMessage",
    "Traffic",
    "Will",
    "Woken",
]

BACKOFF_MIN_S = 1.0
"""Upper bound of the first random wait, unless the fleet is large (``Link.spread``)."""
BACKOFF_MAX_S = 120.0
"""Doubling stops here: a fleet of 10,000 then knocks 170 times a second in the mean."""
STABLE_S = 60.0
"""Only a connection that lasted this long resets the back-off, else a flapping link storms."""
QUEUE_MAX = 1024
"""Unread events; beyond it the socket is not read, so that the broker feels the pressure."""
UNSUPPORTED_VERSION = 0x84
FINAL_CODES = frozenset({NOT_AUTHORIZED, 0x85, 0x86, 0x8A, 0x8C})
"""Not authorised, bad client id, bad user or password, banned, bad method: trying again is no
help."""

VERSIONS = (MQTTProtocolVersion.MQTTv5, MQTTProtocolVersion.MQTTv311)


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is gone or was refused; the link tries again unless ``final``.

    ``unanswered``: before the broker had answered a ``listen``, so perhaps because of it.
    ``forbidden``: our account is let in, and the broker's access list refuses what it did.
    """

    reason: str
    final: bool = False
    unanswered: bool = False
    forbidden: bool = False


@dataclass(frozen=True, slots=True)
class Woken:
    """``Link.wake`` was called."""


LinkEvent = Connected | Disconnected | MqttMessage | Drained | Hindered | Woken


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
    """Keeps one MQTT session; all methods may be called from any thread.

    Args:
        options: where to connect and as whom.
        rng: jitter of the back-off.

    Raises:
        InputError: a certificate or password file cannot be used, or the broker is on another
            machine and has no TLS.
    """

    def __init__(self, options: LinkOptions, rng: random.Random | None = None) -> None:
        self._options = options
        options.broker.check_protected()
        self._address = options.broker.address()
        self._tls = options.broker.tls()
        self._rng = rng or random.Random()  # noqa: S311 - jitter, no secret
        # The one queue whose put is safe in a signal handler, which ``wake`` promises.
        self._events: queue.SimpleQueue[tuple[float, LinkEvent]] = queue.SimpleQueue()
        self._handed_out_s = 0.0
        self._places = threading.Semaphore(QUEUE_MAX)
        self._counters = Counters()
        self._closing = threading.Event()
        self._awake = threading.Event()
        self._awake.set()
        self._connection: Connection | None = None
        self._chunk_limit = MAX_DATA_BYTES
        self._told: set[tuple[int, bool]] = set()
        self._version = 1 if self._address.version == "3.1.1" else 0
        self._version_known = self._address.version != ""
        self._may_ask = True
        self._spread_s = 0.0
        self._thread = threading.Thread(target=self._run, name="protofleet-link", daemon=True)

    def start(self) -> None:
        """Begin to connect, in a thread of its own."""
        self._thread.start()

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:
        """Send with QoS 1.

        Returns:
            False if it was dropped: the link is down, or the broker takes no packet of this size.
        """
        connection = self._connection
        if connection is None or not connection.open:
            return False
        return connection.publish(topic, payload, retain=retain)

    def get(self, timeout_s: float | None = None) -> LinkEvent | None:
        """The next event, waiting at most ``timeout_s`` (None: for ever); None if none came."""
        try:
            wait_s = None if timeout_s is None else max(0.0, timeout_s)
            self._handed_out_s, event = self._events.get(timeout=wait_s)
        except queue.Empty:
            return None
        if not isinstance(event, Woken | Drained | Hindered):
            self._places.release()
        return event

    def wake(self) -> None:
        """Make a waiting ``get`` return ``Woken`` now; safe in a signal handler too."""
        self._events.put((time.monotonic(), Woken()))

    def ask(self, topics: str) -> bool:
        """Subscribe to one filter more until ``stop_asking`` or the end of the connection.

        Returns:
            False if the link is down, or a broker has ended a connection that had asked: some do
            so where an access list forbids a filter.
        """
        connection = self._connection
        if connection is None or not connection.open or not self._may_ask:
            return False
        connection.ask(topics)
        return True

    def listen(self, topics: str) -> bool:
        """Subscribe to one filter more until ``stop_listening`` or the end of the connection.

        Returns:
            False if the link is down; if the broker forbids the filter, ``Hindered`` says so.
        """
        connection = self._connection
        if connection is None or not connection.open:
            return False
        connection.listen(topics)
        return True

    def stop_listening(self, topics: str) -> None:
        """Unsubscribe from what ``listen`` subscribed to."""
        connection = self._connection
        if connection is not None and connection.open:
            connection.stop_listening(topics)

    def subscribe_again(self) -> None:
        """Have the broker send what it retains for us once more."""
        connection = self._connection
        if connection is not None and connection.open:
            connection.subscribe()

    def spread(self, seconds: float) -> None:
        """From now on wait up to so long before the first reconnect: so large is the fleet."""
        self._spread_s = seconds

    def stop_asking(self, topics: str) -> None:
        """Unsubscribe from what ``ask`` subscribed to."""
        connection = self._connection
        if connection is not None and connection.open:
            connection.stop_asking(topics)

    @property
    def clock(self) -> float:
        """Monotonic seconds up to which everything that came has been handed out.

        Whoever is behind with its events must not take for silence what lies unread.
        """
        return time.monotonic() if self._events.empty() else self._handed_out_s

    @property
    def connected(self) -> bool:
        """Whether ``publish`` would send now."""
        connection = self._connection
        return connection is not None and connection.open

    @property
    def room(self) -> int:
        """Chunks that may be published now; ``Drained`` comes when 0 has become more."""
        connection = self._connection
        return connection.room if connection is not None and connection.open else 0

    @property
    def unacknowledged(self) -> int:
        """Publishes that would be lost if the connection ended now; none if there is none."""
        connection = self._connection
        return connection.unacknowledged if connection is not None and connection.open else 0

    @property
    def chunk_bytes(self) -> int:
        """Largest chunk data this broker takes; halved after a refused packet."""
        connection = self._connection
        limit = connection.max_packet_bytes if connection is not None else None
        if limit is None:
            return self._chunk_limit
        around = RESERVED_BYTES + HEADER_BYTES + TAG_BYTES
        return max(MIN_DATA_BYTES, min(self._chunk_limit, limit - around))

    @property
    def traffic(self) -> Traffic:
        """The byte counters now."""
        counters = self._counters
        return Traffic(
            socket_up_bytes=counters.socket_up,
            socket_down_bytes=counters.socket_down,
            payload_up_bytes=counters.payload_up,
            payload_down_bytes=counters.payload_down,
        )

    def rest(self, timeout_s: float = 5.0) -> None:
        """Send what is queued, disconnect without firing the will, and make no connection.

        No event tells of it; ``Connected`` comes after ``go_on``.
        """
        self._awake.clear()
        connection = self._connection
        if connection is not None:
            connection.close(timeout_s)

    def go_on(self) -> None:
        """Connect again after ``rest``."""
        self._awake.set()

    def close(self, timeout_s: float = 5.0) -> None:
        """Send what is queued, disconnect without firing the will, stop the thread."""
        deadline = time.monotonic() + timeout_s
        self._closing.set()
        self._awake.set()
        connection = self._connection
        if connection is not None:
            connection.close(timeout_s)
        if self._thread.ident is not None:
            self._thread.join(max(0.1, deadline - time.monotonic()))

    def _run(self) -> None:
        attempt = 0
        while self._awake.wait() and not self._closing.is_set():
            connection = Connection(
                self._options, VERSIONS[self._version], self._counters, self._take
            )
            self._connection = connection
            ending = connection.run(self._address, self._tls)
            self._connection = None
            if self._closing.is_set():
                return
            if not self._awake.is_set():
                attempt = 0
                continue
            # Some brokers end a connection that subscribes to what an access list forbids.
            unanswered = connection.unanswered
            final = ending.code in FINAL_CODES and not unanswered
            if connection.asking:
                self._may_ask = final = False
            self._put(Disconnected(ending.reason, final, unanswered, ending.forbidden))
            if final:
                return
            wait_s, attempt = self._after(ending, attempt)
            self._closing.wait(wait_s)

    def _after(self, ending: Ending, attempt: int) -> tuple[float, int]:
        """How long to wait before the next attempt, and its number."""
        attempt = 0 if ending.stable_s >= STABLE_S else attempt + 1
        return 0.0 if self._adapt(ending) else self._backoff_s(attempt), attempt

    def _adapt(self, ending: Ending) -> bool:
        """Learn from the ending; True if the next attempt should come at once."""
        if ending.code == PACKET_TOO_LARGE:
            self._chunk_limit = max(MIN_DATA_BYTES, self._chunk_limit // 2)
        self._version_known = self._version_known or ending.opened
        if self._version_known or not (ending.greeted or ending.code == UNSUPPORTED_VERSION):
            return False
        self._version = 1 - self._version
        return self._version == 1

    def _backoff_s(self, attempt: int) -> float:
        first = max(BACKOFF_MIN_S, self._spread_s)
        ceiling = min(BACKOFF_MAX_S, first * 2.0 ** min(max(attempt - 1, 0), 10))
        return self._rng.uniform(0.0, ceiling)

    def _take(self, event: ConnectionEvent) -> None:
        if not isinstance(event, Refusal):
            self._put(event)
            return
        narrower = False
        if event.chunk_data_bytes:
            if event.chunk_data_bytes > self._chunk_limit:
                return  # it was on its way when another of its size was refused
            limit = max(MIN_DATA_BYTES, self.chunk_bytes // 2)
            narrower, self._chunk_limit = limit < self.chunk_bytes, limit
        kind = event.code, event.payload is None
        reason = "" if kind in self._told else event.reason
        self._told.add(kind)
        if narrower or reason:
            self._put(Hindered(reason, narrower))

    def _put(self, event: LinkEvent) -> None:
        if isinstance(event, Drained | Hindered):
            # Takes no place and never waits: it comes under a lock that ``publish`` needs, and
            # whoever publishes empties the queue. There is at most one for each publish.
            self._events.put((time.monotonic(), event))
            return
        while not self._closing.is_set():
            if self._places.acquire(timeout=1.0):
                self._events.put((time.monotonic(), event))
                return
