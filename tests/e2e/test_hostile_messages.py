"""Messages of strangers on real brokers: whatever they hold, no process ends.

The broker is open, so that anybody may publish as the coordinator or as a device.
"""

from __future__ import annotations

from contextlib import closing

import msgspec
import numpy as np
import pytest
from secured_broker import skip_without
from tiny_bundle import tiny_bundle

from protofleet.bundle import Bundle
from protofleet.edge.state.journal import read_journal
from protofleet.firmware_sim.broker import BrokerOptions, open_broker
from protofleet.tensors import blobs
from protofleet.wire.messages import (
    MOST_EPOCH,
    Announcement,
    Heartbeat,
    Presence,
    Task,
    TransferOffer,
    encode,
)
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.mqtt.link import Connected, Link, LinkOptions
from protofleet.wire.topics import Channel, Topics
from protofleet.wire.transfers.transfer import describe

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=6)]

_FAR = 2**53 - 1
_TOPICS = Topics("home")
_DEVICE = "device0"
_PAYLOAD = describe(
    blobs.encode({"params/w": np.zeros((2, 2), np.float32)}),
    kind="payload",
    device_id=_DEVICE,
    round_id=1,
)
_TASK = Task(
    task="train",
    round_id=1,
    federation="home",
    strategy="fedavg",
    settings={"epochs": 1, "batch_size": 16},
    payload=_PAYLOAD,
)


def _tasks():
    """What may be asked of a device, with the rule that it breaks in round 1 of 3."""
    changes = [
        ("federation", {"federation": "other"}),
        ("federation", {"task": "finish", "federation": "other", "payload": None}),
        ("finish", {"task": "finish", "round_id": 0, "payload": None}),
        ("finish", {"task": "finish", "round_id": _FAR, "payload": None}),
        ("seed", {"seed": -1}),
        ("seed", {"seed": 2**70}),
        ("round", {"round_id": _FAR}),
        ("round", {"round_id": 10**300}),
        ("round", {"payload": msgspec.structs.replace(_PAYLOAD, round_id=2)}),
        ("offer", {"payload": None}),
        ("kind", {"payload": msgspec.structs.replace(_PAYLOAD, kind="update")}),
        ("blob-size", {"payload": msgspec.structs.replace(_PAYLOAD, total_bytes=2**40)}),
        ("raw-bytes", {"payload": msgspec.structs.replace(_PAYLOAD, raw_bytes=2**40)}),
        ("strategy", {"strategy": "fedfancy"}),
        ("strategy", {"settings": {"epohcs": 1}}),
        ("strategy", {"settings": {"epochs": 10**9}}),
        ("strategy", {"settings": {"epochs": 10**400}}),
        ("strategy", {"settings": {"batch_size": 0}}),
        ("strategy", {"settings": {"optimiser": {"kind": "sgd", "lr": 1e38}}}),
    ]
    return [(rule, msgspec.structs.replace(_TASK, **change)) for rule, change in changes]


def _announcements(bundle):
    ours = Announcement(
        federation="home",
        boot_id="stranger",
        phase="training",
        round_id=1,
        rounds=3,
        strategy="fedavg",
        bundle=bundle.digest,
        layout_hash=bundle.manifest.layout_hash,
    )
    changes = [
        ("federation", {"federation": "other"}),
        ("bundle", {"bundle": "f" * 64}),
        ("bundle", {"bundle": "f" * 64, "phase": "finished", "round_id": 3}),
        ("layout", {"layout_hash": "f" * 64}),
        ("finish", {"phase": "finished"}),
        ("round", {"round_id": _FAR}),
        ("round", {"round_id": 10**300, "rounds": 10**300}),
    ]
    return [(rule, msgspec.structs.replace(ours, **change)) for rule, change in changes]


