"""What an endpoint does to every record: nothing (``Plain``), or signing, sealing and checking.

Announcement and presence are *signed*: 64 bytes of Ed25519 signature over topic and JSON, then the
JSON. They carry the handshakes; every other record is *sealed* with the session that follows from
them (``session.py``). Without keys all records are bare JSON, which only a broker on the same
machine, or a network that one trusts, excuses.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from protofleet.errors import RefusedError
from protofleet.wire.identity import (
    SIGNATURE_BYTES,
    CoordinatorCertificate,
    DeviceGrant,
    KeyRotation,
    grant_name,
    read_statement,
    sign,
    sign_offer,
    verify,
    verify_offer,
)
from protofleet.wire.messages import (
    MAX_MESSAGE_BYTES,
    MOST_OVERTAKEN,
    MOST_REFUSED,
    Announcement,
    CoordinatorHandshake,
    DeviceHandshake,
    LeaseRecord,
    Message,
    Presence,
    TransferOffer,
    decode,
    encode,
)
from protofleet.wire.session import Handshake, Session, SessionTerms, derive_keys

KEYS = "keys"
"""Rule of a federation whose ends have to have keys, all or none."""
_NONCE = re.compile(r"[0-9a-f]{32}")
_SHARE = re.compile(r"[0-9a-f]{64}")
_MOST_COUNT = 2**62
_AHEAD = 60_000
"""A minute of sequence numbers is noted at once: not every announcement waits for a disk."""

M = TypeVar("M", bound=Message)


class Plain:
    """Records as they are, for a federation without keys; the keyed ends differ from it."""

    sealed = False

    def write(self, message: Message, topic: str, device_id: str) -> bytes | None:
        """The payload that carries ``message``; None as long as the other end is not known.

        Args:
            message: the record.
            topic: where it is published.
            device_id: whose topic it is; '' for all.
        """
        return self.seal(encode(message), topic, device_id)

    def read(self, payload: bytes, topic: str, device_id: str, kind: type[M]) -> M | None:
        """The record in ``payload``; None for one that is out of date and harms nobody.

        Raises:
            RefusedError: it broke a rule; ``keys`` where the other end has them and this has none.
        """
        if not self.sealed and is_signed(payload) and not is_signed(payload[SIGNATURE_BYTES:]):
            name = kind.__struct_config__.tag
            raise RefusedError(KEYS, f"{name}: signed with keys, and there are none at this end")
        return decode(self.open(payload, topic, device_id), kind)

    def seal(self, record: bytes, topic: str, device_id: str) -> bytes | None:  # noqa: ARG002 - of the keyed ends
        """The payload that carries an encoded record; None as long as there is no session."""
        return record

    def open(self, payload: bytes, topic: str, device_id: str) -> bytes:  # noqa: ARG002 - of the keyed ends
        """The encoded record in ``payload``.

        Raises:
            RefusedError: rule ``session`` (there is none with this device), ``seal``, ``replay``.
        """
        return payload

    def content_key(self, sha256: str, chunk_bytes: int) -> str:  # noqa: ARG002 - of the keyed ends
        """What seals the chunks of a blob in a grid, for its offer; empty: nothing does."""
        return ""

    def sign_offer(self, offer: TransferOffer) -> TransferOffer:
        """A device's own offer of an update with its signature."""
        return offer

    def check_offer(self, device_id: str, offer: TransferOffer) -> None:
        """Raise RefusedError (rule ``signature``) unless the device has signed its offer."""

    def end_session(self, device_id: str, serial: int) -> bool:  # noqa: ARG002 - of the keyed coordinator
        """Whether a session had been begun with this grant; it is over now."""
        return False

    @property
    def in_force(self) -> bool:
        """Whether no coordinator has signed that a device's grant is over."""
        return True

    @property
    def overtakes(self) -> bool:
        """Whether a device has to present itself, as a later start than it was."""
        return False


class _Keyed(Plain):
    """What both keyed ends share."""

    sealed = True

    def __init__(self) -> None:
        self._handshake = Handshake()
        self._secret = secrets.token_bytes(32)

    def content_key(self, sha256: str, chunk_bytes: int) -> str:
        """One for all transfers of a blob in a grid, so that all devices may share one."""
        message = f"{sha256}/{chunk_bytes}".encode()
        return hmac.digest(self._secret, message, hashlib.sha256).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCredentials:
    """What an enrolled device has.

    Attributes:
        federation, device_id: who it is.
        key: its own.
        grant: the federation key's statement about it.
        federation_key: raw public key that the device trusts.
        start: of this process, higher than of every one before it.
        announced: sequence of the latest announcement that was ever heard.
        note: keeps a later sequence, and the federation key then in force, over restarts.
        refused: called when a coordinator has signed that the grant is no longer in force.
        overtake: keeps a later start, because a coordinator has signed that it knows one.
    """

    federation: str
    device_id: str
    key: Ed25519PrivateKey
    grant: str
    federation_key: bytes
    start: int
    announced: int
    note: Callable[[int, bytes], None]
    refused: Callable[[], None] = lambda: None
    overtake: Callable[[int], None] = lambda _: None


