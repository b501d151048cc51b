"""``protofleet pretrain`` on recordings as people have them, before there is a bundle."""

from __future__ import annotations

import json
import math
import random
import zipfile

import numpy as np
import pytest
from click.testing import CliRunner

import protofleet as pf
from protofleet.cli.pretrain import pretrain
from protofleet.errors import InputError
from protofleet.export.pretraining.checkpoints import load_model

_INPUTS = {
    "input_shape": [25, 3],
    "rate_hz": 25,
    "window": 25,
    "hop": 25,
    "channels": ["acc_x", "acc_y", "acc_z"],
    "mean": [0, 0, 1],
    "std": [0.5, 0.5, 0.5],
}


def _recording(path, pace, seconds=60, seed=0):
    """Accelerations in g: how fast a hand moves to and fro."""
    noise = random.Random(seed)
    lines = ["time_s,acc_x,acc_y,acc_z"]
    for step in range(seconds * 25):
        t = step / 25
        wave = 0.8 * math.sin(2 * math.pi * pace * t) + noise.gauss(0, 0.05)
        lines.append(
            f"{t:.3f},{wave:.4f},{noise.gauss(0, 0.05):.4f},{1 + noise.gauss(0, 0.05):.4f}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def people(tmp_path):
    """Two people's tables, named after what they did, and a zip of the second's."""
    for number, name in enumerate(("anna", "berta")):
        _recording(tmp_path / name / "sit.csv", 0.0, seed=number)
        _recording(tmp_path / name / "walk.csv", 2.0, seed=number)
    with zipfile.ZipFile(tmp_path / "berta.zip", "w") as archive:
        for table in sorted((tmp_path / "berta").iterdir()):
            archive.write(table, table.name)
    (tmp_path / "inputs.json").write_text(json.dumps(_INPUTS))
    return tmp_path


def _pretrain(*args):
    result = CliRunner().invoke(pretrain, [str(one) for one in args], catch_exceptions=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_folders_and_zips_of_tables_train_a_model(people):
    arguments = ("--model", "mlp", "--data", people / "anna", "--data", people / "berta.zip")
    named = ("--preprocessing", people / "inputs.json", "--classes", "sit,walk")
    found = _pretrain(*arguments, *named, "--out", people / "run", "--epochs", "20", "--lr", "0.01")
    assert "sit.csv" in found.stderr
    assert "walk.csv" in found.stderr
    assert float(found.stdout.rpartition("accuracy ")[2].rstrip("%\n")) > 90
    model, about = load_model(people / "run" / "model.safetensors")
    assert json.loads(about["classes"]) == ["sit", "walk"]
    assert about["data"].startswith("240 recorded examples sha256:")
    assert model.eval() is not None


def test_python_reads_them_without_a_bundle_as_the_command_does(people):
    data = pf.read_recording(
        [people / "anna", people / "berta.zip"],
        preprocessing=_INPUTS,
        classes=("sit", "walk"),
        test_share=0.0,
    )
    assert data.classes == ("sit", "walk")
    assert np.bincount(data.y_train).tolist() == [120, 120]
    assert data.x_train.shape == (240, 25, 3)
    assert abs(float(data.x_train[..., 2].mean())) < 0.05, "normalised"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "recordings need --preprocessing"),
        (("--preprocessing", "inputs.json"), "--classes: expected two names"),
        (("--preprocessing", "inputs.json", "--classes", "sit,walk,sit"), "each once"),
        (("--preprocessing", "inputs.json", "--classes", "run,jump"), "got none with one"),
        (("--preprocessing", "inputs.json", "--classes", "sit,run,walk"), "got none of run; leave"),
        (("--task", "regression"), "recordings have classes; save other data as an .npz"),
    ],
)
def test_what_is_missing_is_said(people, monkeypatch, more, message):
    monkeypatch.chdir(people)
    with pytest.raises(InputError, match=message):
        _pretrain("--model", "mlp", "--data", "anna", "--out", "run", *more)


def test_arrays_take_no_option_of_recordings(people):
    np.savez(people / "d.npz", x=np.zeros((4, 2), np.float32), y=np.array([0, 1, 0, 1]))
    common = ("--model", "mlp", "--out", people / "run", "--data", people / "d.npz")
    with pytest.raises(InputError, match="--classes is for recordings"):
        _pretrain(*common, "--classes", "a,b")
    with pytest.raises(InputError, match="expected it alone"):
        _pretrain(*common, "--data", people / "anna")


def test_a_bundle_or_preprocessing_is_needed(people):
    with pytest.raises(InputError, match="either a bundle or preprocessing"):
        pf.read_recording(people / "anna")


def test_a_zip_that_is_cut_off_is_named(people):
    whole = (people / "berta.zip").read_bytes()
    (people / "berta.zip").write_bytes(whole[: len(whole) // 2])
    named = ("--preprocessing", people / "inputs.json", "--classes", "sit,walk")
    with pytest.raises(InputError, match=r"berta.zip': not a zip that can be read"):
        _pretrain("--model", "mlp", "--data", people / "berta.zip", *named, "--out", people / "run")
