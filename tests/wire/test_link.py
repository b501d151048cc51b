from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import counted_link
import pytest
from brokers import CountingProxy, free_port, mosquitto, wait_until
from certificates import Authority
from paho.mqtt.client import Client

from protofleet.chaos.processes import namespaces_permitted
from protofleet.coordinator.devices.roll_call import RollCall
from protofleet.errors import InputError
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.mqtt.connection import Ending
from protofleet.wire.mqtt.link import (
    STABLE_S,
    Connected,
    Disconnected,
    Drained,
    Hindered,
    Link,
    LinkOptions,
    MqttMessage,
    Will,
    Woken,
)
from protofleet.wire.refusals import PACKET_TOO_LARGE
from protofleet.wire.transfers.chunks import MAX_DATA_BYTES
from protofleet.wire.transfers.outbox import CHUNKS_IN_FLIGHT_MAX

_NOWHERE = BrokerAccess(url="mqtt://127.0.0.1")


def _link(broker: str | BrokerAccess, **options) -> Link:
    access = BrokerAccess(url=broker) if isinstance(broker, str) else broker
    link = Link(LinkOptions(broker=access, **options))
    link.start()
    return link


def _next(link: Link, kind: type, timeout_s: float = 10.0):
    while (event := link.get(timeout_s)) is not None:
        if isinstance(event, kind):
            return event
    raise TimeoutError(kind)


@pytest.mark.mosquitto
@pytest.mark.parametrize(("query", "protocol"), [("", "5"), ("?version=3.1.1", "3.1.1")])
def test_messages_arrive_and_tell_whether_they_are_retained(mosquitto_url, query, protocol):
    with closing(_link(mosquitto_url + query, filters=("x/+",))) as link:
        assert _next(link, Connected) == Connected(protocol)
        assert link.publish("x/live", b"1", retain=True)
        assert _next(link, MqttMessage) == MqttMessage("x/live", b"1", retained=False)
        with closing(_link(mosquitto_url + query, filters=("x/+",))) as late:
            assert isinstance(late.get(10.0), Connected)
            assert late.get(10.0) == MqttMessage("x/live", b"1", retained=True)


def test_the_clock_stands_still_while_events_lie_unread():
    """Else whoever is behind with its work asks again for what has come already."""
    link = Link(LinkOptions(broker=_NOWHERE))
    link._put(Connected("5"))
    between = time.monotonic()
    link._put(Drained())
    assert link.clock < between
    assert isinstance(link.get(0), Connected)
    assert link.clock < between
    assert isinstance(link.get(0), Drained)
    assert link.clock >= between


@pytest.mark.mosquitto
def test_a_link_that_rests_leaves_no_will_says_what_was_queued_and_comes_back(mosquitto_url):
    will = Will(topic="st/a", payload=b"offline")
    with (
        closing(_link(mosquitto_url, filters=("st/+",))) as observer,
        closing(_link(mosquitto_url, will=will)) as link,
    ):
        _next(observer, Connected)
        _next(link, Connected)
        for word in (b"held", b"free"):
            assert link.publish("st/a", word)
            link.rest()
            assert not link.connected
            assert not link.publish("st/a", b"lost")
            assert link.get(0.3) is None, "no event tells of it"
            assert _next(observer, MqttMessage) == MqttMessage("st/a", word, retained=False)
            link.go_on()
            _next(link, Connected)
        assert observer.get(0.2) is None


@pytest.mark.mosquitto
def test_a_resting_link_is_closed_at_once(mosquitto_url):
    link = _link(mosquitto_url)
    _next(link, Connected)
    link.rest()
    link.close()
    assert not link._thread.is_alive()


