"""The two ends of the wire: link, topics and transfers behind a single ``poll``.

Edge and coordinator see typed messages and finished blobs; which topic, chunk or repetition
carried them is decided here. A device's loop::

    endpoint.start()
    while True:
        match endpoint.poll(timeout_s=1.0):
            case Connected():                       # again after every reconnect
                endpoint.publish(Presence(...))
            case PeerMessage(message=Task() as task):
                endpoint.expect(task.payload)
            case Received(offer=offer, path=path):
                ...                                 # check, store durably
                endpoint.accept(offer.transfer_id)
                endpoint.send_update(update_file, round_id)
            case Delivered() | Rejected():          # of the update
                ...
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Self

from protofleet.errors import InputError, RefusedError, UnavailableError
from protofleet.wire.broker_access import BrokerAccess
from protofleet.wire.codecs import Coding
from protofleet.wire.events import Ignored, PeerMessage
from protofleet.wire.link import (
    Connected,
    Delivery,
    Disconnected,
    Drained,
    Link,
    LinkOptions,
    Traffic,
    Will,
    Woken,
)
from protofleet.wire.messages import (
    Announcement,
    Heartbeat,
    LeaseRecord,
    Message,
    Presence,
    Task,
    TransferOffer,
)
from protofleet.wire.protection import Plain, name_in
from protofleet.wire.receiver import Receiver
from protofleet.wire.sender import Sender
from protofleet.wire.topics import (
    ANNOUNCEMENTS,
    RETAINED,
    Channel,
    TopicAddress,
    Topics,
    announced_federation,
    check_id,
)
from protofleet.wire.transfer import (
    Action,
    Delivered,
    Lane,
    Limits,
    Received,
    Rejected,
    Send,
    Source,
    describe,
)

Event = Connected | Disconnected | PeerMessage | Received | Delivered | Rejected | Ignored

_MESSAGES: dict[Channel, type[Message]] = {
    Channel.ANNOUNCEMENT: Announcement,
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
def _on_disk() -> Iterator[None]:
    """Name a full or failing disk as what it is."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(
            f"files of unfinished transfers: {error}; put it right and start again, nothing "
            "finished is lost"
        ) from error


class _Endpoint:
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
        self._sender = Sender(content_key=protection.content_key)
        self._receiver = Receiver(folder, limits, sealed=protection.sealed)
        self._ready: deque[Event] = deque()
        self._fresh = False

    @property
    def connected(self) -> bool:
        """Whether the link is up."""
        return self._link.connected

    @property
    def traffic(self) -> Traffic:
        """Byte counters of the link."""
        return self._link.traffic

    def start(self) -> None:
        """Begin to connect; ``Connected`` comes from ``poll``, again after each reconnect."""
        self._link.start()

    @_on_disk()
    def poll(self, timeout_s: float | None = None) -> Event | None:
        """The next event, waiting at most ``timeout_s`` (None: for ever); None if none came.

        All transfer work is done inside, so call it again soon. Announce yourself (Presence,
        Announcement) on every ``Connected``: the next call offers and asks again.

        Raises:
            UnavailableError: a blob cannot be written or read; ``expect``, ``accept``, ``reject``
                and ``send_…`` raise it too.
        """
        stop = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if not self._ready:
                self._work()
            if self._ready:
                return self._ready.popleft()
            now = time.monotonic()
            event = self._link.get(_wait_s(now, stop, self._due()))
            if isinstance(event, Woken):
                return None
            self._take(event)
            # Checked after every packet: a flood of chunks must not keep the caller from its clock.
            if not self._ready and time.monotonic() >= stop:
                return None

    def wake(self) -> None:
        """Make ``poll`` return None now; from any thread."""
        self._link.wake()

    @_on_disk()
    def accept(self, transfer_id: str) -> None:
        """After the received blob is stored durably: send ``done``, now and when asked again."""
        self._act(self._receiver.accept(transfer_id, time.monotonic()))

    def remember(self, transfer_id: str) -> None:
        """After a restart: accepted in an earlier life; answer ``done`` when it is offered."""
        self._receiver.remember(transfer_id)

    def cancel(self, transfer_id: str) -> None:
        """Forget a transfer in either direction, partial bytes and receipt with it."""
        self._sender.forget(transfer_id)
        self._receiver.cancel(transfer_id)

    def close(self) -> None:
        """Disconnect gracefully; what is unfinished continues in the next process."""
        self._link.close()
        self._receiver.close()

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

    @_on_disk()
    def _expect(self, device_id: str, offer: TransferOffer) -> None:
        self._act(self._receiver.expect(device_id, offer, time.monotonic()))

    @_on_disk()
    def _reject(self, device_id: str, transfer_id: str, rule: str, reason: str) -> None:
        now = time.monotonic()
        self._act(self._receiver.reject(device_id, transfer_id, rule, reason, now))

    def _due(self) -> float | None:
        times = [t for t in (self._sender.due(), self._receiver.due()) if t is not None]
        return min(times, default=None)

    def _take(self, event: Connected | Disconnected | Delivery | Drained | Woken | None) -> None:
        if isinstance(event, Connected):
            # The caller announces itself first, and only then are transfers taken up again.
            self._ready.append(event)
            self._fresh = True
        elif isinstance(event, Disconnected):
            self._ready.append(event)
        elif isinstance(event, Delivery):
            self._deliver(event)

    def _deliver(self, delivery: Delivery) -> None:
        address = self._topics.parse(delivery.topic)
        if address is None:
            return
        if delivery.retained and address.channel not in RETAINED:
            detail = f"'{address.channel.value}': expected a message of now, got a retained one"
            self._ready.append(Ignored(address.device_id, "retained", detail))
            return
        now = time.monotonic()
        try:
            if address.channel in (Channel.UP_CHUNK, Channel.DOWN_CHUNK):
                self._act(self._receiver.chunk(address.device_id, delivery.payload, now))
            elif address.channel in (Channel.UP_REQUEST, Channel.DOWN_ANSWER):
                record = self._protection.open(delivery.payload, delivery.topic, address.device_id)
                self._act(self._sender.answer(address.device_id, record, now))
            else:
                self._record(address, delivery)
        except RefusedError as error:
            self._ready.append(Ignored(address.device_id, error.rule, str(error)))

    def _record(self, address: TopicAddress, delivery: Delivery) -> None:
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
            self._act(self._sender.device_returned(address.device_id, time.monotonic()))

    def _work(self) -> None:
        now = time.monotonic()
        if self._fresh:
            self._fresh = False
            self._act(self._sender.reconnected(now, self._link.chunk_bytes))
            self._act(self._receiver.reconnected(now))
        self._pump()
        self._act(self._sender.tick(now))
        self._act(self._receiver.tick(now))

    def _pump(self) -> None:
        """Hand chunks over as far as the link has room, so that memory stays bounded."""
        for _ in range(self._link.room):
            action = self._sender.next_chunk()
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
        topic = self._topics.of(self._sends[action.lane], action.device_id)
        payload: bytes | None = action.payload  # chunks were sealed when they were cut
        if action.lane is not Lane.CHUNK:
            payload = self._protection.seal(action.payload, topic, action.device_id)
        if payload is not None:
            self._link.publish(topic, payload)


