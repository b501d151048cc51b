"""No device process outlives the one that started it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from protofleet.firmware_sim.processes import spawn, stop

_STARTER = """
import sys, time
from pathlib import Path
from protofleet.firmware_sim.processes import spawn
child = spawn([sys.executable, "-c", "import time; time.sleep(60)"],
              out=Path(sys.argv[1]), log=Path(sys.argv[2]))
print(child.pid, flush=True)
time.sleep(60)
"""


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def _wait_until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_child_dies_when_its_parent_is_killed(tmp_path):
    parent = subprocess.Popen(
        [sys.executable, "-c", _STARTER, str(tmp_path / "out"), str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        text=True,
    )
    pid = int(parent.stdout.readline())
    _wait_until(lambda: b"time.sleep" in Path(f"/proc/{pid}/cmdline").read_bytes())
    time.sleep(0.3)
    assert _lives(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    _wait_until(lambda: not _lives(pid))


def test_stop_kills_what_does_not_listen(tmp_path):
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); "
    out = tmp_path / "out"
    child = spawn(
        [sys.executable, "-c", stubborn + "time.sleep(60)"], out=out, log=tmp_path / "log"
    )
    _wait_until(lambda: out.read_text() != "")
    stop([child], grace_s=0.5)
    assert child.returncode == -signal.SIGKILL


def test_output_and_environment_reach_the_child(tmp_path):
    code = "import os, sys; print(os.environ['GREETING']); print('trouble', file=sys.stderr)"
    child = spawn(
        [sys.executable, "-c", code],
        out=tmp_path / "out",
        log=tmp_path / "log",
        env={"GREETING": "hello"},
    )
    assert child.wait(20) == 0
    assert (tmp_path / "out").read_text() == "hello\n"
    assert (tmp_path / "log").read_text() == "trouble\n"


_STEP = """
import sys
from protofleet.demo import commands
commands.invocation = lambda *_: [sys.executable, "-c", sys.argv[1]]
commands.run_step(["pretrain"])
"""


def test_a_step_of_the_demonstration_dies_when_the_demonstration_is_killed():
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    parent = subprocess.Popen(
        [sys.executable, "-c", _STEP, code], stdout=subprocess.PIPE, text=True
    )
    pid = int(parent.stdout.readline())
    assert _lives(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    _wait_until(lambda: not _lives(pid))
