"""A broker's folder, and the commands that make and use it."""

from __future__ import annotations

import datetime as dt
import os
import re
import signal
import ssl
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import msgspec
import pytest
from brokers import free_port, wait_until
from click.testing import CliRunner
from secured_broker import secured, skip_without

from protofleet.broker import certificates
from protofleet.broker.accounts import new_password
from protofleet.broker.certificates import hosts_of
from protofleet.broker.folder import BrokerFolder
from protofleet.cli.broker import broker
from protofleet.errors import InputError
from protofleet.wire.mqtt.broker_access import BrokerAccess


def _run(*arguments, code=0):
    done = CliRunner().invoke(broker, [str(argument) for argument in arguments])
    assert done.exit_code == code, done.output + repr(done.exception)
    return done.output if code == 0 else str(done.exception)


def test_the_set_up_is_complete_and_private(tmp_path):
    folder = BrokerFolder.create(tmp_path / "broker", ["broker.example"], 18883)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.path.iterdir()}
    public = {"ca.pem", "server.pem", "protofleet-broker.service"}
    assert {name for name, mode in modes.items() if mode != 0o600} - {".lock"} == public
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert folder.listener() == ("", 18883)
    assert folder.local_url("anna") == "mqtts://anna@127.0.0.1:18883"
    assert folder.hosts()[0] == "broker.example"
    assert folder.accounts.check("coordinator", folder.coordinator_password())
    named = re.findall(rf"{re.escape(str(folder.path))}/(\S+)", folder.config.read_text())
    assert set(named) - {"mosquitto.conf", "mosquitto.pid"} <= set(modes)


def test_nothing_is_overwritten(tmp_path):
    BrokerFolder.create(tmp_path / "broker")
    before = {path: path.read_bytes() for path in (tmp_path / "broker").iterdir()}
    with pytest.raises(InputError, match="not empty; for a new certificate"):
        BrokerFolder.create(tmp_path / "broker")
    assert {path: path.read_bytes() for path in (tmp_path / "broker").iterdir()} == before
    with pytest.raises(InputError, match="without spaces"):
        BrokerFolder.create(tmp_path / "my broker")
    with pytest.raises(InputError, match=r"no mosquitto\.conf; make one with"):
        BrokerFolder.open(tmp_path / "other")


def test_a_federation_folder_is_opened_by_its_broker(tmp_path):
    made = BrokerFolder.create(tmp_path / "federation" / "broker")
    assert stat.S_IMODE((tmp_path / "federation").stat().st_mode) == 0o700
    assert BrokerFolder.open(tmp_path / "federation") == made == BrokerFolder.open(made.path)


def test_a_process_that_is_no_broker_of_this_folder_gets_no_signal(tmp_path):
    """A pid file outlives its broker, and numbers are used again."""
    folder = BrokerFolder.create(tmp_path / "broker")
    assert folder.running() is None
    folder.pid_file.write_text(f"{os.getpid()}\n")
    assert folder.running() is None
    assert folder.reload() == ""
    folder.pid_file.write_text("nonsense")
    with pytest.raises(InputError, match="expected a process id"):
        folder.reload()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, as sudo has")
def test_what_root_changes_stays_its_owners(tmp_path):
    """The broker, who is another user, must be able to read it."""
    folder = BrokerFolder.create(tmp_path / "broker")
    os.chown(folder.path, 65534, 65534)
    folder.accounts.add("pi-1", new_password())
    folder.renew()
    changed = ("passwords", "server.key", "server.pem", ".lock")
    assert {(folder.path / name).stat().st_uid for name in changed} == {65534}


def test_a_renewed_certificate_has_the_same_authority_and_the_hosts_it_had(tmp_path):
    place = tmp_path / "broker"
    _run("init", place, "--host", "one.example")
    ca, server = (place / "ca.pem").read_bytes(), (place / "server.pem").read_bytes()
    told = _run("init", place, "--renew", "--host", "two.example")
    assert "two.example, one.example" in told
    assert (place / "ca.pem").read_bytes() == ca
    assert (place / "server.pem").read_bytes() != server
    (place / "ca.key").unlink()
    assert "ca.key: No such file" in _run("init", place, "--renew", code=1)


