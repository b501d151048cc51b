"""Runs a command while the parent lives: ``python -m protofleet.firmware_sim._child command…``.

The parent holds the other end of standard input; when it closes it or dies, even by SIGKILL, the
end of file is seen here and the command is stopped. This works on every POSIX system, and a
terminal's Ctrl-C, which reaches the whole process group, leaves the stopping to the parent.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

_GRACE_S = 3.0


def _watch_parent(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 1024):
        pass
    child.terminate()
    try:
        child.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()


def main() -> int:
    """Start the command, stop it with the parent, return its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    threading.Thread(target=_watch_parent, args=(child,), daemon=True).start()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main())