class DeviceProtection(_Keyed):
    """A device's end.

    Args:
        credentials: of its enrolment.
    """

    def __init__(self, credentials: DeviceCredentials) -> None:
        super().__init__()
        self._own = credentials
        self._federation_key = credentials.federation_key
        self._announced = credentials.announced
        self._session: Session | None = None
        self._answers = ""
        self._presences = 0
        self._start, self._overtakes = credentials.start, False
        self._in_force = True

    @property
    def in_force(self) -> bool:
        """Whether the last announcement did not name its grant among those that are over."""
        return self._in_force

    @property
    def overtakes(self) -> bool:
        """Whether it has to present itself, as a later start than it was."""
        return self._overtakes

    def write(self, message: Message, topic: str, device_id: str) -> bytes | None:
        """A presence signed, anything else sealed; None before an announcement was heard."""
        if not isinstance(message, Presence):
            return super().write(message, topic, device_id)
        answers = "" if message.status == "offline" else self._answers
        if not answers and message.status != "offline":
            return None
        self._presences += 1
        self._overtakes = False
        handshake = DeviceHandshake(
            grant=self._own.grant,
            nonce=self._handshake.nonce.hex(),
            share=self._handshake.share.hex(),
            answers=answers,
            start=self._start,
            sequence=self._presences,
        )
        return _signed(self._own.key, replace(message, handshake=handshake), topic)

    def read(self, payload: bytes, topic: str, device_id: str, kind: type[M]) -> M | None:
        """An announcement checked and answered by a session of its own, anything else opened."""
        if not issubclass(kind, Announcement):
            return super().read(payload, topic, device_id, kind)
        announcement = _unverified(payload, kind)
        handshake = _handshake(announcement)
        trusted = self._successor(handshake.rotations)
        certificate = _certified(
            handshake.certificate, payload, announcement, topic, (self._own.federation, trusted)
        )
        if handshake.sequence < self._announced:
            raise RefusedError(
                "replay",
                f"announcement {handshake.sequence}: later ones are known, up to {self._announced}",
            )
        self._take_up(handshake, certificate.run_id, announcement.bundle)
        if (handshake.sequence, trusted) != (self._announced, self._federation_key):
            self._own.note(handshake.sequence, trusted)
            self._announced, self._federation_key = handshake.sequence, trusted
        name = grant_name(self._own.grant)
        self._in_force = name not in handshake.refused
        if not self._in_force:
            self._own.refused()
        self._overtake(handshake.starts.get(name, 0))
        return announcement

    def seal(self, record: bytes, topic: str, device_id: str) -> bytes | None:  # noqa: ARG002 - only one peer
        """Sealed; None before an announcement was heard."""
        return None if self._session is None else self._session.seal(topic, record)

    def open(self, payload: bytes, topic: str, device_id: str) -> bytes:  # noqa: ARG002 - only one peer
        """The coordinator's record."""
        if self._session is None:
            raise RefusedError("session", "record: no coordinator has announced itself yet")
        return self._session.open(topic, payload)

    def sign_offer(self, offer: TransferOffer) -> TransferOffer:
        """With the device's signature, which the coordinator keeps."""
        own = self._own
        signature = sign_offer(own.key, offer, federation=own.federation, device_id=own.device_id)
        return replace(offer, signature=signature)

    def _overtake(self, known: int) -> None:
        """Go on behind the start that a coordinator knows, once in a process.

        A store that was restored has forgotten its last starts; of two copies of one store, which
        would overtake each other for ever, each does so once.
        """
        if self._start == self._own.start and self._start <= known < _MOST_COUNT - 1:
            self._start = known + 1
            self._overtakes = True
            self._own.overtake(self._start)

    def _successor(self, rotations: tuple[str, ...]) -> bytes:
        """The federation key in force, after those that handed over since ours was noted."""
        trusted, federation = self._federation_key, self._own.federation
        for text in rotations[:100]:
            try:
                rotation = read_statement(text, KeyRotation, [trusted], federation=federation)
            except RefusedError:
                continue  # of a key before the one that this device trusts
            if rotation.old == trusted.hex():
                trusted = bytes.fromhex(rotation.new)
        return trusted

    def _take_up(self, handshake: CoordinatorHandshake, run_id: str, bundle: str) -> None:
        _check_handshake(handshake)
        if handshake.nonce == self._answers:
            return
        terms = SessionTerms(
            coordinator_nonce=bytes.fromhex(handshake.nonce),
            device_nonce=self._handshake.nonce,
            run_id=run_id,
            bundle=bundle,
            device_id=self._own.device_id,
        )
        up, down = derive_keys(self._handshake.private, bytes.fromhex(handshake.share), terms)
        self._session, self._answers = Session(up, down), handshake.nonce


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


