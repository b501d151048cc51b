"""Central training: it learns, it resumes to the same bits, and its files are complete."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from protofleet.cli.pretrain import pretrain
from protofleet.errors import InputError, MissingDataError
from protofleet.export.checkpoints import load_checkpoint, load_model
from protofleet.export.masked import MaskedAutoencoder
from protofleet.export.models import build_model
from protofleet.export.training import TrainOptions, masked, supervised, train

pytestmark = pytest.mark.slow(seconds=1)

HART = {"kernels": (3, 7), "width": 32, "head_width": 16, "heads": 2}
ALP = {**HART, "prototypes": (8, 4)}


def _blobs(count=120, width=4):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, count)
    x = rng.standard_normal((count, width)) + 3 * np.eye(3, width)[y]
    return {"x": torch.tensor(x, dtype=torch.float32), "y": torch.from_numpy(y)}


def _waves(count=96):
    """Windows of six sines of one frequency and random phases: hidden patches can be guessed."""
    rng = np.random.default_rng(0)
    phase = rng.uniform(0, 6.28, (count, 1, 6))
    x = np.sin(np.arange(128)[None, :, None] * 0.3926991 + phase)
    return {"x": torch.tensor(x, dtype=torch.float32)}


class StoppedError(Exception):
    """Stands for a killed process."""


def _stop_in(epoch):
    def tell(told):
        if told.epoch == epoch and told.step == 2:
            raise StoppedError

    return tell


def _supervised(seed=0):
    torch.manual_seed(seed)
    return supervised(build_model("mlp", inputs=4, classes=3, hidden=(16,)))


def test_supervised_training_learns_and_keeps_the_best_epoch(tmp_path):
    told = []
    options = TrainOptions(epochs=15, lr=0.02, batch_size=32, validation=0.25)
    result = train(_supervised(), _blobs(), options, folder=tmp_path, on_progress=told.append)
    validated = [t for t in told if t.validation_loss is not None]
    assert len(validated) == 15
    assert result.best_loss == min(t.validation_loss for t in validated)
    assert result.best_epoch == 1 + int(np.argmin([t.validation_loss for t in validated]))
    assert result.accuracy > 0.8
    assert validated[-1].loss < 0.5 * validated[0].loss


def _task_of(kind):
    torch.manual_seed(0)
    if kind == "supervised":
        return supervised(build_model("hart_alp", **ALP, classes=3))
    return masked(build_model("hart_alp", **ALP), _waves()["x"][:1])


@pytest.mark.parametrize("kind", ["supervised", "mae"])
def test_an_interrupted_run_ends_with_the_same_bits(tmp_path, kind):
    """Killed in epoch 3 and resumed, every tensor equals the undisturbed run's."""
    data = _waves(24)
    if kind == "supervised":
        data["y"] = torch.arange(24) % 3
    options = TrainOptions(epochs=4, lr=0.01, batch_size=8, seed=3)
    train(_task_of(kind), data, options, folder=tmp_path / "whole")
    with pytest.raises(StoppedError):
        train(_task_of(kind), data, options, folder=tmp_path / "cut", on_progress=_stop_in(3))
    torch.manual_seed(99)
    train(_task_of(kind), data, options, folder=tmp_path / "cut", resume=True)
    for file in ("training.safetensors", "model.safetensors"):
        whole, about = load_checkpoint(tmp_path / "whole" / file)
        cut, _ = load_checkpoint(tmp_path / "cut" / file)
        assert whole.keys() == cut.keys()
        assert all(torch.equal(whole[name], cut[name]) for name in whole)
        assert about == load_checkpoint(tmp_path / "cut" / file)[1]


def test_resuming_with_other_options_is_refused(tmp_path):
    data = _blobs()
    train(_supervised(), data, TrainOptions(epochs=1), folder=tmp_path)
    with pytest.raises(InputError, match=r"expected lr 0\.0005 as before, got 0\.1"):
        train(_supervised(), data, TrainOptions(epochs=2, lr=0.1), folder=tmp_path, resume=True)


