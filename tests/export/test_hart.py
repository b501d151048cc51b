"""HART against its description, written down once more with other operators."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from oracles import hart as oracle
from torch.nn import functional

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.errors import InputError
from protofleet.export.build import BundleSpec, export_bundle
from protofleet.export.models import build_model
from protofleet.export.models.alp import alp_infer
from protofleet.export.models.hart import LightConvolution
from protofleet.export.pretraining.training import TrainOptions, supervised, train
from protofleet.runtime import open_programs
from protofleet.strategies.optimisers import Sgd
from protofleet.strategies.training import Trainer, Training
from protofleet.strategies.types import TrainTools

_BETA = 0.2


def _norm(x, layer):
    """Layer normalisation with epsilon 1e-6."""
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred / (variance + 1e-6).sqrt() * layer.weight + layer.bias


def _dense(x, layer):
    return x @ layer.weight.T + layer.bias


def _attention(x, layer):
    """Three heads with keys of 48, one after the other."""
    queries, keys, values = (
        _dense(x, part).split(48, dim=2) for part in (layer.query, layer.key, layer.value)
    )
    mixed = [
        torch.softmax(q @ k.mT / 48**0.5, dim=2) @ v
        for q, k, v in zip(queries, keys, values, strict=True)
    ]
    assert len(mixed) == 3
    return _dense(torch.cat(mixed, dim=2), layer.out)


def _convolution(x, layer):
    """Reshaped, not transposed, to rows of eight; group g of four has kernel g."""
    rows = x.reshape(-1, 4, 8)
    out = torch.empty_like(rows)
    for g, kernel in enumerate(torch.softmax(layer.kernel, dim=1)):
        row = rows[:, g : g + 1]
        out[:, g] = functional.conv1d(row, kernel[None, None], padding=len(kernel) // 2)[:, 0]
    return out.reshape(x.shape)


def _aligned(tokens, layer):
    gate = _dense(alp_infer(tokens, layer.local_prototypes, 0.05, 3), layer.glu)
    mixed = _BETA * gate[..., :192] * torch.sigmoid(gate[..., 192:]) + (1 - _BETA) * tokens
    return mixed / mixed.norm(dim=2, keepdim=True)


def _block(x, block):
    tokens = _norm(x, block.norm)
    if block.align is not None:
        tokens = _aligned(tokens, block.align)
    first = _attention(tokens[..., :48], block.accelerometer)
    middle = _convolution(tokens[..., 48:144], block.convolution)
    last = _attention(tokens[..., 144:], block.gyroscope)
    x = x + torch.cat((first, middle, last), dim=2)
    hidden = functional.silu(_dense(_norm(x, block.mlp_norm), block.mlp[0]))
    return x + _dense(hidden, block.mlp[3])


def _patches(x, layer):
    """A convolution of length and stride 16 over three axes."""
    kernel = layer.weight.reshape(96, 16, 3).permute(0, 2, 1)
    return functional.conv1d(x.mT, kernel, layer.bias, stride=16).mT


def _hart(x, model):
    sensors = (model.accelerometer_patches, model.gyroscope_patches)
    parts = [_patches(x[..., 3 * i : 3 * i + 3], layer) for i, layer in enumerate(sensors)]
    tokens = torch.cat(parts, dim=2) + model.position
    assert tokens.shape[1:] == (8, 192)
    for block in model.blocks:
        tokens = _block(tokens, block)
    features = _norm(tokens, model.norm).mean(1)
    return _dense(functional.silu(_dense(features, model.head[0])), model.head[3])


@pytest.mark.parametrize("prototypes", [(), (32, 16, 8, 8, 4, 4)], ids=["plain", "with ALP"])
def test_hart_is_its_description(prototypes):
    """All six blocks at full width; small tokens, so that the epsilon of the norms shows."""
    torch.manual_seed(0)
    model = build_model("hart", prototypes=prototypes, fidelity="default").double().eval()
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(0.05 * torch.randn_like(value))
        model.position.mul_(0.02)
        x = 0.01 * torch.randn(4, 128, 6, dtype=torch.float64)
        expected = _hart(x, model)
        torch.testing.assert_close(model(x), expected, rtol=1e-6, atol=1e-9)
    assert [len(block.convolution.kernel[0]) for block in model.blocks] == [3, 7, 15, 31, 31, 31]


@pytest.mark.parametrize("prototypes", [(), (8, 4)], ids=["plain", "with ALP"])
def test_hart_of_one_sensor_is_that_of_two_with_the_same_axes_twice(prototypes):
    """The patches of one sensor fill the channels that two share; all else is as it was."""
    settings = {"kernels": (3, 7), "width": 32, "head_width": 16, "prototypes": prototypes}
    torch.manual_seed(4)
    one = build_model("hart", sensors=1, **settings).double().eval()
    two = build_model("hart", **settings).double().eval()
    patches = "accelerometer_patches.", "gyroscope_patches."
    tensors = {n: v for n, v in one.state_dict().items() if not n.startswith(patches)}
    for part in ("weight", "bias"):
        halves = one.get_parameter(patches[0] + part).detach().chunk(2)
        tensors |= {prefix + part: half for prefix, half in zip(patches, halves, strict=True)}
    two.load_state_dict(tensors)
    x = torch.randn(5, 128, 3, dtype=torch.float64)
    torch.testing.assert_close(one(x), two(torch.cat((x, x), dim=2)), rtol=1e-12, atol=1e-12)
    assert set(two.state_dict()) - set(one.state_dict()) == {
        "gyroscope_patches.weight",
        "gyroscope_patches.bias",
    }


def test_another_number_of_sensors_is_refused():
    with pytest.raises(InputError, match="expected 1 or 2 sensors of 3 axes, got 3"):
        build_model("hart", sensors=3)


class _Convolved(torch.nn.Module):
    """The convolution alone, tokens of 16 channels, and a linear layer on all it gives."""

    def __init__(self, fidelity="default"):
        super().__init__()
        self.convolution = LightConvolution(
            5, drop_path=0.0, fidelity=fidelity, kernel_rule="published_code"
        )
        self.head = torch.nn.Linear(8 * 16, 3)

    def forward(self, x):
        return self.head(self.convolution(x).flatten(1))


@pytest.fixture(scope="module", params=["default", "code"])
def published(request, tmp_path_factory, signing_key):
    """A bundle of the convolution, and whether it mixes examples."""
    torch.manual_seed(2)
    spec = BundleSpec(
        name="convolved",
        strategy="fedavg",
        classes=("a", "b", "c"),
        preprocessing=Preprocessing(input_shape=(8, 16)),
    )
    path = tmp_path_factory.mktemp("hart") / "convolved.pfb"
    export_bundle(_Convolved(request.param), spec, out=path, key=signing_key[0])
    return Bundle.open(path, any_signer=True), request.param == "code"


def _two_batches(rng):
    x = rng.standard_normal((12, 8, 16)).astype(np.float32)
    return x, rng.integers(0, 3, 12)


@pytest.mark.slow(seconds=6)
@pytest.mark.parametrize("backend", ["onnx", "litert"])
def test_the_published_convolution_is_an_oracle_s_in_two_training_calls_and_inference(
    published, backend
):
    """Softmax in place before each training call, the kernel as it is stored in inference."""
    rng = np.random.default_rng(7)
    x, y = _two_batches(rng)
    bundle, by_kernel = published
    model, programs = bundle.model(), open_programs(bundle, backend=backend)
    start = (model.params[name] for name in ("convolution.kernel", "head.weight", "head.bias"))
    expected = oracle.Published(*start, lr=0.5, by_kernel=by_kernel)
    tools = TrainTools(name="a", x=x, y=y, grad_fns=programs.grad_fns, rng=rng)
    trainer = Trainer(model.network.copy(), tools, Training(optimiser=Sgd(lr=0.5)))
    fresh = programs.predict(model.network, x)
    np.testing.assert_allclose(fresh, expected.infer(x), rtol=1e-4, atol=1e-5)
    for rows in np.split(np.arange(12), 2):
        loss = expected.train(x[rows], y[rows])
        assert trainer.step(rows) == pytest.approx(loss, rel=1e-5)
    network = trainer.trained(loss).network
    np.testing.assert_allclose(network.params["convolution.kernel"], expected.kernels, atol=1e-5)
    np.testing.assert_allclose(programs.predict(network, x), expected.infer(x), atol=1e-4)
    assert not np.allclose(network.params["convolution.kernel"].sum(axis=1), 1)


def test_central_training_rewrites_the_published_convolution_s_kernel_too(tmp_path):
    torch.manual_seed(3)
    model = _Convolved()
    x, y = _two_batches(np.random.default_rng(1))
    kernel, head = model.convolution.kernel, model.head
    expected = oracle.softmax(kernel.detach().double().numpy())
    data = {"x": torch.from_numpy(x), "y": torch.from_numpy(y)}
    options = TrainOptions(epochs=1, lr=1e-12, batch_size=12, validation=0.0)
    train(supervised(model), data, options, folder=tmp_path)
    np.testing.assert_allclose(kernel.detach().numpy(), expected, rtol=1e-5)
    logits = oracle.convolve(x.astype(np.float64), expected).reshape(12, -1)
    logits = logits @ head.weight.detach().double().numpy().T + head.bias.detach().numpy()
    np.testing.assert_allclose(model.eval()(data["x"]).detach().numpy(), logits, atol=1e-4)


def test_another_light_convolution_is_refused():
    with pytest.raises(InputError, match="light_convolution softmax or published_code, got 'raw'"):
        build_model("hart", light_convolution="raw")
