"""Records that travel signed: announcement and presence, 64 bytes of Ed25519 before their JSON."""

from __future__ import annotations

import re
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.errors import RefusedError
from protofleet.wire.messages import (
    MAX_MESSAGE_BYTES,
    Announcement,
    CoordinatorHandshake,
    DeviceHandshake,
    Message,
    decode,
    encode,
)
from protofleet.wire.trust.identity import (
    SIGNATURE_BYTES,
    CoordinatorCertificate,
    read_statement,
    sign,
    verify,
)

_NONCE = re.compile(r"[0-9a-f]{32}")
_SHARE = re.compile(r"[0-9a-f]{64}")
MOST_COUNT = 2**62
RECORD = b'{"type"'

M = TypeVar("M", bound=Message)


def name_in(payload: bytes) -> Announcement:
    """An announcement of whatever federation, signed or not, believed for nothing but its name.

    Raises:
        RefusedError: it is none.
    """
    start = SIGNATURE_BYTES if is_signed(payload) else 0
    return decode(payload[start:], Announcement)


def signed(key: Ed25519PrivateKey, message: Message, topic: str) -> bytes:
    """The record as it travels: signature over topic and JSON, then the JSON."""
    body = encode(message)
    return sign(key, _purpose(message), _place(topic, body)) + body


def is_signed(payload: bytes) -> bool:
    """Whether a record's JSON stands behind a signature, which may begin as JSON does."""
    return not payload.startswith(b'{"type"')


def unverified(payload: bytes, kind: type[M]) -> M:
    """The record of this kind, whoever has signed it; RefusedError: it is none, or not signed."""
    if not is_signed(payload):
        name = kind.__struct_config__.tag
        raise RefusedError("signature", f"{name}: expected a signed one, got one without keys")
    if len(payload) > SIGNATURE_BYTES + MAX_MESSAGE_BYTES:
        raise RefusedError("message-size", f"message: {len(payload)} bytes")
    return decode(payload[SIGNATURE_BYTES:], kind)


def verify_record(public: bytes, payload: bytes, message: Message, topic: str) -> None:
    """Raise RefusedError (rule ``signature``) unless the raw ``public`` key has signed it."""
    signature, body = payload[:SIGNATURE_BYTES], payload[SIGNATURE_BYTES:]
    if not verify(public, signature, _purpose(message), _place(topic, body)):
        raise RefusedError("signature", f"{_purpose(message)}: not signed by who it says it is")


def handshake_of(announcement: Announcement) -> CoordinatorHandshake:
    """The coordinator's part of a session; RefusedError (rule ``signature``): there is none."""
    if announcement.handshake is None:
        raise RefusedError("signature", "announcement: expected a signed one, got one without keys")
    return announcement.handshake


def certified(
    text: str, payload: bytes, record: Message, topic: str, federation: tuple[str, bytes]
) -> CoordinatorCertificate:
    """The certificate in a record that its key has signed; a federation's name and key."""
    name, key = federation
    certificate = read_statement(text, CoordinatorCertificate, [key], federation=name)
    verify_record(bytes.fromhex(certificate.key), payload, record, topic)
    return certificate


def check_handshake(handshake: CoordinatorHandshake | DeviceHandshake) -> None:
    """Raise RefusedError (rule ``handshake``) unless nonce, share and counts can be ones."""
    counts = [handshake.sequence, getattr(handshake, "start", 0)]
    good = (
        _NONCE.fullmatch(handshake.nonce)
        and _SHARE.fullmatch(handshake.share)
        and all(0 <= count < MOST_COUNT for count in counts)
    )
    if not good:
        raise RefusedError("handshake", "handshake: expected nonce, share and counts, got others")


def _purpose(message: Message) -> str:
    return str(message.__struct_config__.tag)


def _place(topic: str, body: bytes) -> bytes:
    return topic.encode() + b"\0" + body