@pytest.mark.mosquitto
def test_a_killed_process_leaves_its_will_and_a_closed_link_does_not(mosquitto_url):
    script = (
        "import sys, time; from protofleet.wire.mqtt.link import *\n"
        "from protofleet.wire.mqtt.broker_access import BrokerAccess\n"
        "link = Link(LinkOptions(broker=BrokerAccess(url=sys.argv[1]),"
        " will=Will(topic='st/' + sys.argv[2], payload=b'offline')))\n"
        "link.start(); link.get(); link.publish('st/' + sys.argv[2], b'online')\n"
        "sys.stdin.read(); link.close()"
    )
    with closing(_link(mosquitto_url, filters=("st/+",))) as observer:
        _next(observer, Connected)
        for name in ("polite", "killed"):
            child = subprocess.Popen(
                [sys.executable, "-c", script, mosquitto_url, name], stdin=subprocess.PIPE
            )
            assert _next(observer, MqttMessage, 30.0) == MqttMessage(
                f"st/{name}", b"online", retained=False
            )
            if name == "killed":
                child.send_signal(signal.SIGKILL)
            child.communicate()
        assert _next(observer, MqttMessage) == MqttMessage("st/killed", b"offline", retained=False)


@pytest.mark.mosquitto
def test_a_restarted_broker_is_found_again_and_nothing_old_is_sent(tmp_path):
    """What was published while the link was down is dropped: the protocol repeats it."""
    with mosquitto(tmp_path) as port:
        link = _link(f"mqtt://127.0.0.1:{port}", filters=("x",))
        _next(link, Connected)
    with closing(link):
        assert not _next(link, Disconnected).final
        assert not link.publish("x", b"lost")
        with mosquitto(tmp_path, port=port):
            _next(link, Connected, 30.0)
            assert link.publish("x", b"new")
            assert _next(link, MqttMessage).payload == b"new"


@pytest.mark.mosquitto
def test_socket_counters_agree_with_a_proxy(mosquitto_url):
    """Bytes at the socket are within 1 % of what really passed, in both directions."""
    proxy = CountingProxy(int(mosquitto_url.rpartition(":")[2]))
    with closing(_link(f"mqtt://127.0.0.1:{proxy.port}", filters=("x",))) as link:
        _next(link, Connected)
        for _ in range(40):
            assert link.publish("x", bytes(50_000))
            _next(link, MqttMessage)
    wait_until(lambda: proxy.up >= link.traffic.socket_up_bytes)
    traffic = link.traffic
    assert traffic.payload_up_bytes == traffic.payload_down_bytes == 40 * 50_000
    assert traffic.socket_up_bytes == pytest.approx(proxy.up, rel=0.01)
    assert traffic.socket_down_bytes == pytest.approx(proxy.down, rel=0.01)
    assert proxy.up < 1.01 * traffic.payload_up_bytes


_HEADERS = 20 + 20 + 12
"""Of IP and TCP with its time stamps, in each packet on loopback."""

_SEGMENT = 65_536
"""Bytes, at most, of a segment on loopback."""


