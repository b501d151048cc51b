"""A small network, and bundles that hold one program, ``infer``: all that quantising reads."""

from __future__ import annotations

from pathlib import Path

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor, nn

from protofleet.bundle import Bundle, write_bundle
from protofleet.bundle.manifest import (
    FORMAT_VERSION,
    Manifest,
    Preprocessing,
    Program,
    StrategyDecl,
    TensorDecl,
)
from protofleet.export.build import initial_values
from protofleet.export.capture import capture
from protofleet.export.onnx import to_onnx
from protofleet.export.tflite import to_tflite
from protofleet.tensors import Layout
from protofleet.tensors.blobs import encode


class Digits(nn.Module):
    """Two convolutions, pooling, two dense layers: images (B, 1, 8, 8) → logits (B, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(256, 32),
            nn.ReLU(),
        )
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits


def infer_bundle(
    model: nn.Module,
    shape: tuple[int, ...],
    classes: tuple[str, ...],
    path: Path,
    key: Ed25519PrivateKey,
    *,
    tflite: bool = True,
) -> Bundle:
    """Write a bundle whose only program is ``infer``, without the proof that an export makes."""
    captured = capture(model, None, {"x": torch.zeros(4, *shape)})
    params, state = initial_values(model)
    files = {
        "params.safetensors": encode(params),
        "programs/infer.onnx": to_onnx(captured, name="infer"),
    }
    if state:
        files["state.safetensors"] = encode(state)
    if tflite:
        files["programs/programs.tflite"] = to_tflite({"infer": captured})
    manifest = Manifest(
        format=FORMAT_VERSION,
        name="infer-only",
        created="2026-01-31T12:00:00+00:00",
        layout_hash=Layout.of({name: value.shape for name, value in params.items()}).hash,
        params=tuple(TensorDecl(name=n, shape=v.shape) for n, v in params.items()),
        state=tuple(TensorDecl(name=n, shape=v.shape) for n, v in state.items()),
        programs={
            "infer": Program(
                file="programs/infer.onnx",
                inputs=captured.inputs,
                outputs=captured.outputs,
                tflite="programs/programs.tflite" if tflite else None,
            )
        },
        preprocessing=Preprocessing(input_shape=shape),
        classes=classes,
        strategy=StrategyDecl(name="fedavg", settings={}),
        provenance={},
        files={},
    )
    write_bundle(path, manifest, files, key)
    return Bundle.open(path, any_signer=True)
