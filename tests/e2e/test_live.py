"""The coordinator on a terminal of 60 columns: the fleet below its lines, none of them wider."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
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
