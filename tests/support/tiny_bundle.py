"""A signed bundle small enough for any test: a linear softmax model made by hand, without PyTorch.

The loss is the mean cross-entropy of ``x @ w + b``; its gradients are written out in the graph, so
that a round of training takes well under a millisecond per step.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from onnx import TensorProto, checker, helper

from protofleet.bundle import write_bundle
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

SETTINGS: Mapping[str, Any] = {"epochs": 1, "batch_size": 16}


def tiny_bundle(
    path: Path,
    key: Ed25519PrivateKey,
    *,
    features: int = 4,
    classes: int = 3,
    strategy: str = "fedavg",
    settings: Mapping[str, Any] = SETTINGS,
) -> Path:
    """Write a bundle with programs ``infer``, ``features`` and ``train_cross_entropy``.

    Args:
        path: ``*.pfb`` gives a single file, anything else a folder.
        key: signs the manifest.
        features: D; parameters are ``w (D, C)`` and ``b (C,)``, drawn from N(0, 0.1²) and zero.
        classes: C.
        strategy: name in the manifest.
        settings: the strategy's defaults in the manifest.

    Returns:
        ``path``.
    """
    files = {
        "programs/infer.onnx": _infer(features, classes),
        "programs/features.onnx": _features(features, classes),
        "programs/train.onnx": _train(features, classes),
        "params.safetensors": encode(initial_params(features, classes), {}),
    }
    write_bundle(path, _manifest(features, classes, strategy, settings), files, key)
    return path


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


def _logits_nodes(result: str) -> list[Any]:
    return [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "b"], [result]),
    ]


def _infer(features: int, classes: int) -> bytes:
    return _model(_logits_nodes("logits"), features, classes, {"logits": ["batch", classes]})


def _features(features: int, classes: int) -> bytes:
    nodes = [*_logits_nodes("z"), helper.make_node("Tanh", ["z"], ["features"])]
    return _model(nodes, features, classes, {"features": ["batch", classes]})


def _train(features: int, classes: int) -> bytes:
    """With p = softmax(logits) and t one-hot: dlogits = (p - t)/B, dw = xᵀ dlogits, db = Σ."""
    nodes = [
        *_logits_nodes("logits"),
        helper.make_node("LogSoftmax", ["logits"], ["logp"], axis=-1),
        helper.make_node("Exp", ["logp"], ["p"]),
        helper.make_node("OneHot", ["y", "depth", "off_on"], ["t"], axis=-1),
        helper.make_node("Mul", ["t", "logp"], ["tlogp"]),
        helper.make_node("ReduceSum", ["tlogp", "last"], ["per_example"], keepdims=0),
        helper.make_node("ReduceMean", ["per_example"], ["mean"], keepdims=0),
        helper.make_node("Neg", ["mean"], ["loss"]),
        helper.make_node("Sub", ["p", "t"], ["residual"]),
        helper.make_node("Shape", ["y"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["batch_f"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["residual", "batch_f"], ["dlogits"]),
        helper.make_node("Transpose", ["x"], ["xt"], perm=[1, 0]),
        helper.make_node("MatMul", ["xt", "dlogits"], ["dw"]),
        helper.make_node("ReduceSum", ["dlogits", "first"], ["db"], keepdims=0),
    ]
    outputs = {"loss": [], "dw": [features, classes], "db": [classes]}
    constants = [
        helper.make_tensor("depth", TensorProto.INT64, [], [classes]),
        helper.make_tensor("off_on", TensorProto.FLOAT, [2], [0.0, 1.0]),
        helper.make_tensor("last", TensorProto.INT64, [1], [1]),
        helper.make_tensor("first", TensorProto.INT64, [1], [0]),
    ]
    return _model(nodes, features, classes, outputs, constants)


def _model(
    nodes: list[Any],
    features: int,
    classes: int,
    outputs: Mapping[str, list[Any]],
    constants: list[Any] | None = None,
) -> bytes:
    inputs = {"w": [features, classes], "b": [classes], "x": ["batch", features]}
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
    if "loss" in outputs:
        ports.append(helper.make_tensor_value_info("y", TensorProto.INT64, ["batch"]))
    graph = helper.make_graph(
        nodes,
        "tiny",
        ports,
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        initializer=constants or [],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data