def _from_devices(bundle):
    """What may come up to the coordinator on the topics of its device and of strangers."""
    presence = Presence(device_id=_DEVICE, boot_id="\x1b]0;x\x07", status="online")
    beat = Heartbeat(
        device_id=_DEVICE,
        boot_id="b",
        round_id=1,
        phase="idle",
        bytes_up=2**63 - 1,
        bytes_down=10**400,
        peak_rss_bytes=-1,
    )
    offer = TransferOffer(
        transfer_id="\x00" * 4000,
        kind="update",
        round_id=10**4000,
        total_bytes=-(10**4000),
        sha256="\u2028",
        chunk_bytes=10**400,
        codec="\x1b[2J",
        raw_bytes=10**400,
        reference="x" * 10_000,
    )
    fitting = {"bundle": bundle.digest, "layout_hash": bundle.manifest.layout_hash}
    yield Channel.UP_STATUS, _DEVICE, beat
    yield Channel.UP_STATUS, _DEVICE, msgspec.structs.replace(beat, bytes_down=2**63 - 1)
    yield Channel.UP_OFFER, _DEVICE, offer
    yield Channel.UP_OFFER, _DEVICE, msgspec.structs.replace(offer, kind="payload")
    yield Channel.UP_OFFER, "stranger", offer
    yield Channel.PRESENCE, "stranger", msgspec.structs.replace(presence, device_id="stranger")
    counts = {"num_examples": 10**400, "class_counts": (10**400, -(10**400))}
    left = {"device_id": "other", "status": "left"}
    yield Channel.PRESENCE, "other", msgspec.structs.replace(presence, **left, **counts, **fitting)


@pytest.fixture(params=["mosquitto", "amqtt"])
def mosquitto_url(request):
    """Overrides the fixture of all tests: the embedded broker keeps and hands on other things."""
    skip_without(request.param)
    with open_broker(BrokerOptions(kind=request.param)) as broker:
        yield broker.url


@pytest.fixture
def federation(make_federation, tmp_path, key):
    made = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), 2)
    made.write(rounds=3)
    return made


def _stranger(federation):
    options = LinkOptions(broker=BrokerAccess(url=federation.url), filters=("nothing",))
    link = Link(options)
    link.start()
    while not isinstance(link.get(10.0), Connected):
        pass
    return closing(link)


def _raw(link, channel):
    for_all = {
        Channel.ANNOUNCEMENT: _TOPICS.announcement,
        Channel.LEASE: _TOPICS.lease,
        Channel.SHARED_CHUNK: _TOPICS.shared_chunks("0" * 32),
    }
    topic = for_all.get(channel) or _TOPICS.of(channel, _DEVICE)
    for bad in (b"", b"{", b"\xff" * 64, b'{"type":"task"}', b"[" * 60_000, b'"\\ud800"', b"9" * 9):
        link.publish(topic, bad)


def _publish_all(link, bundle):
    for _, task in _tasks():
        # Whoever hears announcements knows the epoch.
        known = msgspec.structs.replace(task, epoch=MOST_EPOCH)
        link.publish(_TOPICS.of(Channel.DOWN_TASK, _DEVICE), encode(known))
    for _, announcement in _announcements(bundle):
        link.publish(_TOPICS.announcement, encode(announcement))
    for channel, name, record in _from_devices(bundle):
        link.publish(_TOPICS.of(channel, name), encode(record))
    for channel in Channel:
        _raw(link, channel)


def test_no_message_ends_a_device_or_a_coordinator(federation):
    """The run is over in three rounds, and what was refused is counted by its rule."""
    bundle = Bundle.open(federation.bundle)
    device = federation.start_device(_DEVICE)
    device.wait_for(lambda e: e["event"] == "joined")
    with _stranger(federation) as link:
        # Before there is a coordinator, while that waits for the other device, and in a round.
        _publish_all(link, bundle)
        coordinator = federation.start_coordinator()
        coordinator.wait_for(lambda e: e["event"] == "device_online")
        _publish_all(link, bundle)
        other = federation.start_device("device1")
        coordinator.wait_for(lambda e: e["event"] == "round_opened")
        _publish_all(link, bundle)
        assert coordinator.finish() == 0, coordinator.log
    assert (device.finish(), other.finish()) == (0, 0), device.log
    assert "Traceback" not in device.log + coordinator.log
    delivered = [e["round_id"] for e in device.events if e["event"] == "delivered"]
    assert delivered == [1, 2, 3]
    assert read_journal(federation.folder / f"store-{_DEVICE}").last_round_id == 3
    refused = device.events[-1]["refused"]
    assert refused["announcement"] >= len(_tasks()) - 2
    assert {rule for rule, _ in (*_tasks(), *_announcements(bundle))} <= refused.keys()
