"""``python leash.py PARENT_PID PROGRAM ARGUMENTS…``: become PROGRAM, but die with the parent.

A program of its own, because nothing may safely run between fork and exec in a process that has
threads. Uses the standard library only, so it costs one bare interpreter start.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> bool:
    """On Linux, let the kernel terminate this process when its parent dies, however that happens.

    Survives exec. Returns whether the parent lives.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    return os.getppid() == parent


def _main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if die_with_parent(parent):
        os.execv(program[0], program)  # noqa: S606 - an argument list, no shell


if __name__ == "__main__":
    _main()
