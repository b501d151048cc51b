from __future__ import annotations

import random

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from protofleet.errors import RefusedError
from protofleet.wire.trust.session import (
    OVERHEAD_BYTES,
    WINDOW,
    Handshake,
    ReplayWindow,
    Session,
    SessionTerms,
    derive_keys,
)

_TOPIC = "fl/v2/lab/up/pi-7/s"
_TERMS = SessionTerms(
    coordinator_nonce=bytes(range(16)),
    device_nonce=bytes(range(16, 32)),
    run_id="0123456789abcdef",
    bundle="cd" * 32,
    device_id="pi-7",
)
_COORDINATOR, _DEVICE = (
    Handshake(X25519PrivateKey.from_private_bytes(bytes([byte]) * 32), nonce)
    for byte, nonce in ((1, _TERMS.coordinator_nonce), (2, _TERMS.device_nonce))
)
UP = "2e1cc9d3d1c9f5992f995d11435c84add072aad8de153abb9ec3ad4535e98e25"
DOWN = "bc51aa8cacaed3601e869dd3477f75d73767e0ae9236e42bc2f33bd0c3326ceb"
SEALED = "0000000000000001 25e1b60310321982015413107e8a165b3e5c7f"


def _pair() -> tuple[Session, Session]:
    up, down = derive_keys(_DEVICE.private, _COORDINATOR.share, _TERMS)
    return Session(up, down), Session(down, up)


def test_golden_bytes():
    """The keys and the sealed record that docs/protocol.md prints."""
    keys = derive_keys(_COORDINATOR.private, _DEVICE.share, _TERMS)
    assert keys == derive_keys(_DEVICE.private, _COORDINATOR.share, _TERMS)
    assert [key.hex() for key in keys] == [UP, DOWN]
    device, coordinator = _pair()
    sealed = device.seal(_TOPIC, b"abc")
    assert sealed.hex() == SEALED.replace(" ", "")
    assert len(sealed) == 3 + OVERHEAD_BYTES
    assert coordinator.open(_TOPIC, sealed) == b"abc"


@pytest.mark.parametrize(
    "changed",
    [
        {"coordinator_nonce": bytes(16)},
        {"device_nonce": bytes(16)},
        {"run_id": "f" * 16},
        {"bundle": "ab" * 32},
        {"device_id": "pi-8"},
    ],
)
def test_every_term_counts(changed):
    """Another run, bundle, device or process has other keys."""
    terms = SessionTerms(**{name: getattr(_TERMS, name) for name in _TERMS.__slots__} | changed)
    ours = derive_keys(_DEVICE.private, _COORDINATOR.share, _TERMS)
    assert not set(ours) & set(derive_keys(_DEVICE.private, _COORDINATOR.share, terms))


@pytest.mark.parametrize("share", [bytes(32), b"\1" + bytes(31), b"short"])
def test_a_share_that_gives_everybody_one_key_is_refused(share):
    with pytest.raises(RefusedError) as refused:
        derive_keys(_DEVICE.private, share, _TERMS)
    assert refused.value.rule == "share"


@given(st.binary(max_size=200), st.data())
def test_a_flipped_bit_is_noticed(record, data):
    device, coordinator = _pair()
    sealed = bytearray(device.seal(_TOPIC, record))
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(RefusedError):
        coordinator.open(_TOPIC, bytes(sealed))


def test_a_record_counts_once_on_its_own_topic_and_way():
    device, coordinator = _pair()
    sealed = device.seal(_TOPIC, b"abc")
    for topic, end in (("fl/v2/lab/up/pi-7/m", coordinator), (_TOPIC, device)):
        with pytest.raises(RefusedError, match="not sealed with this session's key"):
            end.open(topic, sealed)
    coordinator.open(_TOPIC, sealed)
    with pytest.raises(RefusedError, match="came before"):
        coordinator.open(_TOPIC, sealed)


@given(st.randoms(use_true_random=False))
def test_the_window_takes_each_number_once(rng: random.Random):
    """Against a set: whatever overtakes by less than the window counts, and only once."""
    window, seen, highest = ReplayWindow(), set(), 0
    for _ in range(300):
        number = max(1, highest + rng.randint(-2 * WINDOW, 3))
        fresh = number not in seen and number > highest - WINDOW
        assert window.take(number) == fresh
        seen.add(number)
        highest = max(highest, number)


@pytest.mark.parametrize("number", [0, -1])
def test_a_number_that_no_sender_uses_is_refused(number):
    assert not ReplayWindow().take(number)
