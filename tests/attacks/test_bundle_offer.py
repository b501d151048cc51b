"""Offers of bundles, and what devices say of them: nothing of it is believed unchecked."""

from __future__ import annotations

import json

import pytest

from protofleet.coordinator.devices.registry import Registry
from protofleet.errors import RefusedError
from protofleet.wire.messages import (
    Announcement,
    BundleOffer,
    BundleProgress,
    Presence,
    decode,
    encode,
)

_OFFER = BundleOffer(federation="lab", bundle="ab" * 32, sequence=5)
_ANNOUNCEMENT = Announcement(
    federation="lab",
    boot_id="c",
    phase="training",
    round_id=1,
    rounds=2,
    strategy="fedavg",
    bundle="b",
    layout_hash="l",
)
_PROGRESS = BundleProgress(bundle="ab" * 32, state="tested")
_PRESENCE = Presence(
    device_id="a", boot_id="1", status="online", bundle="b", layout_hash="l", progress=_PROGRESS
)


def _with(message, name, value):
    return json.dumps({**json.loads(encode(message)), name: value}).encode()


@pytest.mark.parametrize(
    ("message", "name", "value"),
    [
        (_OFFER, "sequence", -1),
        (_OFFER, "sequence", 2**53),
        (_OFFER, "sequence", 1.5),
        (_OFFER, "bundle", "a" * 65),
        (_OFFER, "epoch", 2**48 + 1),
        (_OFFER, "payload", {"type": "manifest"}),
        (_ANNOUNCEMENT, "bundles", ["a"] * 9),
        (_ANNOUNCEMENT, "bundles", ["a" * 65]),
        (_ANNOUNCEMENT, "bundles", "a"),
        (_ANNOUNCEMENT, "withdrawal", "A" * 4097),
        (_PRESENCE, "sequence", 2**60),
        (_PRESENCE, "takes_bundles", "yes"),
        (_PRESENCE, "progress", {"bundle": "a", "state": "confirmed"}),
        (_PRESENCE, "progress", {"bundle": "a", "state": "failed", "reason": "x" * 501}),
        (_PRESENCE, "progress", {"bundle": "a" * 65, "state": "failed"}),
        (_PRESENCE, "progress", []),
    ],
)
def test_what_no_coordinator_and_no_device_says_makes_a_record_invalid(message, name, value):
    with pytest.raises(RefusedError) as caught:
        decode(_with(message, name, value), type(message))
    assert caught.value.rule == "message-schema"
    assert len(str(caught.value)) < 500


def test_a_device_takes_part_with_a_welcome_bundle_alone():
    registry = Registry(bundle="b", layout_hash="l", strategy="fedavg", silent_after_s=1.0)
    registry.welcome = frozenset({"b", "c"})
    for bundle, fits in (("b", True), ("c", True), ("d", False), ("", False)):
        presence = decode(_with(_PRESENCE, "bundle", bundle), Presence)
        if fits:
            assert registry.presence("a", presence, 0.0).live
        else:
            with pytest.raises(RefusedError) as caught:
                registry.presence("a", presence, 0.0)
            assert caught.value.rule == "bundle"
        assert ("a" in registry.live) == fits


def test_another_layout_stays_out_whatever_bundle_it_names():
    registry = Registry(bundle="b", layout_hash="l", strategy="fedavg", silent_after_s=1.0)
    with pytest.raises(RefusedError) as caught:
        registry.presence("a", decode(_with(_PRESENCE, "layout_hash", "m"), Presence), 0.0)
    assert caught.value.rule == "layout"
