"""``protofleet pretrain``: what it writes, resumes and refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from protofleet.cli._task import OutputOptions, resolve_outputs
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


MLP = ("--model", "mlp", "--set", "inputs=4", "--set", "hidden=[16]")


def test_the_command_trains_resumes_and_writes_a_loadable_model(tmp_path):
    data = _npz(tmp_path / "d.npz", **{k: v.numpy() for k, v in blobs().items()})
    out = tmp_path / "run"
    common = (*MLP, "--data", data, "--out", str(out), "--lr", "0.02")
    assert "best epoch" in _pretrain(*common, "--epochs", "2").output
    with pytest.raises(InputError, match="--resume"):
        _pretrain(*common, "--epochs", "4")
    result = json.loads(_pretrain(*common, "--epochs", "4", "--resume", "--json").stdout)
    model, about = load_model(out / "model.safetensors")
    assert result["checkpoint"] == str(out / "model.safetensors")
    assert json.loads(about["classes"]) == ["0", "1", "2"]
    assert json.loads(about["settings"]) == {"classes": 3, "hidden": [16], "inputs": 4}
    assert model.eval()(blobs()["x"]).argmax(1).eq(blobs()["y"]).float().mean() > 0.8


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


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 4), np.float32)}, "no 'y'"),
        ({"x": np.zeros((2, 4)), "y": np.array([0.5, 1.0])}, "class numbers"),
        ({"x": np.zeros((2, 4)), "y": np.array([{}, 1], object)}, "plain arrays"),
        ({"x": np.zeros((2, 5)), "y": np.array([0, 1])}, r"examples of shape \(5,\)"),
        ({"x": np.zeros((2, 4)), "y": np.array([0, 2]), "classes": np.array(["a"])}, "names only"),
    ],
)
def test_wrong_data_are_named(tmp_path, arrays, message):
    data = _npz(tmp_path / "d.npz", **arrays)
    with pytest.raises(InputError, match=message):
        _pretrain(*MLP, "--data", data, "--out", str(tmp_path / "run"))


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
    outputs = resolve_outputs(nothing, about, lambda: 9)
    assert (outputs.task, outputs.loss, outputs.targets) == (
        "regression",
        "huber",
        ("sum", "first"),
    )


@pytest.mark.parametrize(
    ("y", "task", "message"),
    [
        (np.full((96, 2), np.nan), "regression", "NaN, infinite or larger"),
        (np.full((96, 2), 0.5), "multilabel", "expected 0 and 1 for each of 2 labels"),
        (np.full(96, "a"), "regression", "expected y as numbers"),
        (np.zeros((96, 2), np.int64), "classification", "expected y as class numbers"),
    ],
)
def test_true_values_that_do_not_fit_the_task_are_refused(tmp_path, y, task, message):
    data = _targets(tmp_path / "d.npz", y)
    with pytest.raises(InputError, match=message):
        _pretrain(*MLP, "--data", data, "--out", str(tmp_path / "run"), "--task", task)


def test_a_loss_of_another_task_and_targets_named_wrongly_are_refused(tmp_path):
    data = _targets(tmp_path / "d.npz", np.zeros((96, 2)), targets=["only"])
    common = (*MLP, "--data", data, "--out", str(tmp_path / "run"), "--task", "multilabel")
    with pytest.raises(InputError, match="--loss: expected bce for --task multilabel, got 'mse'"):
        _pretrain(*common, "--loss", "mse")
    with pytest.raises(InputError, match="y has 2 columns but targets names 1"):
        _pretrain(*common)
