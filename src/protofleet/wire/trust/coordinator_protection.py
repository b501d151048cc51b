"""The coordinator's end of a federation with keys: a session with each device that it has met."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from protofleet.errors import RefusedError
from protofleet.wire.messages import (
    MOST_OVERTAKEN,
    MOST_REFUSED,
    Announcement,
    CoordinatorHandshake,
    DeviceHandshake,
    KnownStart,
    LeaseRecord,
    Message,
    Presence,
    TransferOffer,
)
from protofleet.wire.trust.identity import (
    DeviceGrant,
    grant_name,
    verify_offer,
)
from protofleet.wire.trust.protection import Keyed
from protofleet.wire.trust.session import Session, SessionTerms, derive_keys
from protofleet.wire.trust.signed_records import (
    certified,
    check_handshake,
    handshake_of,
    signed,
    unverified,
    verify_record,
)

_AHEAD = 60_000
"""A minute of sequence numbers is noted at once: not every announcement waits for a disk."""

M = TypeVar("M", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorCredentials:
    """What a coordinator has.

    Attributes:
        federation, run_id, bundle: what it runs.
        federation_key: raw public key in force.
        key: its own.
        certificate: the federation key's statement about it, as it is now.
        rotations: statements by which earlier federation keys handed over, oldest first.
        grant: the checked grant in a text.  Raises RefusedError for one that is not, or no longer,
            good.
        announced: no announcement of an earlier process had a higher sequence.
        note: keeps a later bound over restarts.
    """

    federation: str
    run_id: str
    bundle: str
    federation_key: bytes
    key: Ed25519PrivateKey
    certificate: Callable[[], str]
    rotations: tuple[str, ...]
    grant: Callable[[str], DeviceGrant]
    announced: int
    note: Callable[[int], None]


@dataclass(slots=True, kw_only=True)
class _Peer:
    """A device's process as it presented itself last."""

    serial: int
    start: int
    nonce: str
    share: str
    sequence: int
    key: bytes
    grant: str
    session: Session

    @property
    def order(self) -> tuple[int, int]:
        return self.serial, self.start


