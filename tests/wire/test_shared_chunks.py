"""Chunks for all over a real broker: once up, down to everybody, sealed where there are keys."""

from __future__ import annotations

import random

import pytest
from brokers import KillableBroker, mosquitto
from keyed import BUNDLE, Keyed

from protofleet.wire.coordinator_endpoint import CoordinatorEndpoint
from protofleet.wire.device_endpoint import UNHEARD_MAX, DeviceEndpoint
from protofleet.wire.events import PeerMessage
from protofleet.wire.messages import Announcement, Presence, Task
from protofleet.wire.mqtt import link
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.mqtt.link import Connected, Disconnected
from protofleet.wire.topics import Topics
from protofleet.wire.transfers.carousel import shared_version
from protofleet.wire.transfers.transfer import Delivered, Received, describe
from protofleet.wire.trust.coordinator_protection import CoordinatorProtection
from protofleet.wire.trust.device_protection import DeviceProtection

_NAMES = ("pi-1", "pi-2", "pi-3", "pi-4")
_BLOB = random.Random(0).randbytes(700_000)
_ASKED = "asked"
"""The boot id of a presence that answers no announcement, which may be of a while ago."""


def _announcement(round_id):
    """What devices answer with a presence whose boot id is the round."""
    return Announcement(
        federation="lab",
        boot_id="c1",
        phase="waiting",
        round_id=round_id,
        rounds=9,
        strategy="fedavg",
        bundle=BUNDLE,
        layout_hash="ef" * 32,
    )


class _Fleet:
    """A coordinator and devices that keep their payloads, driven in turn by one thread."""

    def __init__(self, url, folder, keyed=None):
        broker = BrokerAccess(url=url)
        ours = CoordinatorProtection(keyed.coordinator()) if keyed else None
        self.coordinator = CoordinatorEndpoint.create(
            broker, "lab", folder / "coordinator", protection=ours
        )
        self.devices = {
            name: DeviceEndpoint.create(
                broker,
                "lab",
                name,
                folder / name,
                protection=DeviceProtection(keyed.device(name)) if keyed else None,
            )
            for name in _NAMES
        }
        self.here, self.payloads, self.delivered = set(), [], set()
        self.offers, self.cut_off, self.present, self.turn = {}, set(), set(), 1
        for one in (self.coordinator, *self.devices.values()):
            one.start()
        self.run(lambda: self.here == set(_NAMES))

    def send(self, round_id):
        """A payload for everybody; the bytes that it cost the coordinator."""
        self.payloads, self.delivered = [], set()
        before = self.coordinator.traffic.socket_up_bytes
        task = Task(task="train", round_id=round_id, federation="lab")
        for name in _NAMES:
            self.coordinator.send_task(name, task, _BLOB, shared=True)
        self.run(lambda: self.delivered == set(_NAMES))
        assert self.payloads == [_BLOB] * len(_NAMES)
        return self.coordinator.traffic.socket_up_bytes - before

    def meet(self):
        """Every device has heard what the coordinator said behind all that they asked for."""
        for _ in range(2):
            self.here, self.turn = set(), self.turn + 1
            self.coordinator.publish(_announcement(self.turn))
            self.run(lambda: self.here == set(_NAMES))

    def meet_again(self, broker):
        """After a restart of the broker."""
        self.cut_off, self.here, self.turn = set(), set(), self.turn + 1
        broker.restart()
        self.run(lambda: self.cut_off == self.here == set(_NAMES))

    def hears(self, version):
        """Whether any device is still sent what comes to all under a version."""
        self.present = set()
        for name, device in self.devices.items():  # comes behind what they subscribe to
            device.publish(Presence(device_id=name, boot_id=_ASKED, status="online"))
        self.run(lambda: self.present == set(_NAMES))
        before = {one: device.traffic for one, device in self.devices.items()}
        topic = Topics("lab").shared_chunks(version)
        assert self.coordinator._link.publish(topic, bytes(10_000))
        self.coordinator.publish(_announcement(self.turn))  # comes behind it
        seen = lambda one: (  # noqa: E731 - two numbers
            self.devices[one].traffic.payload_down_bytes - before[one].payload_down_bytes
        )
        self.run(lambda: all(seen(one) > 0 for one in _NAMES))
        return any(seen(one) >= 10_000 for one in _NAMES)

    def close(self):
        for one in (*self.devices.values(), self.coordinator):
            one.close()

    def run(self, until):
        for _ in range(20_000):
            self._on_coordinator(self.coordinator.poll(0.001))
            for name, device in self.devices.items():
                self._on_device(name, device, device.poll(0.001))
            if until():
                return
        raise TimeoutError(f"here: {self.here}, delivered: {self.delivered}")

    def _on_coordinator(self, event):
        match event:
            case Connected():
                self.coordinator.publish(_announcement(self.turn))
            case PeerMessage(message=Presence(boot_id=boot_id)) if boot_id == str(self.turn):
                self.here.add(event.device_id)
            case PeerMessage(message=Presence(boot_id=boot_id)) if boot_id == _ASKED:
                self.present.add(event.device_id)
            case Delivered():
                self.delivered.add(event.device_id)

    def _on_device(self, name, device, event):
        match event:
            case Disconnected():
                self.cut_off.add(name)
            case Connected():
                self._greet(name, self.turn)
            case PeerMessage(message=Announcement(round_id=turn)):
                self._greet(name, turn)
            case PeerMessage(message=Task() as task):
                self.offers[name] = task.payload, task.shared
                device.expect(task.payload, task.shared)
            case Received():
                self.payloads.append(event.path.read_bytes())
                device.accept(event.offer.transfer_id)

    def _greet(self, name, turn):
        presence = Presence(device_id=name, boot_id=str(turn), status="online")
        self.devices[name].publish(presence)


