"""The process of the light devices: ``python -m protofleet.benchmarks.load.fleet SPEC.json``."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import msgspec

from protofleet.benchmarks.load.device import NUM_EXAMPLES, LightDevice, device_id
from protofleet.edge.device_info import DeviceInfo
from protofleet.edge.state.journal import StoreBinding
from protofleet.errors import UnavailableError
from protofleet.firmware_sim.watched_link import Watch, WatchedLink
from protofleet.wire.device_endpoint import DeviceEndpoint
from protofleet.wire.messages import encode
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.mqtt.link import LinkOptions, Will
from protofleet.wire.topics import Channel, Topics

_CONNECTS = 20
"""Devices that connect before the others are looked after again."""
_POLL_S = 1.0
_REFUSALS_SHOWN = 5


class FleetSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is to do.

    Attributes:
        broker: URL, on this machine.
        federation, bundle, layout_hash: of the federation.
        devices: how many.
        most_bytes: largest payload.
        folder: for partial blobs.
        seconds: after which it gives up.
    """

    broker: str
    federation: str
    bundle: str
    layout_hash: str
    devices: int
    most_bytes: int
    folder: str
    seconds: float


class FleetOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the devices have seen.

    Attributes:
        finished: devices that were sent home.
        delivered: updates whose receipt came.
        refused: what was refused on either side, with how often; healthy: nothing.
        bytes_up, bytes_down: at all sockets together.
    """

    finished: int
    delivered: int
    refused: dict[str, int]
    bytes_up: int
    bytes_down: int


class LightFleet:
    """Light devices in one thread.

    Args:
        spec: what they are.
    """

    def __init__(self, spec: FleetSpec) -> None:
        self._spec, self._topics = spec, Topics(spec.federation)
        self._access = BrokerAccess(url=spec.broker)
        self._watch = Watch()
        self._devices: list[LightDevice] = []
        self._left = 0

    def run(self) -> FleetOutcome:
        """Until every device was sent home, or the time is over.

        Raises:
            UnavailableError: the broker refuses a device for good.
        """
        until = time.monotonic() + self._spec.seconds
        while self._left < self._spec.devices and time.monotonic() < until:
            for number in range(len(self._devices), min(self._more, self._spec.devices)):
                self._devices.append(self._make(number))
                self._devices[number].start()
                self._turn(number, readable=False)
            growing = len(self._devices) < self._spec.devices
            for number, readable in self._watch.wait(0.0 if growing else _POLL_S):
                self._turn(number, readable=readable)
        self._watch.close()
        return self._outcome()

    @property
    def _more(self) -> int:
        return len(self._devices) + _CONNECTS

    def _turn(self, number: int, *, readable: bool) -> None:
        device = self._devices[number]
        if device.finished:
            return
        due = device.turn(self._watch.looked_s, readable=readable)
        if due is None:
            self._watch.forget(number)
            self._left += 1
        else:
            self._watch.note(number, device.link, due, awaited=device.sending)

    def _make(self, number: int) -> LightDevice:
        spec, name = self._spec, device_id(number)
        who = DeviceInfo(
            device_id=name,
            boot_id=f"{number:016x}",
            binding=StoreBinding(
                federation=spec.federation, bundle=spec.bundle, layout_hash=spec.layout_hash
            ),
            num_examples=NUM_EXAMPLES,
        )
        will = Will(
            topic=self._topics.of(Channel.PRESENCE, name), payload=encode(who.presence("offline"))
        )
        filters = self._topics.device_filters(name)
        link = WatchedLink(LinkOptions(broker=self._access, filters=filters, will=will))
        endpoint = DeviceEndpoint(link, self._topics, Path(spec.folder), name)
        return LightDevice(number, link, endpoint, who, most_bytes=spec.most_bytes)

    def _outcome(self) -> FleetOutcome:
        refused = Counter(reason for device in self._devices for reason in device.refused)
        traffic = [device.link.traffic for device in self._devices]
        return FleetOutcome(
            finished=self._left,
            delivered=sum(device.delivered for device in self._devices),
            refused=dict(refused.most_common(_REFUSALS_SHOWN)),
            bytes_up=sum(one.socket_up_bytes for one in traffic),
            bytes_down=sum(one.socket_down_bytes for one in traffic),
        )


def main() -> None:
    """Run the fleet of the file that is named, and print its outcome."""
    spec = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=FleetSpec)
    try:
        outcome = LightFleet(spec).run()
    except UnavailableError as error:
        sys.exit(f"light devices: {error}")
    sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")


if __name__ == "__main__":
    main()
