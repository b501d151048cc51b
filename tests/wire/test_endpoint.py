from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest
from brokers import aedes, mosquitto
from keyed import BUNDLE, Keyed
from msgspec.structs import replace

from protofleet.errors import InputError, UnavailableError
from protofleet.firmware_sim.broker import local_broker
from protofleet.wire.coordinator_endpoint import CoordinatorEndpoint
from protofleet.wire.device_endpoint import DeviceEndpoint
from protofleet.wire.endpoint import Event
from protofleet.wire.events import Ignored, PeerMessage
from protofleet.wire.messages import (
    Announcement,
    Heartbeat,
    Need,
    Presence,
    Task,
    TransferOffer,
    encode,
)
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.mqtt.connection import Ending
from protofleet.wire.mqtt.link import (
    Connected,
    Disconnected,
    Hindered,
    Link,
    LinkEvent,
    LinkOptions,
    MqttMessage,
)
from protofleet.wire.topics import Topics
from protofleet.wire.transfers.chunks import Chunk, pack
from protofleet.wire.transfers.transfer import Delivered, Received, Rejected, describe
from protofleet.wire.trust.coordinator_protection import CoordinatorProtection
from protofleet.wire.trust.device_protection import DeviceProtection

_TOPICS = Topics("lab")
_NOWHERE = BrokerAccess(url="mqtt://127.0.0.1")
_ANNOUNCEMENT = Announcement(
    federation="lab",
    boot_id="c1",
    phase="waiting",
    round_id=1,
    rounds=2,
    strategy="fedavg",
    bundle=BUNDLE,
    layout_hash="ef" * 32,
)
_BLOB = random.Random(0).randbytes(700_000)


class _Pair:
    """A coordinator and one device, driven in turn by one thread."""

    def __init__(self, url: str, folder, keyed: Keyed | None = None) -> None:
        broker = BrokerAccess(url=url)
        ours = CoordinatorProtection(keyed.coordinator()) if keyed else None
        theirs = DeviceProtection(keyed.device("pi-7")) if keyed else None
        self.coordinator = CoordinatorEndpoint.create(
            broker, "lab", folder / "coordinator", protection=ours
        )
        self.device = DeviceEndpoint.create(
            broker, "lab", "pi-7", folder / "pi-7", protection=theirs
        )
        self.coordinator.start()
        self.device.start()
        self.seen: list[Event] = []
        self.updates: dict[int, bytes] = {}

    def run(self, until: Callable[[Event | None], bool], polls: int = 20_000) -> Event | None:
        for _ in range(polls):
            for endpoint in (self.coordinator, self.device):
                event = endpoint.poll(0.001)
                if event is not None:
                    self.seen.append(event)
                    self.react(endpoint, event)
                if until(event):
                    return event
        raise TimeoutError(f"saw only {self.seen[-20:]}")

    def react(self, endpoint: CoordinatorEndpoint | DeviceEndpoint, event: Event) -> None:
        if endpoint is self.device:
            self._device(event)
        else:
            self._coordinator(event)

    def _device(self, event: Event) -> None:
        announced = isinstance(event, PeerMessage) and isinstance(event.message, Announcement)
        if isinstance(event, Connected) or announced:
            self.device.publish(Presence(device_id="pi-7", boot_id="b", status="online"))
        elif isinstance(event, PeerMessage) and isinstance(event.message, Task):
            self.device.expect(event.message.payload, event.message.shared)
        elif isinstance(event, Received):
            update = event.path.read_bytes()[::-1]
            self.device.accept(event.offer.transfer_id)
            self.device.send_update(update, event.offer.round_id)

    def _coordinator(self, event: Event) -> None:
        if isinstance(event, Connected):
            self.coordinator.publish(_ANNOUNCEMENT)
        elif isinstance(event, PeerMessage) and isinstance(event.message, TransferOffer):
            self.coordinator.expect(event.device_id, event.message)
        elif isinstance(event, Received):
            self.updates[event.offer.round_id] = event.path.read_bytes()
            self.coordinator.accept(event.offer.transfer_id)

    def close(self) -> None:
        self.device.close()
        self.coordinator.close()


