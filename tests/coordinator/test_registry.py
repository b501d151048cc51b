from __future__ import annotations

import pytest

from protofleet.coordinator.devices.registry import Registry
from protofleet.errors import RefusedError
from protofleet.wire.messages import Heartbeat, Presence

_FEDERATION = {
    "bundle": "b" * 64,
    "layout_hash": "l" * 64,
    "strategy": "fedali",
    "silent_after_s": 30.0,
}


@pytest.fixture
def registry():
    return Registry(**_FEDERATION)


def _presence(status="online", **changes):
    fields = {"device_id": "a", "boot_id": "1", "bundle": "b" * 64, "layout_hash": "l" * 64}
    return Presence(status=status, **{**fields, **changes})


def _heartbeat(**changes):
    fields = {"device_id": "a", "boot_id": "1", "round_id": 1, "phase": "idle"}
    counters = {"bytes_up": 1, "bytes_down": 2, "peak_rss_bytes": 3}
    return Heartbeat(**{**fields, **counters, **changes})


@pytest.mark.parametrize("status", ["offline", "left"])
def test_a_device_is_live_from_its_presence_to_its_last_will_and_from_any_sign_on(registry, status):
    """A false or late last will took a device out for good."""
    registry.presence("a", _presence(), 0.0)
    assert registry.live == {"a"}
    registry.presence("a", _presence(status), 1.0)
    assert registry.live == set()
    assert registry.heard("a", 2.0)
    assert registry.live == {"a"}


def test_nothing_is_kept_of_unknown_devices_that_are_gone_and_of_too_many(registry, monkeypatch):
    monkeypatch.setattr("protofleet.coordinator.devices.registry.DEVICES_MAX", 3)
    registry.presence("gone", _presence("offline", device_id="gone"), 0.0)
    assert registry.devices == {}
    for name in "abc":
        registry.presence(name, _presence(device_id=name), 0.0)
    with pytest.raises(RefusedError, match="3 are known already"):
        registry.presence("d", _presence(device_id="d"), 0.0)
    assert registry.presence("a", _presence(), 1.0).live


@pytest.mark.parametrize(
    ("changes", "rule"), [({"bundle": "x"}, "bundle"), ({"layout_hash": ""}, "layout")]
)
def test_a_device_with_something_else_is_refused_and_not_live(registry, changes, rule):
    registry.presence("a", _presence(), 0.0)
    with pytest.raises(RefusedError) as caught:
        registry.presence("a", _presence(**changes), 1.0)
    assert caught.value.rule == rule
    assert registry.live == set()
    assert not registry.heard("a", 2.0)
    assert registry.live == set()


def test_a_device_whose_client_lacks_the_strategy_is_not_live_until_it_has_it(registry):
    """Names of strategies that nobody here has heard of are not repeated."""
    lacking = _presence(strategies=("fedavg", "\x1b]0;x", "local"))
    with pytest.raises(RefusedError, match="'fedali', only fedavg, local; update") as caught:
        registry.presence("a", lacking, 0.0)
    assert caught.value.rule == "strategy"
    assert registry.live == set()
    assert not registry.heard("a", 1.0)
    assert registry.presence("a", _presence(strategies=("local", "fedali")), 2.0).live
    assert registry.presence("a", _presence(), 3.0).live


def test_a_device_says_how_large_a_chunk_it_takes(registry):
    assert registry.chunk_bytes("a") == 0
    registry.presence("a", _presence(chunk_bytes=3900), 0.0)
    assert registry.chunk_bytes("a") == 3900
    with pytest.raises(RefusedError, match="at least 256 bytes") as caught:
        registry.presence("a", _presence(chunk_bytes=255), 1.0)
    assert caught.value.rule == "chunk-bytes"
    assert registry.live == set()


def test_a_body_that_names_another_device_is_refused(registry):
    """The topic decides who speaks."""
    with pytest.raises(RefusedError, match="'b'"):
        registry.presence("a", _presence(device_id="b"), 0.0)
    with pytest.raises(RefusedError, match="'b'"):
        registry.check_heartbeat("a", _heartbeat(device_id="b"))
    assert registry.devices == {}


def test_silence_takes_a_device_away_and_any_sign_brings_it_back(registry):
    registry.presence("a", _presence(), 0.0)
    assert registry.mark_silent(30.0) == ()
    assert registry.mark_silent(30.1) == ("a",)
    assert registry.mark_silent(31.0) == ()
    assert registry.live == set()
    assert registry.heard("a", 40.0)
    assert registry.live == {"a"}
    assert not registry.heard("a", 41.0)


@pytest.fixture
def counting():
    """A registry of a strategy that needs the counts of three classes."""
    return Registry(
        bundle="b" * 64, layout_hash="l" * 64, strategy="fedali", silent_after_s=30.0, num_classes=3
    )


def test_where_class_counts_are_needed_a_device_is_live_only_with_them(counting):
    assert not counting.presence("a", _presence(num_examples=5), 0.0).live
    assert not counting.heard("a", 1.0)
    assert counting.live == set()
    counting.presence("a", _presence(num_examples=5, class_counts=(2, 0, 3)), 2.0)
    assert counting.live == {"a"}
    counting.presence("a", _presence(num_examples=5), 3.0)
    assert counting.live == set()


def test_a_device_without_examples_registers_zeros(counting):
    assert counting.presence("a", _presence(class_counts=(0, 0, 0)), 0.0).live


@pytest.mark.parametrize(
    ("counts", "told", "reason"),
    [
        ((2, 3), 5, "expected 3 classes, got 2"),
        ((2, 3, 0, 0), 5, "expected 3 classes, got 4"),
        ((6, -1, 0), 5, "expected counts, got -1 to 6"),
        ((2**53, 0, 0), 2**53, "expected counts"),
        ((10**9, 0, 0), 5, "expected a sum of 5, its num_examples, got 1000000000"),
    ],
)
def test_class_counts_that_cannot_be_are_refused_and_the_device_is_not_live(
    counting, counts, told, reason
):
    counting.presence("a", _presence(num_examples=5, class_counts=(2, 0, 3)), 0.0)
    with pytest.raises(RefusedError, match=reason) as caught:
        counting.presence("a", _presence(num_examples=told, class_counts=counts), 1.0)
    assert caught.value.rule == "class-counts"
    assert counting.live == set()


def test_two_devices_of_one_id_show_by_a_process_that_is_back(registry):
    """A restarted device has a new boot id; only two that are alive take turns."""
    order = ["1", "1", "2", "3", "3", "2", "3"]
    found = [registry.has_twin("a", _presence(boot_id=boot)) for boot in order]
    assert found == [False] * 5 + [True] * 2
    assert not registry.has_twin("a", _presence("offline", boot_id="1"))
    assert not registry.has_twin("a", _heartbeat(boot_id="3"))
    assert registry.has_twin("a", _heartbeat(boot_id="2"))
