"""Who may speak in a federation: statements signed by its key (``docs/protocol.md``, Keys).

A statement travels as one line of text: base64url without padding of 64 bytes of Ed25519 signature
and the JSON that it signs. What is signed begins with a purpose, so that no signature can stand for
another one.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import time
from collections.abc import Iterable
from typing import TypeVar

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet import signatures
from protofleet.errors import RefusedError
from protofleet.wire.messages import TransferOffer

SIGNATURE_BYTES = 64
_PURPOSE = "protofleet/2 "
_TEXT = re.compile(r"[A-Za-z0-9_-]{88,4096}")
_KEY = re.compile(r"[0-9a-f]{64}")
_RENEWAL = {
    "coordinator statement": "its coordinator makes it anew once federation.pem is beside it",
    "device statement": "a new invitation gives a new one",
}
_KINDS = {"withdrawn": "digest", "restored": "digest"}


class Statement(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of what the federation key signs."""

    federation: str


class CoordinatorCertificate(Statement, frozen=True, kw_only=True, tag="coordinator"):
    """``key`` (hex) speaks for the coordinator of one run.

    ``until``: seconds since 1970, in all statements.
    """

    run_id: str
    key: str
    until: int


class DeviceGrant(Statement, frozen=True, kw_only=True, tag="device"):
    """``key`` (hex) speaks for ``device_id``; a later grant has a higher ``serial``."""

    device_id: str
    key: str
    serial: int
    until: int


class KeyRotation(Statement, frozen=True, kw_only=True, tag="rotation"):
    """The federation key ``old`` hands over to ``new`` (hex); signed by ``old``."""

    old: str
    new: str


class BundleWithdrawal(Statement, frozen=True, kw_only=True, tag="withdrawal"):
    """The bundle ``withdrawn`` makes room for ``restored`` (digests), which may be older.

    The only statement that a bundle's signer makes, and not the federation key.
    """

    withdrawn: str
    restored: str


S = TypeVar("S", bound=Statement)


def public_bytes(key: Ed25519PrivateKey) -> bytes:
    """The 32 raw bytes of a private key's public half."""
    return key.public_key().public_bytes_raw()


def sign(key: Ed25519PrivateKey, purpose: str, message: bytes) -> bytes:
    """The 64-byte signature over ``protofleet/2 <purpose>``, a zero byte and ``message``."""
    return key.sign(_signed(purpose, message))


def verify(public: bytes, signature: bytes, purpose: str, message: bytes) -> bool:
    """Whether ``sign`` made ``signature`` with the private half of ``public`` (32 raw bytes)."""
    return signatures.verify(public, signature, _signed(purpose, message))


def sign_statement(key: Ed25519PrivateKey, statement: Statement) -> str:
    """The statement as text, signed by the federation key."""
    body = msgspec.json.encode(statement)
    signed = sign(key, _purpose(type(statement)), body) + body
    return base64.urlsafe_b64encode(signed).rstrip(b"=").decode()


def read_statement(text: str, kind: type[S], signers: Iterable[bytes], *, federation: str) -> S:
    """The statement in ``text``, if one of ``signers`` (raw public keys) made it.

    Raises:
        RefusedError: rule ``statement``: no text of a statement, another kind or federation,
            another signer, a key that is none, or one whose time is over.
    """
    name = _purpose(kind)
    signature, body = _unpack(text, name)
    if not any(verify(public, signature, name, body) for public in signers):
        raise RefusedError("statement", f"{name}: not signed by this federation's key")
    statement = _decode(body, kind)
    _check(statement, name, federation)
    return statement


def end_of(text: str, kind: type[CoordinatorCertificate | DeviceGrant]) -> int:
    """When a statement ends, seconds since 1970, believed as it stands: for what lies in own files.

    Raises:
        RefusedError: rule ``statement``: no text of a statement of this kind.
    """
    return _decode(_unpack(text, _purpose(kind))[1], kind).until


def sign_offer(
    key: Ed25519PrivateKey, offer: TransferOffer, *, federation: str, device_id: str
) -> str:
    """A device's signature (hex) for an update that it offers."""
    return sign(key, "update", _offer_bytes(offer, federation, device_id)).hex()


def verify_offer(
    public: bytes, signature: str, offer: TransferOffer, *, federation: str, device_id: str
) -> bool:
    """Whether the device with this raw public key made the ``signature`` for the update offered."""
    if not re.fullmatch(r"[0-9a-f]{128}", signature):
        return False
    message = _offer_bytes(offer, federation, device_id)
    return verify(public, bytes.fromhex(signature), "update", message)


def _offer_bytes(offer: TransferOffer, federation: str, device_id: str) -> bytes:
    fields = (
        federation,
        device_id,
        str(offer.round_id),
        offer.sha256,
        str(offer.total_bytes),
        offer.codec,
        str(offer.raw_bytes),
        offer.reference,
    )
    return "\n".join(fields).encode()


def _unpack(text: str, name: str) -> tuple[bytes, bytes]:
    """Signature and JSON."""
    if not _TEXT.fullmatch(text):
        raise RefusedError("statement", f"{name}: expected base64url text, got {text[:40]!r}")
    try:
        signed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise RefusedError("statement", f"{name}: {error}") from error
    return signed[:SIGNATURE_BYTES], signed[SIGNATURE_BYTES:]


def _decode(body: bytes, kind: type[S]) -> S:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError("statement", f"{_purpose(kind)}: {error}") from error


def _check(statement: Statement, name: str, federation: str) -> None:
    if statement.federation != federation:
        raise RefusedError(
            "statement",
            f"{name}: expected one of federation '{federation}', got '{statement.federation[:64]}'",
        )
    for field in ("key", "old", "new", "withdrawn", "restored"):
        value = getattr(statement, field, None)
        if value is not None and not _KEY.fullmatch(value):
            raise RefusedError(
                "statement", f"{name}: {field} is no {_KINDS.get(field, 'key')}: {value[:70]!r}"
            )
    until = getattr(statement, "until", None)
    if until is not None and until <= time.time():
        over, today = (
            time.strftime("%Y-%m-%d", time.gmtime(max(0, min(at, 2**35))))
            for at in (until, time.time())
        )
        raise RefusedError(
            "statement",
            f"{name}: valid until {over}, which is over: {_RENEWAL.get(name, 'it is made anew')}, "
            f"unless this clock, which says {today}, is ahead",
        )


def _purpose(kind: type[Statement]) -> str:
    return f"{kind.__struct_config__.tag} statement"


def _signed(purpose: str, message: bytes) -> bytes:
    return f"{_PURPOSE}{purpose}\0".encode() + message


def grant_name(grant: str) -> str:
    """Names a grant's statement, whole: 32 hex digits of its SHA-256."""
    return hashlib.sha256(grant.encode()).hexdigest()[:32]
