"""A hub with TLS, where it may listen, and the command."""

from __future__ import annotations

import json
import queue
import re
import signal
import socket
import ssl
import subprocess
import sys
import urllib.request

import msgspec
import paho.mqtt.client as mqtt
import pytest
from brokers import free_port
from certificates import Authority
from click.testing import CliRunner
from running_hub import federation, get, running_hub
from secured_broker import secured

from protofleet.broker.folder import BrokerFolder
from protofleet.bundle import Bundle
from protofleet.cli.hub import hub as hub_command
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.status import find_run
from protofleet.errors import InputError
from protofleet.hub.dashboard.watch import WatchedRun, run_keys
from protofleet.hub.run import Hub, HubOptions
from protofleet.wire.mqtt.broker_access import BrokerAccess

_NOWHERE = "mqtt://127.0.0.1"


@pytest.fixture
def broker(tmp_path):
    return BrokerFolder.create(tmp_path / "federation" / "broker", port=free_port())


def _trusting(authority):
    return ssl.create_default_context(cafile=authority)


def _read(url, context):
    with urllib.request.urlopen(url, timeout=20, context=context) as answer:  # noqa: S310
        return answer.read()


@pytest.mark.parametrize("known_by", ["keys", "ca_file"])
def test_the_federations_own_authority_makes_the_certificate(tmp_path, broker, known_by):
    if known_by == "keys":
        config = federation(tmp_path, _NOWHERE, keys=broker.path.parent)
    else:
        access = BrokerAccess(url="mqtts://127.0.0.1", ca_file=broker.ca)
        config = federation(tmp_path, access)
    with running_hub(config, https=True, bind="127.0.0.1", hosts=("hub.test",)) as hub:
        assert hub.authority == broker.ca.read_bytes()
        assert hub.origins == [f"https://localhost:{hub.port}"]
        context = _trusting(broker.ca)
        told = json.loads(_read(f"https://localhost:{hub.port}/federation.json", context))
        assert told["federation"] == "home"
        assert _read(f"https://127.0.0.1:{hub.port}/ca.pem", context) == broker.ca.read_bytes()
    assert (broker.path / "hub.key").stat().st_mode & 0o077 == 0


def test_a_given_certificate_is_shown_and_no_authority_offered(tmp_path):
    given = Authority(tmp_path).certify("hub.test")
    config = federation(tmp_path, _NOWHERE)
    options = {"https": True, "cert": given.file, "key": given.key, "bind": "127.0.0.1"}
    with running_hub(config, **options) as hub:
        context = _trusting(tmp_path / "authority.pem")
        assert _read(f"https://127.0.0.1:{hub.port}/", context).startswith(b"<!doctype")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            _read(f"https://127.0.0.1:{hub.port}/ca.pem", context)


@pytest.mark.mosquitto
def test_mqtt_goes_through_tls_to_a_broker_with_tls_and_accounts(tmp_path):
    """The hub needs no account; who connects brings one."""
    with secured("mosquitto", tmp_path / "federation" / "broker") as running:
        access = msgspec.structs.replace(running.access, password_file=None)
        config = federation(tmp_path, access)
        with running_hub(config, https=True, bind="127.0.0.1") as hub:
            for password, refused in ((running.coordinator.password, False), ("wrong", True)):
                code = _connect(hub.port, running.folder.ca, "coordinator", password)
                assert code.is_failure is refused


def _connect(port, authority, user, password):
    codes = queue.Queue()
    client = mqtt.Client(
        mqtt.CallbackAPIVersion.VERSION2, transport="websockets", protocol=mqtt.MQTTv5
    )
    client.ws_set_options(path="/mqtt")
    client.tls_set(str(authority))
    client.username_pw_set(user, password)
    client.on_connect = lambda _c, _d, _f, code, _p: codes.put(code)
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        return codes.get(timeout=30)
    finally:
        client.disconnect()
        client.loop_stop()


def test_what_is_not_protected_stays_on_this_machine(tmp_path, broker):
    options = HubOptions(port=0, bind="0.0.0.0")  # noqa: S104
    config = federation(tmp_path, _NOWHERE)
    with pytest.raises(InputError, match="has no keys"):
        Hub(config, options)
    keyed = msgspec.structs.replace(config, keys=broker.path.parent)
    with pytest.raises(InputError, match="over plain HTTP browsers keep no keys"):
        Hub(keyed, options)
    allowed = BrokerAccess(url=_NOWHERE, insecure=True)
    hub = Hub(msgspec.structs.replace(keyed, broker=allowed), options)
    assert hub.origins[0].startswith("http://")
    hub.close()
    Hub(config, HubOptions(port=0)).close()