@pytest.fixture(params=["plain", "keyed"])
def pair(mosquitto_url, tmp_path, request):
    pair = _Pair(mosquitto_url, tmp_path, Keyed() if request.param == "keyed" else None)
    pair.run(lambda e: isinstance(e, PeerMessage) and isinstance(e.message, Presence))
    yield pair
    pair.close()


def _delivered_update(event: Event | None) -> bool:
    return isinstance(event, Delivered) and event.offer.kind == "update"


def _task(round_id: int) -> Task:
    return Task(task="train", round_id=round_id, federation="lab")


@pytest.mark.mosquitto
def test_a_round_goes_down_and_up(pair):
    """A payload reaches the device and its update the coordinator, bytes equal, traffic lean."""
    before = pair.coordinator.traffic
    pair.coordinator.send_task("pi-7", _task(1), _BLOB)
    pair.run(_delivered_update)
    after = pair.coordinator.traffic
    assert pair.updates == {1: _BLOB[::-1]}
    assert (after.socket_up_bytes - before.socket_up_bytes) / len(_BLOB) < 1.02
    assert (after.socket_down_bytes - before.socket_down_bytes) / len(_BLOB) < 1.02


@pytest.mark.mosquitto
def test_a_rejected_update_tells_the_device_why(pair, monkeypatch):
    monkeypatch.setattr(pair, "_coordinator", lambda event: _reject_offers(pair, event))
    pair.device.send_update(b"update", 9)
    event = pair.run(lambda e: isinstance(e, Rejected))
    assert (event.rule, event.reason) == ("offer", "round 9 is over")


def _reject_offers(pair: _Pair, event: Event) -> None:
    if isinstance(event, PeerMessage) and isinstance(event.message, TransferOffer):
        pair.coordinator.reject(
            event.device_id, event.message.transfer_id, "offer", "round 9 is over"
        )


@pytest.mark.mosquitto
def test_records_arrive_typed_with_their_sender(pair):
    beat = Heartbeat(
        device_id="pi-7",
        boot_id="b",
        round_id=0,
        phase="idle",
        bytes_up=1,
        bytes_down=2,
        peak_rss_bytes=3,
    )
    assert pair.device.publish(beat)
    event = pair.run(lambda e: isinstance(e, PeerMessage) and isinstance(e.message, Heartbeat))
    assert event == PeerMessage("pi-7", beat)
    news = replace(_ANNOUNCEMENT, boot_id="c2")
    assert pair.coordinator.publish(news)
    event = pair.run(lambda e: getattr(getattr(e, "message", None), "boot_id", "") == "c2")
    assert event == PeerMessage("", replace(news, handshake=event.message.handshake))


@pytest.mark.mosquitto
def test_hostile_packets_are_reported_and_change_nothing(pair):
    """Noise on every topic and a device that speaks as another: ignored, by rule."""
    link = pair.device._link
    foreign = Presence(device_id="other", boot_id="b", status="online")
    for topic, payload, *rules in (
        ("fl/v2/lab/up/pi-7/c", b"noise", "chunk-size", "chunk-size"),
        ("fl/v2/lab/up/pi-7/q", b"{}", "message-schema", "seal"),
        ("fl/v2/lab/up/pi-7/m", b"\xff" * 100, "message-schema", "seal"),
        ("fl/v2/lab/up/pi-7/q", b'{"type":"need","x":"\xff"}', "message-schema", "seal"),
        ("fl/v2/lab/st/pi-7", encode(foreign), "device-id", "signature"),
    ):
        rule = rules[pair.device._protection.sealed]
        link.publish(topic, payload)
        assert pair.run(lambda e: isinstance(e, Ignored)).rule == rule
    pair.coordinator.send_task("pi-7", _task(1), b"payload")
    pair.run(_delivered_update)


class _Flood(Link):
    """A socket from which a chunk of an unknown transfer can always be read."""

    def __init__(self) -> None:
        super().__init__(LinkOptions(broker=_NOWHERE))
        chunk = pack(Chunk(transfer_id="0" * 32, index=0, last=True, data=b"x"))
        self._chunk = MqttMessage("fl/v2/lab/up/pi-7/c", chunk, retained=False)
        self.reads = 0

    def get(self, timeout_s: float | None = None) -> LinkEvent | None:  # noqa: ARG002
        self.reads += 1
        if self.reads > 1_000_000:
            raise TimeoutError("poll never came back")
        return self._chunk


