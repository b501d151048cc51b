"""``protofleet export``: what it says before minutes of work, and on which input."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from safetensors.torch import load_file, save_file
from torch import nn

from protofleet.bundle import Bundle, keys
from protofleet.cli.export import export
from protofleet.cli.main import _root
from protofleet.cli.pretrain import pretrain
from protofleet.errors import InputError, MissingDataError
from protofleet.export.pickled import conversion
from protofleet.export.pretraining.checkpoints import load_checkpoint
from tests.export.toys import Perceptron

_TOY = ("tests.export.toys:Perceptron", "--input-shape", "5")
_SELF = "tests.export.test_export_command"


def sigmoids() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 3), nn.Sigmoid())


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(3))


def half() -> nn.Module:
    return nn.Linear(5, 3).half()


def broken() -> nn.Module:
    raise ZeroDivisionError("no such sensor")


@pytest.fixture
def key(tmp_path: Path) -> str:
    keys.load_or_create_signing_key(tmp_path / "key.pem")
    return str(tmp_path / "key.pem")


def _export(*arguments: Any) -> Result:
    chosen = [str(one) for one in arguments]
    return CliRunner().invoke(export, [*chosen, "--strategy", "fedavg"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sigmoids", "the model ends with Sigmoid, but cross-entropy .*--allow-probabilities"),
        ("lazy", "LazyLinear.*has no shape yet"),
        ("half", r"torch.float16, expected float32; return model.float\(\)"),
        ("broken", r"cannot be made: ZeroDivisionError: no such sensor at .*_command.py:\d+"),
    ],
)
def test_a_model_that_cannot_work_is_told_at_once(tmp_path, key, name, said):
    with pytest.raises(InputError, match=said):
        _export(f"{_SELF}:{name}", "--input-shape", "5", "--out", tmp_path / "a.pfb", "--key", key)
    assert not (tmp_path / "a.pfb").exists()


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"--input-shape": "6"}, InputError, r"module 'first'.*toys.py:\d+: does not take"),
        ({"--input-shape": "0"}, InputError, "expected sizes like 128,6, got '0'"),
        ({"--classes": "a,b"}, InputError, r"expected 2 numbers .*\(a, b\), got 3"),
        ({"--classes": "a,b,a"}, InputError, "different names as in sit,walk, got 'a,b,a'"),
        ({"--key": "{}/no.pem"}, InputError, "no.pem"),
        ({"--out": "{}/file/a.pfb"}, InputError, "--out '.*a.pfb': cannot write in '.*file'"),
        ({"--out": "/proc/a/b.pfb"}, InputError, "--out '/proc/a/b.pfb': cannot write in '/proc'"),
        ({"--out": "{}"}, InputError, "exists and is no bundle"),
        ({"--checkpoint": "{}/no.safetensors"}, MissingDataError, "no such file"),
    ],
)
def test_wrong_options_are_told_before_the_work(tmp_path, key, changes, error, said):
    (tmp_path / "file").touch()
    options = {"--input-shape": "5", "--key": key, "--out": "{}/a.pfb", **changes}
    given = [part.format(tmp_path) for pair in options.items() for part in pair]
    with pytest.raises(error, match=said):
        _export(_TOY[0], *given)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"input_shape": [5], "sd": [2.0]}', "unknown key 'sd', known are input_shape, .*std"),
        ('{"input_shape": [5], "input_shape": [6]}', "key 'input_shape' occurs twice"),
        ('{"input_shape": "5"}', r"Expected `array`, got `str` - at `\$.input_shape`"),
        ('{"mean": [0.0]}', "missing required field `input_shape`"),
        ('{"input_shape": [5], "std": [0.0]}', "expected std > 0"),
        ('{"input_shape": [5], "mean": [1, 2]}', "expected 1 or 5 values in mean, got 2"),
        (
            '{"input_shape": [5], "channels": ["a", "b"], "units": ["g"]}',
            "expected a printable unit for each of 2 channels, got g",
        ),
        ('{"input_shape": [5], "window": 0}', "expected window > 0, at most 16777216, got 0"),
        ("[5", "not strict JSON"),
    ],
)
def test_a_wrong_preprocessing_is_told_by_its_key(tmp_path, key, text, said):
    file = tmp_path / "pre.json"
    file.write_text(text)
    with pytest.raises(InputError, match=rf"preprocessing '.*pre.json': .*{said}"):
        _export(_TOY[0], "--preprocessing", file, "--out", tmp_path / "a.pfb", "--key", key)


def test_random_values_are_said_and_probabilities_taken_where_they_are_allowed(tmp_path, key):
    result = _export(
        *(f"{_SELF}:sigmoids", "--input-shape", "5", "--allow-probabilities"),
        *("--formats", "onnx", "--out", tmp_path / "a.pfb", "--key", key),
    )
    assert "note: no --checkpoint, so the initial values are those that" in result.stderr
    assert Bundle.open(tmp_path / "a.pfb", any_signer=True).manifest.classes == ("0", "1", "2")


def test_with_a_checkpoint_nothing_is_said_of_random_values(tmp_path, key):
    save_file(Perceptron().state_dict(), tmp_path / "trained.safetensors")
    result = _export(
        *(*_TOY, "--checkpoint", tmp_path / "trained.safetensors", "--json"),
        *("--formats", "onnx", "--out", tmp_path / "a.pfb", "--key", key),
    )
    assert "no --checkpoint" not in result.stderr
    assert json.loads(result.stdout)["path"] == str(tmp_path / "a.pfb")


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight


@pytest.mark.parametrize("name", ["w.pt", "w.bin", "it's.pth", "renamed.safetensors"])
def test_a_pickled_checkpoint_is_answered_with_the_line_that_converts_it(tmp_path, name):
    """That very line is run, on tensors that share memory, inside of a training checkpoint."""
    path, model = tmp_path / name, _Tied()
    kept = {"state_dict": model.state_dict(), "epoch": 3}
    torch.save(kept, path, _use_new_zipfile_serialization=name != "renamed.safetensors")
    with pytest.raises(InputError, match=r"pickled format.*expected safetensors") as told:
        load_checkpoint(path)
    line = str(told.value).partition("This line converts it: ")[2]
    assert line == conversion(path)
    program, flag, code = shlex.split(line)
    assert (program, flag) == ("python", "-c")
    exec(code)  # noqa: S102 - what the user is told to run
    (written,) = set(tmp_path.glob("*.safetensors")) - {path}
    tensors = load_file(written)
    assert tensors.keys() == model.state_dict().keys()
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in tensors.items())


def test_quiet_prints_the_bundle_alone(tmp_path: Path, key: str) -> None:
    """No table and no advice; that the values are untrained is a warning."""
    out = tmp_path / "q.pfb"
    words = ["export", *_TOY, "--strategy", "fedavg", "--key", key, "--out", str(out), "--quiet"]
    result = CliRunner().invoke(_root, words, catch_exceptions=False)
    assert result.stdout.startswith(f"{out}: ")
    assert result.stdout.count("\n") == 1
    assert result.stderr.startswith("note: no --checkpoint")
    assert result.stderr.count("\n") == 1


def test_a_registered_model_takes_its_sizes_from_examples_and_classes(tmp_path, key):
    """Of the command, and from a checkpoint whose training has seen them."""
    out, place = tmp_path / "a.pfb", ("--key", key, "--formats", "onnx", "--set", "hidden=[8]")
    sizes = ("--input-shape", "5", "--classes", "a,b,c")
    done = _export("mlp", *sizes, *place, "--out", out)
    assert done.exit_code == 0, done.output
    manifest = Bundle.open(out, any_signer=True).manifest
    assert manifest.preprocessing.input_shape == (5,)
    assert manifest.classes == ("a", "b", "c")
    data = tmp_path / "d.npz"
    np.savez(data, x=np.eye(6, dtype=np.float32).repeat(5, 0), y=np.arange(30) % 2)
    arguments = ["--model", "mlp", "--data", str(data), "--epochs", "1", "--lr", "0.01"]
    trained = CliRunner().invoke(pretrain, [*arguments, "--out", str(tmp_path / "run")])
    assert trained.exit_code == 0, trained.output
    checkpoint = tmp_path / "run" / "model.safetensors"
    done = _export("mlp", "--checkpoint", checkpoint, *place[:4], "--out", tmp_path / "b.pfb")
    assert done.exit_code == 0, done.output
    manifest = Bundle.open(tmp_path / "b.pfb", any_signer=True).manifest
    assert (manifest.preprocessing.input_shape, manifest.classes) == ((6,), ("0", "1"))
