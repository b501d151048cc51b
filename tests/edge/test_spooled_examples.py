"""A device's data from a recording that may be larger than memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import msgspec
import numpy as np
import pytest

from protofleet.bundle.manifest import Preprocessing
from protofleet.edge.data.examples import Examples, load_examples
from protofleet.edge.data.recording import to_device_data
from protofleet.edge.data.spooled_examples import spooled
from protofleet.errors import InputError

_CHANNELS = ("ax", "ay", "az", "gx", "gy", "gz")
_SENSORS = Preprocessing(
    input_shape=(128, 6), rate_hz=100.0, window=128, hop=4, channels=_CHANNELS, mean=(1.0,)
)
_BYTES_OF_A_ROW = 6 * 4 * 128 // 4


@pytest.fixture
def manifest(world):
    return msgspec.structs.replace(world.bundle.manifest, preprocessing=_SENSORS)


def _recorded(path, rows):
    """A recording whose class changes every ten seconds, in wide rows: many blocks of few."""
    note = "-" * 300
    with path.open("w") as file:
        file.write(f"time_s,{','.join(_CHANNELS)},label,note\n")
        file.writelines(
            f"{k / 100},{k % 7},{k % 11},{k % 13},{k % 5},1,9.81,class{k // 1000 % 3},{note}\n"
            for k in range(rows)
        )


def _peak(source, manifest, out):
    tracemalloc.start()
    try:
        blocks = load_examples(str(source), manifest)
        with spooled(blocks, manifest, out, raw=False, test_share=0.3) as data:
            if out is not None:
                data.save(out)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("is_written", [True, False])
def test_memory_does_not_grow_with_the_recording(tmp_path, manifest, is_written):
    """Of what twice as many rows more add to the windows, memory has less than a fifth."""
    out = tmp_path / "mine.npz" if is_written else None
    short, long = 2000, 6000
    peaks = []
    for rows in (short, long):
        _recorded(tmp_path / "mine.csv", rows)
        peaks.append(_peak(tmp_path / "mine.csv", manifest, out))
    assert peaks[1] - peaks[0] < (long - short) * _BYTES_OF_A_ROW / 5


def _blocks(seed):
    """Windows of several pieces' size; labels that lack, a gap, a clock that was set back."""
    rng = np.random.default_rng(seed)
    start_s = 0.0
    for size in (1, 700, 0, 64, 900):
        y = rng.integers(-1, 3, size // 20 + 1).repeat(20)[:size]
        yield Examples(
            x=rng.normal(size=(size, 128, 6)).astype(np.float32),
            y=y,
            start_s=start_s + 0.16 * np.arange(size),
            normalised=True,
        )
        start_s += 0.16 * size if size != 64 else -50.0
    yield Examples(x=rng.normal(size=(30, 128, 6)), y=np.arange(30) % 3)


@pytest.mark.parametrize("test_share", [0.0, 0.3])
def test_the_file_is_byte_by_byte_that_of_data_in_memory(tmp_path, manifest, caplog, test_share):
    want, got = tmp_path / "want.npz", tmp_path / "got.npz"
    to_device_data(_blocks(1), manifest, raw=True, test_share=test_share).save(want)
    said = caplog.messages.copy()
    caplog.clear()
    with spooled(_blocks(1), manifest, got, raw=True, test_share=test_share) as data:
        data.save(got)
    assert got.read_bytes() == want.read_bytes()
    assert caplog.messages == said
    assert "have no label" in caplog.text
    assert sorted(one.name for one in tmp_path.glob("*.npz")) == ["got.npz", "want.npz"]


def test_examples_without_a_label_and_other_tasks_are_refused(tmp_path, manifest):
    block = Examples(x=np.zeros((3, 128, 6)), y=np.full(3, -1))
    out = tmp_path / "mine.npz"
    for blocks, one, said in (
        ([block], manifest, "expected examples with a label"),
        ([], msgspec.structs.replace(manifest, classes=()), "expected a bundle with classes"),
    ):
        with (
            pytest.raises(InputError, match=said),
            spooled(blocks, one, out, raw=False, test_share=0.3),
        ):
            pass
    assert not out.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
def test_a_full_disk_is_told(tmp_path, manifest):
    with (
        spooled(_blocks(2), manifest, tmp_path / "mine.npz", raw=True, test_share=0.3) as data,
        pytest.raises(InputError, match=r"No space left on device.*room for all"),
    ):
        data.save(Path("/dev/full"))
