"""Child processes that never outlive their parent."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from protofleet.firmware_sim import leash


def spawn(
    arguments: Sequence[str], *, out: Path, log: Path, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, so that Ctrl-C reaches only its parent.

    On Linux the kernel terminates it when the parent dies, however that happens.

    Args:
        arguments: absolute path of the program, and its arguments.
        out: file that its standard output is appended to.
        log: the same for standard error.
        env: additions to the environment.
    """
    with out.open("ab") as stdout, log.open("ab") as stderr:
        return subprocess.Popen(
            leashed(arguments),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env={**os.environ, **(env or {})},
            start_new_session=True,
        )


def leashed(arguments: Sequence[str]) -> list[str]:
    """The command line of a child that, on Linux, the kernel terminates when this process dies."""
    return [sys.executable, "-I", leash.__file__, str(os.getpid()), *arguments]


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
