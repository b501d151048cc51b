"""What a coordinator makes of messages that somebody else sent, or a device that lies."""

from __future__ import annotations

from fake_endpoint import CONNECTED

from protofleet.coordinator import events
from protofleet.wire.events import PeerMessage
from protofleet.wire.messages import Announcement


def _announced(plan, boot_id="other", *, retained=False):
    announcement = Announcement(
        federation="home",
        boot_id=boot_id,
        phase="waiting",
        round_id=1,
        rounds=1,
        strategy="fedavg",
        bundle=plan.bundle.digest,
        layout_hash=plan.bundle.manifest.layout_hash,
    )
    return PeerMessage("", announcement, retained)


def test_another_coordinator_of_the_federation_is_told(open_federation):
    fed = open_federation()
    fed.play(CONNECTED, _announced(fed.plan, retained=True))
    assert fed.told(events.AnotherCoordinator) == []
    fed.play(CONNECTED, lambda: PeerMessage("", fed.endpoint.published[-1]))
    assert fed.told(events.AnotherCoordinator) == []
    fed.play(CONNECTED, _announced(fed.plan))
    assert fed.told(events.AnotherCoordinator, "federation") == [("home",)]


def test_two_devices_of_one_id_are_told_by_their_heartbeats(open_federation):
    """Each has connected once, and neither throws the other out."""
    fed = open_federation()
    fed.play(CONNECTED, fed.online("a"), fed.online("a", boot_id="2"), fed.beat("a", boot_id="1"))
    ((device_id, rule, reason),) = fed.told(events.DeviceRefused, "device_id", "rule", "reason")
    assert (device_id, rule) == ("a", "device-id")
    assert "give each its own --store" in reason


def test_a_device_that_was_said_to_be_gone_is_there_again_with_its_next_message(open_federation):
    """One forged, or late, last will took a device out for good."""
    fed = open_federation(minimum=3)
    fed.play(CONNECTED, fed.online("a"), fed.online("b"), fed.gone("a"), fed.beat("a"))
    assert fed.told(events.DeviceOnline, "device_id", "live") == [("a", 1), ("b", 2), ("a", 2)]


def test_a_heartbeat_of_an_unknown_device_is_answered_with_a_roll_call(open_federation):
    fed = open_federation()
    flood = [fed.beat(f"invented-{i}") for i in range(100)]
    fed.play(CONNECTED, fed.after(5.0, fed.beat("a")), fed.online("a"), fed.beat("a"), *flood)
    assert [one.roll_call for one in fed.endpoint.published] == [0, 1]
    assert fed.endpoint.published[0].spread_s > 0
