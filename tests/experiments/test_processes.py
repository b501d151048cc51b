"""The local engine's processes: killed, orphaned, in error, and from run to run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest

from protofleet.errors import InputError, ProtofleetError
from protofleet.experiments import processes as module
from protofleet.experiments.local import run_local
from protofleet.experiments.prepare import ClientFiles
from protofleet.experiments.processes import processes


@pytest.fixture
def started(monkeypatch):
    """Processes in the order in which they are started."""
    found = []

    class Popen(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            found.append(self)

    monkeypatch.setattr(module.subprocess, "Popen", Popen)
    return found


def rounds(result):
    return [msgspec.structs.replace(one, seconds=0.0, costs=None) for one in result.rounds]


def ignore(_done):
    return None


@pytest.mark.slow(seconds=10)
def test_a_killed_worker_ends_the_run_which_then_goes_on(job, started, tmp_path):
    """What clients kept since round 2 outlives the process that made it."""

    def kill(done):
        if done.round_id == 2:
            os.kill(started[0].pid, signal.SIGKILL)

    with processes(2) as opened:
        with pytest.raises(ProtofleetError, match=r"a worker of 'Ditto' died, .* fewer --workers"):
            run_local(job, opened=opened, watch=kill)
        assert all(one.returncode is not None for one in started)
        seen = []
        again = run_local(job, opened=opened, watch=seen.append)
        assert len(started) == 4
        (tmp_path / "whole").mkdir()
        whole = run_local(replace(job, folder=tmp_path / "whole"), opened=opened, watch=ignore)
        assert len(started) == 4
    assert [one.round_id for one in seen] == [1, 2, 3, 4]
    assert rounds(again) == rounds(whole)
    assert all(one.returncode is not None for one in started)


@pytest.mark.slow(seconds=5)
def test_the_error_of_a_client_comes_as_it_was_raised(job, started, tmp_path):
    (tmp_path / "broken.npz").write_bytes(b"nothing")
    clients = {**job.data.clients, "client-4": ClientFiles(own=tmp_path / "broken.npz")}
    data = msgspec.structs.replace(job.data, clients=clients)
    with processes(2) as opened, pytest.raises(InputError, match=r"broken\.npz"):
        run_local(replace(job, data=data), opened=opened, watch=ignore)
    assert all(one.returncode is not None for one in started)


@pytest.mark.slow(seconds=5)
def test_no_process_outlives_a_parent_that_is_killed():
    script = (
        "import time\n"
        "from protofleet.experiments.processes import _Pool\n"
        "pool = _Pool(2)\n"
        "pool.connections(2)\n"
        "print(*(one.pid for one in pool._started), flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        pids = [int(one) for one in parent.stdout.readline().split()]
        parent.kill()
    deadline = time.monotonic() + 10
    while any(map(_lives, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(pids) == 2
    assert not any(map(_lives, pids))


def _lives(pid: int) -> bool:
    """Whether it is there, and no zombie that waits for its new parent."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@dataclass(frozen=True)
class _Named:
    client_id: str


def test_a_process_keeps_its_clients_and_takes_over_what_another_has_not_begun():
    """Chunks become smaller; each task goes out once; what nobody has had goes to who asks."""
    tasks = [_Named(f"{n:02}") for n in range(24)]
    homes = {one.client_id: int(one.client_id) % 2 for one in tasks[:20]}
    left = module._Left(tasks, homes, 2)
    first = left.chunk(0)
    assert [one.client_id for one in first] == ["00", "02", "04", "06"]
    rest = []
    while chunk := left.chunk(0):
        rest.append([one.client_id for one in chunk])
    assert list(map(len, rest)) == [3, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    taken = [one for chunk in rest for one in chunk]
    assert taken[:10] == ["08", "10", "12", "14", "16", "18", "20", "21", "22", "23"]
    assert taken[10:] == [f"{n:02}" for n in range(19, 0, -2)]
    assert left.chunk(1) == []
