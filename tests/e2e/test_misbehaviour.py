"""What a coordinator process does about devices that vanish, lie or come too late."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from packed import pack_update
from tiny_bundle import tiny_bundle

from protofleet.bundle import Bundle
from protofleet.federation.records import Costs
from protofleet.strategies.types import Update
from protofleet.tensors import blobs
from protofleet.wire.device_endpoint import DeviceEndpoint
from protofleet.wire.events import PeerMessage
from protofleet.wire.messages import Presence, Task, TransferOffer, encode
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.mqtt.link import Connected, Link, LinkOptions, MqttMessage
from protofleet.wire.topics import Topics
from protofleet.wire.transfers.transfer import Received, Rejected

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=2)]


class FakeDevice:
    """Speaks the protocol without the edge: answers payloads with ``answer(round_id, tensors)``.

    An answer is a list of (round to claim, tensors) to send, one after the other.
    """

    def __init__(self, federation, name, answer, *, bundle_digest=None, num_examples=3):
        bundle = Bundle.open(federation.bundle, any_signer=True)
        folder = Path(federation.folder) / f"fake-{name}"
        folder.mkdir()
        self.rejections: list[str] = []
        self.rounds: list[int] = []
        self._name, self._answer, self._over = name, answer, threading.Event()
        self._num_examples, self._leaves = num_examples, threading.Event()
        self._presence = Presence(
            device_id=name,
            boot_id="1",
            status="online",
            bundle=bundle_digest or bundle.digest,
            layout_hash=bundle.manifest.layout_hash,
            num_examples=num_examples,
        )
        broker = BrokerAccess(url=federation.url)
        self._endpoint = DeviceEndpoint.create(broker, "home", name, folder)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def leave(self):
        """Say goodbye once a payload has come: a message behind it would mean that it is back."""
        self._leaves.set()

    def stop(self):
        self._over.set()
        self._thread.join(10)

    def _run(self):
        self._endpoint.start()
        while not self._over.is_set():
            match self._endpoint.poll(0.05):
                case Connected():
                    self._endpoint.publish(self._presence)
                case PeerMessage(message=Task(task="train") as task):
                    self._endpoint.expect(task.payload)
                case PeerMessage(message=Task()):
                    break
                case Received(offer=offer, path=path):
                    self._take(offer, path)
                case Rejected(reason=reason):
                    self.rejections.append(reason)
            if self.rounds and self._leaves.is_set():
                self._leaves.clear()
                self._endpoint.publish(replace(self._presence, status="left"))
        self._endpoint.close()

    def _take(self, offer, path):
        self.rounds.append(offer.round_id)
        tensors, _ = blobs.decode(path.read_bytes(), max_bytes=10**6)
        copies = {name: value.copy() for name, value in tensors.items()}
        self._endpoint.accept(offer.transfer_id)
        for round_id, content in self._answer(offer.round_id, copies):
            update = Update(
                client_id=self._name,
                round_id=round_id,
                num_examples=self._num_examples,
                tensors=content,
            )
            self._endpoint.send_update(pack_update(update, Costs()), round_id)


def _honest(round_id, tensors):
    return [(round_id, tensors)]


def _silent(_round_id, _tensors):
    return []


@pytest.fixture
def fakes(make_federation, tmp_path, key):
    """A federation of two, and a maker of fake devices that stop with the test."""
    federation = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), 2)
    made = []

    def make(name, answer, **options):
        made.append(FakeDevice(federation, name, answer, **options))
        return made[-1]

    yield federation, make
    for device in made:
        device.stop()


def _events(process, name):
    return [event for event in process.events if event["event"] == name]


def test_an_update_with_nan_is_rejected_and_does_not_count(fakes):
    federation, make = fakes
    federation.write(rounds=1)

    def poisoned(round_id, tensors):
        tensors["params/b"][0] = np.nan
        return [(round_id, tensors)]

    coordinator = federation.start_coordinator()
    make("good", _honest)
    bad = make("bad", poisoned)
    assert coordinator.finish() == 0, coordinator.log
    assert "NaN" in bad.rejections[0]
    (closed,) = _events(coordinator, "round_closed")
    assert closed["participants"] == 1


def test_a_liar_neither_replaces_the_model_nor_stops_the_run(fakes):
    """It claims 2⁵³ - 1 examples and goes as far as it may; with a quorum of all."""
    federation, make = fakes
    federation.write(rounds=3, extra="[round]\nquorum = 1.0\n[aggregation]\nnorm_clip = 3.0\n")
    federation.file.write_text(federation.file.read_text().replace("minimum = 2", "minimum = 3"))

    def trained(round_id, tensors):
        return [(round_id, {name: value + np.float32(0.1) for name, value in tensors.items()})]

    def far(round_id, tensors):
        tensors["params/b"] += np.float32(5e5)
        return [(round_id, tensors)]

    coordinator = federation.start_coordinator()
    honest = [make(name, trained) for name in ("fine", "good")]
    liar = make("liar", far, num_examples=2**53 - 1)
    assert coordinator.finish() == 0, coordinator.log
    assert [event["participants"] for event in _events(coordinator, "round_closed")] == [3, 2, 2]
    limited = {
        (event["claim"], event["device_id"]) for event in _events(coordinator, "claim_limited")
    }
    assert limited == {("num_examples", "liar"), ("difference", "liar")}
    assert ["norm of at most" in reason for reason in liar.rejections] == [True, True]
    assert [device.rejections for device in honest] == [[], []]
    model, _ = blobs.decode(
        (federation.run_dir / "global.safetensors").read_bytes(), max_bytes=10**6
    )
    assert np.abs(model["b"]).max() < 10


@pytest.mark.parametrize(("claimed", "reason"), [(1, "too late"), (9, "has not begun")])
def test_updates_for_other_rounds_are_rejected_with_the_reason(fakes, claimed, reason):
    federation, make = fakes
    federation.write(rounds=2)
    coordinator = federation.start_coordinator()
    make("good", _honest)

    def confused(round_id, tensors):
        # Other content in each round: an equal update would be the accepted one, sent again.
        moved = {name: value + round_id for name, value in tensors.items()}
        return [(1 if round_id == 1 else claimed, moved)]

    bad = make("bad", confused)
    coordinator.wait_for(lambda e: e["event"] == "update_rejected")
    coordinator.wait_for(lambda _: bool(bad.rejections))
    assert reason in bad.rejections[0]


def test_below_the_quorum_a_round_is_extended_until_a_substitute_delivers(fakes):
    """The silent member has left; the spare device takes its place in the same round."""
    federation, make = fakes
    quick = "[round]\ndeadline_s = 2.0\nquorum = 1.0\n[liveness]\ngrace_s = 0.1\n"
    federation.write(rounds=1, extra=quick)
    coordinator = federation.start_coordinator()
    make("good", _honest)
    mute = make("mute", _silent)
    coordinator.wait_for(lambda e: e["event"] == "round_opened")
    spare = make("spare", _honest)
    coordinator.wait_for(lambda e: e["event"] == "device_online" and e["device_id"] == "spare")
    mute.leave()
    assert coordinator.finish() == 0, coordinator.log
    extended = _events(coordinator, "round_extended")[0]
    assert (extended["missing"], extended["added"]) == (["mute"], ["spare"])
    assert spare.rounds == [1]
    assert _events(coordinator, "round_closed")[0]["participants"] == 2


def test_a_device_with_another_bundle_never_takes_part(fakes):
    federation, make = fakes
    federation.write(rounds=1)
    coordinator = federation.start_coordinator()
    stranger = make("stranger", _honest, bundle_digest="f" * 64)
    coordinator.wait_for(lambda e: e["event"] == "device_refused")
    make("good", _honest)
    make("other", _honest)
    assert coordinator.finish() == 0, coordinator.log
    assert _events(coordinator, "round_opened")[0]["cohort"] == ["good", "other"]
    assert stranger.rounds == []


def test_a_device_that_floods_is_refused_once_in_a_while_and_stops_nothing(fakes):
    """Text that is no UTF-8, endless ids, offers nobody asked for: the round goes on."""
    federation, make = fakes
    federation.write(rounds=1)
    coordinator = federation.start_coordinator()
    hostile = make("hostile", _silent, bundle_digest="f" * 64)
    coordinator.wait_for(lambda e: e["event"] == "device_refused")
    link = hostile._endpoint._link
    offer = TransferOffer(
        transfer_id="f" * 50_000,
        kind="update",
        round_id=2**80,
        total_bytes=2**80,
        sha256="",
        chunk_bytes=0,
    )
    for _ in range(64):
        link.publish("fl/v2/home/up/hostile/q", b'{"type":"receipt","transfer_id":"\xff"}')
        link.publish("fl/v2/home/up/hostile/m", encode(offer))
    make("good", _honest)
    make("other", _honest)
    assert coordinator.finish() == 0, coordinator.log
    assert _events(coordinator, "round_closed")[0]["participants"] == 2
    assert len(_events(coordinator, "update_rejected")) <= 7
    assert len(_events(coordinator, "device_refused")) <= 10


def test_a_folder_that_is_not_one_ends_the_coordinator_with_one_line_and_a_resumable_run(fakes):
    federation, make = fakes
    federation.write(rounds=1)
    federation.run_dir.mkdir(mode=0o700, parents=True)
    (federation.run_dir / "partial").mkdir()
    # A file where an upload's folder must be: no room on the disk would help.
    coordinator = federation.start_coordinator()
    coordinator.wait_for(lambda e: e["event"] == "connected")
    (federation.run_dir / "partial" / "good").write_text("")
    make("good", _honest)
    make("other", _honest)
    assert coordinator.finish() == 1
    assert coordinator.log.count("\n") == 1, coordinator.log
    assert "nothing" in coordinator.log
    (federation.run_dir / "partial" / "good").unlink()
    assert federation.start_coordinator().finish() == 0


def test_a_finished_run_that_is_started_again_tells_those_who_were_away(fakes):
    """Even with no time for farewells: the announcement waits for the connection."""
    federation, make = fakes
    federation.write(rounds=1, extra="[liveness]\nfarewell_s = 0.0\n")
    coordinator = federation.start_coordinator()
    make("good", _honest)
    make("other", _honest)
    assert coordinator.finish() == 0, coordinator.log
    topic = Topics("home").announcement
    options = LinkOptions(broker=BrokerAccess(url=federation.url), filters=(topic,))
    with closing(Link(options)) as eye:
        eye.start()
        _delivery(eye)
        eye.publish(topic, b"", retain=True)
        _delivery(eye)
        assert federation.start_coordinator().finish() == 0
        assert b'"phase":"finished"' in _delivery(eye)


def _delivery(link):
    while not isinstance(event := link.get(10.0), MqttMessage):
        assert event is not None
    return event.payload


def test_a_device_with_another_bundle_hears_it_from_the_coordinator(make_federation, tmp_path, key):
    federation = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), 1)
    other = tiny_bundle(tmp_path / "other.pfb", key, settings={"epochs": 2})
    stranger = make_federation("stranger", other, 1)
    federation.write(rounds=1)
    stranger.write(rounds=1)
    coordinator = federation.start_coordinator()
    coordinator.wait_for(lambda e: e["event"] == "connected")
    device = stranger.start_device("device0")
    device.wait_for(lambda e: e["event"] == "waiting")
    assert "join with the federation's own bundle" in _events(device, "waiting")[0]["awaited"]
    assert "join with the federation's own bundle" in device.log


def test_wrong_files_end_with_one_clear_line(make_federation, tmp_path, key):
    federation = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), 2)
    federation.write(rounds=1, extra="[cohorts]\n")
    coordinator = federation.start_coordinator()
    assert coordinator.finish() == 1
    assert "cohorts" in coordinator.log
    assert coordinator.log.count("\n") == 1
