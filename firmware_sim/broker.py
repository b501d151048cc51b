"""A broker of one's own: for demonstrations, tests, and first devices (``protofleet broker run``).

Mosquitto where it is installed; else amqtt (the ``fleet`` extra), which is named as what it is.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from protofleet.broker.folder import BrokerFolder, find_mosquitto
from protofleet.errors import InputError, UnavailableError
from protofleet.firmware_sim.processes import spawn, stop
from protofleet.private_files import opener

START_TIMEOUT_S = 20.0
"""Mosquitto needs 20 ms; amqtt imports for seconds on a small machine."""
STOP_TIMEOUT_S = 5.0
LOG_BYTES = 1 << 20
"""Of a broker's log, which then begins anew: every connection of a stranger writes into it."""
_LOOK_S = 0.5
EVERYWHERE = "0.0.0.0"  # noqa: S104 - asked for by the user

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """Which broker, and for whom.

    Attributes:
        kind: ``auto``: Mosquitto if there is one, else amqtt.
        host: address to listen on; ``0.0.0.0``: every network of this machine.
        port: 0: a free one.
        password_file: users, as ``mosquitto_passwd`` writes them; None: nobody needs a password.
            Only Mosquitto reads it.
        folder: TLS, accounts and access list (``protofleet broker init``); its ``mosquitto.conf``
            says address and port, in place of those above.
    """

    kind: Literal["auto", "mosquitto", "amqtt"] = "auto"
    host: str = "127.0.0.1"
    port: int = 0
    password_file: Path | None = None
    folder: BrokerFolder | None = None

    def place(self) -> tuple[str, int]:
        """Address and port to listen on."""
        if self.folder is None:
            return self.host, self.port
        host, port = self.folder.listener()
        return host or EVERYWHERE, port


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBroker:
    """A broker that answers.

    Attributes:
        url: ``mqtt://127.0.0.1:<port>`` or of another host, ``mqtts://`` with a folder, and with
            ``?version=3.1.1`` for amqtt.
        name: for people.
        process: that it lives in.
        log: what it says, a file; begins anew at ``LOG_BYTES``.
    """

    url: str
    name: str
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def local_broker(
    kind: Literal["auto", "mosquitto", "amqtt"] = "auto", *, port: int = 0
) -> Iterator[str]:
    """Run a broker on loopback while the context lasts; yields its URL.

    Args:
        kind: as of ``BrokerOptions``.
        port: 0: a free one.

    Raises:
        UnavailableError: neither is installed, or it did not start.
    """
    with open_broker(BrokerOptions(kind=kind, port=port)) as broker:
        yield broker.url


@contextmanager
def open_broker(options: BrokerOptions) -> Iterator[RunningBroker]:
    """Run a broker while the context lasts.

    It ends with the context, and by itself when this process dies in any way.

    Raises:
        InputError: the address cannot be listened on, or users for amqtt.
        UnavailableError: neither is installed, or it did not start.
    """
    port = _checked_port(options)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="protofleet-")))
        name, command = _command(options, port, folder)
        log = folder / "broker.log"
        process = spawn(command, out=log, log=log, changes_user=True)
        stack.callback(stop, [process], grace_s=STOP_TIMEOUT_S)
        stack.enter_context(_bounded(log))
        host, _ = options.place()
        here = "127.0.0.1" if host == EVERYWHERE else host
        _await_port(here, port, process, log)
        if options.folder is not None:
            _await_pid(options.folder)
        # amqtt speaks no MQTT 5; saying so spares every client an attempt.
        version = "" if name == "Mosquitto" else "?version=3.1.1"
        scheme = "mqtt" if options.folder is None else "mqtts"
        url = f"{scheme}://{here}:{port}{version}"
        yield RunningBroker(url=url, name=name, process=process, log=log)


