"""Brokers on a free loopback port: Mosquitto with special settings, killable, counted; aedes."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest

from protofleet.broker.folder import find_mosquitto

_WEB = Path(__file__).resolve().parent.parent.parent / "src" / "web"
_PATH = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
_READ_OUR_FILES = "user root"  # started by root, Mosquitto would become a user who must not


# Below those that a system gives to connections, and other ones for each process of pytest-xdist:
# a port stays free until its broker listens, and while a test's broker is down.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8
_PORTS = (10_000 + 2_500 * _WORKER + (os.getpid() + n) % 2_500 for n in itertools.count())


def free_port() -> int:
    while True:
        port = next(_PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextmanager
def mosquitto(folder: Path, *lines: str, port: int = 0, anonymous: bool = True) -> Iterator[int]:
    """A Mosquitto with further lines of configuration; yields its port."""
    binary = find_mosquitto()
    if binary is None:
        pytest.skip("needs the Mosquitto broker: apt install mosquitto")
    port = port or free_port()
    config = folder / "mosquitto.conf"
    basic = (
        f"listener {port} 127.0.0.1",
        f"allow_anonymous {str(anonymous).lower()}",
        "persistence false",
        _READ_OUR_FILES,
    )
    config.write_text("\n".join((*basic, *lines, "")))
    with (folder / "mosquitto.log").open("ab") as log:
        broker = subprocess.Popen([binary, "-c", str(config)], stdout=log, stderr=log)
    try:
        wait_until(lambda: answers(port))
        yield port
    finally:
        broker.kill()
        broker.wait(10)


@contextmanager
def aedes(port: int = 0) -> Iterator[int]:
    """A broker of another make, on Node, that speaks MQTT 3.1.1 alone; yields its port."""
    node = shutil.which("node", path=_PATH)
    lack = "" if node and (_WEB / "node_modules" / "aedes").is_dir() else "needs aedes: make web"
    if node is None or lack:
        assert "PROTOFLEET_CI" not in os.environ, lack
        pytest.skip(lack)
    port = port or free_port()
    broker = subprocess.Popen([node, str(_WEB / "e2e" / "aedes.mjs"), str(port)])
    try:
        wait_until(lambda: answers(port))
        yield port
    finally:
        broker.kill()
        broker.wait(10)


def answers(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s} s: {condition}")
        time.sleep(0.01)


class KillableBroker:
    """Start it with ``with``; nothing of it survives a ``restart``.

    Attributes:
        url: stays the same.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, free_port()
        self._running = ExitStack()
        self.url = f"mqtt://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._running.enter_context(mosquitto(self._folder, port=self._port))
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def restart(self) -> None:
        """SIGKILL, then a new one."""
        self.__exit__()
        self.__enter__()


class CountingProxy:
    """Passes one TCP connection on and counts its bytes in both directions."""

    def __init__(self, target_port: int) -> None:
        self.up = self.down = 0
        self._target_port = target_port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        client, _ = self._server.accept()
        broker = socket.create_connection(("127.0.0.1", self._target_port))
        threading.Thread(target=self._pass, args=(client, broker, "up"), daemon=True).start()
        self._pass(broker, client, "down")

    def _pass(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                setattr(self, name, getattr(self, name) + len(data))
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
