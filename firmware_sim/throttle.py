"""Processes that run a part of the time only, as those of a slower machine would.

The operating system stops and continues a process in turn, so everything that it does takes as much
longer: training, decoding, answers. Nothing in the process knows of it.
"""

from __future__ import annotations

import signal
import subprocess
import threading

PERIOD_S = 0.2
"""Of running and standing still: shorter than what anybody waits for, longer than a time slice."""


class Throttle(threading.Thread):
    """Slows one process down until ``end`` or its own end.

    Args:
        process: which.
        slowdown: how many times longer everything is to take; above 1.
    """

    def __init__(self, process: subprocess.Popen[bytes], slowdown: float) -> None:
        super().__init__(name=f"throttle-{process.pid}", daemon=True)
        self._process = process
        self._runs_s = PERIOD_S / slowdown
        self._over = threading.Event()

    def run(self) -> None:
        """Stop and continue it in turn."""
        while not self._over.wait(self._runs_s) and self._process.poll() is None:
            self._process.send_signal(signal.SIGSTOP)
            self._over.wait(PERIOD_S - self._runs_s)
            self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Let the process run as fast as it can."""
        self._over.set()
        self.join()