class CoordinatorProtection(_Keyed):
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
        self._overtaken: dict[str, int] = {}

    def write(self, message: Message, topic: str, device_id: str) -> bytes | None:
        """An announcement or a lease signed, anything else sealed for the device."""
        if isinstance(message, LeaseRecord):
            certified = replace(message, certificate=self._own.certificate())
            return _signed(self._own.key, certified, topic)
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
        return _signed(self._own.key, replace(message, handshake=handshake), topic)

    def read(self, payload: bytes, topic: str, device_id: str, kind: type[M]) -> M | None:
        """A presence or another coordinator's announcement checked, anything else opened.

        A presence that answers another coordinator's process, such as a retained one of the time
        before a restart, is out of date: None.
        """
        if issubclass(kind, Announcement):
            announced = _unverified(payload, kind)
            theirs = _handshake(announced)
            self._certified(theirs.certificate, payload, announced, topic)
            _check_handshake(theirs)
            # Devices have heard it: what this process announces has to come after it.
            self._announced = max(self._announced, theirs.sequence)
            return announced
        if issubclass(kind, LeaseRecord):
            lease = _unverified(payload, kind)
            self._certified(lease.certificate, payload, lease, topic)
            return lease
        if not issubclass(kind, Presence):
            return super().read(payload, topic, device_id, kind)
        presence = _unverified(payload, kind)
        handshake = presence.handshake
        if handshake is None:
            raise RefusedError("signature", "presence: expected a signed one, got one without keys")
        _check_handshake(handshake)
        if presence.status == "offline":
            return self._last_will(payload, presence, handshake, topic, device_id)
        if handshake.answers != self._handshake.nonce.hex():
            return None
        grant = self._granted(handshake.grant)
        if grant.device_id != device_id:
            raise RefusedError("grant", f"{device_id}: its grant is for '{grant.device_id[:64]}'")
        _verify(bytes.fromhex(grant.key), payload, presence, topic)
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
        self._overtaken[known.grant] = known.start
        if len(self._overtaken) > MOST_OVERTAKEN:
            del self._overtaken[next(iter(self._overtaken))]

    def _note_refused(self, name: str) -> None:
        if name not in self._refused:
            self._refused.append(name)

    def _certified(self, certificate: str, payload: bytes, record: Message, topic: str) -> None:
        own = self._own
        _certified(certificate, payload, record, topic, (own.federation, own.federation_key))

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
        _verify(peer.key, payload, presence, topic)
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


def name_in(payload: bytes) -> Announcement:
    """An announcement of whatever federation, signed or not, believed for nothing but its name.

    Raises:
        RefusedError: it is none.
    """
    start = SIGNATURE_BYTES if is_signed(payload) else 0
    return decode(payload[start:], Announcement)


def _signed(key: Ed25519PrivateKey, message: Message, topic: str) -> bytes:
    body = encode(message)
    return sign(key, _purpose(message), _place(topic, body)) + body


def is_signed(payload: bytes) -> bool:
    """Whether a record's JSON stands behind a signature, which may begin as JSON does."""
    return not payload.startswith(b'{"type"')


def _unverified(payload: bytes, kind: type[M]) -> M:
    if not is_signed(payload):
        name = kind.__struct_config__.tag
        raise RefusedError("signature", f"{name}: expected a signed one, got one without keys")
    if len(payload) > SIGNATURE_BYTES + MAX_MESSAGE_BYTES:
        raise RefusedError("message-size", f"message: {len(payload)} bytes")
    return decode(payload[SIGNATURE_BYTES:], kind)


def _verify(public: bytes, payload: bytes, message: Message, topic: str) -> None:
    signature, body = payload[:SIGNATURE_BYTES], payload[SIGNATURE_BYTES:]
    if not verify(public, signature, _purpose(message), _place(topic, body)):
        raise RefusedError("signature", f"{_purpose(message)}: not signed by who it says it is")


def _handshake(announcement: Announcement) -> CoordinatorHandshake:
    if announcement.handshake is None:
        raise RefusedError("signature", "announcement: expected a signed one, got one without keys")
    return announcement.handshake


def _certified(
    text: str, payload: bytes, record: Message, topic: str, federation: tuple[str, bytes]
) -> CoordinatorCertificate:
    """The certificate in a record that its key has signed; a federation's name and key."""
    name, key = federation
    certificate = read_statement(text, CoordinatorCertificate, [key], federation=name)
    _verify(bytes.fromhex(certificate.key), payload, record, topic)
    return certificate


def _check_handshake(handshake: CoordinatorHandshake | DeviceHandshake) -> None:
    counts = [handshake.sequence, getattr(handshake, "start", 0)]
    good = (
        _NONCE.fullmatch(handshake.nonce)
        and _SHARE.fullmatch(handshake.share)
        and all(0 <= count < _MOST_COUNT for count in counts)
    )
    if not good:
        raise RefusedError("handshake", "handshake: expected nonce, share and counts, got others")


def _purpose(message: Message) -> str:
    return str(message.__struct_config__.tag)


def _place(topic: str, body: bytes) -> bytes:
    return topic.encode() + b"\0" + body
