"""Hidden layers, prototypes and word vectors: what a program tells beside logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor, nn

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.errors import ProvisionError
from protofleet.export.build import BundleSpec, export_bundle
from protofleet.export.capture import capture
from protofleet.export.models import build_model
from protofleet.export.objectives import OBJECTIVES
from protofleet.export.onnx import to_onnx
from protofleet.export.parity import check_parity, stock_runner
from protofleet.runtime import open_programs

pytestmark = pytest.mark.slow(seconds=1)

_KEY = Ed25519PrivateKey.generate()


def _bundle(model: nn.Module, shape: tuple[int, ...], path: Path, **fields: Any) -> Bundle:
    spec = BundleSpec(
        name="hidden",
        strategy="fedavg",
        classes=tuple("abcdefghij"),
        preprocessing=Preprocessing(input_shape=shape),
        objectives=(),
        **fields,
    )
    export_bundle(model, spec, out=path / "a.pfb", key=_KEY)
    return Bundle.open(path / "a.pfb", any_signer=True)


def _gemms(data: bytes) -> int:
    nodes = onnx.load_from_string(data).graph.node
    return sum(node.op_type in ("Gemm", "Conv") for node in nodes)


@pytest.mark.parametrize(
    ("name", "settings", "shape", "names"),
    [
        ("mlp", {"hidden": [7, 6, 5]}, (64,), ["body.0", "body.2", "body.4"]),
        ("cnn", {"size": 16, "filters": [3, 4], "hidden": 6}, (1, 16, 16), ["body.7"]),
    ],
)
def test_hidden_layers_follow_their_weights(
    name: str, settings: dict[str, Any], shape: tuple[int, ...], names: list[str], tmp_path: Path
) -> None:
    """Each is relu(weight · the layer before + bias); the last one is the features."""
    torch.manual_seed(2)
    model = build_model(name, **settings)
    bundle = _bundle(model, shape, tmp_path)
    initial, programs = bundle.model(), open_programs(bundle)
    x = np.random.default_rng(0).normal(size=(9, *shape)).astype(np.float32)
    given = (initial.network, x)
    layers = programs.layers(*given, batch_size=4)
    assert list(layers) == names
    before = x if name == "mlp" else model.body[:7](torch.from_numpy(x)).detach().numpy()
    for layer, found in layers.items():
        weight, bias = initial.params[f"{layer}.weight"], initial.params[f"{layer}.bias"]
        np.testing.assert_allclose(found, np.maximum(before @ weight.T + bias, 0), atol=1e-5)
        before = found
    np.testing.assert_array_equal(found, programs.features(*given, batch_size=4))


def test_hidden_layers_cost_no_second_pass(tmp_path: Path) -> None:
    """The program with layers multiplies as often as the one without."""
    bundle = _bundle(build_model("cnn", hidden=6), (1, 28, 28), tmp_path)
    counts = [_gemms(bundle.read(f"programs/{name}.onnx")) for name in ("features", "infer")]
    assert counts == [4, 4]


class _Named(nn.Module):
    """Has an attribute ``layers`` that is no method: its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 5), nn.Linear(5, 10)])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers[1](torch.relu(self.layers[0](x)))


def test_a_list_of_modules_called_layers_tells_nothing(tmp_path: Path) -> None:
    """And the runtime names the bundle that has no layers."""
    bundle = _bundle(_Named(), (4,), tmp_path)
    initial = bundle.model()
    with pytest.raises(ProvisionError, match="bundle 'hidden': "):
        open_programs(bundle).layers(initial.network, np.zeros((1, 4), np.float32))


@pytest.mark.parametrize("name", ["cnn_prototypes", "mlp_prototypes"])
def test_prototypes_start_on_the_sphere(name: str) -> None:
    """And the nearest one has the largest logit, at minus the distance."""
    torch.manual_seed(4)
    model = build_model(name, classes=5)
    prototypes = dict(model.named_parameters())["head.prototypes"].detach()
    width = {"cnn_prototypes": 1024, "mlp_prototypes": 512}[name]
    assert prototypes.shape == (5, width)
    np.testing.assert_allclose(prototypes.norm(dim=1), np.ones(5), rtol=1e-5)
    features = torch.rand(3, width)
    expected = -(features[:, None] - prototypes).norm(dim=2)
    np.testing.assert_allclose(model.head(features).detach(), expected, rtol=1e-5)


def _texts(*rows: list[int]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32)


def test_a_text_is_the_mean_of_its_words() -> None:
    """Padding counts for nothing, wherever it stands; a text of padding alone is zero."""
    model = build_model("fasttext", vocabulary=6, width=2)
    vectors = model.embedding.weight.detach()
    features = model.features(_texts([3, 0, 5, 0], [0, 0, 0, 0], [0, 3, 3, 5])).detach()
    np.testing.assert_allclose(features[0], (vectors[3] + vectors[5]) / 2, rtol=1e-6)
    np.testing.assert_array_equal(features[1], np.zeros(2))
    np.testing.assert_allclose(features[2], (2 * vectors[3] + vectors[5]) / 3, rtol=1e-6)


@pytest.mark.parametrize(("vocabulary", "width"), [(40, 8), (600, 32)])
def test_word_vectors_get_their_gradient(vocabulary: int, width: int) -> None:
    """Repeated words add up, absent words and padding get none, in plain ONNX Runtime too.

    The larger table of zeros, to which gradients are added, is too large to be a constant.
    """
    torch.manual_seed(0)
    model = build_model("fasttext", vocabulary=vocabulary, width=width)
    example = {"x": torch.zeros(4, 6), "y": torch.zeros(4, dtype=torch.int64)}
    program = capture(model, OBJECTIVES["cross_entropy"], example)
    data = to_onnx(program, name="train")
    check_parity(model, program, data, name="train", batch_sizes=(1, 5, 16))
    feed = {f"param.{k}": v.detach().numpy() for k, v in model.named_parameters()}
    words = _texts([7, 7, 9, 0, 0, 0], [7, 0, 0, 0, 0, 0]).numpy()
    run = stock_runner(data)
    grad = run({**feed, "x": words, "y": np.array([1, 2])})["grad.embedding.weight"]
    assert set(np.abs(grad).sum(1).nonzero()[0].tolist()) == {7, 9}
