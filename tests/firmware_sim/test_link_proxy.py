import contextlib
import socket
import threading
import time

import pytest

from protofleet.errors import InputError
from protofleet.firmware_sim.link_proxy import LinkProfile, ProxyThread


@pytest.fixture
def echo():
    """A server that sends back what it gets."""
    server = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=_echo, args=(connection,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    yield server.getsockname()[1]
    server.close()


def _echo(connection):
    with connection:
        try:
            while block := connection.recv(65536):
                connection.sendall(block)
        except OSError:
            return


def _send(connection, data):
    with contextlib.suppress(OSError):
        connection.sendall(data)


def _exchange(port, data):
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.settimeout(5)
        threading.Thread(target=_send, args=(connection, data), daemon=True).start()
        back = b""
        while len(back) < len(data):
            block = connection.recv(65536)
            if not block:
                break
            back += block
        return back


def test_bytes_pass_unchanged_and_are_counted(echo):
    data = bytes(range(256)) * 2000
    with ProxyThread() as proxies:
        proxy = proxies.add("127.0.0.1", echo, LinkProfile())
        assert _exchange(proxy.port, data) == data
        assert proxy.counters.bytes_up == proxy.counters.bytes_down == len(data)


def test_rate_and_delay_slow_a_link(echo):
    """60 kB up at 800 kbit/s cannot take less than 0.5 s, with 2 x 50 ms on top."""
    profile = LinkProfile(up_kbit_s=800, delay_ms=50)
    with ProxyThread() as proxies:
        proxy = proxies.add("127.0.0.1", echo, profile)
        start = time.monotonic()
        assert len(_exchange(proxy.port, b"x" * 60_000)) == 60_000
        assert time.monotonic() - start > 0.6


def test_a_link_is_as_slow_as_its_trace(echo, tmp_path):
    """60 kB are 40 packets: one each 20 ms takes them 0.8 s."""
    trace = tmp_path / "slow.trace"
    trace.write_text("20\n")
    with ProxyThread() as proxies:
        proxy = proxies.add("127.0.0.1", echo, LinkProfile(up_trace=trace))
        start = time.monotonic()
        assert len(_exchange(proxy.port, b"x" * 60_000)) == 60_000
        assert time.monotonic() - start > 0.75


def test_link_is_cut_after_its_allowance(echo):
    with ProxyThread() as proxies:
        proxy = proxies.add("127.0.0.1", echo, LinkProfile(cut_after_bytes=100_000))
        try:
            back = _exchange(proxy.port, b"x" * 200_000)
        except OSError:
            back = b""
        assert len(back) < 200_000
        assert proxy.counters.cuts == 1
        assert _exchange(proxy.port, b"again") == b"again"


def test_cut_and_refuse_on_demand(echo):
    with ProxyThread() as proxies:
        proxy = proxies.add("127.0.0.1", echo, LinkProfile())
        with socket.create_connection(("127.0.0.1", proxy.port), 5) as connection:
            connection.settimeout(5)
            connection.sendall(b"hello")
            assert connection.recv(5) == b"hello"
            proxies.call(proxy.cut)
            with pytest.raises(OSError) as _:  # noqa: PT012 - either call may meet the reset
                if connection.recv(1) == b"":
                    raise ConnectionResetError
        proxy.refusing = True
        with contextlib.suppress(ConnectionResetError):
            assert _exchange(proxy.port, b"x") == b""


@pytest.mark.parametrize("profile", [{"nat_timeout_s": 0.4}, {"roams_every_s": 0.4}], ids=list)
def test_a_forgotten_connection_stays_open_and_nothing_passes(echo, profile):
    with ProxyThread() as proxies:
        proxy = proxies.add("127.0.0.1", echo, LinkProfile(**profile))
        with socket.create_connection(("127.0.0.1", proxy.port), 5) as connection:
            connection.settimeout(0.5)
            time.sleep(0.6)
            connection.sendall(b"hello")
            with pytest.raises(TimeoutError):
                connection.recv(5)
            connection.sendall(b"are you there?")
            assert proxy.counters.forgotten == 1
            assert not proxy.counters.bytes_up
        assert _exchange(proxy.port, b"again") == b"again"


def test_a_connection_that_is_used_is_not_forgotten(echo):
    with ProxyThread() as proxies:
        proxy = proxies.add("127.0.0.1", echo, LinkProfile(nat_timeout_s=5.0))
        with socket.create_connection(("127.0.0.1", proxy.port), 5) as connection:
            for _ in range(3):
                connection.sendall(b"hello")
                assert connection.recv(5) == b"hello"
        assert proxy.counters.forgotten == 0


def test_impossible_link_is_named():
    with pytest.raises(InputError, match=r"link\.delay_ms"):
        LinkProfile(delay_ms=-1)


def test_a_direction_has_a_rate_or_a_trace(tmp_path):
    with pytest.raises(InputError, match="give up_kbit_s or up_trace, not both"):
        LinkProfile(up_kbit_s=5, up_trace=tmp_path / "t.trace")
