"""A coordinator that starts again behind a broker that keeps more presences than it hands over."""

from __future__ import annotations

import threading
from time import monotonic

import msgspec
import pytest
from brokers import mosquitto, wait_until

from protofleet.coordinator import events
from protofleet.coordinator.process.run import open_service
from protofleet.edge.presence import PresenceTimer
from protofleet.federation.settings import CohortSettings
from protofleet.wire.device_endpoint import DeviceEndpoint
from protofleet.wire.events import PeerMessage
from protofleet.wire.messages import Announcement, Presence
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.mqtt.link import Connected

_DEVICES = 60


class _Devices(threading.Thread):
    """Devices that do nothing but say that they are there, when and as a device's agent does.

    Attributes:
        connected: how many have said it once.
    """

    def __init__(self, plan, broker, folder):
        super().__init__(daemon=True)
        self.over, self.connected = threading.Event(), 0
        self._ends = {}
        for i in range(_DEVICES):
            name = f"d{i}"
            presence = Presence(
                device_id=name,
                boot_id="1",
                status="online",
                bundle=plan.bundle.digest,
                layout_hash=plan.bundle.manifest.layout_hash,
            )
            end = DeviceEndpoint.create(broker, plan.config.federation, name, folder / name)
            self._ends[name] = (end, presence, PresenceTimer())

    def run(self):
        for end, _, _ in self._ends.values():
            end.start()
        while not self.over.wait(0.01):
            for end, presence, roll_call in self._ends.values():
                self._poll(end, presence, roll_call)
        for end, _, _ in self._ends.values():
            end.close()

    def _poll(self, end, presence, roll_call):
        now = monotonic()
        match end.poll(0.0):
            case Connected():
                end.publish(presence)
                self.connected += 1
            case PeerMessage(message=Announcement() as announcement, retained=retained):
                roll_call.announced(announcement, now, retained=retained)
        if now >= roll_call.due:
            roll_call.answered(now)
            end.publish(presence)


class _EnoughError(Exception):
    """Ends a coordinator's process."""


def _start(config, until):
    """A coordinator's process until ``until`` holds for an event; what it has told."""
    told = []

    def sink(event):
        told.append(event)
        if until(event):
            raise _EnoughError

    with pytest.raises(_EnoughError), open_service(config, sink) as service:
        service.run()
    return told


@pytest.mark.mosquitto
@pytest.mark.slow(seconds=6)
def test_a_restarted_coordinator_finds_all_devices_though_its_queue_holds_a_few(tiny, tmp_path):
    """Of 60 presences that the broker keeps, it hands over those that fit into its queue."""

    with mosquitto(tmp_path, "max_queued_messages 10", "max_inflight_messages 5") as port:
        broker = BrokerAccess(url=f"mqtt://127.0.0.1:{port}")
        cohort = CohortSettings(minimum=_DEVICES)
        config = msgspec.structs.replace(tiny.plan.config, broker=broker, cohort=cohort)
        devices = _Devices(tiny.plan, broker, tmp_path)
        devices.start()
        try:
            wait_until(lambda: devices.connected == _DEVICES)
            told = _start(config, lambda event: isinstance(event, events.RoundOpened))
        finally:
            devices.over.set()
            devices.join(20)
    assert len(told[-1].cohort) == _DEVICES
