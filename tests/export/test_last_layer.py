"""A head of several layers, as transformers have it, whose last one learns on the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import protofleet as pf
from protofleet.bundle import Bundle
from protofleet.bundle.manifest import PENULTIMATE
from protofleet.edge import LocalData
from protofleet.edge.learning.personalise import personalise
from protofleet.errors import InputError
from protofleet.export.classifier.parts import find_parts
from protofleet.export.models import build_model
from protofleet.runtime import open_programs

_NAMES = ("sit", "walk", "run")


def _exported(tmp_path, model, shape, **options):
    torch.manual_seed(0)
    path = tmp_path / "model.pfb"
    pf.export_model(
        model, path, strategy="fedavg", input_shape=shape, classes=_NAMES, formats=["onnx"],
        **options,
    )  # fmt: skip
    bundle = Bundle.open(path, any_signer=True)
    return bundle, open_programs(bundle)


def _data(shape, programs, network, count=60):
    """Examples whose classes lie elsewhere than the model thinks."""
    x = np.random.default_rng(0).standard_normal((count, *shape)).astype(np.float32)
    said = programs.predict(network, x)
    y = (said - said.mean(axis=0)).argmax(axis=1)
    own = pf.DeviceData(
        x_train=x[:40], y_train=y[:40], x_test=x[40:], y_test=y[40:], classes=_NAMES
    )
    return LocalData(own=own)


def _tells(bundle):
    return any(port.key == PENULTIMATE for port in bundle.manifest.programs["features"].outputs)


class _Encoder(nn.Module):
    """As HART is made: its own features, and a head of two dense layers."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 8)
        self.head = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Dropout(0.3), nn.Linear(16, 3))

    def features(self, x):
        return torch.tanh(self.body(x))

    def forward(self, x):
        return self.head(self.features(x))


def test_of_a_head_of_two_layers_the_last_learns(tmp_path):
    bundle, programs = _exported(tmp_path, _Encoder(), (5,))
    network = bundle.model().network
    assert _tells(bundle)
    fitted = personalise(bundle, programs, _data((5,), programs, network))
    assert fitted.head.weight.shape == (3, 16)
    changed = {
        name
        for name, value in network.params.items()
        if not np.array_equal(value, fitted.network.params[name])
    }
    assert changed == {"head.3.weight", "head.3.bias"}
    x = _data((5,), programs, network).own.x_test
    inputs = programs.into_last_layer(network, x)
    np.testing.assert_allclose(
        programs.predict(fitted.network, x), fitted.head(inputs), rtol=1e-4, atol=1e-5
    )


def test_hart_is_made_so():
    model = build_model("hart", classes=3, kernels=(3, 15), width=32, head_width=16, heads=2)
    assert find_parts(model, torch.zeros(2, 128, 6)).last == "head.3"


@pytest.mark.parametrize("head", ["1", None])
def test_a_head_that_is_named_may_have_several_layers_too(tmp_path, head):
    classifier = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))
    model = nn.Sequential(nn.Sequential(nn.Linear(5, 8), nn.ReLU()), classifier)
    bundle, programs = _exported(tmp_path, model, (5,), head=head)
    assert _tells(bundle) == (head is not None)
    fitted = personalise(bundle, programs, _data((5,), programs, bundle.model().network))
    assert fitted.head.weight.shape == (3, 6)


def test_a_head_that_does_not_end_with_a_dense_layer_is_refused(tmp_path):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.last = nn.Linear(5, 8), nn.Linear(8, 3)
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, x):
            return self.scale * self.last(torch.relu(self.body(x)))

    bundle, programs = _exported(tmp_path, Scaled(), (5,))
    assert not _tells(bundle)
    with pytest.raises(InputError, match="more than a dense layer"):
        personalise(bundle, programs, _data((5,), programs, bundle.model().network))