class DeviceEndpoint(_Endpoint):
    """A device's end.

    Args:
        link: not yet started; its filters are ``topics.device_filters(device_id)``.
        topics: of the federation.
        folder: of partial blobs, so that a restarted process continues.
        device_id: this device.
        protection: an enrolled device's; None: records travel as they are.
    """

    _sends: ClassVar[Mapping[Lane, Channel]] = {
        Lane.OFFER: Channel.UP_OFFER,
        Lane.CHUNK: Channel.UP_CHUNK,
        Lane.ANSWER: Channel.UP_REQUEST,
    }

    def __init__(
        self,
        link: Link,
        topics: Topics,
        folder: Path,
        device_id: str,
        protection: Plain | None = None,
    ) -> None:
        super().__init__(link, topics, folder, protection=protection)
        self._device_id = check_id(device_id, "device")
        self._others: dict[str, Announcement] = {}

    @classmethod
    def create(  # noqa: PLR0913 - whom it connects as, each named
        cls,
        broker: BrokerAccess,
        federation: str,
        device_id: str,
        folder: Path,
        *,
        protection: Plain | None = None,
        will: Presence | None = None,
        keepalive_s: int = 30,
    ) -> Self:
        """An end with a link of its own, not yet started.

        Args:
            broker: which, and our credentials.
            federation: its name.
            device_id: this device.
            folder: of partial blobs.
            protection: as of the class.
            will: what the broker publishes when this device vanishes.
            keepalive_s: MQTT keep-alive.

        Raises:
            InputError: a name that no topic may have, or credentials that cannot be used.
        """
        topics = Topics(federation)
        protection = protection or Plain()
        place = topics.of(Channel.PRESENCE, device_id)
        last = None if will is None else protection.write(will, place, device_id)
        link = Link(
            LinkOptions(
                broker=broker,
                filters=topics.device_filters(device_id),
                will=None if last is None else Will(topic=place, payload=last),
                keepalive_s=keepalive_s,
            )
        )
        return cls(link, topics, folder, device_id, protection)

    def publish(self, message: Presence | Heartbeat) -> bool:
        """Send a record on its topic; a presence is retained.

        Returns:
            False if the link is down: the presence is due again on ``Connected``.
        """
        return self._publish(message, self._device_id)

    def listen_again(self) -> None:
        """Ask the broker for the retained announcement once more: it may have been lost."""
        self._link.subscribe_again()

    def ask_for_federations(self) -> bool:
        """Ask which federations are announced there; False if the broker is away or forbids it."""
        self._others.clear()
        return self._link.ask(ANNOUNCEMENTS)

    def take_federations(self) -> dict[str, Announcement]:
        """Announcements of other federations that came since, by name; ends the asking."""
        self._link.stop_asking(ANNOUNCEMENTS)
        return dict(self._others)

    def _deliver(self, delivery: Delivery) -> None:
        name = announced_federation(delivery.topic)
        if name in (None, self._topics.federation):
            super()._deliver(delivery)
        elif len(self._others) < 100:  # what a stranger sends fills no memory
            with suppress(RefusedError):  # what is not ours may be of another protocol
                self._others[str(name)] = name_in(delivery.payload)

    def expect(self, offer: TransferOffer) -> None:
        """Take an offered payload; call it for every offer, repeated ones too."""
        self._expect(self._device_id, offer)

    def reject(self, transfer_id: str, rule: str, reason: str) -> None:
        """Send ``reject`` with the broken rule, now and when offered again; drop the bytes."""
        self._reject(self._device_id, transfer_id, rule, reason)

    @_on_disk()
    def send_update(
        self, source: Source, round_id: int, coding: Coding | None = None
    ) -> TransferOffer:
        """Offer an update until the coordinator's receipt (``Delivered``/``Rejected``).

        Args:
            source: a file that stays as it is until then, or bytes.
            round_id: the round it belongs to.
            coding: how it is coded; None: raw.
        """
        offer = describe(
            source,
            kind="update",
            device_id=self._device_id,
            round_id=round_id,
            chunk_bytes=self._link.chunk_bytes,
            coding=coding,
        )
        offer = self._protection.sign_offer(offer)
        self._act(self._sender.send(self._device_id, source, offer, time.monotonic()))
        return offer