@pytest.mark.mosquitto
@pytest.mark.skipif(not shutil.which("ip"), reason="no iproute2")
@pytest.mark.skipif(not namespaces_permitted(), reason="needs namespaces: unshare -Urnm true")
def test_socket_counters_agree_with_the_interface(tmp_path):
    """An interface that carries nothing else: all but headers and what went twice was counted."""
    script = Path(counted_link.__file__)
    done = subprocess.run(
        ["unshare", "-Urn", sys.executable, script, tmp_path],
        env={**os.environ, "PYTHONPATH": str(script.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    without_headers = told["interface"] - _HEADERS * told["packets"]
    not_counted = without_headers - told["counted"]
    assert abs(not_counted) <= 0.001 * told["counted"] + told["again"] * _SEGMENT
    assert told["again"] < 0.05 * told["packets"]


@pytest.mark.mosquitto
def test_a_refused_user_stops_with_the_reason(tmp_path):
    with mosquitto(tmp_path, anonymous=False) as port:
        link = _link(f"mqtt://user:wrong@127.0.0.1:{port}")
        event = _next(link, Disconnected)
        assert (event.final, event.forbidden) == (True, False)
        assert "Not authorized" in event.reason
        link.close()


@pytest.mark.mosquitto
def test_a_denied_publish_stops_with_the_reason(tmp_path):
    """MQTT 5 tells that an access list denied a message; trying for ever would hide it."""
    (tmp_path / "acl").write_text("topic read #\ntopic write allowed\n")
    with mosquitto(tmp_path, f"acl_file {tmp_path / 'acl'}") as port:
        link = _link(f"mqtt://127.0.0.1:{port}")
        _next(link, Connected)
        link.publish("denied", b"1")
        event = _next(link, Disconnected)
        assert (event.final, event.forbidden) == (True, True)
        assert (
            "publish refused: Not authorized (the account is let in; the broker's" in event.reason
        )
        link.close()


@pytest.mark.mosquitto
def test_a_full_link_tells_when_it_has_room_again(mosquitto_url):
    """Whoever stops at no room is woken by the acknowledgements and need not ask."""
    with closing(_link(mosquitto_url)) as link:
        _next(link, Connected)
        for _ in range(100):
            link.publish("x", bytes(60_000))
        _next(link, Drained)
        wait_until(lambda: link.room == 16)


@pytest.mark.mosquitto
def test_who_does_not_read_can_publish_all_the_same(mosquitto_url, monkeypatch):
    """An acknowledgement that makes room must not wait for a place among the unread events."""
    monkeypatch.setattr("protofleet.wire.mqtt.link.QUEUE_MAX", 4)
    with (
        closing(_link(mosquitto_url, filters=("in",))) as link,
        closing(_link(mosquitto_url)) as other,
    ):
        _next(link, Connected)
        _next(other, Connected)
        for _ in range(4):
            other.publish("in", b"unread")
        wait_until(lambda: link._events.qsize() == 4)
        for _ in range(20):
            for _ in range(CHUNKS_IN_FLIGHT_MAX):
                assert link.publish("out", b"x")
            wait_until(lambda: link.room == CHUNKS_IN_FLIGHT_MAX)
        kinds = Counter(map(type, iter(lambda: link.get(0.0), None)))
    assert kinds.keys() <= {MqttMessage, Drained}
    assert kinds[MqttMessage] == 4


@pytest.mark.mosquitto
def test_the_brokers_packet_limit_shrinks_chunks(tmp_path):
    with mosquitto(tmp_path, "max_packet_size 20000") as port:
        link = _link(f"mqtt://127.0.0.1:{port}", filters=("x",))
        _next(link, Connected)
        assert link.chunk_bytes == 20_000 - 512 - 32 - 16
        assert not link.publish("x", bytes(20_000))
        assert link.publish("x", bytes(link.chunk_bytes + 32))
        assert len(_next(link, MqttMessage).payload) == link.chunk_bytes + 32
        link.close()


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@pytest.fixture
def secured(tmp_path, authority):
    """URL of a Mosquitto that wants TLS and a client's certificate."""
    broker = authority.certify("broker")
    files = (f"cafile {authority.file}", f"certfile {broker.file}", f"keyfile {broker.key}")
    with mosquitto(tmp_path, *files, "require_certificate true") as port:
        yield f"mqtts://127.0.0.1:{port}"


@pytest.mark.mosquitto
def test_tls_needs_the_right_authority(secured, authority):
    """With the broker's authority the link connects; with the system's it says why not."""
    ours = authority.certify("pi-7")
    certificate = {"cert_file": ours.file, "key_file": ours.key}
    trusting = BrokerAccess(url=secured, ca_file=authority.file, **certificate)
    with closing(_link(trusting)) as link:
        assert _next(link, Connected) == Connected("5")
    with closing(_link(BrokerAccess(url=secured, **certificate))) as link:
        assert "certificate verify failed" in _next(link, Disconnected).reason


@pytest.mark.mosquitto
def test_a_broker_that_asks_for_a_certificate_takes_none_without_or_of_others(
    secured, authority, tmp_path
):
    (tmp_path / "other").mkdir()
    foreign = Authority(tmp_path / "other").certify("pi-7")
    for beside in ({}, {"cert_file": foreign.file, "key_file": foreign.key}):
        access = BrokerAccess(url=secured, ca_file=authority.file, **beside)
        with closing(_link(access)) as link:
            assert isinstance(link.get(10.0), Disconnected)


def test_no_link_is_made_to_another_machine_without_tls():
    with pytest.raises(InputError, match="--insecure"):
        _link("mqtt://192.0.2.1")


@pytest.mark.mosquitto
def test_a_user_connects_with_the_password_in_a_file(tmp_path):
    users, password = tmp_path / "users", tmp_path / "password"
    subprocess.run(["mosquitto_passwd", "-b", "-c", str(users), "anna", "secret"], check=True)
    password.touch(mode=0o600)
    password.write_text("secret\n")
    with mosquitto(tmp_path, f"password_file {users}", anonymous=False) as port:
        access = BrokerAccess(url=f"mqtt://127.0.0.1:{port}", user="anna", password_file=password)
        with closing(_link(access)) as link:
            assert _next(link, Connected) == Connected("5")


def test_a_broker_of_3_1_1_only_is_spoken_to_in_3_1_1():
    """A refusal of MQTT 5 is followed by 3.1.1 at once."""
    levels = []

    def serve(server: socket.socket) -> None:
        for _ in range(2):
            client, _ = server.accept()
            levels.append(client.recv(1000)[8])
            client.sendall(b"\x20\x02\x00\x01" if levels[-1] == 5 else b"\x20\x02\x00\x00")
            if levels[-1] == 4:
                client.recv(1000)
            client.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        with closing(_link(f"mqtt://127.0.0.1:{server.getsockname()[1]}")) as link:
            assert _next(link, Connected) == Connected("3.1.1")
    assert levels == [5, 4]


@pytest.mark.mosquitto
def test_a_broker_that_is_full_says_nothing_and_so_we_say_what_it_may_be(tmp_path):
    """Mosquitto counts who has only looked at its port now and then, so some more connect."""
    with mosquitto(tmp_path, "max_connections 1") as port, ExitStack() as links:
        for _ in range(4):
            link = links.enter_context(closing(_link(f"mqtt://127.0.0.1:{port}")))
            event = link.get(10.0)
            if isinstance(event, Disconnected):
                break
        assert f"127.0.0.1:{port}: the broker closed the connection before" in event.reason
        assert "max_connections" in event.reason
        assert not event.final


def test_an_absent_broker_is_a_reason_and_not_final():
    port = free_port()
    with closing(_link(f"mqtt://127.0.0.1:{port}")) as link:
        event = _next(link, Disconnected)
        assert not event.final
        assert f"127.0.0.1:{port}" in event.reason


def test_wake_interrupts_a_waiting_get():
    with closing(_link(f"mqtt://127.0.0.1:{free_port()}")) as link:
        link.wake()
        _next(link, Woken)


def test_wake_is_safe_in_a_signal_handler_at_any_instruction():
    """A handler may interrupt ``get`` anywhere; here it fires some ten thousand times."""
    link = Link(LinkOptions(broker=_NOWHERE))
    before = signal.signal(signal.SIGALRM, lambda *_: link.wake())
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)
    watchdog = threading.Timer(20.0, os._exit, (99,))
    watchdog.start()
    try:
        woken = 0
        while woken < 5000:
            woken += isinstance(link.get(0.0002), Woken)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        watchdog.cancel()


@pytest.mark.parametrize("query", ["", "?version=3.1.1"])
def test_each_connection_has_a_random_client_id_that_every_broker_takes(query):
    """Whoever knew a client's id could end its connections by taking it."""
    ids = []

    def serve(server: socket.socket) -> None:
        for _ in range(2):
            client, _address = server.accept()
            hello = client.recv(1000)
            start = 12 + (1 + hello[12] if hello[8] == 5 else 0)  # behind the properties
            ids.append(hello[start + 2 :][: hello[start + 1]].decode())
            client.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        with closing(_link(f"mqtt://127.0.0.1:{server.getsockname()[1]}{query}")) as link:
            _next(link, Disconnected)
            _next(link, Disconnected)
    assert all(re.fullmatch("[0-9a-zA-Z]{23}", one) for one in ids), ids
    assert ids[0] != ids[1]


def test_a_session_that_is_taken_over_is_never_given_up():
    """On brokers that say so, whoever connected with a client's id would end it for good."""

    def serve(server: socket.socket) -> None:
        for _ in range(3):
            client, _address = server.accept()
            client.recv(1000)
            client.sendall(b"\x20\x03\x00\x00\x00" + b"\xe0\x02\x8e\x00")
            client.recv(1000)
            client.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        with closing(_link(f"mqtt://127.0.0.1:{server.getsockname()[1]}")) as link:
            link._backoff_s = lambda _attempt: 0.0
            lost = [_next(link, Disconnected) for _ in range(3)]
    assert not any(one.final for one in lost)
    assert all("taken over" in one.reason for one in lost)


def test_a_broker_that_ends_the_connection_over_a_question_is_not_asked_again():
    """As some do where an access list forbids a filter; the device goes on without an answer."""

    def serve(server: socket.socket) -> None:
        for _ in range(2):
            client, _address = server.accept()
            client.recv(1000)
            client.sendall(b"\x20\x03\x00\x00\x00")
            client.recv(1000)
            client.sendall(b"\xe0\x02\x87\x00")
            client.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        with closing(_link(f"mqtt://127.0.0.1:{server.getsockname()[1]}")) as link:
            _next(link, Connected)
            assert link.ask("fl/v2/+/all/ctl")
            ended = _next(link, Disconnected)
            _next(link, Connected)
            assert not link.ask("fl/v2/+/all/ctl")
    assert (ended.reason, ended.final) == ("broker closed: Not authorized", False)


@pytest.mark.parametrize("held_up", [False, True])
def test_a_broker_that_ends_the_connection_over_shared_chunks_is_not_given_up(held_up, monkeypatch):
    """Nor if it was faster than our thread, which was held up between sending and noting it."""

    def serve(server: socket.socket) -> None:
        client, _address = server.accept()
        client.recv(1000)
        client.sendall(b"\x20\x03\x00\x00\x00")
        client.recv(1000)
        client.sendall(b"\xe0\x02\x87\x00")
        client.close()

    def subscribe(client: Client, topics: str, quality: int) -> object:
        sent = subscribed(client, topics, quality)
        if held_up:
            wait_until(lambda: not link.connected)
            time.sleep(0.2)
        return sent

    subscribed = Client.subscribe
    monkeypatch.setattr(Client, "subscribe", subscribe)
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        with closing(_link(f"mqtt://127.0.0.1:{server.getsockname()[1]}")) as link:
            _next(link, Connected)
            assert link.listen("fl/v2/lab/all/c/00")
            ended = _next(link, Disconnected)
    assert (ended.reason, ended.final) == ("broker closed: Not authorized", False)


@pytest.mark.parametrize(
    "packet",
    [
        b"\x30\x05\x00\x02\xff\xfe\x00",  # a topic that is no UTF-8
        b"\x30\x03\x00\x09a",
        b"\x30\xff\xff\xff\xff\x7f",
        b"\xf0\x00",
        b"\x90\x02\x00\x01",
    ],
)
def test_packets_that_no_broker_sends_end_the_connection_and_nothing_else(packet, capfd):
    def serve(server: socket.socket) -> None:
        client, _address = server.accept()
        client.recv(1000)
        client.sendall(b"\x20\x03\x00\x00\x00" + packet)
        client.recv(1000)
        client.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        with closing(_link(f"mqtt://127.0.0.1:{server.getsockname()[1]}")) as link:
            lost = _next(link, Disconnected)
    assert not lost.final
    assert "rotocol" in lost.reason
    assert capfd.readouterr().err == ""


def test_a_packet_that_was_too_large_halves_the_chunks():
    link = Link(LinkOptions(broker=_NOWHERE))
    link._adapt(Ending(reason="", code=PACKET_TOO_LARGE, opened=True))
    assert link.chunk_bytes == MAX_DATA_BYTES // 2


def _packets(client: socket.socket):
    """First byte and body of each packet that comes; all are short."""
    with client.makefile("rb") as stream:
        while head := stream.read(2):
            yield head[0], stream.read(head[1])


def _acknowledging(codes: list[int], seen: list[bytes]):
    """A broker of MQTT 5 that answers each PUBLISH and SUBSCRIBE with the next of ``codes``."""

    def serve(server: socket.socket) -> None:
        client, _address = server.accept()
        for head, body in _packets(client):
            if head == 0x10:
                client.sendall(b"\x20\x03\x00\x00\x00")
            elif head & 0xF0 == 0x30:
                behind = 2 + int.from_bytes(body[:2], "big")
                seen.append(body[behind + 3 :])
                code = codes.pop(0) if codes else 0
                client.sendall(b"\x40\x03" + body[behind : behind + 2] + bytes([code]))
            elif head == 0x82:
                client.sendall(b"\x90\x04" + body[:2] + b"\x00" + bytes([codes.pop(0)]))

    return serve


@contextmanager
def _refusing(*codes: int):
    """A link to a broker that refuses with these codes, and what was published there."""
    seen: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        serve = _acknowledging(list(codes), seen)
        threading.Thread(target=serve, args=(server,), daemon=True).start()
        with closing(_link(f"mqtt://127.0.0.1:{server.getsockname()[1]}")) as link:
            _next(link, Connected)
            yield link, seen


def test_what_a_broker_has_no_quota_for_is_said_once_and_sent_again_until_it_is_taken(monkeypatch):
    monkeypatch.setattr("protofleet.wire.transfers.outbox.PAUSE_S", 0.01)
    with _refusing(0x97, 0x97, 0x97) as (link, seen):
        assert link.publish("x", b"1")
        told = _next(link, Hindered)
        assert "0x97" in told.reason
        assert "quota" in told.reason
        assert not told.narrower
        wait_until(lambda: link.unacknowledged == 0)
        assert seen == [b"1"] * 4
        assert not any(isinstance(one, Hindered) for one in iter(lambda: link.get(0.0), None))


def test_a_publish_that_no_repetition_helps_is_said_and_not_sent_again():
    with _refusing(0x99) as (link, seen):
        assert link.publish("fl/v2/lab/up/pi-7/s", b"1")
        reason = _next(link, Hindered).reason
        assert "it takes no 1 bytes on 'fl/v2/lab/up/pi-7/s'" in reason
        assert "payload format invalid, 0x99" in reason
        wait_until(lambda: link.unacknowledged == 0)
        assert link.publish("fl/v2/lab/up/pi-7/s", b"2")
        wait_until(lambda: seen == [b"1", b"2"])
        assert link.connected


@pytest.mark.parametrize("way", [Link.listen, Link.ask])
def test_a_filter_that_the_broker_refuses_is_said_and_the_link_stays(way):
    with _refusing(0x87) as (link, _):
        assert way(link, "fl/v2/lab/all/c/00")
        reason = _next(link, Hindered).reason
        assert "it refuses to deliver 'fl/v2/lab/all/c/00' (not authorized, 0x87)" in reason
        assert link.connected


def test_a_record_that_is_too_large_for_the_broker_is_named_and_changes_no_chunk():
    with _refusing(0x95) as (link, _):
        assert link.publish("fl/v2/lab/all/ctl", b"{}", retain=True)
        told = _next(link, Hindered)
        assert "it takes no 2 bytes on 'fl/v2/lab/all/ctl' (packet too large, 0x95)" in told.reason
        assert not told.narrower
        assert link.chunk_bytes == MAX_DATA_BYTES


def test_back_off_is_full_jitter_up_to_two_minutes():
    link = Link(LinkOptions(broker=_NOWHERE))
    waits = [[link._backoff_s(attempt) for _ in range(300)] for attempt in (1, 4, 50)]
    assert all(0.0 <= wait <= limit for wait, limit in zip(waits[0], [1.0] * 300, strict=True))
    assert 4.0 < max(waits[1]) <= 8.0
    assert 100.0 < max(waits[2]) <= 120.0
    assert min(waits[2]) < 10.0
    assert STABLE_S == 60.0


@pytest.mark.parametrize("away_s", [0.2, 3.0, 20.0])
@pytest.mark.parametrize("rate", [20.0, 100.0, 400.0])
def test_a_thousand_devices_return_within_two_minutes_and_below_the_brokers_rate(away_s, rate):
    """A broker is gone for ``away_s``; its devices were told how large their fleet is."""
    roll_call = RollCall(1000, 0.0, rate)
    arrivals = [_arrival(away_s, roll_call.spread_s, seed) for seed in range(1000)]
    assert max(Counter(map(int, arrivals)).values()) <= rate
    assert max(arrivals) - away_s <= 120.0


def _arrival(away_s, spread_s, seed):
    link = Link(LinkOptions(broker=_NOWHERE), random.Random(seed))
    link.spread(spread_s)
    now, attempt = 0.0, 0
    while attempt == 0 or now < away_s:
        attempt += 1
        now += link._backoff_s(attempt)
    return now
