"""What both ends of the wire do: link, topics and transfers behind a single ``poll``.

Edge and coordinator see typed messages and finished blobs; which topic, chunk or repetition
carried them is decided here. The two ends are ``device_endpoint`` and ``coordinator_endpoint``.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from protofleet.errors import InputError, RefusedError, StorageError
from protofleet.wire.events import Ignored, PeerMessage
from protofleet.wire.messages import (
    Announcement,
    BundleOffer,
    Heartbeat,
    LeaseRecord,
    Message,
    Presence,
    Task,
    TransferOffer,
)
from protofleet.wire.mqtt.link import (
    Connected,
    Disconnected,
    Hindered,
    Link,
    LinkEvent,
    MqttMessage,
    Traffic,
    Woken,
)
from protofleet.wire.topics import (
    RETAINED,
    Channel,
    TopicAddress,
    Topics,
)
from protofleet.wire.transfers.carousel import Carousels
from protofleet.wire.transfers.chunks import MAX_DATA_BYTES
from protofleet.wire.transfers.receiver import Receiver
from protofleet.wire.transfers.sender import Sender
from protofleet.wire.transfers.transfer import (
    Action,
    Delivered,
    Lane,
    Limits,
    Received,
    Rejected,
    Send,
)
from protofleet.wire.trust.protection import Plain

_End = TypeVar("_End", Sender | Carousels, Receiver)
Event = (
    Connected | Disconnected | Hindered | PeerMessage | Received | Delivered | Rejected | Ignored
)

_MESSAGES: dict[Channel, type[Message]] = {
    Channel.ANNOUNCEMENT: Announcement,
    Channel.DOWN_BUNDLE: BundleOffer,
    Channel.DOWN_TASK: Task,
    Channel.LEASE: LeaseRecord,
    Channel.PRESENCE: Presence,
    Channel.UP_STATUS: Heartbeat,
    Channel.UP_OFFER: TransferOffer,
}
_RECORD_CHANNELS: dict[type[Message], Channel] = {
    Announcement: Channel.ANNOUNCEMENT,
    Heartbeat: Channel.UP_STATUS,
    LeaseRecord: Channel.LEASE,
    Presence: Channel.PRESENCE,
    Task: Channel.DOWN_TASK,
}


@contextmanager
def on_disk() -> Iterator[None]:
    """Name a full or failing disk as what it is."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"files of unfinished transfers: {error}; put it right, nothing finished is lost"
        ) from error


