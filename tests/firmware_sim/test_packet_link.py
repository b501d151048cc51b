"""A link that knows MQTT packets does to them what it is told, and counts what is sent again."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading

import pytest

from protofleet.firmware_sim.link_proxy import LinkProfile, ProxyThread
from protofleet.firmware_sim.packet_link import PacketLink, ResentBytes

_CONNECT = bytes([0x10, 13]) + b"\x00\x04MQTT\x04\x02\x00\x1e\x00\x01c"


@pytest.fixture
def link():
    """A link, the client's socket and what has come out at the broker's end."""
    with socket.create_server(("127.0.0.1", 0)) as server, ProxyThread() as proxies:
        made = PacketLink(server.getsockname()[1], LinkProfile(), random.Random(1))
        proxies.serve(made)
        with socket.create_connection(("127.0.0.1", made.port), 5) as client:
            broker, _ = server.accept()
            with broker:
                client.sendall(_CONNECT)
                assert _exactly(broker, len(_CONNECT)) == _CONNECT
                yield _Played(made, proxies, client, broker)


class _Played:
    def __init__(self, link, proxies, client, broker):
        self.link, self.proxies, self.client, self.broker = link, proxies, client, broker
        broker.settimeout(5)

    def do(self, act):
        return self.proxies.ask(lambda: act(self.link))

    def publish(self, payload, number):
        self.client.sendall(_publish(payload, number))

    def received(self):
        """Head and payload of the next message at the broker's end."""
        head, size = _exactly(self.broker, 2)
        body = _exactly(self.broker, size)
        return head, body[5:]


def _publish(payload, number):
    body = struct.pack(">H", 1) + b"t" + struct.pack(">H", number) + payload
    return bytes([0x32, len(body)]) + body


def _exactly(sock, size):
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        assert part
        data += part
    return data


def test_messages_pass_as_they_are(link):
    link.publish(b"one", 1)
    link.publish(b"two", 2)
    assert [link.received(), link.received()] == [(0x32, b"one"), (0x32, b"two")]


def test_a_repetition_is_marked_as_one(link):
    link.do(lambda one: one.arm("duplicated"))
    link.publish(b"one", 1)
    assert [link.received(), link.received()] == [(0x32, b"one"), (0x3A, b"one")]
    assert link.link.done["duplicated"] == 1


def test_the_next_message_overtakes(link):
    link.do(lambda one: one.arm("reordered"))
    link.publish(b"one", 1)
    link.publish(b"two", 2)
    assert [link.received()[1], link.received()[1]] == [b"two", b"one"]


def test_without_a_next_message_it_comes_late(link):
    link.do(lambda one: one.arm("reordered"))
    link.publish(b"one", 1)
    assert link.received() == (0x32, b"one")


def test_contents_are_cut_short_and_changed(link):
    link.do(lambda one: one.arm("truncated"))
    link.do(lambda one: one.arm("corrupted"))
    link.publish(b"a" * 50, 1)
    link.publish(b"a" * 50, 2)
    cut, changed = link.received()[1], link.received()[1]
    assert len(cut) < 50
    assert len(changed) == 50
    assert changed != b"a" * 50


def test_a_half_open_connection_stays_open_and_passes_nothing(link):
    assert link.do(lambda one: one.half_open())
    assert not link.do(lambda one: one.half_open())
    link.publish(b"one", 1)
    link.broker.settimeout(0.3)
    with pytest.raises(TimeoutError):
        link.broker.recv(1)


def test_a_cut_ends_both_sides(link):
    assert link.do(lambda one: one.cut())
    for end in (link.client, link.broker):
        with contextlib.suppress(ConnectionResetError):
            assert end.recv(1) == b""


def test_what_is_late_is_not_lost(link):
    threading.Timer(0.05, link.publish, (b"one", 1)).start()
    link.do(lambda one: one.delay(0.3))
    assert link.received() == (0x32, b"one")


def test_chunks_that_are_sent_again_are_counted_by_transfer():
    def chunk(transfer, index):
        head = b"PFCK" + bytes([1, 0, 0, 8]) + bytes([transfer]) * 16 + struct.pack(">II", index, 0)
        return head + b"contents"

    resent = ResentBytes()
    for place in [(1, 0), (1, 1), (2, 0), (1, 1)]:
        resent.note(chunk(*place))
    assert (resent.total, resent.most) == (40, 40)
    resent.note(chunk(2, 0))
    resent.mark()
    resent.note(chunk(1, 0))
    assert (resent.total, resent.most) == (120, 40)
    resent.note(b"no chunk")
    assert resent.total == 120
