"""``python -m protofleet.firmware_sim.process_server``: forks devices and coordinators on demand.

It has loaded what they need, so one that was killed is back in a tenth of a second and not after
two; what is forked is the ordinary command line in a process of its own. It takes JSON lines and
answers each with one. Run in a user and mount namespace (``unshare -Urm``) it also makes small
disks, which fill up and become read-only for real.

Two things are not as in life, so that weeks fit into minutes: waits of the protocol that are meant
for people and fleets are shorter (``SHORTENED``), and the wall clock of a process may be moved.
"""

from __future__ import annotations

import importlib
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from protofleet.firmware_sim.die_with_parent import die_with_parent

SHORTENED: dict[str, dict[str, float]] = {
    "protofleet.wire.mqtt.link": {"BACKOFF_MIN_S": 0.2, "BACKOFF_MAX_S": 2.0, "STABLE_S": 1.0},
    "protofleet.wire.transfers.sender": {
        "REPEAT_S": 0.5,
        "REPEAT_MAX_S": 2.0,
        "OFFER_GAP_S": 0.2,
        "ANSWERED_REPEAT_S": 3.0,
    },
    "protofleet.wire.transfers.allowance": {"COPY_S": 5.0, "CHUNK_S": 0.5},
    "protofleet.wire.transfers.inbound": {
        "FIRST_SILENCE_S": 2.0,
        "SILENCE_S": 1.0,
        "SILENCE_MAX_S": 3.0,
    },
    "protofleet.wire.mqtt.connection": {"OPEN_TIMEOUT_S": 3.0},
    "protofleet.edge.presence": {"WILLS_OUT_S": 4.0, "HEARTBEAT_S": 3.0, "SPREAD_MIN_S": 0.1},
    "protofleet.edge.outbox": {"SETTLE_S": 3.0},
    "protofleet.edge.waiting": {"FIRST_S": 2.0},
    "protofleet.edge.storage": {"LOOK_S": 0.2},
    "protofleet.coordinator.process.storage": {"LOOK_S": 0.2},
    "protofleet.coordinator.devices.roll_call": {"PAUSE_S": 1.0, "SPREAD_MIN_S": 0.1},
}
"""Seconds by module and constant."""
KEEPALIVE_S = 2
"""Of MQTT: a dead connection is noticed within twice that."""
_LOADED = (
    "protofleet.cli.main",
    "protofleet.cli.coordinator",
    "protofleet.cli.device",
    "protofleet.coordinator.process.run",
    "protofleet.datasets",
    "protofleet.edge.join",
    "onnxruntime",
)
_BALLAST = "ballast"
_BLOCK = bytes(1 << 16)


class ProcessOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of the server.

    Attributes:
        do: name of a method of ``Server``.
        path: of a disk, or of a folder that is copied.
        to: where the copy goes.
        size: of a disk, bytes.
        arguments: of the command line ``protofleet``.
        clock: file with the seconds by which the process's wall clock is off, a float64.
        out, log: files that standard output and error are appended to.
    """

    do: str
    path: str = ""
    to: str = ""
    size: int = 0
    arguments: tuple[str, ...] = ()
    clock: str = ""
    out: str = ""
    log: str = ""


class Server:
    """Does what orders ask for; each method returns what is answered."""

    def start(self, order: ProcessOrder) -> dict[str, Any]:
        """Fork a command; its process id."""
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return {"pid": pid}
        status = 1
        try:
            status = _run(order, parent)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def ended(self, _order: ProcessOrder) -> dict[str, Any]:
        """Processes that have ended since this was asked last, and their exit status."""
        found: dict[int, int] = {}
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            found[pid] = os.waitstatus_to_exitcode(status)
        return {"ended": list(found.items())}

    def make_disk(self, order: ProcessOrder) -> dict[str, Any]:
        """A disk of its own, of ``size`` bytes, on the folder ``path``."""
        Path(order.path).mkdir(parents=True, exist_ok=True)
        size = f"size={order.size},mode=700"
        _command("mount", "-t", "tmpfs", "-o", size, "protofleet", order.path)
        return {}

    def fill(self, order: ProcessOrder) -> dict[str, Any]:
        """Fill the disk to its last byte: every write fails with ENOSPC."""
        try:
            with (Path(order.path) / _BALLAST).open("ab", buffering=0) as ballast:
                while ballast.write(_BLOCK):
                    pass
        except OSError:
            return {}
        return {}

    def free(self, order: ProcessOrder) -> dict[str, Any]:
        """Give the space back."""
        (Path(order.path) / _BALLAST).unlink(missing_ok=True)
        return {}

    def make_read_only(self, order: ProcessOrder) -> dict[str, Any]:
        """Every file that is opened from now on finds a read-only file system (EROFS)."""
        aside = f"{order.path}.read-only"  # there, because nobody can open a file in between
        Path(aside).mkdir(exist_ok=True)
        _command("mount", "--bind", order.path, aside)
        _command("mount", "-o", "remount,bind,ro", aside)
        _command("mount", "--move", aside, order.path)
        return {}

    def make_writable(self, order: ProcessOrder) -> dict[str, Any]:
        """Undo it."""
        _command("umount", "-l", order.path)
        return {}

    def copy(self, order: ProcessOrder) -> dict[str, Any]:
        """Copy a folder to where those outside the namespace see it."""
        shutil.copytree(
            order.path, order.to, ignore=shutil.ignore_patterns(_BALLAST), dirs_exist_ok=True
        )
        return {}


def _command(name: str, *arguments: str) -> None:
    found = shutil.which(name)
    if found is None:
        raise FileNotFoundError(f"{name}: not installed (apt install mount)")
    subprocess.run([found, *arguments], check=True)


def _run(order: ProcessOrder, parent: int) -> int:
    """In the new process: the command line, with its files and its clock."""
    for caught in (signal.SIGINT, signal.SIGTERM):
        signal.signal(caught, signal.SIG_DFL)
    if not die_with_parent(parent):
        return 1
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for number, path in ((1, order.out), (2, order.log)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), number)
    _move_clock(Path(order.clock))
    command_line = importlib.import_module(_LOADED[0])
    try:
        command_line.main(list(order.arguments))
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0


def _move_clock(path: Path) -> None:
    """Let Python's wall clock be off by what the file says at each call."""
    with path.open("r+b") as file:
        offset = mmap.mmap(file.fileno(), 8)
    read = struct.Struct("@d").unpack_from
    true_time, local, universal = time.time, time.localtime, time.gmtime

    def moved() -> float:
        return true_time() + float(read(offset)[0])

    def broken_down(tell: Callable[[float], time.struct_time]) -> Any:
        return lambda seconds=None: tell(moved() if seconds is None else seconds)

    time.time = moved
    time.time_ns = lambda: int(moved() * 1e9)
    time.localtime, time.gmtime = broken_down(local), broken_down(universal)


def _prepare() -> None:
    for name in _LOADED:
        importlib.import_module(name)
    for name, constants in SHORTENED.items():
        module = importlib.import_module(name)
        for constant, seconds in constants.items():
            if not hasattr(module, constant):
                raise AttributeError(f"{name}: has no {constant}")
            setattr(module, constant, seconds)
    from paho.mqtt.client import Client  # noqa: PLC0415 - late, like the others

    connect = Client.connect

    def connect_briefly(self: Client, host: str, port: int, _keepalive: int) -> Any:
        return connect(self, host, port, KEEPALIVE_S)

    Client.connect = connect_briefly  # type: ignore[method-assign, assignment]


def _serve() -> None:
    _prepare()
    server = Server()
    decode = msgspec.json.Decoder(ProcessOrder).decode
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    answers.write(b'{"ready":true}\n')
    for line in sys.stdin.buffer:
        order = decode(line)
        try:
            answer = getattr(server, order.do)(order)
        except (OSError, shutil.Error, subprocess.CalledProcessError) as error:
            answer = {"error": str(error)}
        answers.write(msgspec.json.encode(answer) + b"\n")


if __name__ == "__main__":
    _serve()