@pytest.mark.mosquitto
@pytest.mark.parametrize("keyed", [False, True])
def test_a_payload_for_four_goes_up_once(mosquitto_url, tmp_path, keyed):
    fleet = _Fleet(mosquitto_url, tmp_path, Keyed() if keyed else None)
    try:
        for round_id in (1, 2):
            assert fleet.send(round_id) < 1.1 * len(_BLOB)
    finally:
        fleet.close()


@pytest.mark.mosquitto
def test_who_has_the_payload_or_another_task_is_not_sent_the_chunks_of_all(mosquitto_url, tmp_path):
    fleet = _Fleet(mosquitto_url, tmp_path)
    try:
        fleet.send(1)
        offer, version = fleet.offers["pi-1"]
        fleet.devices["pi-1"].expect(offer, version)  # an offer that was repeated meanwhile
        assert not fleet.hears(version)
        other = describe(
            b"a", kind="payload", device_id="pi-1", round_id=8, chunk_bytes=offer.chunk_bytes
        )
        newer = describe(
            b"b", kind="payload", device_id="pi-1", round_id=9, chunk_bytes=offer.chunk_bytes
        )
        version = shared_version(other.sha256, other.chunk_bytes)
        fleet.devices["pi-1"].expect(other, version)
        fleet.devices["pi-1"].expect(newer)
        assert not fleet.hears(version)
    finally:
        fleet.close()


@pytest.mark.mosquitto
@pytest.mark.parametrize("keyed", [False, True])
def test_one_that_is_late_costs_nobody_else_anything(mosquitto_url, tmp_path, keyed):
    fleet = _Fleet(mosquitto_url, tmp_path, Keyed() if keyed else None)
    try:
        before = fleet.coordinator.traffic.socket_up_bytes
        heard = {name: one.traffic.payload_down_bytes for name, one in fleet.devices.items()}
        late = fleet.devices.pop("pi-4")
        task = Task(task="train", round_id=1, federation="lab")
        for name in _NAMES:
            fleet.coordinator.send_task(name, task, _BLOB, shared=True)
        fleet.run(lambda: fleet.delivered == set(fleet.devices))
        fleet.devices["pi-4"] = late
        fleet.run(lambda: fleet.delivered == set(_NAMES))
        assert fleet.payloads == [_BLOB] * len(_NAMES)
        assert fleet.coordinator.traffic.socket_up_bytes - before < 2.1 * len(_BLOB)
        for name, one in fleet.devices.items():
            assert one.traffic.payload_down_bytes - heard[name] < 1.1 * len(_BLOB)
    finally:
        fleet.close()


