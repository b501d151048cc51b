"""Thousands of connections, halves of requests, readers that do not read."""

from __future__ import annotations

import logging
import select
import socket
import ssl
from contextlib import ExitStack, suppress

import pytest
from brokers import wait_until
from certificates import Authority
from running_hub import RawSocket, connections_to, federation, get, running_hub

from protofleet.hub import connections

pytestmark = pytest.mark.mosquitto
_CONNECT = bytes.fromhex("100f00044d5154540402003c0003726177")


@pytest.fixture
def own_hub(tmp_path, broker_port):
    with running_hub(federation(tmp_path, f"mqtt://127.0.0.1:{broker_port}")) as running:
        yield running


def _connect(stack, port):
    link = stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))
    link.sendall(b"GET / HTTP/1.1\r\n")
    return link


def _is_closed(link):
    try:
        return link.recv(1) == b""
    except ConnectionError:
        return True


def test_one_address_gets_so_many_connections_and_the_others_their_own(own_hub, monkeypatch):
    monkeypatch.setattr(connections, "MOST_OF_ONE", 20)
    with ExitStack() as stack:
        first = RawSocket(own_hub.port)
        stack.enter_context(first).opened().say(_CONNECT)
        links = [_connect(stack, own_hub.port) for _ in range(40)]
        assert all(map(_is_closed, links[19:]))
        assert first.heard(4)
        other = stack.enter_context(
            socket.create_connection(("127.0.0.1", own_hub.port), 20, ("127.0.0.2", 0))
        )
        other.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert other.recv(12) == b"HTTP/1.1 200"
    wait_until(lambda: _answers(own_hub.port))


def test_handshakes_that_never_end_count_too(tmp_path, monkeypatch):
    """A connection on which TLS is not agreed is one of its address."""
    monkeypatch.setattr(connections, "MOST_OF_ONE", 20)
    given = Authority(tmp_path).certify("hub.test")
    options = {"https": True, "cert": given.file, "key": given.key, "bind": "127.0.0.1"}
    config = federation(tmp_path, "mqtt://127.0.0.1")
    with running_hub(config, **options) as hub, ExitStack() as stack:
        links = [
            stack.enter_context(socket.create_connection(("127.0.0.1", hub.port), 20))
            for _ in range(40)
        ]
        for link in links:
            with suppress(ConnectionError):
                link.sendall(b"\x16\x03\x01\x02\x00\x01")
        wait_until(lambda: len(select.select(links, [], [], 0)[0]) == 20)
        plain = socket.create_connection(("127.0.0.1", hub.port), 20, ("127.0.0.2", 0))
        context = ssl.create_default_context(cafile=tmp_path / "authority.pem")
        with context.wrap_socket(stack.enter_context(plain), server_hostname="127.0.0.1") as other:
            other.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert other.recv(12) == b"HTTP/1.1 200"


@pytest.mark.slow
def test_thousands_of_connections_leave_a_hub_that_answers(own_hub, monkeypatch):
    """Half a request on each; those beyond the limit are closed at once, the rest after a while."""
    monkeypatch.setattr(connections, "REQUEST_S", 1.0)
    with ExitStack() as stack:
        kept = [_connect(stack, own_hub.port) for _ in range(connections.MOST_OF_ONE)]
        for _ in range(2000):
            with (
                suppress(ConnectionError),
                socket.create_connection(("127.0.0.1", own_hub.port), 20) as link,
            ):
                link.sendall(b"GET")
        assert all(map(_is_closed, kept))
    wait_until(lambda: _answers(own_hub.port))


def _answers(port):
    with suppress(ConnectionError):
        return get(port, "/")[0].status == 200
    return False


@pytest.mark.parametrize(
    "said",
    [b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\nGET /", b"\x16\x03\x01\x02\x00\x01"],
    ids=["half", "half-a-second", "tls"],
)
def test_half_a_request_is_not_waited_for_long(own_hub, monkeypatch, said):
    monkeypatch.setattr(connections, "REQUEST_S", 0.3)
    with socket.create_connection(("127.0.0.1", own_hub.port), 20) as link:
        link.sendall(said)
        while not _is_closed(link):
            pass


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux alone has it")
def test_who_reads_nothing_is_given_up(own_hub, monkeypatch):
    """A megabyte waits in the kernel and in one piece here, and not for ever."""
    monkeypatch.setattr(connections, "USER_TIMEOUT_MS", 1000)
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.settimeout(20)
        link.connect(("127.0.0.1", own_hub.port))
        path = "/assets/ort-0123456789.wasm"
        link.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        wait_until(lambda: not connections_to(link.getsockname()[1]))


def test_errors_of_the_server_are_a_line_a_minute_with_their_number(caplog, monkeypatch):
    clock, log, few = [50.0], logging.getLogger("tests.server"), connections.FewErrors()
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    log.addFilter(few)
    for _ in range(1000):
        log.error("request %s failed", "x")
    clock[0] += connections.MINUTE_S
    log.error("request %s failed", "y")
    log.removeFilter(few)
    assert [record.getMessage() for record in caplog.records] == [
        "request x failed",
        "request y failed (and 999 more since the last)",
    ]
