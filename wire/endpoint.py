"""One peer of a federation: link, topics and courier behind a single ``poll``.

Edge and coordinator see typed messages and finished blobs; which topic, chunk or repetition
carried them is decided here. A device's loop::

    endpoint.start()
    while True:
        match endpoint.poll(timeout_s=1.0):
            case Connected():                       # again after every reconnect
                endpoint.publish(Presence(...))
            case Incoming(message=Task() as task):
                endpoint.expect("", task.payload)
            case Received(manifest=manifest, path=path):
                ...                                 # check, store durably
                endpoint.accept(manifest.transfer_id)
                endpoint.send_update(update_file, round_id)
            case Delivered() | Rejected():          # of the update
                ...
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from msgspec.structs import replace

from protofleet.errors import InputError, RefusedError, UnavailableError
from protofleet.wire.codecs import Coding
from protofleet.wire.link import (
    Connected,
    Delivery,
    Disconnected,
    Drained,
    Link,
    Traffic,
    Woken,
)
from protofleet.wire.messages import (
    Announcement,
    Heartbeat,
    Manifest,
    Message,
    Presence,
    Task,
    decode,
    encode,
)
from protofleet.wire.topics import Address, Channel, Topics, check_id
from protofleet.wire.transfer import (
    Action,
    Courier,
    Delivered,
    Lane,
    Received,
    Rejected,
    Send,
    Source,
    describe,
)


@dataclass(frozen=True, slots=True)
class Incoming:
    """A typed message from ``peer`` ('' for the announcement, which is for all).

    On a device: Announcement or Task. On the coordinator: Presence, Heartbeat, or Manifest (the
    offer of an update: answer with ``expect`` or ``reject``). Repetitions are passed on.
    ``retained``: the broker kept it from before our subscription, so it may be out of date.
    """

    peer: str
    message: Announcement | Task | Presence | Heartbeat | Manifest
    retained: bool = False


@dataclass(frozen=True, slots=True)
class Ignored:
    """Bytes that broke a rule were discarded; count or log it."""

    peer: str
    rule: str
    detail: str


Event = Connected | Disconnected | Incoming | Received | Delivered | Rejected | Ignored

_MESSAGES: dict[Channel, type[Message]] = {
    Channel.ANNOUNCEMENT: Announcement,
    Channel.DOWN_TASK: Task,
    Channel.PRESENCE: Presence,
    Channel.UP_STATUS: Heartbeat,
    Channel.UP_MANIFEST: Manifest,
}
_LANES = {
    Channel.UP_CHUNK: Lane.CHUNK,
    Channel.UP_REQUEST: Lane.ANSWER,
    Channel.DOWN_CHUNK: Lane.CHUNK,
    Channel.DOWN_ANSWER: Lane.ANSWER,
}
_DEVICE_SENDS = {
    Lane.OFFER: Channel.UP_MANIFEST,
    Lane.CHUNK: Channel.UP_CHUNK,
    Lane.ANSWER: Channel.UP_REQUEST,
}
_COORDINATOR_SENDS = {
    Lane.OFFER: Channel.DOWN_TASK,
    Lane.CHUNK: Channel.DOWN_CHUNK,
    Lane.ANSWER: Channel.DOWN_ANSWER,
}
_RECORD_CHANNELS: dict[type[Message], Channel] = {
    Heartbeat: Channel.UP_STATUS,
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


class Endpoint:
    """The device's or the coordinator's end of the wire; used by one thread, except ``wake``.

    Args:
        link: not yet started; its filters must be ``topics.device_filters(device_id)`` or
            ``topics.coordinator_filters()``.
        topics: of the federation.
        courier: of this process.
        device_id: this device; None: this is the coordinator. On a device ``peer`` arguments are
            not looked at: there is only one other end.
    """

    def __init__(
        self, link: Link, topics: Topics, courier: Courier, *, device_id: str | None = None
    ) -> None:
        self._link = link
        self._topics = topics
        self._courier = courier
        self._me = None if device_id is None else check_id(device_id, "device")
        self._sends = _COORDINATOR_SENDS if device_id is None else _DEVICE_SENDS
        self._ready: deque[Event] = deque()
        self._fresh = False

    @property
    def side(self) -> Literal["device", "coordinator"]:
        """Which end this is."""
        return "coordinator" if self._me is None else "device"

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
            event = self._link.get(_wait_s(now, stop, self._courier.due()))
            if isinstance(event, Woken):
                return None
            self._take(event)
            # Checked after every packet: a flood of chunks must not keep the caller from its clock.
            if not self._ready and time.monotonic() >= stop:
                return None

    def wake(self) -> None:
        """Make ``poll`` return None now; from any thread."""
        self._link.wake()

    def publish(self, message: Message, peer: str = "") -> bool:
        """Send a record on its topic; Presence and Announcement are retained.

        Args:
            message: Presence or Heartbeat (device), Announcement or Task without payload
                (coordinator).
            peer: the device a Task is for.

        Returns:
            False if the link is down: presence and announcement are due again on ``Connected``.

        Raises:
            InputError: a record that travels only inside a transfer.
        """
        if isinstance(message, Announcement):
            return self._link.publish(self._topics.announcement, encode(message), retain=True)
        channel = _RECORD_CHANNELS.get(type(message))
        if channel is None:
            raise InputError(f"{type(message).__name__}: travels only inside a transfer")
        topic = self._topics.of(channel, self._peer(peer))
        return self._link.publish(topic, encode(message), retain=channel is Channel.PRESENCE)

    @_on_disk()
    def send_update(self, source: Source, round_id: int, coding: Coding | None = None) -> Manifest:
        """Device: offer an update until the coordinator's receipt (``Delivered``/``Rejected``).

        Args:
            source: a file that stays as it is until then, or bytes.
            round_id: the round it belongs to.
            coding: how it is coded; None: raw.
        """
        me = self._peer("")
        manifest = describe(
            source,
            kind="update",
            device_id=me,
            round_id=round_id,
            chunk_bytes=self._link.chunk_bytes,
            coding=coding,
        )
        self._act(self._courier.send(me, source, manifest, time.monotonic()))
        return manifest

    @_on_disk()
    def send_task(
        self, peer: str, task: Task, source: Source, coding: Coding | None = None
    ) -> Manifest:
        """Coordinator: offer ``task`` with ``source`` as its payload until the device has it.

        A newer task for the same device replaces it. ``task.payload`` is filled in here;
        ``coding`` says how the payload is coded, None: raw.
        """
        manifest = describe(
            source,
            kind="payload",
            device_id=peer,
            round_id=task.round_id,
            chunk_bytes=self._link.chunk_bytes,
            coding=coding,
        )
        offer = replace(task, payload=manifest)
        self._act(self._courier.send(peer, source, manifest, time.monotonic(), offer=offer))
        return manifest

    @_on_disk()
    def expect(self, peer: str, manifest: Manifest) -> None:
        """Take an offered blob; call it for every offer, repeated ones too."""
        self._act(self._courier.expect(self._peer(peer), manifest, time.monotonic()))

    @_on_disk()
    def accept(self, transfer_id: str) -> None:
        """After the received blob is stored durably: send ``done``, now and when asked again."""
        self._act(self._courier.accept(transfer_id, time.monotonic()))

    @_on_disk()
    def reject(self, peer: str, transfer_id: str, reason: str) -> None:
        """Send ``reject`` with the reason, now and when offered again; drop the bytes."""
        now = time.monotonic()
        self._act(self._courier.reject(self._peer(peer), transfer_id, reason, now))

    def remember(self, transfer_id: str) -> None:
        """After a restart: accepted in an earlier life; answer ``done`` when it is offered."""
        self._courier.remember(transfer_id)

    def cancel(self, transfer_id: str) -> None:
        """Forget a transfer in either direction."""
        self._courier.cancel(transfer_id)

    def close(self, farewell: Message | None = None) -> None:
        """Publish ``farewell`` (e.g. Presence ``left``), then disconnect gracefully."""
        if farewell is not None:
            self.publish(farewell)
        self._link.close()
        self._courier.close()

    def _peer(self, peer: str) -> str:
        return peer if self._me is None else self._me

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
        try:
            lane = _LANES.get(address.channel)
            if lane is None:
                self._record(address, delivery)
            else:
                self._act(
                    self._courier.handle(
                        address.device_id, lane, delivery.payload, time.monotonic()
                    )
                )
        except RefusedError as error:
            self._ready.append(Ignored(address.device_id, error.rule, str(error)))

    def _record(self, address: Address, delivery: Delivery) -> None:
        message: Any = decode(delivery.payload, _MESSAGES[address.channel])
        named = getattr(message, "device_id", address.device_id)
        if named != address.device_id:
            raise RefusedError("device-id", f"{address.device_id}: speaks as {named[:64]!r}")
        self._ready.append(Incoming(address.device_id, message, delivery.retained))
        if isinstance(message, Presence) and message.status == "online" and not delivery.retained:
            now = time.monotonic()
            self._act(self._courier.peer_returned(address.device_id, now))

    def _work(self) -> None:
        now = time.monotonic()
        if self._fresh:
            self._fresh = False
            self._act(self._courier.reconnected(now, max_chunk_bytes=self._link.chunk_bytes))
        self._pump()
        self._act(self._courier.tick(now))

    def _pump(self) -> None:
        """Hand chunks over as far as the link has room, so that memory stays bounded."""
        for _ in range(self._link.room):
            action = self._courier.next_chunk()
            if action is None:
                return
            self._act([action])

    def _act(self, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                topic = self._topics.of(self._sends[action.lane], action.peer)
                self._link.publish(topic, action.payload)
            else:
                self._ready.append(action)


def _wait_s(now: float, stop: float, due: float | None) -> float | None:
    until = stop if due is None else min(stop, due)
    return None if until == float("inf") else max(0.0, until - now)
