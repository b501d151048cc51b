"""A format that cannot be written is left out, and the bundle is written with the other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.bundle import Bundle
from protofleet.bundle.manifest import Preprocessing
from protofleet.cli.export import export
from protofleet.errors import ExportError, ProvisionError
from protofleet.export.build import BundleSpec, export_bundle
from protofleet.export.tflite.lower import RULES
from protofleet.runtime import open_programs
from tests.export.toys import Perceptron

pytestmark = pytest.mark.slow(seconds=6)

_KEY = Ed25519PrivateKey.generate()
_SPEC = {
    "name": "toy",
    "strategy": "fedavg",
    "classes": ("a", "b", "c"),
    "preprocessing": Preprocessing(input_shape=(5,)),
}


@pytest.fixture
def no_tflite_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that every model needs is without a TFLite rule."""
    monkeypatch.delitem(RULES, torch.ops.aten.mm.default)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bundles")


@pytest.mark.usefixtures("no_tflite_product")
def test_a_missing_rule_leaves_its_format_out(models: Path) -> None:
    """The reason names operator, module and line; a device takes the format that there is."""
    report = export_bundle(Perceptron(), BundleSpec(**_SPEC), out=models / "a.pfb", key=_KEY)
    assert list(report.left_out) == ["tflite"]
    assert "toys.py" in report.left_out["tflite"]
    assert "no TFLite form" in report.left_out["tflite"]
    bundle = Bundle.open(models / "a.pfb", any_signer=True)
    assert {program.tflite for program in bundle.manifest.programs.values()} == {None}
    assert open_programs(bundle).backend == "onnx"
    with pytest.raises(ProvisionError, match="no TFLite file"):
        open_programs(bundle, backend="litert")


@pytest.mark.usefixtures("no_tflite_product")
def test_a_format_that_was_asked_for_is_not_left_out(tmp_path: Path) -> None:
    spec = BundleSpec(**_SPEC, formats=("onnx", "tflite"))
    with pytest.raises(ExportError, match=r"format 'tflite': .*toys\.py:\d+: .*operators\.md"):
        export_bundle(Perceptron(), spec, out=tmp_path / "toy.pfb", key=_KEY)
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_of_tflite_alone_is_proved_and_runs(models: Path) -> None:
    """``auto`` takes LiteRT although ONNX Runtime is installed."""
    spec = BundleSpec(**_SPEC, formats=("tflite",))
    report = export_bundle(Perceptron(), spec, out=models / "b.pfb", key=_KEY)
    assert set(report.parity[0].by_runner) == {"LiteRT", "the device runtime"}
    bundle = Bundle.open(models / "b.pfb", any_signer=True)
    assert not [path for path in bundle.manifest.files if path.endswith(".onnx")]
    programs = open_programs(bundle)
    assert programs.backend == "litert"
    logits = programs.predict(bundle.model().network, np.zeros((2, 5), np.float32))
    assert logits.shape == (2, 3)
    with pytest.raises(ProvisionError, match="no ONNX file; export the model anew, or choose"):
        open_programs(bundle, backend="onnx")


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    arguments = ["mlp", "--strategy", "fedavg", "--out", str(tmp_path / "m.pfb")]
    result = CliRunner().invoke(export, [*arguments, "--formats", "onnx,coreml"])
    assert result.exit_code == 2
    assert "expected onnx or tflite, got 'coreml'" in result.output
