"""What the README prints runs as it is printed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from brokers import free_port

from protofleet.datasets import DeviceData
from protofleet.datasets.digits import CLASSES, load_digits

_README = (Path(__file__).parents[1] / "README.md").read_text()
_BLOCKS = re.findall(r"```(\w*)\n(.*?)```", _README, re.DOTALL)

# The installed command, which unlike ``python -m`` does not search the working folder.
_SHELL = 'set -e; protofleet() { "$PYTHON" -P -m protofleet "$@"; }; '

Shell = Callable[[str], "subprocess.Popen[str]"]

pytestmark = [pytest.mark.slow(seconds=10), pytest.mark.timeout(240)]


def _block(language: str, containing: str) -> str:
    (found,) = [text for kind, text in _BLOCKS if kind == language and containing in text]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: the README's model and the data that it speaks of."""
    folder = tmp_path_factory.mktemp("user")
    code = _block("python", "nn.Module")
    module = folder / code.removeprefix("# ").partition(":")[0]
    module.parent.mkdir()
    module.write_text(code)
    x, y = load_digits()
    np.savez(folder / "central.npz", x=x[:200], y=y[:200])
    data = {"x_train": x[200:240], "y_train": y[200:240], "x_test": x[240:260]}
    own = DeviceData(**data, y_test=y[240:260], classes=CLASSES)
    own.save(folder / "mine.npz")
    return folder


@pytest.fixture(scope="module")
def shell(folder: Path) -> Shell:
    home = folder / "home"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
    environment = {**kept, "HOME": str(home), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    home.mkdir()

    def start(script: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", _SHELL + script],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


def _end(process: subprocess.Popen[str]) -> None:
    """End the shell and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    process.communicate(timeout=60)


def _output(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return out


@pytest.fixture(scope="module")
def exported(shell: Shell) -> str:
    return _output(shell(_block("sh", "protofleet pretrain")))


def test_your_own_model_becomes_a_bundle(exported: str, folder: Path) -> None:
    """Model, training, export and inspection, in a folder with nothing else in it."""
    assert (folder / "bundle.pfb").is_file()
    assert "BEGIN PUBLIC KEY" in (folder / "signer.pem").read_text()
    assert re.search(r"strategy +fedavg", exported)
    assert "program   train: programs/train.onnx" in exported


@pytest.fixture
def broker(shell: Shell) -> Iterator[tuple[str, int]]:
    """The README's broker on another port, and an invitation for one device."""
    port = free_port()
    init, run, invite = _block("sh", "protofleet broker init").strip().splitlines()
    _output(shell(init.replace("192.0.2.10", "localhost") + f" --port {port}"))
    processes = [shell(run), shell(invite.replace(" pi-2 pi-3", ""))]
    try:
        told = iter(processes[1].stdout.readline, "")
        yield next(line.split()[-1] for line in told if "device enroll" in line), port
    finally:
        for process in processes:
            _end(process)


@pytest.mark.mosquitto
def test_your_own_devices_federate(
    exported: str,  # noqa: ARG001 - the bundle must exist
    shell: Shell,
    folder: Path,
    broker: tuple[str, int],
) -> None:
    """The README's federation at another port, with fewer rounds and one device."""
    invitation, port = broker
    changes = {"8883": str(port), "rounds = 50": "rounds = 1", "minimum = 3": "minimum = 1"}

    def changed(text: str) -> str:
        for old, new in changes.items():
            text = text.replace(old, new)
        return text

    toml = changed(_block("toml", "federation"))
    assert all(new in toml for new in changes.values())
    (folder / "federation.toml").write_text(toml)
    server, _, device = _block("sh", "protofleet coordinator run").partition("\n#")
    coordinator = shell(server)
    try:
        _output(shell("#" + device.replace("INVITATION", invitation)))
        _output(coordinator)
    finally:
        _end(coordinator)
    assert (folder / "run" / "result.json").is_file()
