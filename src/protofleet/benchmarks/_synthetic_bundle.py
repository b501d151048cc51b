"""A synthetic bundle of any size whose training costs nothing: its rounds are transfer alone."""

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
from protofleet.datasets import DeviceData
from protofleet.tensors import Layout, TensorMap
from protofleet.tensors.blobs import encode

_FEATURES, _CLASSES = 4, 3
_HEAD = (_FEATURES, _CLASSES)
_TYPES = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}

SETTINGS: Mapping[str, Any] = {"epochs": 1, "batch_size": 64, "drop_last": True}
"""A device with fewer examples than a batch returns its parameters as they came."""


def write_synthetic_bundle(path: Path, floats: int, key: Ed25519PrivateKey) -> None:
    """Write a bundle with ``floats`` parameters, all but twelve of which no program reads."""
    params = TensorMap.zeros(Layout.of({"head": _HEAD, "padding": (floats - 12,)}))
    params.buffer[...] = np.random.default_rng(0).normal(size=floats)
    programs = {"infer": _infer(), "train": _train()}
    files = {str(program.file): _onnx(program) for program in programs.values()}
    manifest = Manifest(
        format=FORMAT_VERSION,
        name=f"synthetic, {floats} floats",
        created="2026-01-01T00:00:00Z",
        layout_hash=params.layout.hash,
        params=tuple(TensorDecl(name=n, shape=s) for n, s in params.layout.shapes.items()),
        state=(),
        programs=programs,
        preprocessing=Preprocessing(input_shape=(_FEATURES,)),
        classes=tuple(f"class {number}" for number in range(_CLASSES)),
        strategy=StrategyDecl(name="fedavg", settings=dict(SETTINGS)),
        provenance={"model": "benchmarks/_synthetic_bundle.py"},
        files={},
    )
    write_bundle(path, manifest, {**files, "params.safetensors": encode(params, {})}, key)


def synthetic_data() -> DeviceData:
    """Too few examples for a batch."""
    x, y = np.ones((6, _FEATURES), np.float32), np.arange(6) % _CLASSES
    classes = tuple(f"class {number}" for number in range(_CLASSES))
    return DeviceData(x_train=x, y_train=y, x_test=x, y_test=y, classes=classes)


def _inputs() -> tuple[Port, ...]:
    return (
        Port(name="head", role="param", key="head", dtype="float32", shape=_HEAD),
        Port(name="x", role="input", key="x", dtype="float32", shape=("batch", _FEATURES)),
    )


def _infer() -> Program:
    logits = Port(
        name="logits", role="output", key="logits", dtype="float32", shape=("batch", _CLASSES)
    )
    return Program(file="programs/infer.onnx", inputs=_inputs(), outputs=(logits,))


def _train() -> Program:
    """The loss is the sum of the logits; nobody trains with it."""
    return Program(
        file="programs/train.onnx",
        inputs=_inputs(),
        outputs=(Port(name="loss", role="loss", key="loss", dtype="float32", shape=()),),
        objective="cross_entropy",
    )


def _onnx(program: Program) -> bytes:
    nodes = [helper.make_node("MatMul", ["x", "head"], ["logits"])]
    if program.objective is not None:
        nodes.append(helper.make_node("ReduceSum", ["logits"], ["loss"], keepdims=0))
    graph = helper.make_graph(
        nodes,
        "synthetic",
        [_info(port) for port in program.inputs],
        [_info(p) for p in program.outputs],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def _info(port: Port) -> Any:
    return helper.make_tensor_value_info(port.name, _TYPES[port.dtype], list(port.shape))
