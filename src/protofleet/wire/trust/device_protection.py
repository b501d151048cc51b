"""A device's end of a federation with keys: it signs its presence, and seals everything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from protofleet.errors import RefusedError
from protofleet.wire.messages import (
    Announcement,
    CoordinatorHandshake,
    DeviceHandshake,
    KnownStart,
    Message,
    Presence,
    TransferOffer,
)
from protofleet.wire.trust.identity import (
    KeyRotation,
    grant_name,
    read_statement,
    sign_offer,
)
from protofleet.wire.trust.protection import Keyed
from protofleet.wire.trust.session import Session, SessionTerms, derive_keys
from protofleet.wire.trust.signed_records import (
    MOST_COUNT,
    certified,
    check_handshake,
    handshake_of,
    signed,
    unverified,
)

M = TypeVar("M", bound=Message)


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


class DeviceProtection(Keyed):
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
        return signed(self._own.key, replace(message, handshake=handshake), topic)

    def read(self, payload: bytes, topic: str, device_id: str, kind: type[M]) -> M | None:
        """An announcement checked and answered by a session of its own, anything else opened."""
        if not issubclass(kind, Announcement):
            return super().read(payload, topic, device_id, kind)
        announcement = unverified(payload, kind)
        handshake = handshake_of(announcement)
        trusted = self._successor(handshake.rotations)
        certificate = certified(
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
        self._overtake(handshake.starts.get(name))
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

    def _overtake(self, known: KnownStart | None) -> None:
        """Go on behind the start that a coordinator knows, once in a process.

        A store that was restored has forgotten its last starts; of two copies of one store, which
        would overtake each other for ever, each does so once.
        """
        if known is None or known.nonce == self._handshake.nonce.hex():
            return
        if self._start == self._own.start and self._start <= known.start < MOST_COUNT - 1:
            self._start = known.start + 1
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
        check_handshake(handshake)
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
