"""A Mosquitto that can be killed: it remembers nothing, and comes back where it was."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from protofleet.broker.folder import find_mosquitto
from protofleet.errors import UnavailableError
from protofleet.firmware_sim.processes import spawn

_START_S = 20.0


class KillableBroker:
    """``with KillableBroker(folder, packet_bytes) as broker``.

    Args:
        folder: of its configuration and its log.
        packet_bytes: largest packet that it takes.

    Attributes:
        port: on loopback.

    Raises:
        UnavailableError: Mosquitto is not installed, or did not start.
    """

    def __init__(self, folder: Path, packet_bytes: int) -> None:
        program = find_mosquitto()
        if program is None:
            raise UnavailableError("chaos: expected Mosquitto, found none: apt install mosquitto")
        # Bound as long as this lives, so that while the broker is away no connection of the machine
        # gets its port; another socket may listen there, because both say that they reuse it.
        self._reserved = socket.socket()
        self._reserved.bind(("127.0.0.1", 0))
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.port: int = self._reserved.getsockname()[1]
        config = folder / "mosquitto.conf"
        lines = [
            f"listener {self.port} 127.0.0.1",
            "persistence false",
            "allow_anonymous true",
            "set_tcp_nodelay true",
            f"max_packet_size {packet_bytes}",
        ]
        config.write_text("\n".join([*lines, ""]), encoding="utf-8")
        self._command, self._log = [program, "-c", str(config)], folder / "mosquitto.log"
        self._popen: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self._reserved.close()

    def restart(self, away_s: float) -> None:
        """SIGKILL; it is back after so long, without sessions and retained messages."""
        with self._lock:
            self._kill()
            time.sleep(away_s)
            self._start()

    def _kill(self) -> None:
        if self._popen is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait()

    def _start(self) -> None:
        # Watched by a process, because the kernel watches the thread that starts it.
        self._popen = spawn(self._command, out=self._log, log=self._log, changes_user=True)
        until = time.monotonic() + _START_S
        while time.monotonic() < until and self._popen.poll() is None:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
                return
            time.sleep(0.01)
        raise UnavailableError(f"broker: did not start; see {self._log}")
