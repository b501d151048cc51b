"""A Mosquitto that a test can kill and bring back on the same port."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Self

import pytest


class Broker:
    """Start it with ``with``; nothing of it survives a ``restart``.

    Attributes:
        url: stays the same.
    """

    def __init__(self, folder: Path) -> None:
        binary = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
        if binary is None:
            pytest.skip("needs the Mosquitto broker: apt install mosquitto")
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self._port = probe.getsockname()[1]
        self.url = f"mqtt://127.0.0.1:{self._port}"
        config = folder / "killable.conf"
        config.write_text(
            f"listener {self._port} 127.0.0.1\nallow_anonymous true\npersistence false\n"
        )
        self._command = [binary, "-c", str(config)]

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(10)

    def restart(self) -> None:
        """SIGKILL, then a new one."""
        self.__exit__()
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise TimeoutError("mosquitto did not start")
