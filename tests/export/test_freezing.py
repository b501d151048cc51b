"""What is frozen neither trains nor travels, whatever the model's code says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from torch import nn

import protofleet as pf
from protofleet.bundle import Bundle
from protofleet.cli.export import export
from protofleet.errors import InputError
from protofleet.export.models import build_model


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("patterns", "trained"),
    [
        ("3", ("3.weight", "3.bias")),
        ("3.*", ("3.weight", "3.bias")),
        (["*.bias", "1"], ("0.bias", "1.weight", "1.bias", "3.bias")),
        ("[01]", ("0.weight", "0.bias", "1.weight", "1.bias")),
        ((), ()),
    ],
)
def test_names_modules_and_patterns(patterns: str | list[str], trained: tuple[str, ...]) -> None:
    """Whatever was frozen before."""
    model = _model()
    model[0].weight.requires_grad = False
    assert pf.freeze(model, except_=patterns) == trained
    assert tuple(n for n, v in model.named_parameters() if v.requires_grad) == trained


def test_a_pattern_that_names_nothing_is_refused_and_changes_nothing() -> None:
    model = _model()
    with pytest.raises(InputError, match=r"'head\.\*' names no parameter of the model.*'3\.bias'"):
        pf.freeze(model, except_=["0", "head.*"])
    assert all(value.requires_grad for value in model.parameters())


def test_a_shared_weight_trains_by_either_name() -> None:
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    model["b"].weight = model["a"].weight
    assert pf.freeze(model, except_="b") == ("a.weight", "b.bias")


@pytest.mark.slow(seconds=2)
def test_a_bundle_trains_what_was_named(tmp_path: Path) -> None:
    told: list[str] = []
    report = pf.export_model(
        _model(),
        tmp_path / "m.pfb",
        strategy="fedper",
        input_shape=(6,),
        train=["3", "1"],
        tell=told.append,
    )
    manifest = Bundle.open(tmp_path / "m.pfb", any_signer=True).manifest
    assert [one.name for one in manifest.params] == ["1.weight", "1.bias", "3.weight", "3.bias"]
    assert [one.name for one in manifest.state] == ["0.weight", "0.bias"]
    assert manifest.head == ("3.weight", "3.bias")
    assert (report.params, report.state) == (43, 56)
    assert "training: 43 of 99 parameters, in 4 tensors" in told


@pytest.mark.slow(seconds=3)
def test_methods_that_choose_units_know_the_layers_that_train(tmp_path: Path) -> None:
    """A frozen layer is none of them, and nothing is behind it."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(144, 8),
        nn.ReLU(),
        nn.Linear(8, 3),
    )
    pf.export_model(
        model, tmp_path / "m.pfb", strategy="fedsub", input_shape=(1, 8, 8), train=["3", "5"]
    )
    layers = Bundle.open(tmp_path / "m.pfb", any_signer=True).manifest.layers
    assert [(one.name, one.before) for one in layers] == [("3", None), ("5", "3")]


@pytest.mark.slow(seconds=2)
@pytest.mark.parametrize("patterns", ["head", pytest.param("*.bias", marks=pytest.mark.full_size)])
def test_a_model_that_tells_its_layers_may_be_frozen_too(tmp_path: Path, patterns: str) -> None:
    model = build_model("mlp", inputs=6, classes=3, hidden=(8, 4))
    told: list[str] = []
    pf.export_model(
        model,
        tmp_path / "m.pfb",
        strategy=["fedavg", "all"],
        input_shape=(6,),
        train=patterns,
        formats=["onnx"],
        tell=told.append,
    )
    assert any(line.startswith("left out, strategy fedsub: expected dense layers") for line in told)


@pytest.mark.slow(seconds=2)
def test_the_command_has_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["mlp", "--input-shape", "6", "--classes", "a,b", "--strategy", "fedavg"]
    done = CliRunner().invoke(
        export, [*words, "--out", "m.pfb", "--train", "*.bias"], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    manifest = Bundle.open(tmp_path / "m.pfb", any_signer=True).manifest
    assert all(one.name.endswith(".bias") for one in manifest.params)
    assert any(one.name.endswith(".weight") for one in manifest.state)
