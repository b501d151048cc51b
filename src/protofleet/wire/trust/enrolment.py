"""Enrolment: what an invitation says, and how a device and its federation use it once.

An invitation is one line of text for one device (``docs/protocol.md``, Enrolment). Its token never
travels: keys derived from it prove the device's request and seal the federation's answer.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import struct
import time
from dataclasses import dataclass, field
from typing import Literal, Self

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from protofleet.errors import InputError, RefusedError
from protofleet.signatures import fingerprint
from protofleet.wire.messages import Message, decode, encode
from protofleet.wire.mqtt.broker_access import BrokerAddress
from protofleet.wire.topics import check_id, invited_account
from protofleet.wire.trust.identity import (
    SIGNATURE_BYTES,
    DeviceGrant,
    public_bytes,
    read_statement,
    sign,
    verify,
)
from protofleet.wire.trust.session import Handshake

SCHEME = "protofleet:"
TOKEN_BYTES = 16
PROOF_BYTES = 32
MAX_REQUEST_BYTES = 1024
"""A request has some 400; more is not looked at."""
MAX_CA_BYTES = 16 * 1024
_FORMAT = 1
_HEAD = struct.Struct(">BB16s16s32sQ")
_PINNED, _ACCOUNT = 1, 2
_CHECK_BYTES = 4
_MOST_TEXT = 1024
_PURPOSE = "enrolment request"
_COPY = "copy it whole, from 'protofleet:' to its last character"
_UPDATE = "update protofleet"
_ANEW = "ask for a new one"


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """What a device needs to enrol, once.

    Attributes:
        federation, device_id: who it will be.
        broker: URL, without an account.
        token: 16 secret bytes.
        fingerprint: of the federation key, 32 hex digits.
        certificate: SHA-256 of the broker's certificate (DER), hex; empty: not pinned.
        account: whether the broker has an account for the invitation.
        until: seconds since 1970, by the clock of whoever invites.
    """

    federation: str
    device_id: str
    broker: str
    fingerprint: str
    until: int
    token: bytes = field(default_factory=lambda: secrets.token_bytes(TOKEN_BYTES), repr=False)
    certificate: str = ""
    account: bool = False

    def __str__(self) -> str:
        """The text that is given to the device; whoever has it can enrol as this device."""
        flags = (_PINNED if self.certificate else 0) | (_ACCOUNT if self.account else 0)
        head = _HEAD.pack(
            _FORMAT,
            flags,
            self.token,
            bytes.fromhex(self.fingerprint),
            bytes.fromhex(self.certificate),  # packed as zeros where empty
            self.until,
        )
        tail = f"{self.broker}\n{self.federation}\n{self.device_id}".encode()
        return SCHEME + _to_text(head + tail + _checksum(head + tail))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The invitation in ``text``; white space, as of folded lines, does not matter.

        Raises:
            InputError: it is none, or not whole. The message does not repeat it.
        """
        packed = "".join(text.split())
        if not packed.startswith(SCHEME) or len(packed) > _MOST_TEXT:
            raise InputError(f"invitation: expected text that begins with '{SCHEME}'; {_COPY}")
        try:
            data = _from_text(packed.removeprefix(SCHEME))
            body, checksum = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
            if len(body) < _HEAD.size or checksum != _checksum(body):
                raise InputError(f"invitation: its checksum is wrong; {_COPY}")
            version, flags, token, key, certificate, until = _HEAD.unpack_from(body)
            broker, federation, device_id = body[_HEAD.size :].decode().split("\n")
        except ValueError as error:
            raise InputError(f"invitation: not whole or damaged; {_COPY}") from error
        if version != _FORMAT or flags & ~(_PINNED | _ACCOUNT):
            raise InputError(f"invitation: expected format {_FORMAT}, got {version}; {_UPDATE}")
        address = BrokerAddress.parse(broker)
        if address.user is not None or address.password is not None:
            raise InputError(f"invitation: its broker's URL has an account; {_ANEW}")
        check_id(federation, "federation")
        invited_account(device_id)
        return cls(
            federation=federation,
            device_id=device_id,
            broker=broker,
            fingerprint=key.hex(),
            until=until,
            token=token,
            certificate=certificate.hex() if flags & _PINNED else "",
            account=bool(flags & _ACCOUNT),
        )

    def keys(self) -> InvitationKeys:
        """What is derived from the token (HKDF-SHA256, RFC 5869)."""
        place = f"{self.federation}/{self.device_id}"
        derived = HKDF(
            algorithm=SHA256(),
            length=88,
            salt=None,
            info=f"protofleet/2 invitation\0{place}".encode(),
        ).derive(self.token)
        return InvitationKeys(
            proof=derived[:32], answer=derived[32:64], password=_to_text(derived[64:])
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class InvitationKeys:
    """What an invitation's token gives, and the token does not follow from.

    Attributes:
        proof: 32 bytes, of the HMAC over requests.
        answer: 32 bytes, salt of the answers' keys.
        password: of the invitation's account at the broker, 32 characters.
    """

    proof: bytes = field(repr=False)
    answer: bytes = field(repr=False)
    password: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        """16 hex digits that tell invitations apart and reveal nothing of them."""
        return hashlib.sha256(b"protofleet/2 name\0" + self.proof).hexdigest()[:16]


class EnrolmentRequest(Message, frozen=True, kw_only=True, tag="enrolment-request"):
    """Device → federation: ``step`` is ``grant`` (give me one) or ``taken`` (I keep it).

    ``key``: the device's own, public, which signs the request. ``share`` (X25519), ``nonce``: hex,
    new in every request. ``time``: the device's clock, seconds since 1970.
    """

    step: Literal["grant", "taken"]
    device_id: str
    key: str
    share: str
    nonce: str
    time: int


class EnrolmentAnswer(Message, frozen=True, kw_only=True, tag="enrolment-answer"):
    """Federation → device: a sealed ``EnrolmentGrant``, or why there is none.

    ``answers``: the request's nonce. ``time``: the federation's clock, seconds since 1970.
    ``rule``, ``reason``: empty unless it is a refusal. ``share`` (X25519, hex), ``sealed``
    (base64url): empty in a refusal, and after ``taken``.
    """

    answers: str
    time: int
    rule: str = ""
    reason: str = ""
    share: str = ""
    sealed: str = ""


class EnrolmentGrant(Message, frozen=True, kw_only=True, tag="enrolment-grant"):
    """What an enrolled device has from then on.

    ``grant``: the federation key's statement. ``federation_key``: public, hex. ``ca``: who signs
    the broker's certificate, PEM. ``password``: of the device's account, which has its id as name.
    Both are empty where there is none.
    """

    grant: str
    federation_key: str
    ca: str = ""
    password: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request that was sent, and what opens its answer.

    Attributes:
        payload: of the MQTT packet.
    """

    request: EnrolmentRequest
    payload: bytes
    private: X25519PrivateKey


def ask(
    key: Ed25519PrivateKey,
    keys: InvitationKeys,
    topic: str,
    *,
    device_id: str,
    step: Literal["grant", "taken"],
) -> Asked:
    """A request for ``topic``, proven by the invitation and signed by the device's own ``key``."""
    handshake = Handshake()
    request = EnrolmentRequest(
        step=step,
        device_id=device_id,
        key=public_bytes(key).hex(),
        share=handshake.share.hex(),
        nonce=handshake.nonce.hex(),
        time=int(time.time()),
    )
    return Asked(
        request=request,
        payload=write_request(request, key, keys.proof, topic),
        private=handshake.private,
    )


def write_request(
    request: EnrolmentRequest, key: Ed25519PrivateKey, proof: bytes, topic: str
) -> bytes:
    """32 bytes of HMAC-SHA256 over all that follows, 64 of the device's signature, JSON."""
    body = encode(request)
    signed = sign(key, _PURPOSE, _place(topic, body)) + body
    return _proof(proof, topic, signed) + signed


def read_request(payload: bytes) -> EnrolmentRequest:
    """A request's record, believed for nothing before ``check_request``.

    Raises:
        RefusedError: it is none.
    """
    if len(payload) > MAX_REQUEST_BYTES:
        raise RefusedError("message-size", f"enrolment request: {len(payload)} bytes")
    body = payload[PROOF_BYTES + SIGNATURE_BYTES :]
    request: EnrolmentRequest = decode(body, EnrolmentRequest)
    for name, digits in (("key", 64), ("share", 64), ("nonce", 32)):
        value = getattr(request, name)
        if len(value) != digits or not set(value) <= set("0123456789abcdef"):
            raise RefusedError(
                "message-schema", f"enrolment request: {name}: no {digits} hex digits"
            )
    return request


def check_request(payload: bytes, request: EnrolmentRequest, proof: bytes, topic: str) -> None:
    """Whether the sender has the invitation's token, and the key that it names.

    Raises:
        RefusedError: rule ``token`` or ``signature``.
    """
    signed = payload[PROOF_BYTES:]
    if not hmac.compare_digest(payload[:PROOF_BYTES], _proof(proof, topic, signed)):
        raise RefusedError("token", f"this invitation is not the latest for this name; {_ANEW}")
    signature, body = signed[:SIGNATURE_BYTES], signed[SIGNATURE_BYTES:]
    if not verify(bytes.fromhex(request.key), signature, _PURPOSE, _place(topic, body)):
        raise RefusedError("signature", "the request is not signed by the key that it names")


def seal_answer(
    grant: EnrolmentGrant, payload: bytes, own: X25519PrivateKey, answer_key: bytes, topic: str
) -> tuple[str, str]:
    """``share`` and ``sealed`` of the answer to a request.

    Args:
        grant: for the device.
        payload: of the request.
        own: used for this answer alone.
        answer_key: of the invitation.
        topic: of the answer.

    Raises:
        RefusedError: rule ``share``: the request has no X25519 share.
    """
    peer, ours = bytes.fromhex(read_request(payload).share), own.public_key().public_bytes_raw()
    key = _answer_key(own, peer, answer_key, payload, ours)
    sealed = AESGCM(key).encrypt(bytes(12), encode(grant), topic.encode())
    return ours.hex(), _to_text(sealed)


def open_answer(
    answer: EnrolmentAnswer, asked: Asked, answer_key: bytes, topic: str
) -> EnrolmentGrant:
    """The grant in an answer, from somebody who has the invitation's keys.

    Raises:
        RefusedError: rule ``seal``, ``share`` or ``message-schema``.
    """
    try:
        share, sealed = bytes.fromhex(answer.share), _from_text(answer.sealed)
        key = _answer_key(asked.private, share, answer_key, asked.payload, share)
        found = AESGCM(key).decrypt(bytes(12), sealed, topic.encode())
    except (InvalidTag, ValueError) as error:
        raise RefusedError("seal", "the answer is not by whoever made the invitation") from error
    return decode(found, EnrolmentGrant)


def check_grant(found: EnrolmentGrant, invitation: Invitation, key: bytes) -> DeviceGrant:
    """The grant for the device's own ``key`` (raw, public), by the key that the invitation names.

    Raises:
        RefusedError: rule ``federation-key`` or ``statement``: it is not; or ``ca``: too long.
    """
    try:
        signer = bytes.fromhex(found.federation_key)
    except ValueError:
        signer = b""
    if fingerprint(signer) != invitation.fingerprint:
        raise RefusedError(
            "federation-key",
            f"federation key: expected fingerprint {invitation.fingerprint}, got "
            f"{fingerprint(signer)}; {_ANEW}",
        )
    if len(found.ca) > MAX_CA_BYTES:
        raise RefusedError("ca", f"the broker's authority: {len(found.ca)} characters")
    grant = read_statement(found.grant, DeviceGrant, [signer], federation=invitation.federation)
    if (grant.device_id, grant.key) != (invitation.device_id, key.hex()):
        raise RefusedError("statement", f"the grant is for '{grant.device_id[:64]}' or another key")
    return grant


def _answer_key(
    private: X25519PrivateKey, peer: bytes, answer_key: bytes, request: bytes, share: bytes
) -> bytes:
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError as error:
        raise RefusedError("share", f"X25519 share: {error}") from error
    info = b"protofleet/2 enrolment answer\0" + hashlib.sha256(request).digest() + share
    return HKDF(algorithm=SHA256(), length=32, salt=answer_key, info=info).derive(secret)


def _proof(proof: bytes, topic: str, signed: bytes) -> bytes:
    message = b"protofleet/2 enrolment proof\0" + _place(topic, signed)
    return hmac.digest(proof, message, hashlib.sha256)


def _place(topic: str, body: bytes) -> bytes:
    return topic.encode() + b"\0" + body


def _checksum(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()[:_CHECK_BYTES]


def _to_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _from_text(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from error
