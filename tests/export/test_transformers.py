"""Classifiers of the transformers library, with values drawn at random: no weights are fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor, nn

from protofleet.bundle.manifest import Preprocessing
from protofleet.export.build import BundleSpec, export_bundle

transformers = pytest.importorskip("transformers", reason="pip install transformers")

pytestmark = pytest.mark.slow(seconds=20)

_SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "num_labels": 3,
}


class Logits(nn.Module):
    """What a user writes around such a model: it gives a record, and logits are wanted."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, 3)."""
        logits: Tensor = self.model(x).logits
        return logits


def _bert() -> tuple[Any, Preprocessing]:
    config = transformers.BertConfig(vocab_size=60, max_position_embeddings=16, **_SMALL)
    model = transformers.BertForSequenceClassification(config)
    return model, Preprocessing(input_shape=(12,), tokens=60)


def _convnext() -> tuple[Any, Preprocessing]:
    sizes = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}
    config = transformers.ConvNextConfig(num_labels=3, **sizes)
    model = transformers.ConvNextForImageClassification(config)
    return model, Preprocessing(input_shape=(3, 32, 32))


@pytest.mark.parametrize(
    "build",
    [_bert, pytest.param(_convnext, marks=pytest.mark.full_size)],
    ids=["BERT", "ConvNeXt"],
)
def test_a_model_of_the_library_is_exported_in_both_formats(build: Any, tmp_path: Path) -> None:
    """Every output and gradient agrees with PyTorch, or there is no bundle."""
    torch.manual_seed(0)
    model, preprocessing = build()
    spec = BundleSpec(
        name="toy", strategy="fedavg", classes=("a", "b", "c"), preprocessing=preprocessing
    )
    key = Ed25519PrivateKey.generate()
    report = export_bundle(Logits(model), spec, out=tmp_path / "toy.pfb", key=key)
    assert not report.left_out
    assert {"ONNX Runtime", "LiteRT"} <= set(report.parity[0].by_runner)
