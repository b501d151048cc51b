"""The coordinator on a terminal of 60 columns: the fleet below its lines, none of them wider."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from threading import Thread

import pytest
from tiny_bundle import tiny_bundle

pytestmark = [pytest.mark.mosquitto, pytest.mark.slow(seconds=6)]

_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


class _Terminal:
    """A process that believes it is looked at, and what it shows."""

    def __init__(self, arguments, columns):
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        env = {**os.environ, "TERM": "xterm"}
        env.pop("COLUMNS", None)
        self.process = subprocess.Popen(arguments, stdout=theirs, stderr=theirs, env=env)
        os.close(theirs)
        self._end, self.shown = ours, b""
        self._thread = Thread(target=self._read)
        self._thread.start()

    def _read(self):
        while True:
            try:
                data = os.read(self._end, 4096)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            self.shown += data
        os.close(self._end)

    @property
    def lines(self):
        return re.split(r"[\r\n]+", _CONTROL.sub(b"", self.shown).decode())

    def wait_for(self, text):
        while text not in " ".join(self.lines):
            assert self.process.poll() is None, self.lines
            self._thread.join(0.05)

    def finish(self):
        assert self.process.wait() == 0, self.lines
        self._thread.join()


def test_who_is_late_in_a_buffered_run_is_seen_at_its_task(make_federation, tmp_path, key):
    """A device stands still behind its first task while the other makes one state after another."""
    federation = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), 2)
    # Else the task would be too old after 20 rounds, and the device would wait for another.
    schedule = 'kind = "buffered"\nbuffer = 1\nmax_staleness = 4000'
    federation.write(rounds=4000, extra=f"[schedule]\n{schedule}\n")
    command = [sys.executable, "-m", "protofleet", "coordinator", "run", str(federation.file)]
    terminal = _Terminal([*command, "--trust", str(federation.trust)], 60)
    try:
        devices = [federation.start_device(name) for name in federation.devices]
        devices[1].wait_for(lambda event: event["event"] == "task")
        devices[1].signal(signal.SIGSTOP)
        terminal.wait_for("round 9 committed")
        before = len(terminal.lines)
        terminal.wait_for("round 19 committed")
        time.sleep(1.0)
        told = [line for line in terminal.lines[before:] if line.startswith("device1")]
        # Who is there is written every few seconds, and rounds go by faster.
        seen = {line.split()[1] for line in told if "not heard yet" not in line}
        assert seen <= {"is", "receives", "trains", "sends"}, seen
        assert seen
    finally:
        terminal.process.kill()


def test_the_fleet_is_below_the_lines_while_rounds_go_on(make_federation, tmp_path, key):
    federation = make_federation("home", tiny_bundle(tmp_path / "tiny.pfb", key), 2)
    federation.write(rounds=2)
    command = [sys.executable, "-m", "protofleet", "coordinator", "run", str(federation.file)]
    terminal = _Terminal([*command, "--trust", str(federation.trust)], 60)
    try:
        first = federation.start_device("device0")
        terminal.wait_for("1 of 2 there")
        assert any(line.split()[:2] == ["device0", "waits"] for line in terminal.lines)
        second = federation.start_device("device1")
        terminal.finish()
        assert (first.finish(), second.finish()) == (0, 0)
    finally:
        terminal.process.kill()
    fleet = [line for line in terminal.lines if line.startswith("device")]
    assert fleet
    assert max(map(len, fleet)) <= 60
    assert sum("committed in" in line for line in terminal.lines) == 2
    assert any("finished" in line for line in terminal.lines)
