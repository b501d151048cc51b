"""A broker that wants TLS, a client's certificate and a password: every process gets through."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import msgspec
import pytest
from brokers import mosquitto
from certificates import Authority
from click.testing import CliRunner
from tiny_bundle import tiny_bundle, tiny_data

from protofleet.cli._broker import GivenBroker
from protofleet.cli.demo import demo
from protofleet.cli.experiment import experiment
from protofleet.datasets import DeviceData
from protofleet.wire.mqtt.broker_access import BrokerAccess

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=3)]

_SECRET = "open-sesame"  # noqa: S105 - of a broker that lives for one test


@pytest.fixture
def secured(tmp_path):
    """A Mosquitto that takes only who has a certificate of its authority and the password."""
    folder = tmp_path / "secured"
    folder.mkdir()
    authority = Authority(folder)
    broker, users, password = authority.certify("broker"), folder / "users", folder / "password"
    subprocess.run(["mosquitto_passwd", "-b", "-c", str(users), "anna", _SECRET], check=True)
    password.touch(mode=0o600)
    password.write_text(f"{_SECRET}\n")
    lines = (
        f"cafile {authority.file}",
        f"certfile {broker.file}",
        f"keyfile {broker.key}",
        "require_certificate true",
        f"password_file {users}",
    )
    with mosquitto(folder, *lines, anonymous=False) as port:
        yield SimpleNamespace(port=port, authority=authority, password=password)


def _table(secured, name):
    """What a federation file and a fleet file say."""
    ours = secured.authority.certify(name)
    return {
        "url": f"mqtts://127.0.0.1:{secured.port}",
        "user": "anna",
        "password_file": str(secured.password),
        "ca_file": str(secured.authority.file),
        "cert_file": str(ours.file),
        "key_file": str(ours.key),
    }


def _toml(table):
    return "{" + ", ".join(f'{key} = "{value}"' for key, value in table.items()) + "}"


@pytest.fixture
def federation(make_federation, tmp_path, key, secured):
    """Two devices; its file names the secured broker."""
    federation = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), 2)
    federation.write(rounds=1)
    plain = f'broker = "{federation.url}"'
    table = f"broker = {_toml(_table(secured, 'coordinator'))}"
    federation.file.write_text(federation.file.read_text().replace(plain, table))
    return federation


def test_coordinator_device_and_fleet_connect_with_certificate_and_password(federation, secured):
    """One device is joined by itself, one by a fleet; no log and no output has the password."""
    coordinator = federation.start_coordinator()
    ours = secured.authority.certify("device0")
    alone = federation.start_device(
        "device0",
        broker=f"mqtts://anna:{_SECRET}@127.0.0.1:{secured.port}",
        **{
            "broker-ca": str(secured.authority.file),
            "broker-cert": str(ours.file),
            "broker-key": str(ours.key),
        },
    )
    fleet = _start_fleet(federation, secured)
    assert coordinator.finish() == 0, coordinator.log
    assert alone.finish() == 0, alone.log
    assert fleet.finish() == 0, fleet.log
    result = json.loads((federation.run_dir / "result.json").read_text())
    assert [device["id"] for device in result["devices"]] == ["device0", "device1"]
    said = [process.log + json.dumps(process.events) for process in federation.processes]
    said += [path.read_text() for path in (federation.folder / "fleet").rglob("*.*") if _text(path)]
    assert not any(_SECRET in text for text in said)


def _start_fleet(federation, secured):
    data = federation.folder / "device1.npz"
    (x_train, y_train), (x_test, y_test) = tiny_data(1, 30), tiny_data(2, 20)
    classes = ("class0", "class1", "class2")
    DeviceData(
        x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test, classes=classes
    ).save(data)
    table = _toml(_table(secured, "fleet"))
    file = federation.folder / "fleet.toml"
    (federation.folder / "fast.trace").write_text("1\n2\n2\n")
    file.write_text(
        f'federation = "home"\nbroker = {table}\nbundle = "{federation.bundle}"\nfolder = "fleet"\n'
        f'[[devices]]\nid = "device1"\nprofile = "far"\ndata = "{data}"\n'
        '[profiles.far.link]\ndelay_ms = 1\nup_trace = "fast.trace"\n'
    )
    return federation._start(["fleet", "run", str(file), "--json"], "fleet")


def _text(path):
    return path.suffix in {".txt", ".jsonl", ".json"}


def test_a_device_without_a_certificate_is_not_let_in_and_says_why(federation, secured):
    device = federation.start_device(
        "device0",
        broker=f"mqtts://anna:{_SECRET}@127.0.0.1:{secured.port}",
        **{"broker-ca": str(secured.authority.file)},
    )
    with pytest.raises(subprocess.TimeoutExpired):
        device.finish(6)
    assert "no connection to the broker" in device.log
    assert _SECRET not in device.log


@pytest.mark.parametrize(
    ("command", "function"),
    [
        ((demo, "--out", "demo"), "protofleet.demo.run_demo"),
        (
            (experiment, "run", "fedhp/mnist-small", "--engine", "mqtt"),
            "protofleet.experiments.runner.run_experiment",
        ),
    ],
    ids=["demo", "experiment"],
)
def test_commands_pass_the_whole_access_on(command, function, tmp_path, monkeypatch):
    taken = []

    def take(*arguments):
        taken.extend(getattr(part, "broker", None) for part in arguments)
        raise SystemExit(7)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(function, take)
    options = ["--broker", "mqtts://anna@h", "--broker-ca", "ca.pem", "--broker-cert", "our.pem"]
    options += ["--broker-key", "our.key", "--broker-password-file", "password"]
    assert CliRunner().invoke(command[0], [*command[1:], *options]).exit_code == 7
    access = BrokerAccess(
        url="mqtts://anna@h",
        ca_file=tmp_path / "ca.pem",
        cert_file=tmp_path / "our.pem",
        key_file=tmp_path / "our.key",
        password_file=tmp_path / "password",
    )
    assert [part for part in taken if part] == [access]


@pytest.mark.parametrize(
    ("command", "given", "message"),
    [
        (["demo"], ["--broker-ca", "ca.pem"], "--broker-ca is for --broker"),
        (
            ["demo"],
            ["--broker", "mqtt://a:b@127.0.0.1", "--broker-cert", "c"],
            "mqtt://127.0.0.1: cert_file needs",
        ),
        (["demo"], ["--broker", "mqtt://h"], "mqtt://h: mqtt:// to another machine: everyone"),
        (["demo"], ["--broker", "mqtts://a:b@h"], "--broker-password-file FILE, or into"),
        (
            ["experiment", "run", "fedhp/mnist-small", "--engine", "mqtt"],
            ["--broker", "mqtts://h", "--broker-key", "k.pem"],
            "mqtts://h: key_file needs cert_file",
        ),
    ],
)
def test_options_that_do_not_go_together_end_with_one_line(command, given, message, tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "protofleet", *command, *given],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode in (1, 2)
    assert message in ended.stderr
    assert "a:b" not in ended.stderr


def test_options_of_a_command_go_over_its_file(federation, secured):
    """The file's broker is another one; the coordinator connects to that of the command line."""
    federation.file.write_text(
        federation.file.read_text().replace(_toml(_table(secured, "coordinator")), '"mqtt://h"')
    )
    ours = secured.authority.certify("other")
    options = {
        "--broker": f"mqtts://127.0.0.1:{secured.port}",
        "--broker-user": "anna",
        "--broker-password-file": secured.password,
        "--broker-ca": secured.authority.file,
        "--broker-cert": ours.file,
        "--broker-key": ours.key,
    }
    pairs = [str(part) for pair in options.items() for part in pair]
    run = ["coordinator", "run", str(federation.file), "--json"]
    coordinator = federation._start([*run, *pairs], "coordinator")
    coordinator.wait_for(lambda event: event["event"] == "waiting")
    refused = federation._start(run, "refused")
    assert refused.finish() == 1
    assert "mqtt://h: mqtt:// to another machine" in refused.log


