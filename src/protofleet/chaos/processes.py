"""The process server seen from outside: processes that can be killed, disks that fill up."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

import msgspec

from protofleet.errors import UnavailableError
from protofleet.firmware_sim import die_with_parent
from protofleet.firmware_sim.process_server import ProcessOrder
from protofleet.threads import thread_variables

_MODULE = "protofleet.firmware_sim.process_server"
_STUCK_S = 30.0
_NAMESPACE = ("--user", "--map-root-user", "--mount")


class ProcessServer:
    """``with ProcessServer(log) as server``; used by any thread.

    Attributes:
        has_disks: whether it may mount disks.
    """

    def __init__(self, log: Path) -> None:
        self._lock = threading.RLock()
        self._ended: dict[int, int] = {}
        program = [sys.executable, "-m", _MODULE]
        unshare = shutil.which("unshare")
        self.has_disks = namespaces_permitted()
        if unshare is not None and self.has_disks:
            program = [unshare, *_NAMESPACE, "--", *program]
        with log.open("ab") as stderr:
            self._popen = subprocess.Popen(
                die_with_parent.command([shutil.which(program[0]) or program[0], *program[1:]]),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **thread_variables(1), "PROTOFLEET_NUMBA": "0"},
                start_new_session=True,
            )
        self._log = log

    def __enter__(self) -> Self:
        self._answer()
        return self

    def __exit__(self, *_: object) -> None:
        self._popen.terminate()
        self._popen.wait()

    def ask(self, do: str, **order: Any) -> dict[str, Any]:
        """What it answers; UnavailableError: it could not do it."""
        line = msgspec.json.encode(ProcessOrder(do=do, **order)) + b"\n"
        with self._lock:
            if self._popen.stdin is None:
                raise UnavailableError("process server: it has no input")
            self._popen.stdin.write(line)
            self._popen.stdin.flush()
            return self._answer()

    def start(self, **order: Any) -> int:
        """Fork a command; its process id."""
        with self._lock:
            pid = int(self.ask("start", **order)["pid"])
            self._ended.pop(pid, None)  # of an earlier process that had the number
        return pid

    def status(self, pid: int) -> int | None:
        """A process's exit status, negative for a signal; None while it runs."""
        with self._lock:
            if pid not in self._ended:
                ended = self.ask("ended")["ended"]
                self._ended.update({int(one): int(code) for one, code in ended})
            return self._ended.get(pid)

    def _answer(self) -> dict[str, Any]:
        line = b"" if self._popen.stdout is None else self._popen.stdout.readline()
        if not line:
            last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
            raise UnavailableError(f"process server: it has ended: {''.join(last)}")
        answer: dict[str, Any] = msgspec.json.decode(line)
        if "error" in answer:
            raise UnavailableError(f"process server: {answer['error']}")
        return answer


def namespaces_permitted() -> bool:
    """Whether this user may have a namespace of mounts, and so disks that fill up."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return False
    tried = [unshare, *_NAMESPACE, "--", "true"]
    return subprocess.run(tried, check=False, stderr=subprocess.DEVNULL).returncode == 0


class ServedProcess:
    """A command of ``protofleet`` that is started again when it ends before its time.

    Args:
        server: starts it.
        name: of its files.
        folder: of ``<name>.jsonl``, ``<name>.log`` and ``<name>.clock``.
        arguments: of the command line.

    Attributes:
        events: file with its JSON events.
        starts: how often it was started.
    """

    def __init__(
        self, server: ProcessServer, name: str, folder: Path, arguments: tuple[str, ...]
    ) -> None:
        self.name, self.starts = name, 0
        self.events, self.log = folder / f"{name}.jsonl", folder / f"{name}.log"
        self._server, self._arguments = server, arguments
        self._clock = folder / f"{name}.clock"
        self._pid = 0
        self._began, self._told = 0.0, 0
        self._lock = threading.Lock()
        self._clock.write_bytes(bytes(8))

    def start(self) -> None:
        """Start it, unless it runs."""
        with self._lock:
            if self._pid and self._server.status(self._pid) is None:
                return
            self._pid = self._server.start(
                arguments=self._arguments,
                clock=str(self._clock),
                out=str(self.events),
                log=str(self.log),
            )
            self.starts += 1
            self._began, self._told = time.monotonic(), self._written()

    @property
    def status(self) -> int | None:
        """Exit status; None while it runs."""
        return self._server.status(self._pid)

    def kill(self) -> bool:
        """SIGKILL; whether it ran."""
        with self._lock:
            if self._server.status(self._pid) is not None:
                return False
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            return True

    def kill_if_stuck(self) -> None:
        """End one that has said nothing since it was forked.

        A fork may inherit a lock that another thread of its parent has had for ever.
        """
        if time.monotonic() > self._began + _STUCK_S and self._written() == self._told:
            self.kill()

    def _written(self) -> int:
        return self.events.stat().st_size if self.events.exists() else 0

    def move_clock(self, seconds: float) -> None:
        """From now on its wall clock is off by so much."""
        with self._clock.open("r+b") as file:
            file.write(struct.pack("@d", seconds))

    def last_words(self) -> str:
        """Last line of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "".join(text.strip().splitlines()[-1:])
