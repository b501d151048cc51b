from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from brokers import answers, wait_until

from protofleet.errors import UnavailableError
from protofleet.firmware_sim.broker import find_mosquitto, local_broker

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
        pytest.importorskip("amqtt", reason="needs amqtt: pip install 'protofleet[demo]'")
    with local_broker(kind) as url:
        assert answers(_port(url))
    assert not answers(_port(url))


@pytest.mark.parametrize("kind", _kinds())
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT], ids=lambda s: s.name)
def test_the_broker_ends_with_its_parent(kind, how):
    """No stray process is left, however the parent dies."""
    if kind == "amqtt":
        pytest.importorskip("amqtt", reason="needs amqtt: pip install 'protofleet[demo]'")
    parent = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT, kind], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    port = _port(parent.stdout.readline().decode().strip())
    assert answers(port)
    parent.send_signal(how)
    parent.communicate()
    wait_until(lambda: not answers(port))


def test_the_embedded_broker_is_named_as_what_it_is(caplog):
    pytest.importorskip("amqtt", reason="needs amqtt: pip install 'protofleet[demo]'")
    with local_broker("amqtt"):
        assert "embedded amqtt: for demonstrations only" in caplog.text


@pytest.mark.mosquitto
def test_a_broker_that_cannot_start_says_why():
    if find_mosquitto() is None:
        pytest.skip("needs the Mosquitto broker: apt install mosquitto")
    with pytest.raises(UnavailableError, match="did not start"), local_broker(port=80_000):
        pass
