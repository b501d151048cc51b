"""The models' sizes, shapes and the facts of their papers."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.nn import functional

from protofleet.errors import InputError
from protofleet.export.models import MODELS, build_model, has_setting
from protofleet.export.models.hart import HartConfig, LightConvolution
from protofleet.export.models.layers import DropPath

SMALL_HART = {"kernels": (3, 15), "width": 32, "head_width": 16, "heads": 2}


def _params(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("spec", "settings", "count"),
    [
        ("hart", {"classes": 6}, 1_445_918),  # FedAli: 5.8 MB
        ("cnn", {}, 582_026),  # FedALA, MNIST
        ("cnn", {"channels": 3, "size": 32}, 878_538),  # FedALA, CIFAR-10
        (  # FedHP, CIFAR-10 and SVHN
            "cnn",
            {"channels": 3, "size": 32, "filters": (64, 64), "hidden": 384, "head_bias": False},
            725_952,
        ),
        # FedHP: the encoder alone, and 10 240 or 16 000 prototype values
        ("cnn_prototypes", {}, 32 * 26 + 64 * (32 * 25 + 1) + 10_240),
        ("cnn_prototypes", {"head_kind": "cosine"}, 32 * 26 + 64 * (32 * 25 + 1) + 10_240 + 1),
        (
            "cnn_prototypes",
            {"channels": 3, "size": 32, "filters": (64, 64)},
            64 * (3 * 25 + 1) + 64 * (64 * 25 + 1) + 16_000,
        ),
        ("fasttext", {}, 98_635 * 32 + 32 * 4 + 4),  # FedALA, AG News
        ("resnet18", {}, 11_181_642),  # FedALA
        ("resnet50", {"classes": 1000}, 25_557_032),  # torchvision's
        ("mlp", {"inputs": 3, "classes": 6}, 3 * 128 + 128 + 128 * 512 + 512 + 512 * 6 + 6),
    ],
)
def test_parameter_counts_of_the_papers(spec, settings, count):
    assert _params(build_model(spec, **settings)) == count


def test_a_head_of_another_kind_is_refused_by_name():
    with pytest.raises(
        InputError, match="head_kind: expected one of prototypes, cosine, got 'own'"
    ):
        build_model("mlp_prototypes", head_kind="own")


def test_hart_with_alp_is_2_38_times_as_large():
    model = build_model("hart_alp", classes=6)
    prototypes = sum(b.numel() for n, b in model.named_buffers() if n.endswith("prototypes"))
    assert _params(model) + prototypes == 3_438_878
    assert {n for n, _ in model.named_buffers() if "." not in n} == {"beta"}
    assert model.beta.shape == ()


@pytest.mark.parametrize("spec", sorted(MODELS))
def test_logits_are_the_head_of_the_features(spec):
    """Every registered model has ``features`` and ``head``, and forward is their composition."""
    known = MODELS[spec]
    settings = {**SMALL_HART, "prototypes": (8, 4)} if spec == "hart_alp" else known.parity_settings
    model = build_model(spec, classes=5, **settings).eval()
    x = torch.randn(3, *(known.parity_shape or known.input_shape))
    x = x.abs().round() if spec == "fasttext" else x
    logits = model(x)
    assert logits.shape == (3, 5)
    torch.testing.assert_close(model.head(model.features(x)), logits)


def _changed_samples(**settings):
    torch.manual_seed(0)
    model = build_model("hart", **SMALL_HART, **settings).eval()
    x = torch.randn(8, 128, 6)
    other = x.clone()
    other[3] += 1
    with torch.no_grad():
        difference = (model(x) - model(other)).abs().amax(1)
    return set(difference.gt(1e-6).nonzero().flatten().tolist())


def test_plain_hart_treats_samples_apart():
    assert _changed_samples() == {3}


def test_code_fidelity_mixes_samples_of_a_batch():
    """The reference's unrestored group order spreads a change to other samples."""
    assert _changed_samples(fidelity="code") > {3}


def test_one_unrestored_convolution_spreads_sample_3_of_8_to_0_2_4_6():
    layer = LightConvolution(3, drop_path=0.0, fidelity="code").eval()
    x = torch.randn(8, 8, 96)
    other = x.clone()
    other[3] += torch.randn(8, 96)
    changed = (layer(x) - layer(other)).abs().amax((1, 2)) > 0
    assert changed.nonzero().flatten().tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize("length", [3, 7, 15, 31])
