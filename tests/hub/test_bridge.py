"""MQTT through the hub, and clients that mean no good."""

from __future__ import annotations

import os
import queue
import socket
from contextlib import contextmanager, suppress
from pathlib import Path

import paho.mqtt.client as mqtt
import pytest
from brokers import wait_until
from running_hub import RawSocket, connections_to, federation, running_hub
from wsproto.events import (
    BytesMessage,
    CloseConnection,
    RejectConnection,
    TextMessage,
)

from protofleet.firmware_sim.broker import local_broker
from protofleet.hub import bridge
from protofleet.wire.transfers.chunks import MAX_PACKET_BYTES

pytestmark = pytest.mark.mosquitto
_TIMEOUT_S = 30.0
# MQTT 3.1.1: clean session, keep-alive 60 s, client id "raw"
_CONNECT = bytes.fromhex("100f00044d5154540402003c0003726177")
_CONNACK = bytes.fromhex("20020000")
_PING, _PONG = b"\xc0\0", b"\xd0\0"


@contextmanager
def _client(port, *topics, version=mqtt.MQTTv5):
    """A client of paho's over WebSockets, and what it hears."""
    heard, ready = queue.Queue(), queue.Queue()
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, transport="websockets", protocol=version)
    client.ws_set_options(path="/mqtt")
    client.on_connect = lambda *_: ready.put("connected")
    client.on_subscribe = lambda *_: ready.put("subscribed")
    client.on_message = lambda _c, _d, message: heard.put(message.payload)
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        assert ready.get(timeout=_TIMEOUT_S) == "connected"
        for topic in topics:
            client.subscribe(topic, qos=1)
            assert ready.get(timeout=_TIMEOUT_S) == "subscribed"
        yield client, heard
    finally:
        client.disconnect()
        client.loop_stop()


def _publish(topic, size):
    """A PUBLISH of QoS 0 with so many bytes of content."""
    head = len(topic).to_bytes(2, "big") + topic.encode()
    rest, length = len(head) + size, b""
    while rest:
        rest, part = divmod(rest, 128)
        length += bytes([part | (0x80 if rest else 0)])
    return b"\x30" + length + head + bytes(size)


@pytest.mark.parametrize("version", [mqtt.MQTTv5, mqtt.MQTTv311])
def test_two_clients_meet_at_the_broker(hub, version):
    with (
        _client(hub.port, "x/+", version=version) as (_, heard),
        _client(hub.port, version=version) as (other, _),
    ):
        other.publish("x/1", b"hello", qos=1)
        assert heard.get(timeout=_TIMEOUT_S) == b"hello"


def test_the_embedded_broker_is_one_like_any_other(tmp_path):
    pytest.importorskip("amqtt", reason="needs amqtt: pip install 'protofleet[fleet]'")
    version = mqtt.MQTTv311
    with (
        local_broker("amqtt") as url,
        running_hub(federation(tmp_path, url)) as hub,
        _client(hub.port, "x/+", version=version) as (_, heard),
        _client(hub.port, version=version) as (other, _),
    ):
        other.publish("x/1", bytes(60_000), qos=1)
        assert heard.get(timeout=_TIMEOUT_S) == bytes(60_000)


