"""A signed bundle small enough for any test: a linear softmax model, without PyTorch and onnx.

The loss is the mean cross-entropy of ``x @ w + b``; its gradients are written out in the graph, so
that a round of training takes well under a millisecond per step. ``make_tiny_programs.py`` made the
programs, which lie beside it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.bundle import Bundle, write_bundle
from protofleet.bundle.keys import trust
from protofleet.bundle.manifest import (
    FORMAT_VERSION,
    Manifest,
    Port,
    Preprocessing,
    Program,
    StrategyDecl,
    TensorDecl,
)
from protofleet.tensors import Layout, TensorMap
from protofleet.tensors.blobs import encode

PROGRAMS = Path(__file__).with_name("tiny_programs")
SETTINGS: Mapping[str, Any] = {
    "epochs": 1,
    "batch_size": 16,
    "optimiser": {"kind": "adam", "lr": 0.002},
}
"""With a rate: what devices find is ``test_calibrating``'s."""


def tiny_bundle(
    path: Path,
    key: Ed25519PrivateKey,
    *,
    features: int = 4,
    classes: int = 3,
    strategy: str = "fedavg",
    settings: Mapping[str, Any] = SETTINGS,
    sequence: int = 0,
    train: bytes | None = None,
    head: tuple[str, ...] = (),
) -> Path:
    """Write a bundle with programs ``infer``, ``features`` and ``train_cross_entropy``.

    Args:
        path: ``*.pfb`` gives a single file, anything else a folder.
        key: signs the manifest.
        features: D; parameters are ``w (D, C)`` and ``b (C,)``, drawn from N(0, 0.1²) and zero.
        classes: C; the programs of this D and C are among the committed ones.
        strategy: name in the manifest.
        settings: the strategy's defaults in the manifest.
        sequence: of the bundle.
        train: another training program than the committed one.
        head: names of the parameters that the manifest calls the head.

    Returns:
        ``path``.
    """
    programs = PROGRAMS / f"{features}x{classes}"
    names = ("infer.onnx", "features.onnx", "train.onnx")
    files = {f"programs/{name}": (programs / name).read_bytes() for name in names}
    if train is not None:
        files["programs/train.onnx"] = train
    files["params.safetensors"] = encode(initial_params(features, classes), {})
    manifest = _manifest(features, classes, strategy, settings)
    manifest = msgspec.structs.replace(manifest, head=head)
    manifest = msgspec.structs.replace(manifest, sequence=sequence)
    write_bundle(path, manifest, files, key)
    trust_in_tests(key)
    return path


def tiny_windows_bundle(
    path: Path, key: Ed25519PrivateKey, *, unit: str, classes: tuple[str, ...]
) -> Path:
    """A bundle for windows of a second, 25 readings of three axes; no program of it may be run."""
    plain = Bundle.open(tiny_bundle(path.with_name("plain.pfb"), key), any_signer=True)
    inputs = Preprocessing(
        input_shape=(25, 3),
        rate_hz=25.0,
        window=25,
        hop=25,
        channels=("acc_x", "acc_y", "acc_z"),
        units=(unit,) * 3,
    )
    programs = {
        name: msgspec.structs.replace(program, inputs=tuple(map(_of_windows, program.inputs)))
        for name, program in plain.manifest.programs.items()
    }
    manifest = msgspec.structs.replace(
        plain.manifest, preprocessing=inputs, classes=classes, programs=programs, files={}
    )
    names = [name for name in plain.manifest.files if name != "manifest.json"]
    write_bundle(path, manifest, {name: plain.read(name) for name in names}, key)
    return path


def _of_windows(port: Port) -> Port:
    return msgspec.structs.replace(port, shape=("batch", 25, 3)) if port.key == "x" else port


def trust_in_tests(key: Ed25519PrivateKey) -> None:
    """Accept what ``key`` signs wherever a test names no keys and no other trust store."""
    if folder := os.environ.get("PROTOFLEET_TESTS_TRUST"):  # conftest.py's
        trust(key.public_key().public_bytes_raw(), Path(folder))


def initial_params(features: int = 4, classes: int = 3) -> TensorMap:
    """The bundle's parameters: the same at every call."""
    params = TensorMap.zeros(Layout.of({"w": (features, classes), "b": (classes,)}))
    params["w"][...] = np.random.default_rng(1).normal(0, 0.1, (features, classes))
    return params


def tiny_data(
    seed: int, n: int = 40, *, features: int = 4, classes: int = 3
) -> tuple[np.ndarray, np.ndarray]:
    """Separable examples, ``x (n, D) float32`` and ``y (n,) int64``, all classes present."""
    rng = np.random.default_rng(seed)
    y = np.arange(n, dtype=np.int64) % classes
    centres = 2.0 * np.eye(classes, features)
    return (centres[y] + rng.normal(0, 0.7, (n, features))).astype(np.float32), y


def _manifest(
    features: int,
    classes: int,
    strategy: str,
    settings: Mapping[str, Any],
) -> Manifest:
    layout = initial_params(features, classes).layout
    return Manifest(
        format=FORMAT_VERSION,
        name="tiny",
        created="2026-01-01T00:00:00Z",
        layout_hash=layout.hash,
        params=tuple(TensorDecl(name=n, shape=s) for n, s in layout.shapes.items()),
        state=(),
        programs=_programs(features, classes),
        preprocessing=Preprocessing(input_shape=(features,)),
        classes=tuple(f"class{i}" for i in range(classes)),
        strategy=StrategyDecl(name=strategy, settings=dict(settings)),
        provenance={"model": "tests/support/tiny_bundle.py"},
        files={},
    )


def _programs(features: int, classes: int) -> dict[str, Program]:
    w = Port(name="w", role="param", key="w", dtype="float32", shape=(features, classes))
    b = Port(name="b", role="param", key="b", dtype="float32", shape=(classes,))
    x = Port(name="x", role="input", key="x", dtype="float32", shape=("batch", features))
    y = Port(name="y", role="input", key="y", dtype="int64", shape=("batch",))
    return {
        "infer": Program(
            file="programs/infer.onnx", inputs=(w, b, x), outputs=(_output("logits", classes),)
        ),
        "features": Program(
            file="programs/features.onnx",
            inputs=(w, b, x),
            outputs=(_output("features", classes),),
        ),
        "train": Program(
            file="programs/train.onnx",
            inputs=(w, b, x, y),
            outputs=(
                Port(name="loss", role="loss", key="loss", dtype="float32", shape=()),
                Port(name="dw", role="grad", key="w", dtype="float32", shape=w.shape),
                Port(name="db", role="grad", key="b", dtype="float32", shape=b.shape),
            ),
            objective="cross_entropy",
        ),
    }


def _output(key: str, classes: int) -> Port:
    return Port(name=key, role="output", key=key, dtype="float32", shape=("batch", classes))