def test_the_banded_product_is_a_padded_convolution(length):
    """Against PyTorch's grouped convolution with the softmax kernel."""
    layer = LightConvolution(length, drop_path=0.0, fidelity="default").eval()
    x = torch.randn(2, 8, 96)
    kernel = torch.softmax(layer.kernel, 1)[:, None]
    groups = functional.conv1d(x.reshape(-1, 4, 8), kernel, padding="same", groups=4)
    torch.testing.assert_close(layer(x), groups.reshape(x.shape))


def test_light_convolution_drops_groups_for_all_samples_alike():
    """A group is nought or doubled in every sample; about half of them are dropped."""
    torch.manual_seed(0)
    layer = LightConvolution(3, drop_path=0.5, fidelity="default")
    x = torch.randn(5, 8, 96)
    whole = layer.eval()(x).reshape(-1, 4, 8)
    layer.train()
    scales = [(layer(x).reshape(-1, 4, 8) / whole).amax((0, 2)) for _ in range(50)]
    lowest = (layer(x).reshape(-1, 4, 8) / whole).unique()
    assert set(torch.stack(scales).round().unique().tolist()) == {0.0, 2.0}
    assert 0.7 < torch.stack(scales).mean() < 1.3
    assert set(lowest.round().tolist()) <= {0.0, 2.0}


def test_drop_path_keeps_the_expectation_and_drops_whole_samples():
    torch.manual_seed(0)
    out = DropPath(0.3).train()(torch.ones(20_000, 2, 3))
    torch.testing.assert_close(out.unique(), torch.tensor([0, 1 / 0.7]))
    assert torch.equal(out.amax((1, 2)), out.amin((1, 2)))
    assert out.mean().item() == pytest.approx(1, abs=0.02)
    assert torch.equal(DropPath(0.3).eval()(out), out)


def test_dropout_rates_from_scratch_and_pretrained():
    scratch, pretrained = HartConfig(), HartConfig(pretrained=True)
    assert (scratch.encoder_dropout, scratch.classifier_dropout) == (0.3, 0.3)
    assert (pretrained.encoder_dropout, pretrained.classifier_dropout) == (0.1, 0.5)
    assert [scratch.drop_path_of(i) for i in (0, 5)] == [0, 0.3]
    assert pretrained.drop_path_of(5) == pytest.approx(0.1)


def test_vit_cuts_images_row_by_row():
    image = torch.arange(64.0).reshape(1, 1, 8, 8)
    cut = build_model("vit_digits").patches(image)
    assert cut.shape == (1, 16, 4)
    assert cut[0, :2].tolist() == [[0, 1, 8, 9], [2, 3, 10, 11]]


@pytest.mark.parametrize(
    ("spec", "settings", "message"),
    [
        ("nope", {}, r"expected one of .*cnn, cnn_prototypes"),
        ("no_such_package:f", {}, "no module named 'no_such_package'"),
        ("json:nope", {}, "has no function 'nope'"),
        ("json:loads", {"s": "{}"}, "expected a torch.nn.Module, got dict"),
        ("torch.nn:Linear", {"in_features": 2}, "of out_features: --set out_features=VALUE"),
        ("mlp", {"input": 3}, "unknown setting 'input', known are classes, hidden, inputs"),
        ("hart", {"prototypes": (8,)}, "one prototype count per block"),
        ("hart", {"fidelity": "paper"}, "fidelity default or code"),
        ("vit", {"size": 30}, "no multiple of patch"),
        ("cnn", {"size": 12}, "at least 16 x 16"),
        ("cnn_prototypes", {"size": 15}, "at least 16 x 16"),
    ],
)
def test_wrong_specifications_are_refused_by_name(spec, settings, message):
    with pytest.raises(InputError, match=message):
        build_model(spec, **settings)


def test_a_users_function_is_a_model():
    model = build_model("torch.nn:Linear", in_features=2, out_features=3)
    assert model(torch.zeros(1, 2)).shape == (1, 3)
    assert has_setting("mlp", "classes")
    assert not has_setting("torch.nn:Linear", "classes")


def test_a_users_module_is_found_in_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "lying_here.py").write_text("from torch.nn import Linear as build\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    assert build_model("lying_here:build", in_features=2, out_features=3).out_features == 3


def test_a_module_in_data_parallel_is_asked_for_without_it(tmp_path, monkeypatch):
    """Else the export would fail in a line of PyTorch's own."""
    (tmp_path / "wrapped_model.py").write_text(
        "from torch import nn\ndef build():\n    return nn.DataParallel(nn.Linear(3, 2))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"DataParallel.*return model\.module"):
        build_model("wrapped_model:build")
