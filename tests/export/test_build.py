"""From a model to a bundle that a device opens, and no bundle when parity fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import nn

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.cli.export import export as export_command
from protofleet.errors import ExportError, InputError
from protofleet.export import formats
from protofleet.export.build import BundleSpec, export_bundle
from protofleet.export.capture import capture
from protofleet.export.models import build_model
from protofleet.export.objectives import OBJECTIVES
from protofleet.export.onnx import to_onnx
from protofleet.runtime import open_programs
from tests.export.test_onnx import scaled_gradient
from tests.export.toys import Perceptron

pytestmark = pytest.mark.slow(seconds=4)

_KEY = Ed25519PrivateKey.generate()


def _spec(shape: tuple[int, ...], classes: int, **fields: Any) -> BundleSpec:
    return BundleSpec(
        name="toy",
        strategy="fedavg",
        classes=tuple(f"class {i}" for i in range(classes)),
        preprocessing=Preprocessing(input_shape=shape),
        **fields,
    )


def test_a_device_gets_what_pytorch_computes(tmp_path: Path) -> None:
    """The bundle verifies, and its logits and features are the module's in evaluation mode."""
    torch.manual_seed(0)
    model = Perceptron()
    spec = _spec((5,), 3, provenance={"why": "a test"})
    report = export_bundle(model, spec, out=tmp_path / "toy.pfb", key=_KEY)
    bundle = Bundle.open(tmp_path / "toy.pfb", trusted={_KEY.public_key().public_bytes_raw()})
    assert bundle.digest == report.digest
    assert [record.program for record in report.parity] == ["infer", "features", "train"]
    assert bundle.manifest.provenance["why"] == "a test"
    initial, programs = bundle.model(), open_programs(bundle)
    x = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    with torch.no_grad():
        logits = model.eval()(torch.from_numpy(x)).numpy()
        features = model.features(torch.from_numpy(x)).numpy()
    given = (initial.network, x)
    np.testing.assert_allclose(programs.predict(*given, batch_size=4), logits, atol=1e-6)
    np.testing.assert_allclose(programs.features(*given, batch_size=4), features, atol=1e-6)


def test_writing_onnx_leaves_the_captured_graph_as_it_is() -> None:
    """TFLite is written from it afterwards, and the exporter would promote types in it."""
    example = {"x": torch.zeros(4, 12), "y": torch.zeros(4, dtype=torch.int64)}
    model = build_model("fasttext", vocabulary=50, width=8)
    program = capture(model, OBJECTIVES["cross_entropy"], example)
    before = str(program.graph.graph)
    to_onnx(program, name="train")
    assert str(program.graph.graph) == before


@pytest.mark.slow
def test_no_bundle_when_a_program_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tampered training program is named and nothing lies at the path."""

    def tampered(program: Any, *, name: str) -> bytes:
        data = to_onnx(program, name=name)
        return scaled_gradient(data, "grad.head.bias", 1.01) if name == "train" else data

    monkeypatch.setattr(formats, "to_onnx", tampered)
    with pytest.raises(ExportError, match=r"program 'train', tensor 'grad\.head\.bias'"):
        export_bundle(Perceptron(), _spec((5,), 3), out=tmp_path / "toy", key=_KEY)
    assert list(tmp_path.iterdir()) == []


def test_classes_must_fit_the_logits(tmp_path: Path) -> None:
    """Three logits cannot name four classes."""
    with pytest.raises(ExportError, match=r"expected logits .* for 4 classes"):
        export_bundle(Perceptron(), _spec((5,), 4), out=tmp_path / "toy", key=_KEY)


_SMALL: dict[str, Callable[[], tuple[nn.Module, tuple[int, ...], int]]] = {
    "mlp": lambda: (build_model("mlp"), (64,), 10),
    "cnn": lambda: (build_model("cnn", size=16, filters=[4, 6], hidden=8), (1, 16, 16), 10),
    "cnn_prototypes": lambda: (
        build_model("cnn_prototypes", size=16, filters=[4, 6]),
        (1, 16, 16),
        10,
    ),
    "fasttext": lambda: (build_model("fasttext", vocabulary=50, width=8), (12,), 4),
    "hart": lambda: (build_model("hart", width=32, kernels=[3], head_width=16), (128, 6), 6),
    "hart_alp": lambda: (
        build_model("hart_alp", width=32, kernels=[7], head_width=16, prototypes=[8]),
        (128, 6),
        6,
    ),
    "mlp_prototypes": lambda: (build_model("mlp_prototypes", inputs=9), (9,), 10),
    "vit": lambda: (
        build_model("vit", size=8, channels=1, width=24, depth=1, prototypes=[6]),
        (1, 8, 8),
        10,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", _SMALL)
def test_registered_models_pass_parity(name: str, tmp_path: Path) -> None:
    """Small variants: plain ONNX Runtime and the device's runtime with its kernels."""
    torch.manual_seed(3)
    model, shape, classes = _SMALL[name]()
    report = export_bundle(model, _spec(shape, classes), out=tmp_path / "toy.pfb", key=_KEY)
    assert max(record.worst_error for record in report.parity) < 1e-5


@pytest.mark.slow(seconds=60)
@pytest.mark.timeout(900)
def test_full_size_hart_with_alp(tmp_path: Path) -> None:
    """The paper's model: 1 890 590 trained values, a training program below 2 MB."""
    torch.manual_seed(0)
    model = build_model("hart_alp")
    report = export_bundle(model, _spec((128, 6), 6), out=tmp_path / "hart.pfb", key=_KEY)
    assert report.params == 1_890_590
    assert report.parity[-1].tensors == 1 + len(list(model.parameters())) + 6 + 1
    assert report.parity[-1].program_bytes < 2_000_000


@pytest.mark.slow
def test_the_command_reports_parity_as_json(tmp_path: Path) -> None:
    """One record per program, the strategy's and those asked for, and the strategy's settings."""
    key = tmp_path / "key.pem"
    arguments = ["mlp", "--set", "hidden=[8]", "--strategy", "fedavg", "--strategy-set", "epochs=2"]
    arguments += ["--objective", "moon", "--objective", "cross_entropy"]
    arguments += ["--out", str(tmp_path / "mlp.pfb"), "--key", str(_key_file(key)), "--json"]
    result = CliRunner().invoke(export_command, arguments, catch_exceptions=False)
    report = json.loads(result.output)
    names = [record["program"] for record in report["parity"]]
    assert names == ["infer", "features", "train", "train_moon"]
    manifest = Bundle.open(tmp_path / "mlp.pfb").manifest
    assert manifest.strategy.settings == {"epochs": 2}
    assert manifest.classes == tuple(str(i) for i in range(10))


def test_the_command_needs_the_shape_of_a_users_model(tmp_path: Path) -> None:
    """A user's module has no known input shape; the message says what to give."""
    arguments = ["tests.export.toys:Perceptron", "--strategy", "fedavg", "--out", str(tmp_path)]
    with pytest.raises(InputError, match="give --input-shape"):
        CliRunner().invoke(export_command, arguments, catch_exceptions=False)


def _key_file(path: Path) -> Path:
    from protofleet.bundle import keys  # noqa: PLC0415 - only this helper needs it

    keys.load_or_create_signing_key(path)
    return path
