"""Only announcements and presences are retained: what else a broker kept is somebody's trap."""

from __future__ import annotations

from contextlib import closing

import pytest
from brokers import wait_until

from protofleet.wire.coordinator_endpoint import CoordinatorEndpoint
from protofleet.wire.device_endpoint import DeviceEndpoint
from protofleet.wire.events import Ignored, PeerMessage
from protofleet.wire.messages import Announcement, Heartbeat, Presence, Task, encode
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.mqtt.link import Connected, Link, LinkOptions
from protofleet.wire.topics import Channel, Topics

_TOPICS = Topics("home")
_TASK = Task(task="finish", round_id=1, federation="home")
_BEAT = Heartbeat(
    device_id="anna",
    boot_id="1",
    round_id=1,
    phase="idle",
    bytes_up=0,
    bytes_down=0,
    peak_rss_bytes=0,
)
_PRESENCE = Presence(device_id="anna", boot_id="1", status="online")
_ANNOUNCEMENT = Announcement(
    federation="home",
    boot_id="c",
    phase="waiting",
    round_id=1,
    rounds=1,
    strategy="fedavg",
    bundle="b",
    layout_hash="l",
)


def _retain(broker, *kept):
    with closing(Link(LinkOptions(broker=broker))) as link:
        link.start()
        wait_until(lambda: link.connected)
        for topic, message in kept:
            assert link.publish(topic, encode(message), retain=True)


def _events(endpoint, count):
    """What comes after the connection, in any order."""
    with closing(endpoint):
        endpoint.start()
        assert isinstance(endpoint.poll(10.0), Connected)
        return [endpoint.poll(10.0) for _ in range(count)]


@pytest.mark.mosquitto
def test_a_retained_task_never_reaches_a_device_and_the_announcement_does(mosquitto_url, tmp_path):
    broker = BrokerAccess(url=mosquitto_url)
    task = _TOPICS.of(Channel.DOWN_TASK, "anna")
    _retain(broker, (task, _TASK), (_TOPICS.announcement, _ANNOUNCEMENT))
    events = _events(DeviceEndpoint.create(broker, "home", "anna", tmp_path), 2)
    assert PeerMessage("", _ANNOUNCEMENT, retained=True) in events
    (ignored,) = (one for one in events if isinstance(one, Ignored))
    assert (ignored.device_id, ignored.rule) == ("anna", "retained")


@pytest.mark.mosquitto
def test_a_retained_heartbeat_never_reaches_the_coordinator_and_a_presence_does(
    mosquitto_url, tmp_path
):
    broker = BrokerAccess(url=mosquitto_url)
    beat, place = (_TOPICS.of(one, "anna") for one in (Channel.UP_STATUS, Channel.PRESENCE))
    _retain(broker, (beat, _BEAT), (place, _PRESENCE))
    events = _events(CoordinatorEndpoint.create(broker, "home", tmp_path), 2)
    assert PeerMessage("anna", _PRESENCE, retained=True) in events
    (ignored,) = (one for one in events if isinstance(one, Ignored))
    assert ignored.rule == "retained"