@pytest.mark.mosquitto
def test_who_was_late_for_two_payloads_listens_to_the_next(mosquitto_url, tmp_path):
    """It was told to ask; that nothing came to all says nothing of its broker."""
    fleet = _Fleet(mosquitto_url, tmp_path)
    try:
        for round_id in range(1, UNHEARD_MAX + 1):
            late, fleet.delivered = fleet.devices.pop("pi-4"), set()
            task = Task(task="train", round_id=round_id, federation="lab")
            for name in _NAMES:
                fleet.coordinator.send_task(name, task, _BLOB, shared=True)
            fleet.run(lambda: fleet.delivered == set(fleet.devices))
            fleet.devices["pi-4"] = late
            fleet.run(lambda: fleet.delivered == set(_NAMES))
            assert fleet.offers["pi-4"][1] == ""
        assert fleet.send(UNHEARD_MAX + 1) < 1.1 * len(_BLOB)
    finally:
        fleet.close()


@pytest.mark.mosquitto
def test_a_task_that_is_sent_again_to_one_alone_names_the_version_of_all(mosquitto_url, tmp_path):
    """To a device that was away and is back before the turn."""
    fleet = _Fleet(mosquitto_url, tmp_path)
    try:
        before = fleet.coordinator.traffic.socket_up_bytes
        task = Task(task="train", round_id=1, federation="lab")
        for name in _NAMES:
            fleet.coordinator.send_task(name, task, _BLOB, shared=True)
        fleet.coordinator.send_task("pi-1", task, _BLOB)
        fleet.run(lambda: fleet.delivered == set(_NAMES))
        assert fleet.offers["pi-1"][1] == fleet.offers["pi-2"][1] != ""
        assert fleet.coordinator.traffic.socket_up_bytes - before < 1.1 * len(_BLOB)
    finally:
        fleet.close()


@pytest.mark.mosquitto
@pytest.mark.parametrize("shared", ["ab" * 16, "a/b", "#"])
def test_a_forged_task_makes_a_device_subscribe_to_nothing(mosquitto_url, tmp_path, shared):
    fleet = _Fleet(mosquitto_url, tmp_path)
    try:
        offer = describe(b"a", kind="payload", device_id="pi-1", round_id=8, chunk_bytes=1000)
        fleet.devices["pi-1"].expect(offer, shared)
        assert not fleet.hears("ab" * 16)
    finally:
        fleet.close()


@pytest.mark.mosquitto
@pytest.mark.slow(seconds=15)
def test_where_the_broker_keeps_it_back_devices_ask_and_soon_do_not_listen(tmp_path):
    """An access list of another make may forget the topic."""
    rules = tmp_path / "rules"
    heard = ("up/#", "dn/#", "st/#", "all/ctl", "all/lease")
    lines = ["topic write #", *(f"topic read fl/v2/lab/{one}" for one in heard)]
    rules.write_text("\n".join([*lines, ""]))
    with mosquitto(tmp_path, f"acl_file {rules}") as port:
        fleet = _Fleet(f"mqtt://127.0.0.1:{port}", tmp_path)
        try:
            sent = [fleet.send(round_id) for round_id in range(1, UNHEARD_MAX + 2)]
        finally:
            fleet.close()
    # Turns that nobody hears come on top of four copies, as long as somebody listens.
    assert sent[0] > 4.9 * len(_BLOB)
    assert sent[-1] < 4.1 * len(_BLOB)


@pytest.mark.mosquitto
def test_a_device_that_was_cut_off_before_it_heard_anything_listens_all_the_same(
    tmp_path, monkeypatch
):
    """A broker that has answered the subscription has not ended the connection because of it."""
    monkeypatch.setattr(link, "BACKOFF_MIN_S", 0.05)
    monkeypatch.setattr(link, "BACKOFF_MAX_S", 0.05)
    offer = describe(_BLOB, kind="payload", device_id="pi-1", round_id=1, chunk_bytes=1000)
    version = shared_version(offer.sha256, offer.chunk_bytes)
    with KillableBroker(tmp_path) as broker:
        fleet = _Fleet(broker.url, tmp_path)
        try:
            for _ in range(UNHEARD_MAX):
                fleet.devices["pi-1"].expect(offer, version)
                fleet.meet()
                fleet.meet_again(broker)
                fleet.devices["pi-1"].cancel(offer.transfer_id)
            fleet.devices["pi-1"].expect(offer, version)
            assert fleet.hears(version)
        finally:
            fleet.close()