def test_a_flood_of_chunks_does_not_keep_poll_from_returning(tmp_path):
    endpoint = CoordinatorEndpoint(_Flood(), _TOPICS, tmp_path)
    assert endpoint.poll(0.02) is None


class _Reconnecting(Link):
    """Is connected for the second time; remembers the topics of what is published."""

    def __init__(self) -> None:
        super().__init__(LinkOptions(broker=_NOWHERE))
        self.published: list[str] = []
        self.left: list[LinkEvent] = [Connected("5")]

    def get(self, timeout_s: float | None = None) -> LinkEvent | None:  # noqa: ARG002
        return self.left.pop() if self.left else None

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> bool:  # noqa: ARG002
        self.published.append(topic.removeprefix("fl/v2/lab/"))
        return True


def test_after_a_reconnect_the_presence_goes_out_before_the_offers(tmp_path, monkeypatch):
    """It says with what data an offered update was made."""
    link = _Reconnecting()
    monkeypatch.setattr(_Reconnecting, "room", 16)
    endpoint = DeviceEndpoint(link, _TOPICS, tmp_path, "pi-7")
    endpoint.send_update(b"an update", 1)
    link.published.clear()
    assert isinstance(endpoint.poll(0.01), Connected)
    endpoint.publish(Presence(device_id="pi-7", boot_id="b", status="online"))
    endpoint.poll(0.01)
    assert link.published == ["st/pi-7", "up/pi-7/m"]


def test_a_disk_that_takes_no_blob_is_named(tmp_path):
    (tmp_path / "pi-7").write_text("where the folder should be")
    link = Link(LinkOptions(broker=_NOWHERE))
    endpoint = CoordinatorEndpoint(link, _TOPICS, tmp_path)
    offer = describe(_BLOB, kind="update", device_id="pi-7", round_id=1)
    with pytest.raises(UnavailableError, match="pi-7"):
        endpoint.expect("pi-7", offer)


@pytest.mark.mosquitto
def test_a_broker_killed_in_the_middle_costs_time_only(tmp_path):
    """Its sessions, queues and retained messages are gone; the transfer goes on."""
    with mosquitto(tmp_path, "max_packet_size 5000") as port:
        pair = _Pair(f"mqtt://127.0.0.1:{port}", tmp_path)
        pair.run(lambda e: isinstance(e, PeerMessage) and isinstance(e.message, Presence))
        pair.coordinator.send_task("pi-7", _task(1), _BLOB)
        pair.run(lambda _: pair.device.traffic.payload_down_bytes > len(_BLOB) // 4)
        assert pair.device.traffic.payload_down_bytes < len(_BLOB)
    with mosquitto(tmp_path, "max_packet_size 5000", port=port):
        pair.run(_delivered_update)
        assert pair.updates == {1: _BLOB[::-1]}
        pair.close()
    assert pair.device.traffic.payload_down_bytes < 1.4 * len(_BLOB)


@pytest.mark.mosquitto
def test_a_smaller_packet_limit_after_a_restart_is_obeyed(tmp_path):
    """A blob offered for large packets is offered again in chunks that the new broker takes."""
    with mosquitto(tmp_path) as port:
        pair = _Pair(f"mqtt://127.0.0.1:{port}", tmp_path)
        pair.run(lambda e: isinstance(e, PeerMessage) and isinstance(e.message, Presence))
        pair.coordinator.send_task("pi-7", _task(1), _BLOB)
    with mosquitto(tmp_path, "max_packet_size 20000", port=port):
        pair.run(_delivered_update)
        assert pair.updates == {1: _BLOB[::-1]}
        pair.close()


@pytest.mark.mosquitto
@pytest.mark.parametrize("keyed", [None, Keyed()], ids=["plain", "keyed"])
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "for all"])
def test_a_broker_that_refuses_packets_one_by_one_gets_smaller_ones(tmp_path, keyed, shared):
    """It acknowledges each with 0x95 and drops it; both ends learn it for themselves, once."""
    with mosquitto(tmp_path, "message_size_limit 20000") as port:
        pair = _Pair(f"mqtt://127.0.0.1:{port}", tmp_path, keyed)
        pair.run(lambda e: isinstance(e, PeerMessage) and isinstance(e.message, Presence))
        for round_id in (1, 2):
            before = pair.coordinator.traffic.payload_up_bytes
            pair.coordinator.send_task("pi-7", _task(round_id), _BLOB, shared=shared)
            pair.run(_delivered_update)
            assert pair.updates[round_id] == _BLOB[::-1]
        pair.close()
    hindered = [event.reason for event in pair.seen if isinstance(event, Hindered)]
    assert ["dn/pi-7/c'" in one or "all/c/" in one for one in hindered] == [True, False]
    assert ["up/pi-7/c'" in one for one in hindered] == [False, True]
    assert all("0x95" in one and "message_size_limit" in one for one in hindered)
    assert not any(isinstance(event, Disconnected) for event in pair.seen)
    assert pair.coordinator.traffic.payload_up_bytes - before < 1.1 * len(_BLOB)