class Endpoint:
    """What both ends share; used by one thread, except ``wake``.

    Args:
        link: not yet started, subscribed to what this end hears.
        topics: of the federation.
        folder: of partial blobs, so that a restarted process continues.
        limits: what the other end may ask of this process.
        protection: of every record and chunk; None: they travel as they are.
    """

    _sends: ClassVar[Mapping[Lane, Channel]]

    def __init__(
        self,
        link: Link,
        topics: Topics,
        folder: Path,
        limits: Limits | None = None,
        protection: Plain | None = None,
    ) -> None:
        protection = protection or Plain()
        self._link = link
        self._topics = topics
        self._protection = protection
        self._passes: dict[str, int] = {}
        self._sender = Sender(
            content_key=protection.content_key, passes=self._passes, settled=self._settled
        )
        self._receiver = Receiver(folder, limits, sealed=protection.sealed)
        # In order of precedence: those of rounds first.
        self._senders: list[Sender | Carousels] = [self._sender]
        self._receivers = [self._receiver]
        self._ready: deque[Event] = deque()
        self._fresh = False
        self._may_offer = False

    @property
    def connected(self) -> bool:
        """Whether the link is up."""
        return self._link.connected

    @property
    def room(self) -> int:
        """How many records may be published before they wait for others' acknowledgement."""
        return self._link.room

    @property
    def unacknowledged(self) -> int:
        """How many published records and chunks would be lost if the link ended now."""
        return self._link.unacknowledged

    def _settled(self) -> bool:
        return self._link.unacknowledged == 0

    def _chunk_bytes(self, device_id: str) -> int:
        """Most data of a chunk that passes, as far as is known."""
        return min(self._link.chunk_bytes, self._passes.get(device_id, MAX_DATA_BYTES))

    @property
    def traffic(self) -> Traffic:
        """Byte counters of the link."""
        return self._link.traffic

    @property
    def due(self) -> float:
        """When ``poll`` has something to do though nothing comes, monotonic; may be early."""
        # Behind a full window offers would only queue, encoded and perhaps twice.
        senders = self._senders if self._may_offer and self._link.room else []
        times = [one.due() for one in senders] + [one.due() for one in self._receivers]
        return min((t for t in times if t is not None), default=float("inf"))

    def start(self) -> None:
        """Begin to connect; ``Connected`` comes from ``poll``, again after each reconnect."""
        self._link.start()

    @on_disk()
    def poll(self, timeout_s: float | None = None) -> Event | None:
        """The next event, waiting at most ``timeout_s`` (None: for ever); None if none came.

        All transfer work is done inside, so call it again soon. Announce yourself (Presence,
        Announcement) on every ``Connected``: the next call offers and asks again.

        Raises:
            StorageError: a blob cannot be written or read; ``expect``, ``accept``, ``reject`` and
                ``send_…`` raise it too. What was on its way stays so: call again.
        """
        stop = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if not self._ready:
                self._work()
            if self._ready:
                return self._ready.popleft()
            now = time.monotonic()
            event = self._link.get(_wait_s(now, min(stop, self.due)))
            if isinstance(event, Woken):
                return None
            self._take(event)
            # Checked after every packet: a flood of chunks must not keep the caller from its clock.
            if not self._ready and time.monotonic() >= stop:
                self._work()  # what the packet asked for does not wait for the next call
                return self._ready.popleft() if self._ready else None

    def wake(self) -> None:
        """Make ``poll`` return None now; from any thread."""
        self._link.wake()

    @on_disk()
    def accept(self, transfer_id: str) -> None:
        """After the received blob is stored durably: send ``done``, now and when asked again."""
        for receiver in self._receivers:
            self._act(receiver.accept(transfer_id, time.monotonic()))

    def remember(self, transfer_id: str) -> None:
        """After a restart: accepted in an earlier life; answer ``done`` when it is offered."""
        self._receiver.remember(transfer_id)

    def cancel(self, transfer_id: str) -> None:
        """Forget a transfer in either direction, partial bytes and receipt with it."""
        for sender in self._senders:
            sender.forget(transfer_id)
        for receiver in self._receivers:
            receiver.cancel(transfer_id)

    def close(self) -> None:
        """Disconnect gracefully; what is unfinished continues in the next process."""
        self._link.close()
        for receiver in self._receivers:
            receiver.close()

    def _publish(self, message: Message, device_id: str, *, retain: bool = True) -> bool:
        channel = _RECORD_CHANNELS.get(type(message))
        if channel is None:
            raise InputError(f"{type(message).__name__}: travels only inside a transfer")
        if channel is Channel.ANNOUNCEMENT:
            topic = self._topics.announcement
        elif channel is Channel.LEASE:
            topic = self._topics.lease
        else:
            topic = self._topics.of(channel, device_id)
        payload = self._protection.write(message, topic, device_id)
        if payload is None:
            return False
        return self._link.publish(topic, payload, retain=retain and channel in RETAINED)

    @on_disk()
    def _expect(self, device_id: str, offer: TransferOffer) -> None:
        self._act(self._receiver.expect(device_id, offer, time.monotonic()))

    @on_disk()
    def _reject(self, device_id: str, transfer_id: str, rule: str, reason: str) -> None:
        now = time.monotonic()
        self._act(self._receiver.reject(device_id, transfer_id, rule, reason, now))

    def _take(self, event: LinkEvent | None) -> None:
        if isinstance(event, Connected):
            # The caller announces itself first, and only then are transfers taken up again.
            self._ready.append(event)
            self._fresh = True
        elif isinstance(event, Disconnected):
            self._ready.append(event)
            self._may_offer = False
        elif isinstance(event, Hindered):
            if event.reason:
                self._ready.append(event)
            if event.narrower:
                for sender in self._senders:
                    sender.reconnected(self._link.clock, self._link.chunk_bytes)
        elif isinstance(event, MqttMessage):
            self._deliver(event)

    def _deliver(self, delivery: MqttMessage) -> None:
        address = self._topics.parse(delivery.topic)
        if address is None:
            return
        if delivery.retained and address.channel not in RETAINED:
            detail = f"'{address.channel.value}': expected a message of now, got a retained one"
            self._ready.append(Ignored(address.device_id, "retained", detail))
            return
        now = self._link.clock
        try:
            if address.channel is Channel.SHARED_CHUNK:
                self._shared_chunk(address.device_id, delivery.payload, now)
            elif address.channel in (Channel.UP_CHUNK, Channel.DOWN_CHUNK):
                for receiver in _busy(self._receivers):
                    self._act(receiver.chunk(address.device_id, delivery.payload, now))
            elif address.channel in (Channel.UP_REQUEST, Channel.DOWN_ANSWER):
                record = self._protection.open(delivery.payload, delivery.topic, address.device_id)
                for sender in _busy(self._senders):
                    self._act(sender.answer(address.device_id, record, now))
            else:
                self._record(address, delivery)
        except RefusedError as error:
            self._ready.append(Ignored(address.device_id, error.rule, str(error)))

    def _shared_chunk(self, version: str, payload: bytes, now: float) -> None:  # noqa: ARG002 - of devices
        """Take a chunk that comes to all; only devices subscribe to any."""
        raise RefusedError("topic", f"chunk of '{version[:64]}': nothing was subscribed to here")

    def _record(self, address: TopicAddress, delivery: MqttMessage) -> None:
        message: Any = self._protection.read(
            delivery.payload, delivery.topic, address.device_id, _MESSAGES[address.channel]
        )
        if message is None:
            return
        if isinstance(message, TransferOffer):
            self._protection.check_offer(address.device_id, message)
        named = getattr(message, "device_id", address.device_id)
        if named != address.device_id:
            raise RefusedError("device-id", f"{address.device_id}: speaks as {named[:64]!r}")
        self._ready.append(PeerMessage(address.device_id, message, delivery.retained))
        if isinstance(message, Presence) and message.status == "online" and not delivery.retained:
            for sender in self._senders:
                sender.device_returned(address.device_id, time.monotonic())

    def _work(self) -> None:
        now = self._link.clock
        if self._fresh:
            self._fresh, self._may_offer = False, True
            for sender in self._senders:
                sender.reconnected(now, self._link.chunk_bytes)
            for receiver in self._receivers:
                self._act(receiver.reconnected(now))
        for sender in self._senders:
            if self._may_offer and (room := self._link.room):
                self._act(sender.tick(now, room))
        self._pump()
        for receiver in self._receivers:
            self._act(receiver.tick(now))

    def _pump(self) -> None:
        """Hand chunks over as far as the link has room, so that memory stays bounded."""
        for _ in range(self._link.room):
            chunks = (sender.next_chunk() for sender in self._senders)
            action = next((one for one in chunks if one is not None), None)
            if action is None:
                return
            self._act([action])

    def _act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._send(action)
            else:
                self._ready.append(action)

    def _send(self, action: Send) -> None:
        if action.lane is Lane.SHARED:
            self._link.publish(self._topics.shared_chunks(action.device_id), action.payload)
            return
        topic = self._topics.of(self._sends[action.lane], action.device_id)
        payload: bytes | None = action.payload  # chunks were sealed when they were cut
        if action.lane is not Lane.CHUNK:
            payload = self._protection.seal(action.payload, topic, action.device_id)
        if payload is not None:
            self._link.publish(topic, payload)


def _busy(ends: Sequence[_End]) -> list[_End]:
    """The first, which refuses what is no record, and others that this may be for."""
    return [one for one in ends if one is ends[0] or not one.idle]


def _wait_s(now: float, until: float) -> float | None:
    return None if until == float("inf") else max(0.0, until - now)
