"""From nothing to enrolled devices with TLS: the commands of docs/enrolment.md, and printed ones.

What a command prints for the next step is run as it is printed, with the names of devices in place
of NAME.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from brokers import answers, free_port, wait_until
from tiny_bundle import tiny_bundle

from protofleet.broker.folder import find_mosquitto
from protofleet.broker.probe import BrokerPlace, BrokerProbe, Credential
from protofleet.bundle.keys import save_public_key
from protofleet.cli._broker import GivenBroker

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=30)]

_PROTOFLEET = [sys.executable, "-m", "protofleet"]
_SHELL = 'protofleet() { exec "$PYTHON" -m protofleet "$@"; }; '
_NAMES = ("anna", "berta", "carl")


@pytest.fixture(autouse=True)
def _needs_mosquitto():
    if find_mosquitto() is None:
        pytest.skip("needs the Mosquitto broker: apt install mosquitto")


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


# As printed


def _typed(folder, line, **names):
    """A printed line in a shell of its own, in ``folder``."""
    for word, name in names.items():
        line = re.sub(rf"\b{word}\b", name, line)
    return subprocess.Popen(
        ["bash", "-c", _SHELL + line],
        cwd=folder,
        env={**os.environ, "PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _done(process):
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    return out


def _printed(told, begins):
    """The commands behind a label, such as ``start it:``."""
    found = re.findall(rf"^ *{re.escape(begins)} +(protofleet .+)$", told, re.MULTILINE)
    assert found, told
    return found


@contextmanager
def _running(folder, line, port) -> Iterator[None]:
    broker = _typed(folder, line)
    try:
        wait_until(lambda: answers(port))
        yield
    finally:
        os.killpg(broker.pid, signal.SIGTERM)
        broker.communicate(timeout=20)


@pytest.mark.parametrize(
    "federations", [(), pytest.param(("sec",), marks=pytest.mark.full_size), ("sec", "lab")]
)
def test_what_broker_init_prints_lets_devices_in(tmp_path, federations):
    """Whatever the federations are called, and if there are two: with their own keys."""
    folder, port = tmp_path / "a study", free_port()
    folder.mkdir()
    given = [word for name in federations for word in ("--federation", name)]
    place = tmp_path / "federation" / "broker"
    where = ("--host", "localhost", "--port", str(port))
    told = _run(folder, "broker", "init", str(place), *where, *given)
    inviting = _printed(told, "for each device:")
    assert len(inviting) == max(1, len(federations))
    with _running(folder, *_printed(told, "start it:"), port):
        _done(_typed(folder, *_printed(told, "try it from outside:")))
        for name, line in zip(federations or ("federation",), inviting, strict=True):
            _enrol_as_printed(folder, line, name)


def _enrol_as_printed(folder, line, federation):
    inviting = _typed(folder, line, NAME="anna")
    lines = iter(inviting.stdout.readline, "")
    assert next(lines).startswith("anna, until "), inviting.communicate()
    (enrolling,) = _printed(next(lines), "")
    home = folder / federation
    home.mkdir()
    told = _done(_typed(home, f"export HOME=$PWD XDG_DATA_HOME=$PWD; {enrolling}"))
    assert f"device 'anna' of federation '{federation}': enrolled" in told
    assert "anna: enrolled" in _done(inviting)


def test_what_broker_init_prints_for_a_device_without_keys_joins_it(tmp_path, key):
    folder, port = tmp_path, free_port()
    _data(folder, key)
    told = _run(folder, "broker", "init", "--host", "localhost", "--port", str(port))
    place = folder / "federation" / "broker"
    with _running(folder, *_printed(told, "start it:"), port):
        _done(_typed(folder, *_printed(told, "without keys:"), NAME="dora"))
        shutil.copy2(place / "ca.pem", folder)
        assert (folder / "dora.password").is_file()
        joining = told.partition("it joins with:")[2].strip()
        _done(_typed(folder, "protofleet bundle trust signer.pem"))
        joined = _typed(
            folder,
            f"export XDG_DATA_HOME=$PWD; {joining} --json",
            NAME="dora",
            BUNDLE="bundle.pfb",
            FILE="mine.npz",
        )
        line = joined.stdout.readline()
        assert line, joined.communicate()
        assert json.loads(line)["device_id"] == "dora"
        os.killpg(joined.pid, signal.SIGTERM)
        joined.communicate(timeout=60)


def _data(folder, key):
    """A bundle, its signer's key, and a device's data."""
    tiny_bundle(folder / "bundle.pfb", key)
    save_public_key(key.public_key().public_bytes_raw(), folder / "signer.pem")
    x, y = np.ones((6, 4), np.float32), np.arange(6) % 3
    classes = np.array(["class0", "class1", "class2"])
    np.savez(folder / "mine.npz", x_train=x, y_train=y, x_test=x, y_test=y, classes=classes)


def _service(folder):
    """The command of the unit, as systemd would start it, with its folders in ``folder``."""
    unit = (Path(__file__).resolve().parents[2] / "docs" / "protofleet-device.service").read_text()
    start = unit.partition("ExecStart=/opt/protofleet/bin/")[2].partition("\nEnvironment=")[0]
    for name in ("STATE_DIRECTORY", "CONFIGURATION_DIRECTORY"):
        start = start.replace(f"${{{name}}}", shlex.quote(str(folder)))
    return f"THREADS=1; {start}"


def test_a_service_that_is_not_enrolled_ends_for_good_and_says_what_enrols_it(tmp_path, key):
    """The line that it says is run as it stands, with the invitation in place of the word."""
    port, board = free_port(), tmp_path / "board"
    board.mkdir()
    _data(board, key)
    told = _run(tmp_path, "broker", "init", "--host", "localhost", "--port", str(port))
    refused = _typed(board, _service(board))
    _, err = refused.communicate(timeout=60)
    assert refused.returncode == 2, err
    enrolling = "protofleet device enroll " + err.partition("protofleet device enroll ")[2].strip()
    with _running(tmp_path, *_printed(told, "start it:"), port):
        inviting = _typed(tmp_path, "protofleet device invite pi-1")
        next(lines := iter(inviting.stdout.readline, ""))
        told = _done(_typed(board, enrolling, INVITATION=next(lines).split()[-1]))
        _done(inviting)
        (joining,) = _printed(told, "join with:")
        _done(_typed(board, "protofleet bundle trust signer.pem"))
        joined = _typed(board, f"{joining} --json", BUNDLE="bundle.pfb", FILE="mine.npz")
        assert json.loads(joined.stdout.readline())["device_id"] == "pi-1"
        os.killpg(joined.pid, signal.SIGTERM)
        joined.communicate(timeout=60)
        device = _typed(board, f"{_service(board)} --json")
        assert json.loads(device.stdout.readline())["device_id"] == "pi-1"
        os.killpg(device.pid, signal.SIGTERM)
        device.communicate(timeout=60)
    assert device.returncode == 128 + signal.SIGTERM


def test_what_a_coordinator_says_at_its_ends_is_run_as_printed(make_federation, tmp_path, key):
    """Interrupted: how it goes on. Finished: how it is looked at."""
    federation = make_federation("a study", tiny_bundle(tmp_path / "tiny.pfb", key), 2)
    federation.write(rounds=5000)
    for name in federation.devices:
        federation.start_device(name)
    first = _typed(federation.folder, f"protofleet coordinator run {federation.file.name}")
    while "round 2" not in first.stdout.readline():
        assert first.poll() is None
    os.killpg(first.pid, signal.SIGINT)
    _, err = first.communicate(timeout=60)
    (resuming,) = re.findall(r"to resume: (protofleet .+)$", err, re.MULTILINE)
    again = _typed(federation.folder, resuming)
    assert " resumes with round " in again.stdout.readline()
    _run(federation.folder, "coordinator", "stop", federation.file.name)
    out, err = again.communicate(timeout=60)
    assert again.returncode == 0, err
    (rounds,) = re.findall(r"stopped before round (\d+)", out)
    federation.file.write_text(
        federation.file.read_text().replace("rounds = 5000", f"rounds = {rounds}")
    )
    last = _done(_typed(federation.folder, resuming))
    (looking,) = re.findall(r"to look at it: (protofleet report .+)$", last, re.MULTILINE)
    page = Path(_done(_typed(federation.folder, looking)).strip().splitlines()[-1])
    assert page.name == "report.html"
    assert page.is_file()