def test_ten_megabytes_in_chunks_arrive_whole_and_in_order(hub):
    chunk = MAX_PACKET_BYTES - 600
    chunks = [os.urandom(chunk) for _ in range(10_000_000 // chunk + 1)]
    with _client(hub.port, "big/+") as (_, heard), _client(hub.port) as (sender, _):
        for one in chunks:
            sender.publish("big/1", one, qos=1)
        assert [heard.get(timeout=_TIMEOUT_S) for _ in chunks] == chunks


def test_packets_may_be_cut_and_joined_anywhere(hub):
    """WebSocket messages are pieces of a stream (MQTT 5, section 6)."""
    with RawSocket(hub.port).opened() as raw:
        raw.say(_CONNECT[:1])
        raw.say(_CONNECT[1:7])
        raw.say(_CONNECT[7:] + _PING + _PING[:1])
        raw.say(_PING[1:])
        assert raw.heard(8) == _CONNACK + 2 * _PONG


def test_a_reader_that_stops_stops_the_broker_and_the_bridge_keeps_little(hub):
    """What a browser does not take waits in the broker's queue, not here."""
    before = _own_memory()
    with RawSocket(hub.port).opened() as raw, _client(hub.port) as (sender, _):
        raw.say(_CONNECT + bytes.fromhex("820a00010005666c6f6f6400"))
        raw.heard(4 + 5)
        for _ in range(250):  # 15 MB
            sender.publish("flood", bytes(60_000), qos=1).wait_for_publish(_TIMEOUT_S)
        assert _own_memory() - before < 8 << 20
        # It reads again, and gets what is left.
        assert len(raw.heard(1 << 20)) >= 1 << 20


def _own_memory():
    found = Path("/proc/self/statm").read_text()
    return int(found.split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_browser_that_vanishes_leaves_its_last_will(hub):
    will = bytes.fromhex(
        "101f00044d5154540406003c000477696c6c00046c617374000767 6f6e65212121".replace(" ", "")
    )
    with _client(hub.port, "last") as (_, heard):
        with RawSocket(hub.port).opened() as raw:
            raw.say(will)
            assert raw.heard(4) == _CONNACK
        assert heard.get(timeout=_TIMEOUT_S) == b"gone!!!"


def test_a_client_without_the_subprotocol_is_refused(hub):
    with RawSocket(hub.port) as raw:
        refusal = raw.ask(subprotocols=[])
        assert isinstance(refusal, RejectConnection)
        assert refusal.status_code == 400
        assert b"subprotocol 'mqtt'" in bytes(raw.next().data)


def test_pages_of_others_get_no_connection(hub):
    with RawSocket(hub.port) as raw:
        refusal = raw.ask(extra_headers=[(b"origin", b"https://elsewhere.example")])
        assert refusal.status_code == 403
    with RawSocket(hub.port) as raw:
        assert raw.ask(extra_headers=[(b"origin", b"http://localhost")]).subprotocol == "mqtt"


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (TextMessage(data="MQTT"), 1003),
        (BytesMessage(data=b"GET / HTTP/1.1\r\n\r\n"), 1002),
        (BytesMessage(data=b""), 1002),
        (BytesMessage(data=bytes(bridge.MAX_FRAME_BYTES + 1)), 1009),
    ],
    ids=["text", "http", "empty", "oversize"],
)
def test_what_is_no_mqtt_never_reaches_the_broker(hub, said, code):
    with RawSocket(hub.port).opened() as raw:
        with suppress(ConnectionError):
            raw.send(said)
        ending = raw.next()
        assert isinstance(ending, CloseConnection)
        assert ending.code in (code, 1006 if code == 1009 else code)


def test_text_after_connect_ends_it_too(hub):
    with RawSocket(hub.port).opened() as raw:
        raw.say(_CONNECT)
        assert raw.heard(4) == _CONNACK
        raw.send(TextMessage(data="x"))
        assert raw.next().code == 1003


def test_frames_without_end_are_cut_off(hub):
    """Fragments of one message count together."""
    with RawSocket(hub.port).opened() as raw:
        with suppress(ConnectionError):
            for _ in range(100):
                raw.send(BytesMessage(data=bytes(60_000), message_finished=False))
        assert raw.next().code in (1009, 1006)


def test_compressed_frames_are_not_offered(hub):
    """A few bytes of them may become megabytes."""
    with RawSocket(hub.port) as raw:
        offer = [(b"sec-websocket-extensions", b"permessage-deflate")]
        assert raw.ask(extra_headers=offer).extensions == []


def test_what_the_broker_refuses_ends_the_connection(hub):
    with RawSocket(hub.port).opened() as raw:
        raw.say(_CONNECT + _CONNECT)
        assert raw.heard(4) == _CONNACK
        assert raw.next().code == 1001


def test_who_says_nothing_is_closed(hub, monkeypatch):
    monkeypatch.setattr(bridge, "FIRST_S", 0.2)
    with RawSocket(hub.port).opened() as raw:
        assert raw.next().code == 1008
    monkeypatch.setattr(bridge, "FIRST_S", 10.0)
    monkeypatch.setattr(bridge, "IDLE_S", 0.2)
    with RawSocket(hub.port).opened() as raw:
        raw.say(_CONNECT)
        assert raw.heard(4) == _CONNACK
        assert raw.next().code == 1008


def test_a_broker_that_is_away_is_said(tmp_path, caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with running_hub(federation(tmp_path, f"mqtt://127.0.0.1:{port}")) as hub:
        for _ in range(3):
            with RawSocket(hub.port).opened() as raw:
                raw.say(_CONNECT)
                ending = raw.next()
                assert (ending.code, "broker does not answer" in ending.reason) == (1013, True)
    assert len(caplog.records) == 1


def test_all_connections_are_given_back(hub, broker_port):
    """Fifty browsers that come and go in every way leave nothing open."""
    for number in range(50):
        with RawSocket(hub.port).opened() as raw:
            if number % 3:
                raw.say(_CONNECT)
            if number % 3 == 2:
                raw.heard(4)
    wait_until(lambda: not connections_to(broker_port), _TIMEOUT_S)
