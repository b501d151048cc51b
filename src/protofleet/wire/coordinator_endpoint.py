"""The coordinator's end of the wire: one link for all devices."""

from __future__ import annotations

import time
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import ClassVar, Self

import msgspec

from protofleet.errors import RefusedError
from protofleet.wire.codecs import Coding
from protofleet.wire.endpoint import Endpoint, on_disk
from protofleet.wire.messages import (
    Announcement,
    BundleOffer,
    LeaseRecord,
    Task,
    TransferOffer,
)
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.mqtt.link import Link, LinkOptions
from protofleet.wire.topics import Channel, Topics
from protofleet.wire.transfers.carousel import Carousels
from protofleet.wire.transfers.sender import Sender
from protofleet.wire.transfers.transfer import Lane, Limits, Source, describe
from protofleet.wire.trust.protection import Plain


class CoordinatorEndpoint(Endpoint):
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
        Lane.BUNDLE: Channel.DOWN_BUNDLE,
        Lane.CHUNK: Channel.DOWN_CHUNK,
        Lane.ANSWER: Channel.DOWN_ANSWER,
    }

    def __init__(
        self,
        link: Link,
        topics: Topics,
        folder: Path,
        limits: Limits | None = None,
        protection: Plain | None = None,
    ) -> None:
        super().__init__(link, topics, folder, limits, protection)
        key = self._protection.content_key
        self._bundle_sender = Sender(
            content_key=key, offers=Lane.BUNDLE, passes=self._passes, settled=self._settled
        )
        self._carousels = Carousels(
            content_key=key, offering=self._is_offering, let_ask=self._let_ask
        )
        self._latest_task: tuple[Task | None, Task | None] = (None, None)
        # A chunk for all is worth more than one for one.
        self._senders[:] = [self._carousels, self._sender, self._bundle_sender]

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

    @property
    def chunk_bytes(self) -> int:
        """Most data of a chunk that the broker takes."""
        return self._link.chunk_bytes

    def publish(self, announcement: Announcement) -> bool:
        """Tell all devices, present and to come, where the federation stands.

        Returns:
            False if the link is down: it is due again on ``Connected``.
        """
        heard = self._publish(announcement, "")
        self._carousels.spread_s = announcement.spread_s
        return heard

    def publish_lease(self, lease: LeaseRecord) -> bool:
        """Tell other coordinators who serves the federation; False if the link is down."""
        return self._publish(lease, "", retain=lease.step != "claim")

    def end_session(self, device_id: str, serial: int) -> bool:
        """A grant is no longer in force; whether the device was here with it."""
        return self._protection.end_session(device_id, serial)

    def _is_offering(self) -> bool:
        return self._sender.offering or self._bundle_sender.offering

    def _let_ask(self, key: str, now: float) -> None:
        for sender in (self._sender, self._bundle_sender):
            sender.let_ask(key, now)

    def send_finish(self, device_id: str, task: Task) -> bool:
        """Send a task without a payload, once; False if the link is down."""
        return self._publish(task, device_id)

    def expect(self, device_id: str, offer: TransferOffer) -> RefusedError | None:
        """Take an offered update; call it for every offer, repeated ones too.

        Returns:
            The limit that it breaks, for which it was answered with ``reject``; else None.
        """
        self._expect(device_id, offer)
        return self._receiver.refusal(device_id, offer)

    def reject(self, device_id: str, transfer_id: str, rule: str, reason: str) -> None:
        """Send ``reject`` with the broken rule, now and when offered again; drop the bytes."""
        self._reject(device_id, transfer_id, rule, reason)

    def end_tasks(self, kept: Mapping[str, int]) -> None:
        """Cancel the transfers of all rounds' tasks, in either direction, but of those kept.

        Args:
            kept: devices whose task is not over, and of which round it is.
        """
        known = chain(self._sender.offers(), self._receiver.offers())
        over = [one.transfer_id for name, one in known if kept.get(name) != one.round_id]
        for transfer_id in over:
            self.cancel(transfer_id)

    @on_disk()
    def send_task(  # noqa: PLR0913 - two options by name
        self,
        device_id: str,
        task: Task,
        source: Source,
        coding: Coding | None = None,
        *,
        most_chunk_bytes: int = 0,
        shared: bool = False,
    ) -> TransferOffer:
        """Offer ``task`` with ``source`` as its payload until the device has it.

        A newer task for the same device replaces it.

        Args:
            device_id: who it is for.
            task: its ``payload`` is filled in here.
            source: the payload.
            coding: how the payload is coded; None: raw.
            most_chunk_bytes: data of a chunk that the device takes; 0: what a packet holds.
            shared: many get this payload, and its chunks may travel to all of them at once.
        """
        chunk_bytes = self._chunk_bytes(device_id)
        offer = describe(
            source,
            kind="payload",
            device_id=device_id,
            round_id=task.round_id,
            chunk_bytes=min(chunk_bytes, most_chunk_bytes or chunk_bytes),
            coding=coding,
        )
        task = self._with_version(task, self._version(device_id, source, offer, shared=shared))
        self._sender.send(device_id, source, offer, time.monotonic(), task=task)
        return offer

    def _version(
        self, device_id: str, source: Source, offer: TransferOffer, *, shared: bool
    ) -> str:
        """Of a device that came back while all are sent it, the one that it may listen to."""
        if shared or self._carousels.has(offer):
            return self._carousels.add(device_id, source, offer)
        return ""

    def _with_version(self, task: Task, version: str) -> Task:
        """Of a task that many devices get, the same one each time: each is kept until answered."""
        known, made = self._latest_task
        if made is None or known is not task or made.shared != version:
            made = msgspec.structs.replace(task, shared=version)
            self._latest_task = (task, made)
        return made

    @on_disk()
    def send_bundle(
        self,
        device_id: str,
        offer: BundleOffer,
        source: Path,
        *,
        most_chunk_bytes: int = 0,
        shared: bool = False,
    ) -> TransferOffer:
        """Offer a bundle until the device has it, or refuses it; beside the rounds' transfers.

        Args:
            device_id: who it is for.
            offer: its ``payload`` is filled in here.
            source: the bundle's single file.
            most_chunk_bytes: as of ``send_task``.
            shared: as of ``send_task``.
        """
        chunk_bytes = self._chunk_bytes(device_id)
        payload = describe(
            source,
            kind="bundle",
            device_id=device_id,
            round_id=0,
            chunk_bytes=min(chunk_bytes, most_chunk_bytes or chunk_bytes),
        )
        version = self._version(device_id, source, payload, shared=shared)
        offer = msgspec.structs.replace(offer, shared=version)
        now = time.monotonic()
        self._bundle_sender.send(device_id, source, payload, now, task=offer)
        return payload
