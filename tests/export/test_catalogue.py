"""What is known of models and objectives without PyTorch is what they are."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from protofleet.cli.models import models
from protofleet.errors import InputError
from protofleet.export.catalogue import MODELS, OBJECTIVES, model_names, sizes_of
from protofleet.export.models import build_model, settings_of
from protofleet.export.models._registry import _factory

_PAGE = Path(__file__).resolve().parents[2] / "docs" / "export.md"


def test_it_is_read_without_pytorch():
    code = "import sys, protofleet.export.catalogue; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


def test_every_model_can_be_found():
    assert all(callable(_factory(name)) for name in MODELS)
    assert model_names().endswith("vit or vit_digits")


def test_the_page_has_each_model_with_its_shape():
    rows = re.findall(r"(?m)^\| (`[a-z0-9_`, ]+`) \|[^|]*\| ([^|]*) \|", _PAGE.read_text())
    told = {name: shape for names, shape in rows for name in re.findall(r"`(\w+)`", names)}
    for name, known in MODELS.items():
        assert ", ".join(map(str, known.input_shape)) in told[name], name


def test_labels_of_objectives_are_classes_of_examples_or_steps_or_numbers():
    kinds = {name: one.labels for name, one in OBJECTIVES.items() if one.labels != "classes"}
    numbers = dict.fromkeys(("mse", "huber", "bce"), "numbers")
    assert kinds == {"step_cross_entropy": "classes of steps", **numbers}


@pytest.mark.parametrize("name", [name for name in MODELS if name != "resnet50"])
def test_the_usual_example_says_the_usual_sizes(name):
    shape = MODELS[name].input_shape
    usual = {key: value for key, value in settings_of(name).items() if value is not None}
    own = {"vit_digits": {"channels": 1, "size": 8}}.get(name, usual)
    sizes = sizes_of(name, shape)
    assert {key: own[key] for key in sizes} == sizes


@pytest.mark.parametrize(
    ("name", "shape", "tokens"),
    [
        ("mlp", (20,), None),
        ("mlp_alp", (12, 6), None),
        ("mlp_prototypes", (3, 4, 5), None),
        ("cnn", (3, 32, 32), None),
        ("cnn_prototypes", (2, 20, 20), None),
        ("hart", (128, 3), None),
        ("hart", (100, 6), None),
        ("vit", (1, 28, 28), None),
        ("vit_digits", (3, 16, 16), None),
        ("resnet18", (1, 28, 28), None),
        ("autoencoder", (50, 3), None),
        ("fasttext", (30,), 50),
    ],
)
def test_examples_of_other_shapes_say_other_sizes(name, shape, tokens):
    small = {"depth": 1} if name == "vit" else {}
    model = build_model(name, **sizes_of(name, shape, tokens=tokens), **small, classes=3)
    x = torch.zeros(2, *shape)
    assert model.eval()(x.long() if tokens else x).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("cnn", (20,), "expected square images .* such as 1,28,28; the examples are of shape 20"),
        ("resnet18", (3, 32, 30), "expected square images"),
        ("vit", (3, 31, 31), "multiple of a patch of 4 or more, got 31; --set patch=N"),
        ("hart", (128, 4), "3 or 6 channels, got 4"),
        ("hart", (97, 3), "multiple of 4 to 16 samples, got 97"),
        ("autoencoder", (1, 28, 28), r"expected windows \(steps, channels\), such as 128,6"),
    ],
)
def test_examples_that_a_model_cannot_take_are_named(name, shape, said):
    with pytest.raises(InputError, match=f"model '{name}': .*{said}"):
        sizes_of(name, shape)


def test_nothing_is_known_of_another_s_model():
    assert sizes_of("mine:model", (3, 4)) == {}


def test_models_are_listed_and_one_with_its_settings():
    listed = CliRunner().invoke(models, ["--json"])
    assert json.loads(listed.stdout).keys() == MODELS.keys()
    assert all(name in CliRunner().invoke(models).stdout for name in MODELS)
    told = CliRunner().invoke(models, ["mlp"]).stdout
    assert "--set hidden=[128, 512]" in told
    one = json.loads(CliRunner().invoke(models, ["hart", "--json"]).stdout)
    assert (one["input_shape"], one["settings"]["width"]) == ([128, 6], 192)
    with pytest.raises(InputError, match="model 'hard': expected one of autoencoder"):
        CliRunner().invoke(models, ["hard"], catch_exceptions=False)
