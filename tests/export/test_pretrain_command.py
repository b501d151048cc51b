"""``protofleet pretrain``: what it writes, resumes and refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from protofleet.cli._task import OutputOptions, output_names, resolve_task
from protofleet.cli.main import _root
from protofleet.cli.pretrain import pretrain
from protofleet.errors import InputError
from protofleet.export.pretraining.checkpoints import load_checkpoint, load_model
from tests.export.central_data import HART, blobs, waves


def _npz(path, **arrays):
    np.savez(path, **{name: np.asarray(value) for name, value in arrays.items()})
    return str(path)


def _pretrain(*args):
    result = CliRunner().invoke(pretrain, list(args), catch_exceptions=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


MLP = ("--model", "mlp", "--set", "hidden=[16]")


def test_the_command_trains_resumes_and_writes_a_loadable_model(tmp_path):
    data = _npz(tmp_path / "d.npz", **{k: v.numpy() for k, v in blobs().items()})
    out = tmp_path / "run"
    common = (*MLP, "--data", data, "--out", str(out), "--lr", "0.02")
    first = _pretrain(*common, "--epochs", "2")
    assert "best epoch 2 of 2, validation loss" in first.stdout
    assert "epoch 1/2" in first.stderr
    assert "still getting better: the same command with --resume --epochs 4" in first.stderr
    with pytest.raises(InputError, match="--resume"):
        _pretrain(*common, "--epochs", "4")
    result = json.loads(_pretrain(*common, "--epochs", "4", "--resume", "--json").stdout)
    model, about = load_model(out / "model.safetensors")
    assert result["checkpoint"] == str(out / "model.safetensors")
    assert json.loads(about["classes"]) == ["0", "1", "2"]
    assert json.loads(about["settings"]) == {"classes": 3, "hidden": [16], "inputs": 4}
    assert model.eval()(blobs()["x"]).argmax(1).eq(blobs()["y"]).float().mean() > 0.8


def test_quiet_prints_the_result_alone(tmp_path):
    data = _npz(tmp_path / "d.npz", **{k: v.numpy() for k, v in blobs().items()})
    arguments = ["pretrain", *MLP, "--data", data, "--out", str(tmp_path / "run"), "-q"]
    result = CliRunner().invoke(_root, [*arguments, "--lr", "0.02", "--patience", "2"])
    assert result.exit_code == 0
    assert result.stdout.count("\n") == 1
    assert result.stderr == ""


def test_without_a_validation_part_the_loss_is_that_of_training(tmp_path):
    data = _npz(tmp_path / "d.npz", **{k: v.numpy() for k, v in blobs().items()})
    arguments = (*MLP, "--data", data, "--out", str(tmp_path / "run"), "--epochs", "2")
    assert "of 2, training loss" in _pretrain(*arguments, "--validation", "0").stdout


def test_a_masked_pretrained_encoder_initialises_a_classifier(tmp_path):
    data = _npz(tmp_path / "d.npz", x=waves(16)["x"].numpy(), y=np.arange(16) % 3)
    small = [f"--set={k}={json.dumps(v)}" for k, v in HART.items()]
    hart = ("--model", "hart", *small, "--data", data, "--epochs", "1")
    _pretrain(*hart, "--objective", "mae", "--out", str(tmp_path / "mae"))
    encoder = tmp_path / "mae" / "model.safetensors"
    tuned = ("--set", "pretrained=true", "--init", str(encoder), "--lr", "1e-12")
    result = _pretrain(*hart, *tuned, "--out", str(tmp_path / "tuned"))
    assert "not used from model.safetensors: head.3.bias, head.3.weight" in result.stderr
    first, second = (
        load_checkpoint(tmp_path / run / "model.safetensors")[0] for run in ("mae", "tuned")
    )
    name = "blocks.0.mlp.0.weight"
    torch.testing.assert_close(first[name], second[name])


_X, _Y = np.zeros((65, 4)), np.arange(65) % 3


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": _X}, "expected the arrays x, y, got x: 'y' is missing"),
        ({"x": _X, "y": np.full(65, 0.7)}, "got 65 of 65 that are not whole, such as 0.7"),
        ({"x": _X, "y": np.arange(65).astype(str)}, r"got '0', .*save y.astype\(np.int64\)"),
        ({"x": _X, "y": np.array([{}, 1], object)}, "array 'y' holds Python objects"),
        ({"x": _X + 1j, "y": _Y}, r"x: expected real numbers, got complex.*np.stack\(\[x.real"),
        ({"x": _X.astype(str), "y": _Y}, r"x: expected numbers, got text; save x.astype"),
        ({"x": np.where(_X == 0, np.nan, 0), "y": _Y}, "NaN or infinite values: 260 of 260, the"),
        ({"x": _X + 1e39, "y": _Y}, "NaN or infinite"),
        ({"x": _X[:0], "y": _Y[:0]}, "expected examples, got none"),
        ({"x": _X, "y": _Y[:64]}, "65 examples in x, 64 in y"),
        ({"x": _X, "y": np.eye(3)[_Y]}, r"got \(65, 3\); save y.argmax\(1\)"),
        ({"x": _X, "y": _Y - 1}, "holds -1…1, expected 0 or more: 22 of 65"),
        ({"x": _X, "y": np.zeros(65, int)}, "one class only"),
        ({"x": _X[:, :1, None], "y": _Y}, r"examples of shape \(1, 1\)"),
        ({"x": np.zeros((65, 5)), "y": _Y}, r"examples of shape \(5,\)"),
        ({"x": _X, "y": _Y, "classes": ["a", "b"]}, "y holds 0…2, expected 0…1: 21 of 65"),
        ({"x": _X, "y": _Y, "classes": ["a", "b", "a"]}, "'a' occurs twice"),
    ],
)
def test_wrong_data_are_named(tmp_path, arrays, message):
    data = _npz(tmp_path / "d.npz", **arrays)
    with pytest.raises(InputError, match=message):
        _pretrain(*MLP, "--set", "inputs=4", "--data", data, "--out", str(tmp_path / "run"))


def test_what_is_converted_or_doubtful_is_said(tmp_path, caplog):
    """Whole numbers 1000 times too large, names as labels, an array that nobody reads."""
    x = (1000 * blobs()["x"].numpy()).astype(np.int64)
    y = np.array(["walk", "run", "sit"])[blobs()["y"].numpy()]
    data = _npz(tmp_path / "d.npz", x=x, y=y, subjects=np.zeros(len(y)))
    result = _pretrain(*MLP, "--data", data, "--out", str(tmp_path / "run"), "--epochs", "1")
    said = "\n".join([result.stderr, *(record.message for record in caplog.records)])
    for part in (
        "not read: subjects; known arrays are x, y, classes",
        "x: taken as float32, was int64",
        "y: the classes are run, sit, walk, in this order",
        "y: class names taken as their numbers",
        "warning: data",
        "not normalised?",
    ):
        assert part in said
    _, about = load_checkpoint(tmp_path / "run" / "model.safetensors")
    assert json.loads(about["classes"]) == ["run", "sit", "walk"]


def test_classes_that_count_from_one_are_doubted(tmp_path):
    arrays = blobs()
    data = _npz(tmp_path / "d.npz", x=arrays["x"].numpy(), y=arrays["y"].numpy() + 1)
    result = _pretrain(*MLP, "--data", data, "--out", str(tmp_path / "run"), "--epochs", "1")
    assert "has no class 0, the smallest is 1; classes count from 0" in result.stderr


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("tests.export.test_export_command:sigmoids", "the model ends with Sigmoid"),
        ("tests.export.test_export_command:half", r"return model.float\(\)"),
        ("tests.export.test_export_command:nothing", "has no function 'nothing'"),
        ("tests.export.test_export_command:broken", "cannot be made: ZeroDivisionError"),
    ],
)
def test_a_model_that_cannot_work_is_told_at_once(tmp_path, model, said):
    data = _npz(tmp_path / "d.npz", x=np.zeros((6, 5), np.float32), y=np.arange(6) % 3)
    with pytest.raises(InputError, match=said):
        _pretrain("--model", model, "--data", data, "--out", str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_a_folder_that_cannot_be_written_is_told_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    data = _npz(tmp_path / "d.npz", x=_X, y=_Y)
    for out in (tmp_path / "file", tmp_path / "file" / "run", "/proc/run"):
        with pytest.raises(InputError, match=f"--out '{out}': cannot write in"):
            _pretrain(*MLP, "--data", data, "--out", str(out))


def _targets(path, y, **arrays):
    return _npz(path, x=blobs()["x"].numpy(), y=y, **arrays)


def test_a_regression_is_trained_with_its_loss_and_the_export_finds_task_and_names(tmp_path):
    x = blobs()["x"].numpy()
    data = _targets(tmp_path / "d.npz", np.stack([x.sum(1), x[:, 0]], 1), targets=["sum", "first"])
    common = (*MLP, "--data", data, "--lr", "0.02", "--epochs", "2", "--task", "regression")
    result = _pretrain(*common, "--loss", "huber", "--out", str(tmp_path / "run"), "--json")
    assert json.loads(result.stdout)["accuracy"] is None
    _, about = load_checkpoint(tmp_path / "run" / "model.safetensors")
    assert (about["task"], about["objective"]) == ("regression", "huber")
    assert json.loads(about["targets"]) == ["sum", "first"]
    nothing = OutputOptions(task=None, loss=None)
    assert resolve_task(nothing, about) == ("regression", "huber")
    assert output_names(nothing, about, "regression") == (None, ("sum", "first"))


@pytest.mark.parametrize(
    ("y", "task", "message"),
    [
        (np.full((96, 2), np.nan), "regression", "NaN"),
        (np.full((96, 2), 0.5), "multilabel", "expected 0 and 1 for each of 2 labels"),
        (np.full(96, "a"), "regression", "y: expected numbers"),
        (np.zeros((96, 2), np.int64), "classification", "expected class numbers"),
    ],
)
def test_true_values_that_do_not_fit_the_task_are_refused(tmp_path, y, task, message):
    data = _targets(tmp_path / "d.npz", y)
    with pytest.raises(InputError, match=message):
        _pretrain(*MLP, "--data", data, "--out", str(tmp_path / "run"), "--task", task)


def test_a_loss_of_another_task_and_targets_named_wrongly_are_refused(tmp_path):
    data = _targets(tmp_path / "d.npz", np.zeros((96, 2)), targets=["only"])
    common = (*MLP, "--data", data, "--out", str(tmp_path / "run"), "--task", "multilabel")
    with pytest.raises(InputError, match="loss: expected bce for task multilabel, got 'mse'"):
        _pretrain(*common, "--loss", "mse")
    with pytest.raises(InputError, match="a column for each of the targets"):
        _pretrain(*common)
