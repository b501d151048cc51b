"""Sessions of an Empatica E4, in the form of its CSV files."""

from __future__ import annotations

import io
import zipfile

import msgspec
import numpy as np
import pytest

from protofleet.bundle.manifest import Preprocessing
from protofleet.edge.data.empatica import with_times
from protofleet.edge.data.examples import load_examples
from protofleet.errors import InputError

_BEGUN = 1_698_501_144.25
_ACC = Preprocessing(
    input_shape=(32, 3),
    rate_hz=16.0,
    window=32,
    hop=16,
    channels=("acc_x", "acc_y", "acc_z"),
    mean=(0.0, 0.0, 9.8),
    std=(1.0, 1.0, 1.0),
)
_STRESS = Preprocessing(
    input_shape=(16, 2), rate_hz=4.0, window=16, hop=8, channels=("eda", "temp")
)


def _table(rate_hz, rows, columns=1):
    head = [", ".join([f"{number:.6f}"] * columns) for number in (_BEGUN, rate_hz)]
    return "\n".join([*head, *rows, ""])


def _read(path, manifest):
    return list(load_examples(str(path), manifest))


@pytest.fixture
def session(tmp_path):
    """A minute: at rest, 1 g downwards; skin conductance and temperature that rise."""
    path = tmp_path / "1698501144_A00000.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("ACC.csv", _table(32.0, ["0,0,64", "1,-1,63"] * 960, 3))
        archive.writestr("EDA.csv", _table(4.0, [f"{0.01 * k:.6f}" for k in range(240)]))
        archive.writestr("TEMP.csv", _table(4.0, [f"{30 + k / 100:.2f}" for k in range(240)]))
        archive.writestr("HR.csv", _table(1.0, ["70.0"] * 60))
        archive.writestr("IBI.csv", f"{_BEGUN:.6f}, IBI\n1.5,0.8\n2.3,0.8\n")
        archive.writestr("tags.csv", "")
        archive.writestr("info.txt", ".csv files in this archive are in the following format:\n")
    return path


def test_accelerations_are_in_the_bundle_s_unit_on_the_session_s_clock(world, session):
    manifest = msgspec.structs.replace(world.bundle.manifest, preprocessing=_ACC)
    blocks = _read(session, manifest)
    x = np.concatenate([one.x for one in blocks])
    assert x.shape[1:] == (32, 3)
    # Between 63 and 64 64ths of g, less the bundle's mean.
    np.testing.assert_allclose(x[5, :, 2], 63.5 / 64 * 9.80665 - 9.8, atol=0.05)
    assert _BEGUN <= blocks[0].start_s[0] < _BEGUN + 1


def test_slow_sensors_are_joined(world, session):
    manifest = msgspec.structs.replace(world.bundle.manifest, preprocessing=_STRESS)
    x = np.concatenate([one.x for one in _read(session, manifest)])
    np.testing.assert_allclose(np.diff(x[2], axis=0).mean(axis=0), [0.01, 0.01], atol=1e-3)
    assert x[2, 0, 1] > 30


def test_a_file_of_one_sensor_alone_does(world, tmp_path):
    manifest = msgspec.structs.replace(world.bundle.manifest, preprocessing=_ACC)
    path = tmp_path / "mine_ACC.csv"
    path.write_text(_table(32.0, ["0,0,64"] * 320, 3))
    assert _read(path, manifest)
    path.write_text(_table(32.0, [*["0,0,64"] * 100, "0,0,?"], 3))
    with pytest.raises(InputError, match=r"line 102.*expected a number, got '\?'"):
        _read(path, manifest)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "time_s,x,y,z\n0,1,2,3\n",
        "1698501144.0, 1698501144.0\n32.0, 32.0\n1,2\n",
        "1,1,1\n32,32,32\n1,2,3\n",
        "1698501144.0,1698501144.0,1698501144.0\n1,2,3\n",
        "1698501144.0,1698501144.0,1698501144.0\nnan,nan,nan\n",
        "no end",
    ],
)
def test_another_table_of_the_name_stays_as_it_is(text):
    data = text.encode() * 3
    stream = with_times(io.BytesIO(data), "ACC")
    pieces = iter(lambda: stream.read1(7), b"")
    assert b"".join(pieces) == data
    other = io.BytesIO(b"1,2")
    assert with_times(other, "Accelerometer") is other
