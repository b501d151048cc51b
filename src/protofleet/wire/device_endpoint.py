"""The device's end of the wire.

Its loop::

    endpoint.start()
    while True:
        match endpoint.poll(timeout_s=1.0):
            case Connected():                       # again after every reconnect
                endpoint.publish(Presence(...))
            case PeerMessage(message=Task() as task):
                endpoint.expect(task.payload, task.shared)
            case Received(offer=offer, path=path):
                ...                                 # check, store durably
                endpoint.accept(offer.transfer_id)
                endpoint.send_update(update_file, round_id)
            case Delivered() | Rejected():          # of the update
                ...
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Self

from protofleet.errors import RefusedError
from protofleet.wire.codecs import Coding
from protofleet.wire.endpoint import Endpoint, on_disk
from protofleet.wire.messages import (
    Announcement,
    Heartbeat,
    Presence,
    TransferOffer,
)
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.mqtt.link import Disconnected, Link, LinkEvent, LinkOptions, MqttMessage, Will
from protofleet.wire.topics import ANNOUNCEMENTS, Channel, Topics, announced_federation, check_id
from protofleet.wire.transfers.carousel import shared_version
from protofleet.wire.transfers.receiver import Receiver
from protofleet.wire.transfers.transfer import Action, Lane, Limits, Received, Source, describe
from protofleet.wire.trust.protection import Plain
from protofleet.wire.trust.signed_records import name_in

MOST_BUNDLE_BYTES = 1 << 30
"""The largest bundle that there is (``docs/bundle.md``)."""
UNHEARD_MAX = 2
"""After so many versions in a row of which nothing came, a process asks for everything."""
PARTIAL_BUNDLES = "partial-bundles"
"""Folder of unfinished ones, beside that of payloads."""


class DeviceEndpoint(Endpoint):
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
        limits = Limits(max_blob_bytes=MOST_BUNDLE_BYTES)
        sealed = self._protection.sealed
        self._bundle_receiver = Receiver(folder.with_name(PARTIAL_BUNDLES), limits, sealed=sealed)
        self._receivers.append(self._bundle_receiver)
        self._device_id = check_id(device_id, "device")
        self._others: dict[str, Announcement] = {}
        self._listening: dict[str, bool] = {}
        self._unheard = 0

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

    @property
    def in_force(self) -> bool:
        """Whether no coordinator has signed that this device's grant is over."""
        return self._protection.in_force

    @property
    def overtakes(self) -> bool:
        """Whether the presence is due again, as that of a later start (``DeviceProtection``)."""
        return self._protection.overtakes

    def listen_again(self) -> None:
        """Ask the broker for the retained announcement once more: it may have been lost."""
        self._link.subscribe_again()

    def rest(self) -> None:
        """End the connection without the last will, and make none until ``go_on``.

        Transfers stay as they are and go on when ``Connected`` comes.
        """
        self._link.rest()

    def go_on(self) -> None:
        """Connect again after ``rest``."""
        self._link.go_on()

    def spread(self, seconds: float) -> None:
        """How large the fleet is: over how long it comes back to a broker that has lost it."""
        self._link.spread(seconds)
        for receiver in self._receivers:
            receiver.spread_s = seconds

    def ask_for_federations(self) -> bool:
        """Ask which federations are announced there; False if the broker is away or forbids it."""
        self._others.clear()
        return self._link.ask(ANNOUNCEMENTS)

    def take_federations(self) -> dict[str, Announcement]:
        """Announcements of other federations that came since, by name; ends the asking."""
        self._link.stop_asking(ANNOUNCEMENTS)
        return dict(self._others)

    def _deliver(self, delivery: MqttMessage) -> None:
        name = announced_federation(delivery.topic)
        if name in (None, self._topics.federation):
            super()._deliver(delivery)
        elif len(self._others) < 100:  # what a stranger sends fills no memory
            with suppress(RefusedError):  # what is not ours may be of another protocol
                self._others[str(name)] = name_in(delivery.payload)

    @on_disk()
    def expect(self, offer: TransferOffer, shared: str = "") -> None:
        """Take an offered payload; call it for every offer, repeated ones too.

        Args:
            offer: what is offered.
            shared: version under which its chunks travel to all, as its task says; '': they do not.
        """
        self._take_up(self._receiver, offer, shared)

    @on_disk()
    def expect_bundle(self, offer: TransferOffer, shared: str = "") -> None:
        """As ``expect``, of an offered bundle, beside the payload of a round."""
        self._take_up(self._bundle_receiver, offer, shared)

    def _take_up(self, receiver: Receiver, offer: TransferOffer, shared: str) -> None:
        version = shared_version(offer.sha256, offer.chunk_bytes)
        if not shared and version in self._listening:
            self._listening[version] = True  # that none comes is not the broker's doing
        known = shared if self._hears else ""
        self._act(receiver.expect(self._device_id, offer, time.monotonic(), shared=known))

    @property
    def _hears(self) -> bool:
        """Whether chunks for all may come here: the link is up, and the broker forbids nothing."""
        return self._unheard < UNHEARD_MAX and self._link.connected

    def _shared_chunk(self, version: str, payload: bytes, now: float) -> None:
        if version not in self._listening:
            return  # it was on its way when we unsubscribed
        self._listening[version], self._unheard = True, 0
        for receiver in self._receivers:
            self._act(receiver.shared_chunk(payload, now))

    def _act(self, actions: Iterable[Action]) -> None:
        actions = list(actions)
        for action in actions:
            if isinstance(action, Received):
                offer = action.offer
                version = shared_version(offer.sha256, offer.chunk_bytes)
                self._unheard += self._listening.get(version) is False
        if actions:
            # Before what tells the coordinator that we listen.
            self._follow_receivers()
            super()._act(actions)

    def _work(self) -> None:
        super()._work()
        self._follow_receivers()  # one may have been given up without a word

    def _follow_receivers(self) -> None:
        """Be subscribed to what their transfers have a use for, and to nothing else."""
        wanted = {version for one in self._receivers if one.listens for version in one.versions}
        if wanted == self._listening.keys():
            return
        for version in self._listening.keys() - wanted:
            del self._listening[version]
            self._link.stop_listening(self._topics.shared_chunks(version))
        for version in wanted - self._listening.keys() if self._hears else ():
            if self._link.listen(self._topics.shared_chunks(version)):
                self._listening[version] = False

    def _take(self, event: LinkEvent | None) -> None:
        if isinstance(event, Disconnected):
            # Some brokers end a connection that subscribes to what their list forbids. An end that
            # comes later says nothing of that; else a flapping link would never listen again.
            self._unheard += event.unanswered
            self._listening.clear()
        super()._take(event)

    def remember_bundle(self, transfer_id: str) -> None:
        """As ``remember``, of a bundle."""
        self._bundle_receiver.remember(transfer_id)

    @on_disk()
    def reject_bundle(self, transfer_id: str, rule: str, reason: str) -> None:
        """As ``reject``, of a bundle."""
        receiver, now = self._bundle_receiver, time.monotonic()
        self._act(receiver.reject(self._device_id, transfer_id, rule, reason, now))

    def reject(self, transfer_id: str, rule: str, reason: str) -> None:
        """Send ``reject`` with the broken rule, now and when offered again; drop the bytes."""
        self._reject(self._device_id, transfer_id, rule, reason)

    @on_disk()
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
            chunk_bytes=self._chunk_bytes(self._device_id),
            coding=coding,
        )
        offer = self._protection.sign_offer(offer)
        self._sender.send(self._device_id, source, offer, time.monotonic())
        return offer
