"""Sessions: keys that two ends agree on, and records that nobody else can read, make or repeat.

Each process draws a ``Handshake`` at its start. The announcement carries the coordinator's, the
presence a device's; X25519 over both shares and HKDF-SHA256 (RFC 5869) over both nonces, the run,
its bundle and the device give one AES-256-GCM key per direction. A sealed record is the sequence
number (8 bytes, big-endian, from 1), the encrypted record, and the tag (16 bytes); its topic is
authenticated with it (NIST SP 800-38D; the sequence number is the nonce).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from protofleet.errors import RefusedError

NONCE_BYTES = 16
SHARE_BYTES = 32
SEQUENCE_BYTES = 8
TAG_BYTES = 16
OVERHEAD_BYTES = SEQUENCE_BYTES + TAG_BYTES
WINDOW = 64
"""Records that may overtake each other: a broker keeps the order per topic, not across topics."""


@dataclass(frozen=True, slots=True)
class Handshake:
    """One process's part of every session that it takes part in.

    Attributes:
        private: X25519 key, never written anywhere.
        nonce: 16 random bytes.
    """

    private: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate)
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(NONCE_BYTES))

    @property
    def share(self) -> bytes:
        """The public half, 32 raw bytes."""
        return self.private.public_key().public_bytes_raw()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTerms:
    """What the keys of a session depend on besides the shares.

    Attributes:
        coordinator_nonce, device_nonce: 16 bytes each.
        run_id: of the coordinator's certificate.
        bundle: digest of the announced bundle, hex.
        device_id: whose session it is.
    """

    coordinator_nonce: bytes
    device_nonce: bytes
    run_id: str
    bundle: str
    device_id: str


class ReplayWindow:
    """Which sequence numbers have come: none counts twice, and none that is older than 64 others.

    As in RFC 4303, appendix A2.
    """

    def __init__(self) -> None:
        self._highest = 0
        self._seen = 0

    def take(self, sequence: int) -> bool:
        """Whether ``sequence`` is new; it is not from now on."""
        ahead = sequence - self._highest
        if ahead > 0:
            self._seen = ((self._seen << ahead) | 1) & ((1 << WINDOW) - 1) if ahead < WINDOW else 1
            self._highest = sequence
            return True
        bit = 1 << -ahead
        if -ahead >= WINDOW or self._seen & bit or sequence < 1:
            return False
        self._seen |= bit
        return True


class Session:
    """One end of the sealed way between a coordinator's and a device's process.

    Args:
        send_key, receive_key: 32 bytes each.
    """

    def __init__(self, send_key: bytes, receive_key: bytes) -> None:
        self._send, self._receive = AESGCM(send_key), AESGCM(receive_key)
        self._sequence = 0
        self._window = ReplayWindow()

    def seal(self, topic: str, record: bytes) -> bytes:
        """The payload of the MQTT packet that carries ``record`` on ``topic``."""
        self._sequence += 1
        sequence = self._sequence.to_bytes(SEQUENCE_BYTES, "big")
        return sequence + self._send.encrypt(_nonce(sequence), record, topic.encode())

    def open(self, topic: str, payload: bytes) -> bytes:
        """The record in a packet's payload.

        Raises:
            RefusedError: rule ``seal`` (not made by the other end of this session for this
                topic), or ``replay`` (it has come before, or is much older than others).
        """
        if len(payload) <= OVERHEAD_BYTES:
            raise RefusedError("seal", f"record: expected a sealed one, got {len(payload)} bytes")
        sequence, sealed = payload[:SEQUENCE_BYTES], payload[SEQUENCE_BYTES:]
        try:
            record = self._receive.decrypt(_nonce(sequence), sealed, topic.encode())
        except InvalidTag:
            raise RefusedError("seal", "record: not sealed with this session's key") from None
        number = int.from_bytes(sequence, "big")
        if not self._window.take(number):
            raise RefusedError("replay", f"record {number}: it came before")
        return record


def derive_keys(private: X25519PrivateKey, peer: bytes, terms: SessionTerms) -> tuple[bytes, bytes]:
    """The keys of a session, 32 bytes each: device to coordinator, coordinator to device.

    Args:
        private: our own half.
        peer: the other end's share, 32 raw bytes.
        terms: the same at both ends.

    Raises:
        RefusedError: rule ``share``: no share, or one that gives everybody the same key.
    """
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError as error:
        raise RefusedError("share", f"X25519 share: {error}") from error
    place = f"{terms.run_id}/{terms.bundle}/{terms.device_id}"
    keys = HKDF(
        algorithm=SHA256(),
        length=64,
        salt=terms.coordinator_nonce + terms.device_nonce,
        info=f"protofleet/2 session\0{place}".encode(),
    ).derive(secret)
    return keys[:32], keys[32:]


def _nonce(sequence: bytes) -> bytes:
    return bytes(12 - SEQUENCE_BYTES) + sequence
