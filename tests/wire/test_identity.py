from __future__ import annotations

import time

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from protofleet.errors import RefusedError
from protofleet.wire.messages import TransferOffer
from protofleet.wire.trust.identity import (
    CoordinatorCertificate,
    DeviceGrant,
    KeyRotation,
    public_bytes,
    read_statement,
    sign_offer,
    sign_statement,
    verify_offer,
)

_KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
_PUBLIC = public_bytes(_KEY)
_GRANT = DeviceGrant(
    federation="lab", device_id="pi-7", key="ab" * 32, serial=3, until=4_000_000_000
)
GOLDEN = (
    "DTOyV7unFhN7iCgfZcC-SWsiVVLdbv7s_Ck-axIGTwTBaEJStSN1NDa-y9zcjXdfKubuqGjPMpA4Gqjs"
    "IcGKBnsidHlwZSI6ImRldmljZSIsImZlZGVyYXRpb24iOiJsYWIiLCJkZXZpY2VfaWQiOiJwaS03Iiwi"
    "a2V5IjoiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFi"
    "YWJhYmFiYWJhYiIsInNlcmlhbCI6MywidW50aWwiOjQwMDAwMDAwMDB9"
)
_OFFER = TransferOffer(
    transfer_id="0" * 32,
    kind="update",
    round_id=3,
    total_bytes=10,
    sha256="ab" * 32,
    chunk_bytes=256,
)


def _read(text: str, kind=DeviceGrant, signer: bytes = _PUBLIC):
    return read_statement(text, kind, [signer], federation="lab")


def test_golden_bytes():
    """The grant that docs/protocol.md prints; Ed25519 signatures are the same every time."""
    assert sign_statement(_KEY, _GRANT) == GOLDEN
    assert _read(GOLDEN) == _GRANT


@given(st.text(max_size=300))
def test_noise_is_refused(noise):
    with pytest.raises(RefusedError):
        _read(noise)


@given(st.integers(0, len(GOLDEN) - 1), st.characters(codec="ascii"))
def test_another_character_anywhere_is_refused(place, character):
    changed = GOLDEN[:place] + character + GOLDEN[place + 1 :]
    if changed != GOLDEN:
        with pytest.raises(RefusedError):
            _read(changed)


def test_a_statement_stands_for_nothing_else():
    """Another signer, kind or federation; a time that is over; a key that is none."""
    other = Ed25519PrivateKey.generate()
    certificate = CoordinatorCertificate(
        federation="lab", run_id="r", key="ab" * 32, until=_GRANT.until
    )
    rotation = KeyRotation(federation="lab", old="ab" * 32, new="no key")
    cases = [
        (sign_statement(other, _GRANT), DeviceGrant, "not signed by this federation's key"),
        (GOLDEN, CoordinatorCertificate, "not signed"),
        (sign_statement(_KEY, certificate), DeviceGrant, "not signed"),
        (sign_statement(_KEY, replace(_GRANT, federation="x")), DeviceGrant, "federation 'lab'"),
        (sign_statement(_KEY, replace(_GRANT, until=int(time.time()))), DeviceGrant, "is over"),
        (sign_statement(_KEY, replace(_GRANT, until=-(2**60))), DeviceGrant, "is over"),
        (sign_statement(_KEY, rotation), KeyRotation, "new is no key"),
    ]
    for text, kind, message in cases:
        with pytest.raises(RefusedError, match=message) as refused:
            _read(text, kind)
        assert refused.value.rule == "statement"


@pytest.mark.parametrize(
    "changed",
    [{"round_id": 4}, {"sha256": "cd" * 32}, {"codec": "fp16"}, {"reference": "ab" * 32}],
)
def test_an_offer_is_signed_for_what_it_offers(changed):
    signature = sign_offer(_KEY, _OFFER, federation="lab", device_id="pi-7")
    who = {"federation": "lab", "device_id": "pi-7"}
    assert verify_offer(_PUBLIC, signature, _OFFER, **who)
    assert not verify_offer(_PUBLIC, signature, replace(_OFFER, **changed), **who)
    assert not verify_offer(_PUBLIC, signature, _OFFER, federation="lab", device_id="pi-8")
    assert not verify_offer(_PUBLIC, "no signature", _OFFER, **who)
