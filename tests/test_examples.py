"""Every program in ``examples/`` runs as its first lines say, smaller."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

_EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
_PROGRAMS = sorted(_EXAMPLES.rglob("*.py"))

pytestmark = pytest.mark.slow(seconds=30)

Run = Callable[..., str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("examples")

    def started(program: str, *arguments: object, **variables: str) -> str:
        done = subprocess.run(
            [sys.executable, str(_EXAMPLES / program), *map(str, arguments)],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return started


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle as docs/api.md makes it, without training."""
    import torch  # noqa: PLC0415 - only here
    from torch import nn  # noqa: PLC0415 - as above

    import protofleet  # noqa: PLC0415 - as above

    torch.manual_seed(1)
    path = tmp_path_factory.mktemp("digits") / "digits.pfb"
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    protofleet.export_model(model, path, input_shape=(1, 8, 8), formats=("onnx",))
    return path


def test_they_are_five_and_short():
    assert len(_PROGRAMS) == 5
    for path in _PROGRAMS:
        assert len(path.read_text().splitlines()) <= 80, path.name


def test_your_own_model_learns_each_person(run, tmp_path):
    out = run("own_model.py", "--out", tmp_path / "run", "--people", 3, "--rounds", 2)
    lines = [line.split() for line in out.splitlines() if line.startswith("person-")]
    before, now = (np.mean([float(line[column]) for line in lines]) for column in (2, 4))
    assert now > before
    assert now >= 0.95  # as the program's first lines say
    assert (tmp_path / "run" / "person-00.onnx").is_file()


def test_your_own_sensor_becomes_windows_that_train(run, tmp_path):
    """Where there is no sensor its readings are simulated; the device has no PyTorch."""
    import torch  # noqa: PLC0415 - for the export alone
    from torch import nn  # noqa: PLC0415 - as above

    import protofleet  # noqa: PLC0415 - as above
    from protofleet.bundle.manifest import Preprocessing  # noqa: PLC0415 - as above

    prepared = Preprocessing(
        input_shape=(32, 6),
        rate_hz=50.0,
        window=32,
        hop=16,
        channels=("ax", "ay", "az", "gx", "gy", "gz"),
        mean=(0.0,) * 6,
        std=(1.0,) * 6,
    )
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 3))
    names = ("still", "walk", "run")
    path = tmp_path / "harness.pfb"
    protofleet.export_model(model, path, preprocessing=prepared, classes=names, formats=("onnx",))
    hidden = str(Path(__file__).parent / "support" / "without_export")
    arguments = (path, "--seconds", 60, "--out", tmp_path / "mine.npz")
    out = run("sensors_on_a_pi.py", *arguments, PYTHONPATH=hidden)
    words = out.split()
    assert float(words[-2]) > 0.8 > float(words[-4])
    assert len(protofleet.load_npz(tmp_path / "mine.npz").y_train) == int(words[0])


def test_your_own_strategy_is_found_once_its_package_is_installed(run, digits, tmp_path):
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    source = tmp_path / "source"
    shutil.copytree(
        _EXAMPLES / "own_strategy", source, ignore=shutil.ignore_patterns("__pycache__")
    )
    site = tmp_path / "site"
    subprocess.run([*pip, "--target", str(site), str(source)], check=True, capture_output=True)
    out = run("own_strategy/gentle.py", digits, "--rounds", 1, PYTHONPATH=str(site))
    assert "gentle, 1 rounds" in out
    figures = [line for line in out.splitlines() if line.startswith("global:")]
    assert len(set(figures)) == 2, "it is not FedAvg"


@pytest.mark.full_size
@pytest.mark.mosquitto
def test_rounds_that_wait_for_nobody_and_their_table(run, digits, tmp_path):
    out = run("asynchronous.py", digits, "--out", tmp_path / "runs", "--states", 4)
    late = [float(line.split()[-5]) for line in out.splitlines() if "states late" in line]
    assert len(late) == 4 + 2
    assert any(late[:4])
    assert not any(late[4:])
    folders = [tmp_path / "runs" / name for name in ("buffered", "synchronous")]
    table = run("results_in_pandas.py", *folders)
    if "strategy,round," in table:
        rows = list(csv.DictReader(table.splitlines()))
        assert [row["run"] for row in rows] == ["buffered"] * 4 + ["synchronous"] * 2
        assert all(0 <= float(row["personalisation.macro_f1"]) <= 1 for row in rows)
    else:
        assert "buffered" in table
        assert "synchronous" in table
