"""A whole federation of processes: one coordinator, many devices, one real broker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tiny_bundle import tiny_data

from protofleet.bundle.keys import load_public_key, save_public_key
from protofleet.datasets import DeviceData

_PROGRAM = ["-c", "from protofleet.cli import main; main()"]


class Process:
    """A running command whose stdout is one JSON event per line."""

    def __init__(self, arguments: list[str], log: Path, python: str = sys.executable) -> None:
        self.events: list[dict[str, Any]] = []
        self._log = log
        with log.open("ab") as stderr:
            self._popen = subprocess.Popen(
                [python, *_PROGRAM, *arguments],
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=log.parent,  # not the checkout, whose folder would hide an installed package
                env={**os.environ, "OMP_NUM_THREADS": "1", "PROTOFLEET_NUMBA": "0"},
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        for line in self._popen.stdout:
            self.events.append(json.loads(line))

    def wait_for(self, found: Callable[[dict[str, Any]], bool], timeout_s: float = 200) -> None:
        """Wait until an event fulfils ``found``."""
        deadline = time.monotonic() + timeout_s
        while not any(found(event) for event in list(self.events)):
            ended = self._popen.poll()
            assert ended is None, f"ended with {ended}: {self._log.read_text()[-2000:]}"
            assert time.monotonic() < deadline, (
                f"{self.events[-3:]} {self._log.read_text()[-2000:]}"
            )
            time.sleep(0.005)

    def finish(self, timeout_s: float = 200) -> int:
        """The exit status."""
        status = self._popen.wait(timeout_s)
        self._reader.join(5)
        return status

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._popen.poll() is None

    def kill(self) -> None:
        """SIGKILL, now."""
        self._popen.kill()
        self._popen.wait(10)

    def signal(self, number: int) -> None:
        """Any other one."""
        self._popen.send_signal(number)

    def terminate(self) -> None:
        """SIGTERM."""
        self._popen.terminate()

    @property
    def log(self) -> str:
        """What it wrote to stderr."""
        return self._log.read_text()


@dataclass
class Federation:
    """Files and processes of one federation in ``folder``."""

    folder: Path
    url: str
    bundle: Path
    trust: Path
    devices: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)

    @property
    def file(self) -> Path:
        """The federation file."""
        return self.folder / "federation.toml"

    @property
    def run_dir(self) -> Path:
        """The coordinator's folder."""
        return self.folder / "run"

    def write(self, *, rounds: int, extra: str = "") -> None:
        """Write the federation file, and pooled test data beside it."""
        tests = [tiny_data(1000 + i, 20) for i in range(len(self.devices))]
        x, y = (np.concatenate(part) for part in zip(*tests, strict=True))
        stop = "" if "[stop]" in extra else "[stop]\npatience = 0\n"  # tests end their runs
        _save(self.pooled, (x[:0], y[:0]), (x, y))
        self.file.write_text(
            f'federation = "home"\nbroker = "{self.url}"\nbundle = "{self.bundle}"\n'
            f'trusted = ["{load_public_key(self.trust).hex()}"]\n'
            f'run_dir = "run"\nrounds = {rounds}\nseed = 3\n'
            f"[cohort]\nminimum = {len(self.devices)}\n"
            f'[evaluation]\npooled = "pooled.npz"\n{stop}{extra}'
        )

    @property
    def pooled(self) -> Path:
        """The union of all test parts."""
        return self.folder / "pooled.npz"

    def start_coordinator(self, *options: str) -> Process:
        """Run or resume the federation."""
        arguments = ["coordinator", "run", str(self.file), "--json", *options]
        return self._start(arguments, "coordinator")

    def start_device(self, name: str, python: str = sys.executable, **options: str) -> Process:
        """Run or resume one device, with the interpreter ``python`` and further options.

        Of an option that is a flag the value is ''.
        """
        index = self.devices.index(name)
        data = self.folder / f"{name}.npz"
        if not data.exists():
            _save(data, tiny_data(index, 30 + index), tiny_data(1000 + index, 20))
        values = {
            "--broker": self.url,
            "--federation": "home",
            "--bundle": self.bundle,
            "--data": data,
            "--pooled": self.pooled,
            "--store": self.folder / f"store-{name}",
            "--id": name,
            "--trust": self.trust,
            **{f"--{option}": value for option, value in options.items()},
        }
        pairs = [str(part) for pair in values.items() for part in pair if part != ""]
        return self._start(["device", "join", *pairs, "--json"], name, python)

    def _start(self, arguments: list[str], name: str, python: str = sys.executable) -> Process:
        process = Process(arguments, self.folder / f"{name}.log", python)
        self.processes.append(process)
        return process


def _save(path, train, test):
    DeviceData(
        x_train=train[0],
        y_train=train[1],
        x_test=test[0],
        y_test=test[1],
        classes=("class0", "class1", "class2"),
    ).save(path)


@pytest.fixture
def key():
    return Ed25519PrivateKey.generate()


@pytest.fixture
def make_federation(tmp_path, mosquitto_url, key):
    """Makes federations whose processes end with the test."""
    made: list[Federation] = []
    save_public_key(key.public_key().public_bytes_raw(), tmp_path / "key.pem")

    def make(name: str, bundle: Path, devices: int) -> Federation:
        folder = tmp_path / name
        folder.mkdir()
        federation = Federation(
            folder=folder,
            url=mosquitto_url,
            bundle=bundle,
            trust=tmp_path / "key.pem",
            devices=tuple(f"device{i}" for i in range(devices)),
        )
        made.append(federation)
        return federation

    yield make
    for federation in made:
        for process in federation.processes:
            process.kill()