def test_training_leaves_the_callers_generator_alone(tmp_path):
    task = _supervised()
    before = torch.get_rng_state()
    train(task, _blobs(), TrainOptions(epochs=1), folder=tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_alp_is_trained_as_a_federation_of_one(tmp_path):
    """After an epoch the global prototypes are the local ones; beta is 0 in the first only."""
    model = build_model("hart_alp", **ALP, classes=3)
    data = {**_waves(16), "y": torch.arange(16) % 3}
    betas = []
    train(
        supervised(model),
        data,
        TrainOptions(epochs=2, batch_size=8, validation=0),
        folder=tmp_path,
        on_progress=lambda told: (
            betas.append((told.epoch, round(model.beta.item(), 3)))
            if told.validation_loss is None
            else None
        ),
    )
    assert set(betas) == {(1, 0.0), (2, 0.2)}
    layer = model.blocks[0].align
    assert torch.equal(layer.global_prototypes, layer.local_prototypes)
    assert model.beta.item() == pytest.approx(0.2)


def test_masked_loss_falls_on_guessable_windows(tmp_path):
    torch.manual_seed(0)
    model = build_model("hart", **HART, dropout=0.0)
    told = []
    options = TrainOptions(epochs=16, lr=5e-3, batch_size=32, validation=0.25)
    train(
        masked(model, _waves()["x"][:1]),
        _waves(),
        options,
        folder=tmp_path,
        on_progress=told.append,
    )
    losses = [t.validation_loss for t in told if t.validation_loss is not None]
    assert min(losses) < 0.7 * losses[0]
    assert set(load_checkpoint(tmp_path / "model.safetensors")[0]) == set(model.state_dict())


def test_the_masked_autoencoder_hides_five_of_eight_tokens():
    model = build_model("hart", **HART).eval()
    autoencoder = MaskedAutoencoder(model, torch.zeros(1, 128, 6)).eval()
    assert autoencoder.hidden_tokens == 5
    seen = []
    model.blocks[0].register_forward_hook(lambda _, args, __: seen.append(args[0].shape))
    autoencoder(torch.randn(3, 128, 6))
    assert seen == [(3, 3, 32)]


def test_the_masked_loss_is_the_squared_error_on_hidden_patches_alone():
    model = build_model("hart", **HART).eval()
    autoencoder = MaskedAutoencoder(model, torch.zeros(1, 128, 6)).eval()
    decoded = []
    autoencoder.leave.register_forward_hook(lambda _, __, out: decoded.append(out))
    x = torch.randn(2, 128, 6)
    torch.manual_seed(5)
    hidden = torch.rand(2, 8).argsort(1)[:, :5]
    torch.manual_seed(5)
    loss = autoencoder(x)
    squares = (decoded[0] - model.patches(x)).square().mean(2)
    torch.testing.assert_close(
        loss, torch.stack([s[h] for s, h in zip(squares, hidden, strict=True)]).mean()
    )
    assert abs(loss - squares.mean()) > 1e-4


def test_hidden_patches_do_not_reach_the_encoder():
    """Changing only hidden patches leaves what the encoder sees as it was."""
    model = build_model("hart", **HART).eval()
    autoencoder = MaskedAutoencoder(model, torch.zeros(1, 128, 6)).eval()
    seen = []
    model.norm.register_forward_hook(lambda _, __, out: seen.append(out))
    x = torch.randn(1, 128, 6)
    torch.manual_seed(5)
    hidden = torch.rand(1, 8).argsort(1)[0, :5]
    other = x.clone()
    other.view(1, 8, 16, 6)[:, hidden] += 1
    for example in (x, other):
        torch.manual_seed(5)
        autoencoder(example)
    assert torch.equal(*seen)


def test_masked_pretraining_names_a_model_without_tokens():
    with pytest.raises(InputError, match="Mlp has no position, patches"):
        masked(build_model("mlp", inputs=4), torch.zeros(1, 4))


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path):
    data = _blobs()
    data["x"][5] = float("nan")
    with pytest.raises(InputError, match="loss is nan in epoch 1"):
        train(_supervised(), data, TrainOptions(), folder=tmp_path)


def test_arrays_of_unequal_length_are_refused(tmp_path):
    data = _blobs() | {"y": torch.zeros(3, dtype=torch.int64)}
    with pytest.raises(InputError, match="arrays of one length"):
        train(_supervised(), data, TrainOptions(), folder=tmp_path)


def test_files_that_are_no_checkpoints_are_refused(tmp_path):
    with pytest.raises(MissingDataError, match="no such file"):
        load_checkpoint(tmp_path / "absent.safetensors")
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no header here")
    with pytest.raises(InputError, match="expected a safetensors file"):
        load_checkpoint(broken)


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
    data = _npz(tmp_path / "d.npz", **{k: v.numpy() for k, v in _blobs().items()})
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
    assert model.eval()(_blobs()["x"]).argmax(1).eq(_blobs()["y"]).float().mean() > 0.8


def test_a_masked_pretrained_encoder_initialises_a_classifier(tmp_path):
    waves = _waves(16)["x"].numpy()
    data = _npz(tmp_path / "d.npz", x=waves, y=np.arange(16) % 3)
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
