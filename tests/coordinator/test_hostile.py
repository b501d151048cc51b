"""What a coordinator makes of messages that somebody else sent, or a device that lies."""

from __future__ import annotations

from fake_endpoint import CONNECTED

from protofleet.coordinator import events
from protofleet.wire.endpoint import PeerMessage
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
