"""Fixtures that every folder's tests share: real data and a real broker."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder of the published data sets: $PROTOFLEET_DATA, else ../shared/data."""
    root = Path(os.environ.get("PROTOFLEET_DATA", _REPOSITORY.parent / "shared" / "data"))
    if not root.is_dir():
        pytest.skip(f"needs the data sets: set PROTOFLEET_DATA (looked in {root})")
    return root


def find_mosquitto() -> str | None:
    """The broker's path; Debian installs it outside an ordinary user's PATH."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


@pytest.fixture
def mosquitto_url(tmp_path: Path) -> Iterator[str]:
    """A Mosquitto of this test's own, on a free loopback port."""
    binary = find_mosquitto()
    if binary is None:
        pytest.skip("needs the Mosquitto broker: apt install mosquitto")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    config = tmp_path / "mosquitto.conf"
    config.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n")
    with (tmp_path / "mosquitto.log").open("wb") as log:
        broker = subprocess.Popen([binary, "-c", str(config)], stdout=log, stderr=log)
    try:
        _wait_for_port(port)
        yield f"mqtt://127.0.0.1:{port}"
    finally:
        broker.terminate()
        broker.wait(10)


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
