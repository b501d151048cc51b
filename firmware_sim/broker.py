"""A broker of one's own on loopback, for demonstrations and tests.

Mosquitto where it is installed; else amqtt (the ``demo`` extra), which is named as what it is.
"""

from __future__ import annotations

import logging
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from protofleet.errors import UnavailableError
from protofleet.firmware_sim.processes import spawn, stop

START_TIMEOUT_S = 20.0
"""Mosquitto needs 20 ms; amqtt imports for seconds on a small machine."""
STOP_TIMEOUT_S = 5.0
_EXTRA_FOLDERS = "/usr/sbin:/usr/local/sbin:/opt/homebrew/sbin:/usr/local/opt/mosquitto/sbin"
_CONFIG = """\
listener {port} 127.0.0.1
allow_anonymous true
persistence false
set_tcp_nodelay true
"""

_log = logging.getLogger(__name__)


def find_mosquitto() -> str | None:
    """Mosquitto's path; Debian installs it outside an ordinary user's PATH."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path=_EXTRA_FOLDERS)


@contextmanager
def local_broker(
    kind: Literal["auto", "mosquitto", "amqtt"] = "auto", *, port: int = 0
) -> Iterator[str]:
    """Run a broker while the context lasts.

    It ends with the context, and by itself when this process dies in any way.

    Args:
        kind: ``auto``: Mosquitto if there is one, else amqtt.
        port: 0: a free one.

    Yields:
        Its URL, ``mqtt://127.0.0.1:<port>``, with ``?version=3.1.1`` for amqtt.

    Raises:
        UnavailableError: neither is installed, or it did not start.
    """
    port = port or _free_port()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="protofleet-")))
        command = _command(kind, port, folder)
        log = folder / "broker.log"
        broker = spawn(command, out=log, log=log, changes_user=True)
        stack.callback(stop, [broker], grace_s=STOP_TIMEOUT_S)
        _await_port(port, broker, log)
        # amqtt does not answer MQTT 5 at all; saying so spares every client a timeout.
        embedded = "protofleet.firmware_sim._amqtt" in command
        yield f"mqtt://127.0.0.1:{port}{'?version=3.1.1' if embedded else ''}"


def _command(kind: str, port: int, folder: Path) -> list[str]:
    mosquitto = find_mosquitto() if kind in ("auto", "mosquitto") else None
    if mosquitto is not None:
        config = folder / "mosquitto.conf"
        config.write_text(_CONFIG.format(port=port), encoding="utf-8")
        return [mosquitto, "-c", str(config)]
    if kind in ("auto", "amqtt") and find_spec("amqtt") is not None:
        _log.warning("embedded amqtt: for demonstrations only (install mosquitto for real use)")
        return [sys.executable, "-m", "protofleet.firmware_sim._amqtt", str(port)]
    raise UnavailableError(
        f"broker {kind}: expected Mosquitto or amqtt, found neither; install Mosquitto "
        "(apt install mosquitto), or pip install 'protofleet[demo]', or give --broker URL"
    )


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def _await_port(port: int, broker: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while broker.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    lines = log.read_text(errors="replace").strip().splitlines()
    raise UnavailableError(f"broker: did not start: {lines[-1] if lines else 'it said nothing'}")
