"""No device process outlives the one that started it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from protofleet.firmware_sim.processes import EventFollower, spawn, stop

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


_WATCHER = """
import sys
from protofleet.firmware_sim.die_with_parent import run_watched
sys.exit(run_watched(int(sys.argv[1]), sys.argv[2:]))
"""
_STARTER_OF_WATCHER = f"""
import os, subprocess, sys, time
program = [sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(60)"]
subprocess.Popen([sys.executable, "-c", {_WATCHER!r}, str(os.getpid()), *program])
time.sleep(60)
"""


def test_where_the_kernel_does_not_watch_the_parent_the_child_dies_too():
    parent = subprocess.Popen(
        [sys.executable, "-c", _STARTER_OF_WATCHER], stdout=subprocess.PIPE, text=True
    )
    pid = int(parent.stdout.readline())
    assert _lives(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    _wait_until(lambda: not _lives(pid))


def test_a_watched_program_gets_sigterm_and_its_status_is_passed_on():
    watch = [sys.executable, "-c", _WATCHER, str(os.getpid()), sys.executable, "-c"]
    assert subprocess.run([*watch, "raise SystemExit(7)"], check=False).returncode == 7
    code = "import time; print(1, flush=True); time.sleep(60)"
    child = subprocess.Popen([*watch, code], stdout=subprocess.PIPE)
    child.stdout.readline()
    child.terminate()
    assert child.wait(20) == 128 + signal.SIGTERM


def test_events_are_read_once_and_by_whole_lines(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"old":1}\n{"a":1}\n{"b"')
    follower = EventFollower(path, position=10)
    assert list(follower.read()) == [{"a": 1}]
    with path.open("ab") as file:
        file.write(b":2}\n")
    assert list(follower.read()) == [{"b": 2}]
    assert list(follower.read()) == []


def test_a_process_that_has_not_begun_to_write_has_told_nothing(tmp_path):
    path = tmp_path / "events.jsonl"
    follower = EventFollower(path)
    assert list(follower.read()) == []
    path.write_bytes(b'{"a":1}\n')
    assert list(follower.read()) == [{"a": 1}]


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
from rich.console import Console
from protofleet.demo import commands
commands.invocation = lambda *_: [sys.executable, "-c", sys.argv[1]]
commands.run_steps([commands.Step(arguments=["pretrain"])], Console(stderr=True))
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
