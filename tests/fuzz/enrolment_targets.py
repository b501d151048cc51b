"""Decoders of enrolment: the invitation, what a device asks with it, and what it is answered."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from fuzz.target import Target

from protofleet.signatures import fingerprint
from protofleet.wire.messages import decode, encode
from protofleet.wire.topics import Topics
from protofleet.wire.trust import enrolment
from protofleet.wire.trust.enrolment import (
    EnrolmentAnswer,
    EnrolmentGrant,
    EnrolmentRequest,
    Invitation,
)
from protofleet.wire.trust.identity import DeviceGrant, public_bytes, sign_statement

_FEDERATION, _DEVICE = (
    Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2)
)
_PUBLIC = public_bytes(_DEVICE).hex()
_INVITATION = Invitation(
    federation="lab",
    device_id="pi-7",
    broker="mqtts://broker.example:8883",
    fingerprint=fingerprint(public_bytes(_FEDERATION)),
    until=2**36,
    token=bytes(range(16)),
    certificate="ab" * 32,
    account=True,
)
_KEYS = _INVITATION.keys()
_TOPIC = f"{Topics('lab').announcement}/enrolment"
_SHARES = tuple(X25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (3, 4))
_REQUEST = EnrolmentRequest(
    step="grant",
    device_id="pi-7",
    key=_PUBLIC,
    share=_SHARES[0].public_key().public_bytes_raw().hex(),
    nonce="ab" * 16,
    time=1_800_000_000,
)
_SENT = enrolment.write_request(_REQUEST, _DEVICE, _KEYS.proof, _TOPIC)
_ASKED = enrolment.Asked(request=_REQUEST, payload=_SENT, private=_SHARES[0])
_GRANT = EnrolmentGrant(
    grant=sign_statement(
        _FEDERATION,
        DeviceGrant(federation="lab", device_id="pi-7", key=_PUBLIC, serial=1, until=2**36),
    ),
    federation_key=public_bytes(_FEDERATION).hex(),
    ca="-----BEGIN CERTIFICATE-----\n",
    password="secret",  # noqa: S106 - nobody's
)


def _packed() -> Iterator[bytes]:
    text = str(_INVITATION).removeprefix(enrolment.SCHEME)
    yield base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))[:-4]


def _checked_invitation(body: bytes) -> None:
    """With the checksum, which anybody can compute."""
    data = body + hashlib.sha256(body).digest()[:4]
    text = base64.urlsafe_b64encode(data).rstrip(b"=").decode()
    found = Invitation.parse(enrolment.SCHEME + text)
    assert found.keys()


def _read_request(payload: bytes) -> None:
    request = enrolment.read_request(payload)
    enrolment.check_request(payload, request, _KEYS.proof, _TOPIC)
    enrolment.seal_answer(_GRANT, payload, _SHARES[1], _KEYS.answer, _TOPIC)


def _proven_request(body: bytes) -> None:
    """What somebody who has the invitation may make up."""
    signed = enrolment.sign(_DEVICE, "enrolment request", _TOPIC.encode() + b"\0" + body) + body
    _read_request(enrolment._proof(_KEYS.proof, _TOPIC, signed) + signed)


def _answers() -> Iterator[bytes]:
    share, sealed = enrolment.seal_answer(_GRANT, _SENT, _SHARES[1], _KEYS.answer, _TOPIC)
    yield encode(EnrolmentAnswer(answers=_REQUEST.nonce, time=1, share=share, sealed=sealed))


def _open_answer(payload: bytes) -> None:
    answer: EnrolmentAnswer = decode(payload, EnrolmentAnswer)
    enrolment.open_answer(answer, _ASKED, _KEYS.answer, _TOPIC)


def _check_grant(record: bytes) -> None:
    """What somebody who has made the invitation may make up."""
    enrolment.check_grant(decode(record, EnrolmentGrant), _INVITATION, public_bytes(_DEVICE))


TARGETS = (
    Target(
        "invitation",
        lambda data: Invitation.parse(data.decode("utf-8", "surrogateescape")),
        lambda: [str(_INVITATION).encode()],
        max_len=1200,
    ),
    Target("invitation-checked", _checked_invitation, _packed, max_len=800),
    Target("enrolment-request", _read_request, lambda: [_SENT]),
    Target("enrolment-request-signed", _proven_request, lambda: [msgspec.json.encode(_REQUEST)]),
    Target("enrolment-answer", _open_answer, _answers),
    Target("enrolment-grant", _check_grant, lambda: [encode(_GRANT)]),
)
