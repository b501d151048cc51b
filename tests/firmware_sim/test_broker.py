from __future__ import annotations

import itertools
import signal
import socket
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from brokers import answers, free_port, wait_until

from protofleet.broker.folder import find_mosquitto
from protofleet.cli.broker import _said
from protofleet.errors import InputError
from protofleet.firmware_sim import broker as brokers
from protofleet.firmware_sim.broker import BrokerOptions, local_broker, open_broker
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.mqtt.link import Connected, Disconnected, Link, LinkOptions, Will

_SCRIPT = (
    "import sys, time\n"
    "from protofleet.firmware_sim.broker import local_broker\n"
    "with local_broker(sys.argv[1]) as url:\n"
    "    print(url, flush=True)\n"
    "    time.sleep(60)\n"
)


def _kinds() -> list[str]:
    return ["mosquitto", "amqtt"] if find_mosquitto() else ["amqtt"]


def _port(url: str) -> int:
    return int(url.partition("?")[0].rpartition(":")[2])


@pytest.mark.parametrize("kind", _kinds())
def test_the_broker_ends_with_its_context(kind):
    if kind == "amqtt":
        pytest.importorskip("amqtt", reason="needs amqtt: pip install 'protofleet[fleet]'")
    with local_broker(kind) as url:
        assert answers(_port(url))
    assert not answers(_port(url))


@pytest.mark.parametrize("kind", _kinds())
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=lambda s: s.name)
def test_the_broker_ends_with_its_parent(kind, how):
    """No stray process is left, however the parent dies."""
    if kind == "amqtt":
        pytest.importorskip("amqtt", reason="needs amqtt: pip install 'protofleet[fleet]'")
    parent = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, kind], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    port = _port(parent.stdout.readline().decode().strip())
    assert answers(port)
    parent.send_signal(how)
    parent.communicate()
    wait_until(lambda: not answers(port))


def _running(*arguments):
    """``protofleet broker run`` on a free port, and the first lines it prints."""
    port = free_port()
    command = "from protofleet.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-uc", command, "broker", "run", "--port", str(port), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return process, port, [process.stdout.readline() for _ in range(2)]


@pytest.mark.mosquitto
def test_the_command_runs_a_broker_says_who_comes_and_how_to_go_on():
    process, port, told = _running("--host", "0.0.0.0")  # noqa: S104 - what is tested
    assert told[0].startswith(f"broker: mqtt://127.0.0.1:{port} (Mosquitto)")
    assert f":{port}" in told[1].partition("--broker mqtt://")[2]
    with closing(Link(LinkOptions(broker=BrokerAccess(url=f"mqtt://127.0.0.1:{port}")))) as link:
        link.start()
        assert "New client connected" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, "to go on: the same command" in err) == (130, True)
    assert not answers(port)


@pytest.mark.mosquitto
def test_strangers_knocking_by_the_thousand_fill_neither_log_nor_screen(monkeypatch):
    """Each connection is a line of Mosquitto's own log, or two."""
    monkeypatch.setattr(brokers, "LOG_BYTES", 20_000)
    with open_broker(BrokerOptions(kind="mosquitto")) as broker:
        shown = _said(broker)

        def knock():
            for _ in range(500):
                socket.create_connection(("127.0.0.1", _port(broker.url))).close()

        knock()
        wait_until(lambda: broker.log.stat().st_size < 20_000)
        with closing(Link(LinkOptions(broker=BrokerAccess(url=broker.url)))) as link:
            link.start()
            assert "New client connected" in next(shown)
        with broker.log.open("ab") as log:
            log.write(b"1: Client \x1b[2J%s disconnected\n" % (b"x" * 5000) * 300)
        lines = list(itertools.islice(shown, 100))
        assert all(line.isprintable() and len(line) < 420 for line in lines)
        monkeypatch.setattr("time.monotonic", _in(61.0))
        assert "more lines in this minute" in next(shown)


def _in(seconds):
    real = time.monotonic
    return lambda: real() + seconds


@pytest.mark.mosquitto
def test_the_command_takes_users_and_no_others(tmp_path):
    users = tmp_path / "users"
    subprocess.run(["mosquitto_passwd", "-b", "-c", users, "anna", "secret"], check=True)
    process, port, _ = _running("--users", str(users))
    url = f"mqtt://{{}}127.0.0.1:{port}"
    found = []
    for who in ("", "anna:secret@"):
        with closing(Link(LinkOptions(broker=BrokerAccess(url=url.format(who))))) as link:
            link.start()
            found.append(type(link.get(10)))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert (found, process.returncode) == ([Disconnected, Connected], 143)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"host": "192.0.2.77"}, "choose an address of this machine, or 0.0.0.0"),
        ({"password_file": Path("nothing")}, "make it with: mosquitto_passwd -c nothing NAME"),
    ],
)
def test_what_a_broker_cannot_use_is_named_before_it_starts(options, told):
    with pytest.raises(InputError, match=told), open_broker(BrokerOptions(**options)):
        pass


def test_the_embedded_broker_is_named_as_what_it_is(caplog):
    pytest.importorskip("amqtt", reason="needs amqtt: pip install 'protofleet[fleet]'")
    with local_broker("amqtt"):
        assert "embedded amqtt: for demonstrations only" in caplog.text


def test_the_embedded_broker_refuses_mqtt_5_at_once():
    """amqtt alone reads its properties as a client id and never answers."""
    pytest.importorskip("amqtt", reason="needs amqtt: pip install 'protofleet[fleet]'")
    with local_broker("amqtt") as url:
        access = BrokerAccess(url=url.partition("?")[0])
        options = LinkOptions(broker=access, will=Will(topic="st", payload=b"gone"))
        with closing(Link(options)) as link:
            link.start()
            refused, connected = link.get(10), link.get(10)
    assert isinstance(refused, Disconnected)
    assert (refused.final, connected) == (False, Connected("3.1.1"))


@pytest.mark.mosquitto
def test_a_broker_that_cannot_start_says_why():
    if find_mosquitto() is None:
        pytest.skip("needs the Mosquitto broker: apt install mosquitto")
    with pytest.raises(InputError, match="choose another port"), local_broker(port=80_000):
        pass
