"""The packets that are made and read here are those of paho, and end where paho's do."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion

from protofleet.wire.mqtt.mqtt_client import Counters, MqttClient
from protofleet.wire.transfers.outbox import Outgoing

_FIVE, _FOUR = MQTTProtocolVersion.MQTTv5, MQTTProtocolVersion.MQTTv311
_TOPIC = "fl/v2/lab/dn/pi-7/t"
_MESSAGE = Outgoing(_TOPIC, b"x", retain=False)
_HEAD = b"\x00\x01x\x00\x07"
"""Topic 'x', packet id 7."""


class _Pair:
    """A client and the broker's end of its socket."""

    def __init__(self, kind, protocol):
        self.broker, ours = socket.socketpair()
        ours.settimeout(0.0)
        self.broker.settimeout(10.0)
        self.client = kind(CallbackAPIVersion.VERSION2, protocol=protocol)
        self.client._sock = self._ours = ours
        self.delivered, self.acknowledged = [], []
        self.client.counters = Counters()
        self.client.on_delivery = lambda *seen: self.delivered.append(seen)
        self.client.on_acknowledged = lambda *seen: self.acknowledged.append(seen)

    def read(self, count):
        data = b""
        while len(data) < count:
            self.client.loop_write()
            data += self.broker.recv(count - len(data))
        return data

    def take(self, packet):
        self.broker.sendall(packet)
        return self.client.loop_read()

    def close(self):
        self.broker.close()
        self._ours.close()


@pytest.fixture(params=[_FIVE, _FOUR], ids=["5", "3.1.1"])
def pair(request):
    with closing(_Pair(MqttClient, request.param)) as one:
        yield one


def _packet(head, body):
    assert len(body) < 128
    return bytes([head, len(body)]) + body


def _properties(pair, encoded=b""):
    return bytes([len(encoded)]) + encoded if pair.client._protocol == _FIVE else b""


@pytest.mark.parametrize("size", [0, 1, 99, 100, 16_300, 65_000])
@pytest.mark.parametrize("retain", [False, True])
def test_what_is_sent_is_what_paho_sends(pair, size, retain):
    with closing(_Pair(Client, pair.client._protocol)) as other:
        other.client.publish(_TOPIC, bytes(size), 1, retain)
        pair.client.send(Outgoing(_TOPIC, bytes(size), retain))
        least = size + len(_TOPIC) + 6
        expected, found = other.read(least), pair.read(least)
        for one in (pair, other):
            one.client.loop_write()
            one.broker.settimeout(0.0)
        tails = []
        for one in (pair, other):
            try:
                tails.append(one.broker.recv(100))
            except BlockingIOError:
                tails.append(b"")
    assert (found, tails[0]) == (expected, tails[1])


@pytest.mark.parametrize(("head", "retained"), [(0x32, False), (0x33, True), (0x3A, False)])
@pytest.mark.parametrize("payload", [b"", b"abc"])
def test_what_comes_is_handed_out_and_acknowledged(pair, head, retained, payload):
    assert pair.take(_packet(head, _HEAD + _properties(pair) + payload)) == 0
    assert pair.delivered == [("x", payload, retained)]
    assert pair.read(4) == bytes([0x40, 2, 0, 7])


def test_properties_are_left_to_paho():
    with closing(_Pair(MqttClient, _FIVE)) as pair:
        expiry = b"\x02\x00\x00\x00\x09"
        pair.take(_packet(0x32, _HEAD + bytes([len(expiry)]) + expiry + b"abc"))
        assert pair.delivered == [("x", b"abc", False)]


def test_a_message_without_a_packet_id_is_handed_out(pair):
    pair.take(_packet(0x30, _HEAD[:3] + _properties(pair) + b"abc"))
    assert pair.delivered == [("x", b"abc", False)]


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x00\x09x", b"\x00\x01x\x00"])
def test_a_message_that_ends_too_early_is_refused(pair, body):
    assert pair.take(_packet(0x32, body)) == MQTTErrorCode.MQTT_ERR_PROTOCOL
    assert pair.delivered == []


def test_an_acknowledgement_counts_once_and_only_for_what_was_sent(pair):
    pair.take(bytes([0x40, 2, 0, 1]))
    assert pair.acknowledged == []
    pair.client.send(_MESSAGE)
    for _ in range(2):
        pair.take(bytes([0x40, 2, 0, 1]))
    assert pair.acknowledged == [(_MESSAGE, 0)]


@pytest.mark.parametrize("tail", [b"\x87", b"\x87\x00"])
def test_the_reason_of_an_acknowledgement_is_told(tail):
    with closing(_Pair(MqttClient, _FIVE)) as pair:
        pair.client.send(_MESSAGE)
        pair.take(_packet(0x40, b"\x00\x01" + tail))
        assert pair.acknowledged == [(_MESSAGE, 0x87)]


def test_nothing_is_sent_without_a_socket(pair):
    ours, pair.client._sock = pair.client._sock, None
    pair.client.send(_MESSAGE)
    pair.client._sock = ours
    assert not pair.client.want_write()