_ENROLLED = BrokerAccess(
    url="mqtts://anna@one", password_file=Path("/s/password"), ca_file=Path("/s/ca.pem")
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (GivenBroker("mqtts://two:8884", {}), {"url": "mqtts://anna@two:8884"}),
        (GivenBroker("mqtts://anna@two", {}), {"url": "mqtts://anna@two"}),
        (GivenBroker("mqtts://bob@two", {}), {"url": "mqtts://bob@two", "password_file": None}),
        (GivenBroker("mqtt://127.0.0.1", {}), {"url": "mqtt://anna@127.0.0.1", "ca_file": None}),
        (GivenBroker(None, {"ca_file": Path("/n/ca.pem")}), {"ca_file": Path("/n/ca.pem")}),
        (GivenBroker(None, {"password_file": Path("/n/p")}), {"password_file": Path("/n/p")}),
        (GivenBroker(None, {"user": "bob"}), {"url": "mqtts://one", "user": "bob"}),
    ],
)
def test_an_option_replaces_what_it_names_and_nothing_else(given, expected):
    assert given.over(_ENROLLED) == msgspec.structs.replace(_ENROLLED, **expected)


def test_a_password_in_a_url_goes_along_to_another_url_and_ends_with_a_file_in_its_place():
    access = BrokerAccess(url="mqtt://anna:secret@127.0.0.1")
    assert access.moved("mqtt://127.0.0.2").url == "mqtt://anna:secret@127.0.0.2"
    assert access.moved("mqtt://bob@127.0.0.2").url == "mqtt://bob@127.0.0.2"
    found = GivenBroker(None, {"password_file": Path("/n/p")}).over(access)
    assert (found.url, found.password_file) == ("mqtt://anna@127.0.0.1", Path("/n/p"))


def test_a_device_that_is_not_enrolled_takes_its_broker_from_the_command_line(tmp_path):
    assert GivenBroker(None, {}).in_store(tmp_path) is None
    given = GivenBroker("mqtt://127.0.0.1", {}).in_store(tmp_path)
    assert given == BrokerAccess(url="mqtt://127.0.0.1")
    with pytest.raises(click.UsageError, match="--broker-ca is for --broker"):
        GivenBroker(None, {"broker_ca": "x", "ca_file": Path("x")}).in_store(tmp_path)