@pytest.mark.mosquitto
@pytest.mark.slow(seconds=8)
@pytest.mark.parametrize("shared", [False, True], ids=["alone", "for all"])
def test_a_broker_that_drops_packets_without_a_word_gets_smaller_ones(
    tmp_path, monkeypatch, shared
):
    """In MQTT 3.1.1 it acknowledges them as if it had passed them on."""
    monkeypatch.setattr("protofleet.wire.transfers.inbound.FIRST_SILENCE_S", 0.2)
    monkeypatch.setattr("protofleet.wire.transfers.inbound.LISTEN_S", 0.5)
    monkeypatch.setattr("protofleet.wire.mqtt.passage.SILENCE_S", 0.5)
    with mosquitto(tmp_path, "message_size_limit 20000") as port:
        pair = _Pair(f"mqtt://127.0.0.1:{port}?version=3.1.1", tmp_path)
        pair.run(lambda e: isinstance(e, PeerMessage) and isinstance(e.message, Presence))
        for round_id in (1, 2):
            before = pair.coordinator.traffic.payload_up_bytes
            pair.coordinator.send_task("pi-7", _task(round_id), _BLOB, shared=shared)
            pair.run(_delivered_update)
            assert pair.updates[round_id] == _BLOB[::-1]
        pair.close()
    hindered = [event.reason for event in pair.seen if isinstance(event, Hindered)]
    assert len(hindered) == 2  # one of each end
    assert all("no chunk of 64,976 bytes of 'pi-7' arrives" in one for one in hindered)
    assert not any(isinstance(event, Disconnected) for event in pair.seen)
    assert pair.coordinator.traffic.payload_up_bytes - before < 1.1 * len(_BLOB)


def test_one_round_works_over_the_embedded_broker(tmp_path):
    pytest.importorskip("amqtt", reason="needs amqtt: pip install 'protofleet[fleet]'")
    with local_broker("amqtt") as url:
        pair = _Pair(url, tmp_path)
        pair.run(lambda e: isinstance(e, PeerMessage) and isinstance(e.message, Presence))
        pair.coordinator.send_task("pi-7", _task(1), _BLOB)
        pair.run(_delivered_update)
        pair.close()
    assert pair.updates == {1: _BLOB[::-1]}


