"""The meter with a clock of its own: phases are exclusive, samples bounded."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from protofleet.edge.learning.meter import MAX_SAMPLES, Meter, peak_rss_bytes, thinned


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_inside_an_inner_phase_is_not_counted_twice():
    wall, cpu = _Clock(), _Clock()
    meter = Meter(wall, cpu)
    meter.enter("receive")
    wall.now += 1
    with meter.phase("train"):
        wall.now, cpu.now = wall.now + 2, cpu.now + 1.5
        with meter.phase("evaluate"):
            wall.now, cpu.now = wall.now + 4, cpu.now + 3
        wall.now += 8
    wall.now += 16
    costs = meter.take()
    assert costs.phases_s == {"receive": 17, "train": 10, "evaluate": 4}
    assert costs.cpu_s == {"receive": 0, "train": 1.5, "evaluate": 3}
    wall.now += 1
    assert meter.take().phases_s == {"receive": 1}


def test_idle_time_is_no_cost():
    wall = _Clock()
    meter = Meter(wall, wall)
    wall.now += 5
    assert meter.take().phases_s == {}


def test_latencies_are_counted_in_milliseconds_and_forgotten_after_take():
    wall = _Clock()
    meter = Meter(wall, wall)
    for seconds in (0.25, 0.5):
        with meter.train_step():
            wall.now += seconds
    with meter.inference():
        wall.now += 0.125
    costs = meter.take()
    assert costs.train_step_ms == (250, 500)
    assert costs.infer_ms == (125,)
    assert meter.take().train_step_ms == ()


def test_many_samples_are_thinned_evenly_with_both_ends_kept():
    kept = thinned([float(i) for i in range(10_000)])
    assert len(kept) == MAX_SAMPLES
    assert (kept[0], kept[-1]) == (0, 9999)
    assert max(np.diff(kept)) <= 51
    assert thinned([1.23456]) == (1.235,)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no VmHWM")
def test_a_childs_memory_is_its_own():
    """A child of a large process does not report its parent's memory."""
    ballast = np.ones(40_000_000)
    code = "from protofleet.edge.learning.meter import peak_rss_bytes; print(peak_rss_bytes())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert int(done.stdout) < ballast.nbytes < peak_rss_bytes()