def test_each_lack_is_a_sentence_with_what_to_do(tmp_path):
    config = federation(tmp_path, _NOWHERE)
    with pytest.raises(InputError, match="'protofleet broker init' makes one"):
        Hub(config, HubOptions(https=True, port=0, bind="127.0.0.1"))
    given = Authority(tmp_path).certify("hub.test")
    other = Authority(tmp_path).certify("other.test")
    files = {"cert": given.file, "key": other.key}
    with pytest.raises(InputError, match=r"hub\.test\.pem.*other\.test\.key"):
        Hub(config, HubOptions(https=True, port=0, bind="127.0.0.1", **files))
    files = {"cert": tmp_path / "none.pem", "key": given.key}
    with pytest.raises(InputError, match=r"none\.pem': No such file"):
        Hub(config, HubOptions(https=True, port=0, bind="127.0.0.1", **files))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port}: Address already in use; choose"):
            Hub(config, HubOptions(port=port))
    insecure = msgspec.structs.replace(config, broker=BrokerAccess(url=_NOWHERE, insecure=True))
    with pytest.raises(InputError, match=r"cannot listen on 203\.0\.113\.1"):
        Hub(insecure, HubOptions(port=0, bind="203.0.113.1"))
    for wrong in ("https://broker", "wss://broker; script-src *", "wss://"):
        with pytest.raises(InputError, match="--websocket: expected wss://HOST:PORT/PATH"):
            Hub(config, HubOptions(port=0, websocket=wrong))


def test_the_page_may_speak_to_the_listener_that_is_named(tmp_path):
    address = "wss://broker.example:8084/mqtt"
    with running_hub(federation(tmp_path, _NOWHERE), websocket=address) as hub:
        answer, _ = get(hub.port, "/")
    assert (
        "connect-src 'self' wss://broker.example:8084" in answer.headers["Content-Security-Policy"]
    )


_SCRIPT = """
import sys
from pathlib import Path
from protofleet.hub import site
site.page_folder = lambda: Path(sys.argv[1])
from protofleet.cli.main import main
main(sys.argv[2:])
"""


@pytest.mark.slow
def test_the_command_says_what_to_open_and_ends_with_a_signal(tmp_path, page, broker):
    keyed = federation(tmp_path, _NOWHERE)
    signer = Bundle.open(keyed.bundle).signer
    (tmp_path / "fed.toml").write_text(
        f'federation = "home"\nbroker = "{_NOWHERE}"\nbundle = "tiny.pfb"\nrun_dir = "run"\n'
        f'rounds = 1\nkeys = "federation"\ntrusted = ["{signer}"]\n'
    )
    program = [sys.executable, "-c", _SCRIPT, str(page), "hub", str(tmp_path / "fed.toml")]
    options = ["--https", "--port", "0", "--bind", "127.0.0.1", "--qr"]
    with subprocess.Popen(
        [*program, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        told = ""
        while "█" not in told:  # all of it; what is read ahead here, communicate would not see
            told += process.stdout.readline()
        origin = re.search(r"open on the phone: (https://localhost:\d+)/\n", told)[1]
        assert f"{origin}/ca.pem" in told
        assert f"--hub {origin} --qr NAME" in told
        assert json.loads(_read(f"{origin}/federation.json", _trusting(broker.ca)))["keys"]
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=30)
    assert f"dashboard: {origin}/dashboard/, " in told
    assert re.search(rf"{origin}/dashboard/sign-in#[\w-]{{43}}\n", told)
    assert (process.returncode, "browsers reconnect" in errors) == (143, True)


def _refused(place):
    """What the command says of a place that it cannot show."""
    with pytest.raises(InputError) as refused:
        CliRunner().invoke(hub_command, [str(place), "--port", "0"], catch_exceptions=False)
    return str(refused.value)


def test_what_holds_no_run_is_refused_with_the_remedy(tmp_path):
    """A folder without a run, the name of nothing, a bundle."""
    assert "no run of a federation; expected the run_dir" in _refused(tmp_path)
    assert "No such file" in _refused(tmp_path / "none")
    bundle = federation(tmp_path, _NOWHERE).bundle
    assert "is no text, expected a federation file (TOML)" in _refused(bundle)


def test_a_damaged_ledger_is_refused_before_anything_is_shown(tmp_path):
    (tmp_path / "ledger.sqlite").write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 20)
    assert "its ledger cannot be read" in _refused(tmp_path)


def test_a_run_is_found_in_the_folder_of_its_demonstration(tiny, tmp_path):
    """Its key is the federation's name, not that of the folder inside."""
    with Ledger(tmp_path / "demo" / "coordinator", tiny.plan.identity):
        found = find_run(tmp_path / "demo")
        assert found == tmp_path / "demo" / "coordinator"
        assert run_keys([WatchedRun("", found)]) == [tiny.plan.config.federation]
        assert find_run(found) == found