def test_another_broker_killed_in_the_middle_costs_time_only_too(tmp_path):
    """aedes speaks no MQTT 5, which is found out, and keeps nothing over its end."""
    with aedes() as port:
        pair = _Pair(f"mqtt://127.0.0.1:{port}", tmp_path)
        pair.run(lambda e: isinstance(e, PeerMessage) and isinstance(e.message, Presence))
        assert {e.protocol for e in pair.seen if isinstance(e, Connected)} == {"3.1.1"}
        pair.coordinator.send_task("pi-7", _task(1), _BLOB)
        pair.run(lambda _: pair.device.traffic.payload_down_bytes > len(_BLOB) // 4)
    with aedes(port):
        pair.run(_delivered_update)
        assert pair.updates == {1: _BLOB[::-1]}
        pair.close()


def test_another_broker_publishes_the_will_and_keeps_it(tmp_path):
    presence = Presence(device_id="pi-7", boot_id="b", status="offline")
    with aedes() as port:
        broker = BrokerAccess(url=f"mqtt://127.0.0.1:{port}?version=3.1.1")
        device = DeviceEndpoint.create(broker, "lab", "pi-7", tmp_path, will=presence)
        device.start()
        assert isinstance(device.poll(20.0), Connected)
        device._link._connection.abort(Ending(reason="its link is cut"))
        assert isinstance(device.poll(20.0), Disconnected)
        coordinator = CoordinatorEndpoint.create(broker, "lab", tmp_path / "coordinator")
        coordinator.start()
        while not isinstance(event := coordinator.poll(20.0), PeerMessage):
            assert event is not None
        assert (event.device_id, event.message.status) == ("pi-7", "offline")
        coordinator.close()


def test_records_of_a_transfer_cannot_be_published_alone(tmp_path):
    link = Link(LinkOptions(broker=_NOWHERE))
    endpoint = CoordinatorEndpoint(link, _TOPICS, tmp_path)
    with pytest.raises(InputError, match="travels only inside a transfer"):
        endpoint.publish(Need(transfer_id="", missing=(), credit=0))


def test_an_unknown_kind_of_broker_says_what_to_install(monkeypatch):
    monkeypatch.setattr("protofleet.firmware_sim.broker.find_mosquitto", lambda: None)
    with pytest.raises(UnavailableError, match="apt install mosquitto"), local_broker("mosquitto"):
        pass


class _Full(_Reconnecting):
    """A link whose window is full until ``room`` says otherwise."""

    room = 0
    connected = True


def test_offers_wait_and_are_not_repeated_behind_a_full_window(tmp_path, monkeypatch):
    """Else those of a large cohort take memory, and queue again before the first have left."""
    link = _Full()
    endpoint = CoordinatorEndpoint(link, _TOPICS, tmp_path)
    assert isinstance(endpoint.poll(0), Connected)
    endpoint.poll(0)
    endpoint.send_task("pi-7", _task(1), _BLOB)
    endpoint.poll(0)
    assert (link.published, endpoint.due) == ([], float("inf"))
    monkeypatch.setattr(_Full, "room", 16)
    assert endpoint.due < time.monotonic()
    endpoint.poll(0)
    assert link.published == ["dn/pi-7/t"]
    later = time.monotonic() + 600.0
    monkeypatch.setattr(_Full, "clock", later)
    monkeypatch.setattr(_Full, "room", 0)
    endpoint.poll(0)
    assert link.published == ["dn/pi-7/t"]
    assert endpoint.due == float("inf")
    monkeypatch.setattr(_Full, "room", 16)
    assert endpoint.due < later
    endpoint.poll(0)
    assert link.published == ["dn/pi-7/t", "dn/pi-7/t"]


def test_a_poll_that_does_not_wait_sends_what_the_last_packet_asked_for(tmp_path, monkeypatch):
    """Who looks at sockets itself calls ``poll(0)`` for a packet, and sleeps until ``due``."""
    link = _Reconnecting()
    monkeypatch.setattr(_Reconnecting, "room", 16)
    endpoint = DeviceEndpoint(link, _TOPICS, tmp_path, "pi-7")
    assert isinstance(endpoint.poll(0.0), Connected)
    offer = endpoint.send_update(b"an update", 1)
    need = encode(Need(transfer_id=offer.transfer_id, missing=((0, 1),), credit=1))
    link.left.append(MqttMessage("fl/v2/lab/dn/pi-7/a", need, retained=False))
    assert endpoint.poll(0.0) is None
    assert link.published[-1] == "up/pi-7/c"


def test_the_end_of_a_round_cancels_what_is_under_way_in_it(tmp_path):
    """Payloads that are offered and updates that wait, but for devices whose task is not over."""
    end = CoordinatorEndpoint.create(_NOWHERE, "lab", tmp_path)
    for name, round_id in (("a", 3), ("b", 3), ("late", 2)):
        end.send_task(name, _task(round_id), b"payload")
        offer = describe(b"up", kind="update", device_id=name, round_id=round_id)
        assert end.expect(name, offer) is None
    end.end_tasks({"late": 2, "b": 2})
    assert [(name, one.round_id) for name, one in end._sender.offers()] == [("late", 2)]
    assert [(name, one.round_id) for name, one in end._receiver.offers()] == [("late", 2)]
    end.close()