class CoordinatorEndpoint(_Endpoint):
    """The coordinator's end.

    Args:
        link: not yet started; its filters are ``topics.coordinator_filters()``.
        topics: of the federation.
        folder: of partial blobs, so that a restarted process continues.
        limits: what devices may ask of this process.
        protection: keyed where the federation has keys.
    """

    _sends: ClassVar[Mapping[Lane, Channel]] = {
        Lane.OFFER: Channel.DOWN_TASK,
        Lane.CHUNK: Channel.DOWN_CHUNK,
        Lane.ANSWER: Channel.DOWN_ANSWER,
    }

    @classmethod
    def create(
        cls,
        broker: BrokerAccess,
        federation: str,
        folder: Path,
        limits: Limits | None = None,
        *,
        protection: Plain | None = None,
    ) -> Self:
        """An end with a link of its own, not yet started; arguments as of the class.

        Raises:
            InputError: a name that no topic may have, or credentials that cannot be used.
        """
        topics = Topics(federation)
        link = Link(LinkOptions(broker=broker, filters=topics.coordinator_filters()))
        return cls(link, topics, folder, limits, protection)

    def publish(self, announcement: Announcement) -> bool:
        """Tell all devices, present and to come, where the federation stands.

        Returns:
            False if the link is down: it is due again on ``Connected``.
        """
        return self._publish(announcement, "")

    def publish_lease(self, lease: LeaseRecord) -> bool:
        """Tell other coordinators who serves the federation; False if the link is down."""
        return self._publish(lease, "", retain=lease.step != "claim")

    def end_session(self, device_id: str, serial: int) -> bool:
        """A grant is no longer in force; whether the device was here with it."""
        return self._protection.end_session(device_id, serial)

    def send_finish(self, device_id: str, task: Task) -> bool:
        """Send a task without a payload, once; False if the link is down."""
        return self._publish(task, device_id)

    def expect(self, device_id: str, offer: TransferOffer) -> None:
        """Take an offered update; call it for every offer, repeated ones too."""
        self._expect(device_id, offer)

    def reject(self, device_id: str, transfer_id: str, rule: str, reason: str) -> None:
        """Send ``reject`` with the broken rule, now and when offered again; drop the bytes."""
        self._reject(device_id, transfer_id, rule, reason)

    @_on_disk()
    def send_task(
        self,
        device_id: str,
        task: Task,
        source: Source,
        coding: Coding | None = None,
        *,
        most_chunk_bytes: int = 0,
    ) -> TransferOffer:
        """Offer ``task`` with ``source`` as its payload until the device has it.

        A newer task for the same device replaces it.

        Args:
            device_id: who it is for.
            task: its ``payload`` is filled in here.
            source: the payload.
            coding: how the payload is coded; None: raw.
            most_chunk_bytes: data of a chunk that the device takes; 0: what a packet holds.
        """
        chunk_bytes = self._link.chunk_bytes
        offer = describe(
            source,
            kind="payload",
            device_id=device_id,
            round_id=task.round_id,
            chunk_bytes=min(chunk_bytes, most_chunk_bytes or chunk_bytes),
            coding=coding,
        )
        self._act(self._sender.send(device_id, source, offer, time.monotonic(), task=task))
        return offer


def _wait_s(now: float, stop: float, due: float | None) -> float | None:
    until = stop if due is None else min(stop, due)
    return None if until == float("inf") else max(0.0, until - now)
