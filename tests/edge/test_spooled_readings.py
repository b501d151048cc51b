"""Readings of sensors that are joined, where they are more than memory holds."""

from __future__ import annotations

import resource
import tracemalloc

import msgspec
import numpy as np
import pytest

from protofleet.bundle.manifest import Preprocessing
from protofleet.edge.data import spooled_readings
from protofleet.edge.data.examples import load_examples
from protofleet.edge.data.spooled_readings import SpooledReadings
from protofleet.errors import InputError

_INPUTS = Preprocessing(
    input_shape=(50, 6),
    rate_hz=50.0,
    window=50,
    hop=50,
    channels=("acc_x", "acc_y", "acc_z", "gyro_x", "gyro_y", "gyro_z"),
)
_FIRST = 1000


@pytest.fixture
def manifest(world):
    return msgspec.structs.replace(world.bundle.manifest, preprocessing=_INPUTS)


def _recorded(folder, rows, order=None):
    folder.mkdir(exist_ok=True)
    note = "-" * 300
    for name in ("Accelerometer", "Gyroscope"):
        lines = [f"{k / 50},{k % 7},{k % 11},{len(name)},{note}" for k in range(rows)]
        # The first tell how fast they come.
        lines = lines if order is None else [*lines[:_FIRST], *(lines[k] for k in _FIRST + order)]
        (folder / f"{name}.csv").write_text("\n".join(["time_s,x,y,z,note", *lines, ""]))
    return folder


def test_readings_in_another_order_make_the_same_windows(tmp_path, manifest):
    rows = 3000
    order = np.random.default_rng(1).permutation(rows - _FIRST)
    ordered, shuffled = (
        list(load_examples(str(_recorded(tmp_path / name, rows, one)), manifest))
        for name, one in (("ordered", None), ("shuffled", order))
    )
    for name in ("x", "start_s"):
        want, got = (
            np.concatenate([getattr(one, name) for one in blocks]) for blocks in (ordered, shuffled)
        )
        assert len(want) == rows // 50
        np.testing.assert_array_equal(got, want)


def test_memory_does_not_grow_with_the_recording(tmp_path, manifest, monkeypatch):
    """Of what three times as many readings add, 32 bytes each, it has less than a fifth."""
    monkeypatch.setattr(spooled_readings, "_MOST_IN_MEMORY", 1 << 14)
    monkeypatch.setattr(spooled_readings, "_ROWS", 256)
    short, long, peaks = 3000, 9000, []
    for rows in (short, short, long):
        source = str(_recorded(tmp_path / "phone", rows))
        tracemalloc.start()
        try:
            assert sum(len(block.x) for block in load_examples(source, manifest)) > rows // 60
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[2] - peaks[1] < 2 * (long - short) * 32 / 5


@pytest.mark.parametrize("in_memory", [100, 1 << 20])
def test_readings_come_back_as_they_were(monkeypatch, in_memory):
    monkeypatch.setattr(spooled_readings, "_MOST_IN_MEMORY", in_memory)
    monkeypatch.setattr(spooled_readings, "_ROWS", 7)
    times, values = np.sort(np.random.default_rng(2).normal(size=(30, 1)), 0)[:, 0], np.eye(30)
    waiting = SpooledReadings(30)
    for part in (slice(0, 11), slice(11, 11), slice(11, 30)):
        waiting.add(times[part], values[part])
    assert (waiting.count, waiting.begin_s, waiting.end_s) == (30, times[0], times[-1])
    for _ in range(2):
        blocks = list(waiting.blocks())
        assert [len(one) for one, _ in blocks] == [7, 7, 7, 7, 2]
        np.testing.assert_array_equal(np.concatenate([one for one, _ in blocks]), times)
        np.testing.assert_array_equal(np.concatenate([one for _, one in blocks]), values)
    waiting.close()


def test_a_full_disk_is_told():
    """A limit of the size of files stands for it."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    waiting = SpooledReadings(3)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(InputError, match=r"readings cannot wait in '.*; TMPDIR names another"):
            waiting.add(np.arange(1e6), np.zeros((1_000_000, 3)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        waiting.close()
