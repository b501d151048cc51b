"""From nothing to three enrolled devices with TLS: the commands of docs/enrolment.md."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from brokers import answers, free_port, wait_until

from protofleet.broker.folder import find_mosquitto
from protofleet.broker.probe import BrokerPlace, BrokerProbe, Credential
from protofleet.cli._broker import GivenBroker

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=12)]

_PROTOFLEET = [sys.executable, "-m", "protofleet"]
_NAMES = ("anna", "berta", "carl")


def _start(folder, *arguments):
    return subprocess.Popen(
        [*_PROTOFLEET, *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _run(folder, *arguments, stdin=None):
    done = subprocess.run(
        [*_PROTOFLEET, *arguments],
        cwd=folder,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _account(access):
    address = access.address()
    return Credential(user=address.user, password=address.password)


def test_six_commands_enrol_three_devices(tmp_path):
    if find_mosquitto() is None:
        pytest.skip("needs the Mosquitto broker: apt install mosquitto")
    port = free_port()
    _run(tmp_path, "broker", "init", "--host", "localhost", "--port", str(port))
    broker = _start(tmp_path, "broker", "run", "federation")
    try:
        wait_until(lambda: answers(port))
        inviting = _start(tmp_path, "device", "invite", *_NAMES)
        lines = iter(inviting.stdout.readline, "")
        strings = dict.fromkeys(_NAMES, "")
        for name in _NAMES:
            assert next(lines).startswith(f"{name}, until ")
            strings[name] = next(lines).split()[-1]
        for name, invitation in strings.items():
            # One from standard input: a command line can be seen by others.
            given, stdin = ("-", invitation) if name == "carl" else (invitation, None)
            told = _run(tmp_path, "device", "enroll", given, "--store", name, stdin=stdin)
            assert f"device '{name}' of federation 'federation': enrolled" in told
        assert [line.split()[1:] for line in lines] == [[f"{n}:", "enrolled"] for n in _NAMES]
        assert inviting.wait(20) == 0
        listed = _run(tmp_path, "device", "list", "--json").splitlines()
        moved = GivenBroker(f"mqtts://localhost:{port}", {}).in_store(tmp_path / "anna")
        with BrokerProbe(BrokerPlace.find(moved.address(), moved.tls()), _account(moved)) as probe:
            assert not probe.refused
        found = {row["device_id"]: row["state"] for row in map(json.loads, listed)}
        assert found == dict.fromkeys(_NAMES, "enrolled")
        made = json.loads(_run(tmp_path, "device", "invite", "dora", "--no-wait", "--json"))
        later = _start(tmp_path, "device", "invite")
        _run(tmp_path, "device", "enroll", made["invitation"], "--store", "dora")
        assert later.stdout.read().split()[1:] == ["dora:", "enrolled"]
        assert later.wait(20) == 0
        _run(tmp_path, "device", "revoke", "berta")
        assert "berta   revoked" in _run(tmp_path, "device", "list")
    finally:
        broker.terminate()
        broker.wait(20)
    log = broker.stdout.read()
    assert all(f"u'invite.{name}'" in log for name in _NAMES)
    assert not any(string in log for string in strings.values())