class CoordinatorProtection(Keyed):
    """The coordinator's end, of all devices.

    Args:
        credentials: of its run.
    """

    def __init__(self, credentials: CoordinatorCredentials) -> None:
        super().__init__()
        self._own = credentials
        self._announced = self._noted = credentials.announced
        self._peers: dict[str, _Peer] = {}
        self._refused: deque[str] = deque(maxlen=MOST_REFUSED)
        self._overtaken: dict[str, KnownStart] = {}

    def write(self, message: Message, topic: str, device_id: str) -> bytes | None:
        """An announcement or a lease signed, anything else sealed for the device."""
        if isinstance(message, LeaseRecord):
            lease = replace(message, certificate=self._own.certificate())
            return signed(self._own.key, lease, topic)
        if not isinstance(message, Announcement):
            return super().write(message, topic, device_id)
        self._announced = max(self._announced + 1, int(time.time() * 1000))
        if self._announced > self._noted:
            self._noted = self._announced + _AHEAD
            self._own.note(self._noted)
        handshake = CoordinatorHandshake(
            certificate=self._own.certificate(),
            nonce=self._handshake.nonce.hex(),
            share=self._handshake.share.hex(),
            sequence=self._announced,
            rotations=self._own.rotations,
            refused=tuple(self._refused),
            starts=dict(self._overtaken),
        )
        return signed(self._own.key, replace(message, handshake=handshake), topic)

    def read(self, payload: bytes, topic: str, device_id: str, kind: type[M]) -> M | None:
        """A presence or another coordinator's announcement checked, anything else opened.

        A presence that answers another coordinator's process, such as a retained one of the time
        before a restart, is out of date: None.
        """
        if issubclass(kind, Announcement):
            announced = unverified(payload, kind)
            theirs = handshake_of(announced)
            self._certified(theirs.certificate, payload, announced, topic)
            check_handshake(theirs)
            # Devices have heard it: what this process announces has to come after it.
            self._announced = max(self._announced, theirs.sequence)
            return announced
        if issubclass(kind, LeaseRecord):
            lease = unverified(payload, kind)
            self._certified(lease.certificate, payload, lease, topic)
            return lease
        if not issubclass(kind, Presence):
            return super().read(payload, topic, device_id, kind)
        presence = unverified(payload, kind)
        handshake = presence.handshake
        if handshake is None:
            raise RefusedError("signature", "presence: expected a signed one, got one without keys")
        check_handshake(handshake)
        if presence.status == "offline":
            return self._last_will(payload, presence, handshake, topic, device_id)
        if handshake.answers != self._handshake.nonce.hex():
            return None
        grant = self._granted(handshake.grant)
        if grant.device_id != device_id:
            raise RefusedError("grant", f"{device_id}: its grant is for '{grant.device_id[:64]}'")
        verify_record(bytes.fromhex(grant.key), payload, presence, topic)
        self._meet(device_id, handshake, grant)
        return presence

    def seal(self, record: bytes, topic: str, device_id: str) -> bytes | None:
        """Sealed for the device; None before it has presented itself to this process."""
        peer = self._peers.get(device_id)
        return None if peer is None else peer.session.seal(topic, record)

    def open(self, payload: bytes, topic: str, device_id: str) -> bytes:
        """The device's record."""
        peer = self._peers.get(device_id)
        if peer is None:
            raise RefusedError("session", f"{device_id}: has not presented itself yet")
        return peer.session.open(topic, payload)

    def check_offer(self, device_id: str, offer: TransferOffer) -> None:
        """Whether the device's own key has signed for the update."""
        peer, federation = self._peers[device_id], self._own.federation
        if not verify_offer(
            peer.key, offer.signature, offer, federation=federation, device_id=device_id
        ):
            raise RefusedError("signature", f"{device_id}: its offer is not signed by its key")

    def end_session(self, device_id: str, serial: int) -> bool:
        """End the session that a grant has begun, which is no longer in force."""
        peer = self._peers.get(device_id)
        if peer is None or peer.serial != serial:
            return False
        del self._peers[device_id]
        self._note_refused(peer.grant)
        return True

    def _granted(self, text: str) -> DeviceGrant:
        try:
            return self._own.grant(text)
        except RefusedError as error:
            if error.rule == "revoked":
                self._note_refused(grant_name(text))
            raise

    def _note_overtaken(self, known: _Peer) -> None:
        self._overtaken.pop(known.grant, None)
        self._overtaken[known.grant] = KnownStart(start=known.start, nonce=known.nonce)
        if len(self._overtaken) > MOST_OVERTAKEN:
            del self._overtaken[next(iter(self._overtaken))]

    def _note_refused(self, name: str) -> None:
        if name not in self._refused:
            self._refused.append(name)

    def _certified(self, certificate: str, payload: bytes, record: Message, topic: str) -> None:
        own = self._own
        certified(certificate, payload, record, topic, (own.federation, own.federation_key))

    def _last_will(
        self,
        payload: bytes,
        presence: M,
        handshake: DeviceHandshake,
        topic: str,
        device_id: str,
    ) -> M | None:
        """It was signed before the connection, for its own process, and is published by others."""
        peer = self._peers.get(device_id)
        if peer is None or handshake.nonce != peer.nonce:
            return None
        verify_record(peer.key, payload, presence, topic)
        return presence

    def _meet(self, device_id: str, handshake: DeviceHandshake, grant: DeviceGrant) -> None:
        known, order = self._peers.get(device_id), (grant.serial, handshake.start)
        if known is not None and order <= known.order:
            same = (known.nonce, known.share) == (handshake.nonce, handshake.share)
            if order < known.order or not same:
                self._note_overtaken(known)
                raise RefusedError(
                    "replay",
                    f"{device_id}: start {handshake.start} is known as another process, or a later "
                    "one is; perhaps two devices have copies of one store",
                )
            if handshake.sequence < known.sequence:
                raise RefusedError("replay", f"{device_id}: a later presence is known")
            known.sequence = handshake.sequence
            return
        terms = SessionTerms(
            coordinator_nonce=self._handshake.nonce,
            device_nonce=bytes.fromhex(handshake.nonce),
            run_id=self._own.run_id,
            bundle=self._own.bundle,
            device_id=device_id,
        )
        self._overtaken.pop(grant_name(handshake.grant), None)
        up, down = derive_keys(self._handshake.private, bytes.fromhex(handshake.share), terms)
        self._peers[device_id] = _Peer(
            serial=grant.serial,
            start=handshake.start,
            nonce=handshake.nonce,
            share=handshake.share,
            sequence=handshake.sequence,
            key=bytes.fromhex(grant.key),
            grant=grant_name(handshake.grant),
            session=Session(down, up),
        )
