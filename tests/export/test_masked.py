"""Masked-autoencoder pretraining: what is hidden, what the loss counts, and that it falls."""

from __future__ import annotations

import pytest
import torch

from protofleet.errors import InputError
from protofleet.export.models import build_model
from protofleet.export.pretraining.checkpoints import load_checkpoint
from protofleet.export.pretraining.masked import MaskedAutoencoder
from protofleet.export.pretraining.training import TrainOptions, masked, train
from tests.export.central_data import HART, waves


def test_masked_loss_falls_on_guessable_windows(tmp_path):
    torch.manual_seed(0)
    model = build_model("hart", **HART, dropout=0.0)
    told = []
    options = TrainOptions(epochs=16, lr=5e-3, batch_size=32, validation=0.25)
    train(
        masked(model, waves()["x"][:1]),
        waves(),
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


def test_the_decoder_s_width_is_a_multiple_of_16_for_every_encoder():
    for width, narrow in ((32, 16), (48, 32), (192, 96)):
        model = build_model("hart", **{**HART, "width": width})
        autoencoder = MaskedAutoencoder(model, torch.zeros(1, 128, 6))
        assert autoencoder.enter.out_features == narrow
        assert torch.isfinite(autoencoder(torch.randn(2, 128, 6)))


def test_one_sensor_is_reconstructed_too():
    model = build_model("hart", sensors=1, **HART)
    autoencoder = MaskedAutoencoder(model, torch.zeros(1, 128, 3))
    assert autoencoder.leave[1].out_features == 16 * 3
    assert torch.isfinite(autoencoder(torch.randn(2, 128, 3)))


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
