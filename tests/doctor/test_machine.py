"""This machine: a clock that is behind, disks that take no writes, runtimes that do not run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
from doctor_rows import levels, the

from protofleet.chaos.processes import namespaces_permitted
from protofleet.doctor import machine
from protofleet.doctor.machine import behind, beside
from protofleet.doctor.observations import Level

pytestmark = pytest.mark.slow(seconds=10)
_COMMAND = (sys.executable, "-m", "protofleet", "doctor", "--json")


def test_this_machine_is_well_enough_for_the_tests(command):
    _, rows = command("--bundle", "nothing.pfb")
    own = [row for row in rows if row["subject"] == "this machine"]
    assert {row["check"] for row in own} == {"clock", "disk", "memory", "runtimes", "kernels"}
    assert "problem" not in {row["level"] for row in own if row["check"] != "memory"}
    assert all(row["remedy"] for row in own if row["level"] != "ok")


def test_a_clock_behind_what_has_happened_is_told():
    """A board without a battery wakes up in 1970; what is installed there knows better."""
    now = time.time()
    assert list(behind("it happened", now - 60, now)) == []
    assert list(behind("it happened", now + 60, now)) == []  # two clocks are never alike
    (told,) = behind("it happened", now, 86_400.0)
    assert told.level is Level.PROBLEM
    assert "this clock says 1970-01-0" in told.text
    assert "timedatectl" in told.remedy


def test_a_clock_ahead_of_another_is_told():
    now = time.time()
    assert next(beside("that one", now - 60, now)).level is Level.OK
    (ahead,) = beside("that one", now - 3600, now)
    (late,) = beside("that one", now + 3600, now)
    assert ahead.level is late.level is Level.PROBLEM
    assert "ahead of that one" in ahead.text
    assert "behind that one" in late.text
    assert "that one is wrong" in ahead.remedy


_ON_A_FULL_DISK = """
mount -t tmpfs -o size=4m none "$1"
head -c 3900k /dev/zero > "$1/filler"
cd "$1" && exec "${@:2}"
"""
_ON_A_READ_ONLY_DISK = """
mount -t tmpfs -o ro,size=4m none "$1"
cd "$1" && exec "${@:2}"
"""


@pytest.mark.skipif(not namespaces_permitted(), reason="needs namespaces: unshare -Urm true")
@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (_ON_A_FULL_DISK, "No space left on device"),
        (_ON_A_READ_ONLY_DISK, "Read-only file system"),
    ],
)
def test_a_disk_that_takes_no_writes_is_a_problem(tmp_path, script, reason):
    """In a namespace of mounts of its own, on a file system in memory."""
    disk = tmp_path / "disk"
    disk.mkdir()
    unshare = ["unshare", "--user", "--map-root-user", "--mount", "bash", "-ec", script, "-"]
    done = subprocess.run([*unshare, disk, *_COMMAND], check=False, capture_output=True, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1, done.stderr
    found = the(rows, "disk")
    assert reason in found["text"]
    assert found["remedy"]


def test_a_runtime_that_does_not_run_is_a_problem(tmp_path):
    """Its module is there, and is not what it should be."""
    (tmp_path / "onnxruntime.py").write_text("import os\nos.abort()\n")
    found = _run_with(tmp_path, PYTHONPATH=str(tmp_path))
    broken = the(found, "runtimes")
    assert "onnx" in broken["text"]
    assert "ended by signal 6" in broken["text"]
    assert "pip install" in broken["remedy"]


def _run_with(folder, **environment):
    done = subprocess.run(
        _COMMAND,
        cwd=folder,
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
        text=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_kernels_that_are_not_compiled_yet_and_little_memory_are_warnings(tmp_path, monkeypatch):
    """An empty cache; figures of a small board in place of this machine's."""
    monkeypatch.setenv("PROTOFLEET_KERNEL_CACHE", str(tmp_path / "cache"))
    figures = tmp_path / "meminfo"
    monkeypatch.setattr(machine, "_MEMINFO", figures)
    found = {check.name: check.run for check in machine.CHECKS}
    (kernels,) = found["kernels"](machine.Machine())
    assert (kernels.level, kernels.remedy) in (
        (Level.WARNING, "protofleet kernels warm"),
        (Level.WARNING, "docs/kernels.md says what runs then, and how fast"),  # without Numba
    )
    for free_kb, level in ((4_000_000, Level.OK), (300_000, Level.WARNING), (9, Level.PROBLEM)):
        figures.write_text(f"MemTotal: 8000000 kB\nMemAvailable:   {free_kb} kB\n")
        assert [one.level for one in found["memory"](machine.Machine())] == [level]


def test_a_folder_that_is_not_there_yet_counts_as_the_one_above(tmp_path):
    found = {check.name: check.run for check in machine.CHECKS}
    (disk,) = found["disk"](machine.Machine((tmp_path / "a" / "b",)))
    assert f"'{tmp_path}'" in disk.text
    assert levels([], "disk") == []
