"""``python die_with_parent.py exec|watch PARENT_PID PROGRAM ARGUMENTS…``: dies with its parent.

A program of its own, because nothing may safely run between fork and exec in a process that has
threads. Uses the standard library only, so it costs one bare interpreter start.

``exec`` (Linux) asks the kernel to watch the parent and becomes PROGRAM: no process is added.
``watch`` stays and looks after the parent itself: where there is no such kernel, and for a program
that changes its user, as Mosquitto does, because that makes the kernel forget.
"""

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_LINUX = sys.platform == "linux"
_WATCH_S = 0.5
_GRACE_S = 3.0


def command(arguments: Sequence[str], *, changes_user: bool = False) -> list[str]:
    """The command line of a child that ends when this process dies, however that happens.

    Where the kernel sees to it, already when the thread dies that starts it.

    Args:
        arguments: absolute path of the program, and its arguments.
        changes_user: whether the program may become another user.
    """
    way = "exec" if _LINUX and not changes_user else "watch"
    return [sys.executable, "-I", __file__, way, str(os.getpid()), *arguments]


def die_with_parent(parent: int) -> bool:
    """On Linux, let the kernel terminate this process when its parent dies, however that happens.

    Survives exec. Returns whether the parent lives.
    """
    if _LINUX:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    return os.getppid() == parent


def run_watched(parent: int, program: Sequence[str]) -> int:
    """Run the program until it ends, the parent is gone or SIGTERM comes; its exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    child = subprocess.Popen(program)
    try:
        while os.getppid() == parent:
            try:
                status = child.wait(_WATCH_S)
            except subprocess.TimeoutExpired:
                continue
            return status if status >= 0 else 128 - status
    finally:
        _end(child)
    return 128 + signal.SIGTERM


def _end(child: "subprocess.Popen[bytes]") -> None:
    child.terminate()
    try:
        child.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _main() -> None:
    way, parent, program = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
    if way == "watch":
        sys.exit(run_watched(parent, program))
    if die_with_parent(parent):
        os.execv(program[0], program)  # noqa: S606 - an argument list, no shell


if __name__ == "__main__":
    _main()
