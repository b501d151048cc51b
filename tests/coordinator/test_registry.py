from __future__ import annotations

import pytest

from protofleet.coordinator.registry import Registry
from protofleet.errors import RefusedError
from protofleet.wire.messages import Heartbeat, Presence


@pytest.fixture
def registry():
    return Registry(bundle="b" * 64, layout_hash="l" * 64, silent_after_s=30.0)


def _presence(status="online", **changes):
    fields = {"device_id": "a", "boot_id": "1", "bundle": "b" * 64, "layout_hash": "l" * 64}
    return Presence(status=status, **{**fields, **changes})


def _heartbeat(**changes):
    fields = {"device_id": "a", "boot_id": "1", "round_id": 1, "phase": "idle"}
    counters = {"bytes_up": 1, "bytes_down": 2, "peak_rss_bytes": 3}
    return Heartbeat(**{**fields, **counters, **changes})


def test_a_device_is_live_from_its_presence_to_its_last_will(registry):
    registry.presence("a", _presence(), 0.0)
    assert registry.live == ("a",)
    registry.presence("a", _presence("offline"), 1.0)
    assert registry.live == ()


@pytest.mark.parametrize(
    ("changes", "rule"), [({"bundle": "x"}, "bundle"), ({"layout_hash": ""}, "layout")]
)
def test_a_device_with_something_else_is_refused_and_not_live(registry, changes, rule):
    registry.presence("a", _presence(), 0.0)
    with pytest.raises(RefusedError) as caught:
        registry.presence("a", _presence(**changes), 1.0)
    assert caught.value.rule == rule
    assert registry.live == ()
    assert not registry.heartbeat("a", _heartbeat(), 2.0)
    assert registry.live == ()


def test_a_body_that_names_another_device_is_refused(registry):
    """The topic decides who speaks."""
    with pytest.raises(RefusedError, match="'b'"):
        registry.presence("a", _presence(device_id="b"), 0.0)
    with pytest.raises(RefusedError, match="'b'"):
        registry.heartbeat("a", _heartbeat(device_id="b"), 0.0)
    assert registry.devices == {}


def test_silence_takes_a_device_away_and_any_sign_brings_it_back(registry):
    registry.presence("a", _presence(), 0.0)
    assert registry.fall_silent(30.0) == ()
    assert registry.fall_silent(30.1) == ("a",)
    assert registry.fall_silent(31.0) == ()
    assert registry.live == ()
    assert registry.heartbeat("a", _heartbeat(), 40.0)
    assert registry.live == ("a",)
    assert not registry.heard("a", 41.0)


@pytest.mark.parametrize("changes", [{"bytes_up": -1}, {"round_id": 2**70}])
def test_counters_that_cannot_be_are_refused(registry, changes):
    with pytest.raises(RefusedError, match="no count"):
        registry.heartbeat("a", _heartbeat(**changes), 0.0)