def test_another_server_keeps_its_certificate_until_it_no_longer_fits(tmp_path, monkeypatch):
    folder = BrokerFolder.create(tmp_path / "broker")
    certificate, key = folder.issue("hub", ["one.example"])
    assert {"one.example", *folder.hosts()} <= set(hosts_of(certificate.read_bytes()))
    assert key.stat().st_mode & 0o077 == 0
    first = certificate.read_bytes()
    assert folder.issue("hub", ["one.example"])[0].read_bytes() == first
    second = folder.issue("hub", ["two.example"])[0].read_bytes()
    assert second != first
    monkeypatch.setattr(certificates, "_RENEW", dt.timedelta(days=certificates.SERVER_DAYS))
    third = folder.issue("hub", ["two.example"])[0].read_bytes()
    assert third != second
    monkeypatch.undo()
    folder.ca.write_bytes(certificates.make_authority("another").certificate)
    (folder.path / "ca.key").unlink()
    with pytest.raises(InputError, match=r"ca\.key: No such file"):
        folder.issue("hub", ["two.example"])


def test_the_steps_that_are_told_are_complete(tmp_path, monkeypatch):
    """The printed table is one that a federation file can hold; an account has its own file."""
    monkeypatch.chdir(tmp_path)
    told = _run("init", "--host", "broker.example")
    table = "\n".join(line for line in told.splitlines() if line.startswith("  ") and "=" in line)
    said = tomllib.loads(table)
    assert Path(said.pop("keys")) == tmp_path / "federation"
    access = msgspec.convert(said, BrokerAccess, dec_hook=lambda kind, it: kind(it))
    folder = BrokerFolder.open(tmp_path / "federation")
    assert access.address().password == folder.coordinator_password()
    assert "protofleet broker run federation/broker" in told
    _run("account", "add", "federation", "pi-1")
    password = tmp_path / "pi-1.password"
    assert folder.accounts.check("pi-1", password.read_text().strip())
    assert stat.S_IMODE(password.stat().st_mode) == 0o600
    assert _run("account", "list", "federation").split() == ["coordinator", "pi-1"]
    assert "File exists" in _run("account", "add", "federation", "pi-1", code=1)
    assert "expected another one" in _run("account", "add", "federation", "invite.x", code=1)
    _run("account", "remove", "federation", "pi-1")
    assert "unknown; there are coordinator" in _run(
        "account", "remove", "federation", "pi-1", code=1
    )


_STARTS_SLOWLY = """
import pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
(folder / "ready").touch()
time.sleep(0.5)
signal.signal(signal.SIGHUP, lambda *_: sys.exit(7))
time.sleep(20)
"""


def test_a_broker_that_is_still_starting_is_not_ended_by_a_reload(tmp_path):
    """It has a pid file before it catches the signal, whose default is to end it."""
    _run("init", tmp_path / "broker", "--port", free_port(), "--federation", "home")
    folder = BrokerFolder.open(tmp_path / "broker")
    process = subprocess.Popen([sys.executable, "-c", _STARTS_SLOWLY, str(folder.path)])
    folder.pid_file.write_text(f"{process.pid}\n")
    wait_until((folder.path / "ready").exists)
    assert folder.reload() == ""
    assert process.wait(10) == 7


@pytest.mark.mosquitto
def test_two_commands_make_a_running_broker(tmp_path):
    skip_without("mosquitto")
    _run("init", tmp_path / "broker", "--port", free_port(), "--federation", "home")
    program = [sys.executable, "-um", "protofleet", "broker", "run", str(tmp_path / "broker")]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("broker: mqtts://127.0.0.1:")
    assert "--broker-ca" in process.stdout.readline()
    folder = BrokerFolder.open(tmp_path / "broker")
    wait_until(lambda: folder.running() is not None)
    told = _run("check", folder.path)
    assert not {line.split()[0] for line in told.splitlines()} - {"works", "closed", "noted"}
    assert "closed  may a device publish under a federation that it invents?" in told
    assert folder.accounts.names() == ["coordinator"]
    assert "perhaps a broker runs there already" in _run("run", folder.path, code=1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert "no broker runs on it here" in _run("check", folder.path, code=1)
    assert "FOLDER says where" in _usage("run", folder.path, "--port", "1")


def _usage(*arguments):
    done = CliRunner().invoke(broker, [str(argument) for argument in arguments])
    assert done.exit_code == 2
    return done.output


def test_a_new_certificate_is_taken_by_a_running_broker(tmp_path):
    """Devices that pinned the authority notice nothing."""
    with secured("mosquitto", tmp_path / "broker") as running:
        folder = running.folder
        folder.renew(["new.example"])
        folder.reload()
        host, port = "127.0.0.1", folder.listener()[1]
        wait_until(
            lambda: "new.example" in hosts_of(ssl.get_server_certificate((host, port)).encode())
        )
