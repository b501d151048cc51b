"""``protofleet new``: what it writes runs as it is written."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from protofleet.cli.new import new
from protofleet.datasets import DeviceData
from protofleet.errors import InputError
from protofleet.federation.settings import load_config

_KINDS = {
    "windows": ["--classes", "still,walk", "--rate", "20", "--input-shape", "40,3"],
    "images": ["--kind", "images", "--classes", "cat,dog", "--input-shape", "3,16,16"],
    "table": ["--kind", "table", "--classes", "yes,no", "--input-shape", "4"],
    "texts": ["--kind", "texts", "--classes", "a,b,c", "--input-shape", "6", "--tokens", "40"],
    "numbers": ["--kind", "table", "--targets", "price", "--input-shape", "4"],
}


def _new(*arguments, said=None):
    return CliRunner().invoke(new, list(arguments), input=said, catch_exceptions=False)


def _recording(path, seed):
    """Twenty seconds of rest and of swinging, in m/s²."""
    rng = np.random.default_rng(seed)
    rows = ["time_s,acc_x,acc_y,acc_z,label"]
    for k in range(800):
        swing = 3 * np.sin(k / 3) if k % 400 >= 200 else 0.0
        x, y, z = rng.normal((swing, 0, 9.8 + swing), 0.1)
        rows.append(f"{k / 20},{x:.3f},{y:.3f},{z:.3f},{'walk' if swing else 'still'}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows))
    return path


def _examples(kind, seed):
    rng = np.random.default_rng(seed)
    shape = {"images": (3, 16, 16), "texts": (6,), "numbers": (4,)}[kind]
    if kind == "texts":
        y = rng.integers(0, 3, 40)
        x = (10 * y[:, None] + rng.integers(1, 9, (40, 6))).astype(np.int64)
        names = {"classes": ("a", "b", "c")}
    else:
        x = rng.normal(size=(40, *shape)).astype(np.float32)
        y = (x.reshape(40, -1).mean(1) > 0).astype(np.int64)
        names = {"classes": ("cat", "dog")}
    if kind == "numbers":
        y, names = x.sum(1, keepdims=True).astype(np.float32), {"targets": ("price",)}
    return DeviceData(x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:], **names)


def _fill(folder, kind):
    """Data of two owners, as README.md asks for."""
    for seed, owner in enumerate(("anna", "berta")):
        place = folder / "data" / owner
        if kind == "windows":
            _recording(place / "first.csv", seed)
        elif kind == "table":
            place.mkdir(parents=True)
            rows = np.random.default_rng(seed).normal(size=(40, 4)).round(3)
            lines = [f"{','.join(map(str, row))},{'yes' if row[0] > 0 else 'no'}" for row in rows]
            (place / "rows.csv").write_text("\n".join(["a,b,c,d,label", *lines]))
        else:
            _examples(kind, seed).save(folder / "data" / f"{owner}.npz")


@pytest.mark.slow(seconds=12)
@pytest.mark.parametrize(
    "kind",
    [
        "windows",
        *(
            pytest.param(kind, marks=pytest.mark.full_size)
            for kind in ("numbers", "images", "table", "texts")
        ),
    ],
)
def test_its_first_commands_run_as_they_are_written(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert _new("mine", *_KINDS[kind], "--yes").exit_code == 0
    folder = tmp_path / "mine"
    _fill(folder, kind)
    block = (folder / "README.md").read_text().split("```sh\n")[1].split("```")[0]
    commands = [shlex.split(one) for one in block.replace("\\\n", " ").strip().splitlines()]
    assert [one[0] for one in commands] == ["protofleet", "python"]
    env = {**os.environ, "PROTOFLEET_CONFIG": str(tmp_path / "config")}
    for program, *arguments in commands:
        first = [sys.executable, *(["-m", "protofleet"] if program == "protofleet" else [])]
        done = subprocess.run(
            [*first, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("ditto, ")
    assert "2 owners: " in done.stdout
    config = load_config(folder / "federation.toml")
    assert (config.federation, config.strategy.name) == ("mine", "ditto")
    assert config.bundle == folder / "bundle.pfb"


def test_what_no_option_says_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = _new("mine", said="sit, walk\nwindows\nacc_x,acc_y,acc_z,hr\n32\n")
    assert done.exit_code == 0, done.output
    text = (tmp_path / "mine" / "sensor.json").read_text()
    assert '"rate_hz": 32.0' in text
    assert '"hr"' in text
    assert "windows of 128 samples of acc_x, acc_y, acc_z, hr" in done.output
    assert "--classes sit,walk" in (tmp_path / "mine" / "README.md").read_text()


def test_recordings_say_how_windows_are_normalised(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _recording(tmp_path / "rec" / "one.csv", 1)
    arguments = [*_KINDS["windows"], "--recordings", "rec", "--yes"]
    assert _new("mine", *arguments).exit_code == 0
    text = (tmp_path / "mine" / "sensor.json").read_text()
    assert json.loads(text)["mean"][2] == pytest.approx(9.8, abs=0.1)
    assert "units" not in json.loads(text)
    assert _new("in-g", *arguments, "--units", "g,g,g").exit_code == 0
    assert _new("in-si", *arguments, "--units", "m/s²,m/s²,m/s²").exit_code == 0
    assert '"m/s²"' in (tmp_path / "in-si" / "sensor.json").read_text(encoding="utf-8")
    told = json.loads((tmp_path / "in-g" / "sensor.json").read_text())
    assert told["units"] == ["g", "g", "g"]
    assert told["mean"][2] == pytest.approx(1, abs=0.01)
    assert "guesses" not in (tmp_path / "mine" / "README.md").read_text()
    (tmp_path / "still.csv").write_text("time_s,acc_x,acc_y,acc_z\n" + "0,1,1,1\n" * 3)
    with pytest.raises(InputError, match=r"still\.csv"):
        _new("other", *_KINDS["windows"], "--recordings", "still.csv", "--yes")
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["my study", "--yes"], "name 'my study': expected a letter, then letters"),
        (["a", "--classes", "x", "--yes"], "--classes: expected two or more"),
        (["a", "--classes", "x,x", "--yes"], "expected different names, got x, x"),
        (["a", "--classes", "x,y", "--targets", "z", "--yes"], "either --classes, to tell apart"),
        (["a", "--kind", "images", "--input-shape", "8,8", "--yes"], "channels,side,side, such as"),
        (["a", "--input-shape", "wide", "--yes"], "expected sizes like 128,6, got 'wide'"),
        (["a", "--channels", "x,y", "--input-shape", "64,3", "--yes"], "--channels: expected 3"),
        (["a", "--kind", "table", "--rate", "5", "--yes"], "are for --kind windows"),
        (["a", "--kind", "table", "--units", "g", "--yes"], "are for --kind windows"),
        (["a", "--units", "g", "--yes"], "--units: expected one for each of the channels acc_x"),
        (["a", "--tokens", "5", "--yes"], "--tokens: is for --kind texts"),
        (["a", "--strategy", "fedbest", "--yes"], "'fedbest'"),
        (["a", "--kind", "table", "--recordings", "x", "--yes"], "are for --kind windows"),
    ],
)
def test_what_cannot_be_is_named_and_nothing_written(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=said):
        _new(*arguments)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert _new("mine", "--yes").exit_code == 0
    with pytest.raises(InputError, match="'mine': is there and not empty; choose another name"):
        _new("mine")  # before it asks


def test_where_nobody_answers_the_options_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="nobody answers here; say it by its option"):
        _new("mine", said="")
    assert not list(tmp_path.iterdir())
