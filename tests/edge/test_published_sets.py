"""The recipes of ``docs/recordings.md`` for published data sets, on excerpts of their formats."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from doc_blocks import blocks
from tiny_bundle import tiny_windows_bundle

_ACC = np.array([0.25, -0.5, 1.0])
"""In g, with a little of its own for each activity."""
_SECONDS = 40
_CLASSES = ("lying", "sitting", "walking")


def _half(k: int, count: int) -> bool:
    return k < count // 2


def _pamap2(folder):
    """54 columns between blanks: time, activity, heart rate at 9 Hz, three units of 17 each."""
    lines = []
    for k in range(100 * _SECONDS):
        acc = _ACC * 9.80665
        activity, heart = (1, "100") if _half(k, 100 * _SECONDS) else (4, "NaN")
        hand = [30.5, *acc, *acc, *[0.1] * 6, *[0.0] * 4]
        cells = [f"{8.38 + k / 100:.2f}", activity, heart, *hand, *[1.5] * 34]
        lines.append(" ".join(map(str, cells)))
    (folder / "Protocol").mkdir()
    (folder / "Protocol" / "subject101.dat").write_text("\n".join(lines) + "\n")


def _mhealth(folder):
    """24 columns between tabs, without times: chest, ECG, ankle, arm, label."""
    lines = []
    for k in range(50 * _SECONDS):
        label = 2 if _half(k, 50 * _SECONDS) else 4
        cells = [*[9.1] * 14, *(_ACC * 9.80665), *[0.5] * 6, label]
        lines.append("\t".join(map(str, cells)))
    (folder / "mHealth_subject1.log").write_text("\n".join(lines) + "\n")


def _opportunity(folder):
    """250 columns between blanks; accelerations in thousandths of g, locomotion the 244th."""
    lines = []
    for k in range(30 * _SECONDS):
        label = 5 if _half(k, 30 * _SECONDS) else 2
        cells = [round(k * 1000 / 30), "NaN", "NaN", "NaN", *map(int, _ACC * 1000), *[7] * 236]
        lines.append(" ".join(map(str, [*cells, label, *[0] * 6])))
    (folder / "dataset").mkdir()
    (folder / "dataset" / "S1-ADL1.dat").write_text("\n".join(lines) + "\n")


def _motion_sense(folder):
    """A number, attitude, gravity, rotation and acceleration in g; a folder for each trial."""
    sensors = ("gravity", "rotationRate", "userAcceleration")
    names = [f"{sensor}.{axis}" for sensor in sensors for axis in "xyz"]
    head = ",".join(["", "attitude.roll", "attitude.pitch", "attitude.yaw", *names])
    for trial in ("wlk_7", "sit_5", "dws_1"):
        place = folder / "A_DeviceMotion_data" / trial
        place.mkdir(parents=True)
        for person in ("sub_1", "sub_2"):
            rows = [",".join(map(str, [k, *[0.3] * 9, *_ACC])) for k in range(50 * _SECONDS // 2)]
            (place / f"{person}.csv").write_text("\n".join([head, *rows]) + "\n")


_SETS = {
    "Protocol/subject101.dat": (_pamap2, "m/s²", {"lying", "walking"}),
    "mHealth_subject1.log": (_mhealth, "m/s²", {"sitting", "walking"}),
    "dataset/S1-ADL1.dat": (_opportunity, "g", {"lying", "walking"}),
    "A_DeviceMotion_data": (_motion_sense, "g", {"sitting", "walking"}),
}


def _recipe(source):
    """The command of the page, and the file of names that stands behind it."""
    page = [one for one in blocks() if one.page == "recordings.md"]
    place = next(k for k, one in enumerate(page) if one.language == "sh" and source in one.text)
    return page[place].text, page[place + 1].text


@pytest.mark.parametrize("source", _SETS)
def test_a_recipe_makes_a_person_s_data_of_a_published_set(tmp_path, source):
    make, unit, classes = _SETS[source]
    make(tmp_path)
    key = Ed25519PrivateKey.generate()
    tiny_windows_bundle(tmp_path / "bundle.pfb", key, unit=unit, classes=_CLASSES)
    command, names = _recipe(source)
    (tmp_path / "names.toml").write_text(names)
    program = f"{sys.executable} -m protofleet"
    done = subprocess.run(
        ["bash", "-c", command.replace("protofleet", program, 1)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (made,) = tmp_path.glob("*.npz")
    with np.load(made) as data:
        x, y = data["x_train"], data["y_train"]
    assert {_CLASSES[k] for k in y} == classes
    expected = _ACC * (9.80665 if unit == "m/s²" else 1.0)
    np.testing.assert_allclose(x.mean(axis=(0, 1)), expected, rtol=2e-3)