@contextmanager
def _bounded(log: Path) -> Iterator[None]:
    """Within the block a log that another process appends to begins anew where it is too long."""
    ended, file = threading.Event(), opener(str(log), os.O_WRONLY)

    def watch() -> None:
        while not ended.wait(_LOOK_S):
            if os.fstat(file).st_size > LOG_BYTES:
                os.ftruncate(file, 0)

    thread = threading.Thread(target=watch, name="protofleet-broker-log", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        os.close(file)


def _command(options: BrokerOptions, port: int, folder: Path) -> tuple[str, list[str]]:
    kind = options.kind
    mosquitto = find_mosquitto() if kind in ("auto", "mosquitto") else None
    if mosquitto is not None:
        return "Mosquitto", [mosquitto, "-c", str(_config_file(options, port, folder))]
    if kind in ("auto", "amqtt") and find_spec("amqtt") is not None:
        if options.password_file is not None:
            raise InputError("users: only Mosquitto knows them (apt install mosquitto)")
        _log.warning("embedded amqtt: for demonstrations only (install mosquitto for real use)")
        program = [sys.executable, "-m", "protofleet.firmware_sim._amqtt"]
        program += [options.place()[0], str(port)]
        secured = [] if options.folder is None else [str(options.folder.path)]
        return "amqtt, embedded: for demonstrations only", [*program, *secured]
    raise UnavailableError(
        f"broker {kind}: expected Mosquitto or amqtt, found neither; install Mosquitto "
        "(apt install mosquitto), or pip install 'protofleet[fleet]', or give --broker URL"
    )


def _config_file(options: BrokerOptions, port: int, folder: Path) -> Path:
    if options.folder is not None:
        return options.folder.config
    config = folder / "mosquitto.conf"
    config.write_text(_config(options, port), encoding="utf-8")
    return config


def _config(options: BrokerOptions, port: int) -> str:
    lines = [f"listener {port} {options.host}", "persistence false", "set_tcp_nodelay true"]
    users = options.password_file
    if users is None:
        return "\n".join([*lines, "allow_anonymous true", ""])
    lines += ["allow_anonymous false", f"password_file {users.absolute()}"]
    if os.geteuid() == 0:
        lines.append("user root")  # else it becomes a user who may not read the file
    return "\n".join([*lines, ""])


def _checked_port(options: BrokerOptions) -> int:
    """A port that is free; what Mosquitto would say of it and of the users is too late or terse."""
    host, wanted = options.place()
    try:
        with socket.create_server((host, wanted)) as probe:
            port: int = probe.getsockname()[1]
    except (OSError, OverflowError) as error:
        raise InputError(
            f"broker at {host}:{wanted}: {_reason(error)}; {_remedy(error)}"
        ) from error
    users = options.password_file
    if users is not None:
        try:
            users.read_bytes()
        except OSError as error:
            raise InputError(
                f"users '{users}': {error.strerror}; make it with: mosquitto_passwd -c {users} NAME"
            ) from error
    return port


_REMEDIES = {
    errno.EADDRINUSE: "perhaps a broker runs there already: use it, or choose another port",
    errno.EADDRNOTAVAIL: f"choose an address of this machine, or {EVERYWHERE} for all of them",
    errno.EACCES: "choose a port above 1023",
}


def _remedy(error: Exception) -> str:
    return _REMEDIES.get(getattr(error, "errno", None) or 0, "choose another port or host")


def _reason(error: Exception) -> str:
    number = getattr(error, "errno", None)
    return os.strerror(number) if number and number > 0 else str(error)


def _await_port(host: str, port: int, broker: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while broker.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection((host, port), 1.0).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    lines = log.read_text(errors="replace").strip().splitlines()
    raise UnavailableError(f"broker: did not start: {lines[-1] if lines else 'it said nothing'}")


def _await_pid(folder: BrokerFolder) -> None:
    """Until ``folder.reload`` finds the broker, which has just begun to listen."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while folder.running() is None and time.monotonic() < deadline:
        time.sleep(0.01)
