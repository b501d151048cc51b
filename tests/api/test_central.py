"""From a module to a bundle, without the command line."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import protofleet
from protofleet.api.central import export_model, pretrain
from protofleet.errors import InputError

pytestmark = pytest.mark.slow(seconds=8)

_OPTIONS = {"epochs": 8, "lr": 0.01, "batch_size": 16, "seed": 2}


def _module():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def _examples(count):
    rng = np.random.default_rng(count)
    y = np.arange(count) % 3
    x = rng.standard_normal((count, 4)) + 3 * np.eye(4)[y]
    return x.astype(np.float32), y


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    module, (x, y) = _module(), _examples(120)
    folder = tmp_path_factory.mktemp("central")
    result = pretrain(module, x, y, folder=folder, classes=("a", "b", "c"), **_OPTIONS)
    return module, result


def test_preprocessing_may_be_a_mapping(tmp_path):
    given = {"input_shape": [4, 2], "rate_hz": 10.0, "window": 4, "hop": 2, "channels": ["a", "b"]}
    place = {"strategy": "local", "classes": ("no", "yes"), "formats": ("onnx",)}
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 2))
    export_model(model, tmp_path / "a.pfb", preprocessing=given, **place)
    found = protofleet.open_bundle(tmp_path / "a.pfb").preprocessing
    assert (found.input_shape, found.rate_hz, found.channels) == ((4, 2), 10.0, ("a", "b"))
    with pytest.raises(InputError, match=r"preprocessing: .*window"):
        export_model(model, tmp_path / "b.pfb", preprocessing={**given, "window": -4}, **place)
    with pytest.raises(InputError, match=r"preprocessing: .*input_shape"):
        export_model(model, tmp_path / "b.pfb", preprocessing={"rate_hz": 10.0}, **place)


def test_the_module_has_the_best_epoch_s_values_and_they_are_the_bundle_s(trained, tmp_path):
    module, result = trained
    assert result.accuracy == 1.0
    x, _ = _examples(30)
    with torch.no_grad():
        expected = module(torch.from_numpy(x)).numpy()
    notes = []
    report = export_model(
        module,
        tmp_path / "own.pfb",
        input_shape=(4,),
        classes=("a", "b", "c"),
        formats=("onnx",),
        tell=notes.append,
    )
    model = protofleet.open_bundle(report.path)
    np.testing.assert_allclose(model.predict(x).outputs, expected, atol=1e-5)
    assert model.names == ("a", "b", "c")
    assert model.predict(x).labels == [model.names[one] for one in expected.argmax(1)]
    assert any("head: '2'" in note for note in notes)
    _trains_alone(model)


def _trains_alone(model):
    """On other classes of its owner; the model itself stays."""
    x, y = _examples(60)
    own = protofleet.DeviceData(
        x_train=x, y_train=(y + 1) % 3, x_test=x, y_test=(y + 1) % 3, classes=model.names
    )
    before = model.score(own).scores["accuracy"]
    adam = {"kind": "adam", "lr": 0.05}
    better = model.train(own, epochs=20, optimiser=adam)
    assert before < 0.5
    assert better.score(own).scores["accuracy"] > 0.8
    assert model.score(own).scores["accuracy"] == before
    again = model.train(own, epochs=20, optimiser=adam)
    np.testing.assert_array_equal(again.predict(x).outputs, better.predict(x).outputs)
    with pytest.raises(InputError, match="epoch"):
        model.train(own, epoch=3)


def test_a_folder_that_holds_a_run_is_gone_on_with_if_asked(trained):
    _, result = trained
    x, y = _examples(120)
    with pytest.raises(InputError, match="holds a run: go on with resume"):
        pretrain(_module(), x, y, folder=result.checkpoint.parent, **_OPTIONS)
    go_on = {"folder": result.checkpoint.parent, "resume": True, **_OPTIONS}
    again = pretrain(_module(), x, y, classes=("a", "b", "c"), **go_on)
    assert again == result


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "expected either input_shape, .* got neither"),
        ({"input_shape": (0,)}, "input_shape: expected sizes like"),
        ({"input_shape": (4,), "loss": "mse"}, "loss: expected cross_entropy for task class"),
        ({"input_shape": (4,), "targets": ("x",)}, "targets: task classification has classes"),
        ({"input_shape": (4,), "strategy": "fedavgg"}, "strategy 'fedavgg': unknown"),
        ({"input_shape": (5,)}, "shape|mat1"),
    ],
)
def test_what_does_not_fit_is_said_and_nothing_is_written(arguments, message, tmp_path):
    with pytest.raises(protofleet.errors.ProtofleetError, match=message):
        export_model(_module(), tmp_path / "own.pfb", **arguments)
    assert not list(tmp_path.iterdir())
