"""Child processes that never outlive their parent, and the events that they write."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from protofleet.firmware_sim import die_with_parent
from protofleet.private_files import opener


def spawn(
    arguments: Sequence[str],
    *,
    out: Path,
    log: Path,
    env: Mapping[str, str] | None = None,
    changes_user: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, so that Ctrl-C reaches only its parent.

    It is terminated when the parent dies, however that happens.

    Args:
        arguments: absolute path of the program, and its arguments.
        out: file that its standard output is appended to.
        log: the same for standard error.
        env: additions to the environment.
        changes_user: whether the program may become another user.
    """
    with open(out, "ab", opener=opener) as stdout, open(log, "ab", opener=opener) as stderr:
        return subprocess.Popen(
            die_with_parent.command(arguments, changes_user=changes_user),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )


def stop(processes: Sequence[subprocess.Popen[bytes]], *, grace_s: float = 10.0) -> None:
    """Ask all to end, wait together for at most ``grace_s``, then kill the rest."""
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + grace_s
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class EventFollower:
    """Reads the JSON events that another process writes, line by line, while it writes them.

    Args:
        path: the growing file; the other process makes it, maybe later.
        position: where to begin, in bytes.
    """

    def __init__(self, path: Path, position: int = 0) -> None:
        self.path = path
        self._position = position

    def read(self) -> Iterator[dict[str, Any]]:
        """Events of whole lines written since the last call."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._position)
            written = file.read()
        whole = written[: written.rfind(b"\n") + 1]
        self._position += len(whole)
        yield from map(msgspec.json.decode, whole.splitlines())
