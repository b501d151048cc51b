"""The tiny bundle with prototypes, so that FedAli has something to cluster, without PyTorch.

It is no ALP layer: inputs are shifted by β times the mean prototype, and training moves each local
prototype towards the batch's mean. State tensors have the names and shapes of a real one.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from onnx import TensorProto, helper
from tiny_bundle import tiny_bundle

from protofleet.bundle import Bundle, write_bundle
from protofleet.bundle.manifest import Port, StrategyDecl, TensorDecl
from protofleet.tensors.blobs import encode

_G, _D = 6, 4
_STRATEGY = {"epochs": 2, "batch_size": 8, "optimiser": {"kind": "adam", "lr": 0.002}}
_SHAPES = {"alp.local_prototypes": (_G, _D), "alp.global_prototypes": (_G, _D), "beta": ()}


def tiny_prototype_bundle(path: Path, key: Ed25519PrivateKey) -> Path:
    """Write a bundle for ``fedali`` at ``path`` (``*.pfb``)."""
    plain = Bundle.open(tiny_bundle(path.with_name("plain.pfb"), key), any_signer=True)
    manifest = plain.manifest
    rng = np.random.default_rng(2)
    state = {name: rng.normal(size=shape).astype(np.float32) for name, shape in _SHAPES.items()}
    state["beta"][...] = 0.2
    ports = {name: _port(name) for name in _SHAPES}
    files = {
        "params.safetensors": plain.read("params.safetensors"),
        "state.safetensors": encode(state),
    }
    programs = {}
    for name, program in manifest.programs.items():
        used = "alp.global_prototypes" if name == "train" else "alp.local_prototypes"
        extra = tuple(ports.values()) if name == "train" else (ports[used], ports["beta"])
        moved = (_port("alp.local_prototypes", output="moved"),) if name == "train" else ()
        programs[name] = msgspec.structs.replace(
            program, inputs=(*program.inputs, *extra), outputs=(*program.outputs, *moved)
        )
        files[program.file] = _shifted(plain.read(program.file), used, extra, moved)
    changed = msgspec.structs.replace(
        manifest,
        state=tuple(TensorDecl(name=name, shape=shape) for name, shape in _SHAPES.items()),
        programs=programs,
        strategy=StrategyDecl(name="fedali", settings=_STRATEGY),
    )
    write_bundle(path, changed, files, key)
    return path


def _port(key: str, output: str | None = None) -> Port:
    name = output or key.replace(".", "_")
    return Port(name=name, role="state", key=key, dtype="float32", shape=_SHAPES[key])


def _shifted(
    program: bytes, used: str, inputs: tuple[Port, ...], outputs: tuple[Port, ...]
) -> bytes:
    """Replace x by h = x + β · mean(prototypes); new local = 0.9 · local + 0.1 · mean(x)."""
    model = onnx.load_from_string(program)
    graph = model.graph
    for node in graph.node:
        for index, name in enumerate(node.input):
            if name == "x":
                node.input[index] = "h"
    nodes = [
        helper.make_node("ReduceMean", [used.replace(".", "_")], ["centre"], axes=[0], keepdims=1),
        helper.make_node("Mul", ["centre", "beta"], ["shift"]),
        helper.make_node("Add", ["x", "shift"], ["h"]),
    ]
    if outputs:
        nodes += [
            helper.make_node("ReduceMean", ["x"], ["mean_x"], axes=[0], keepdims=1),
            helper.make_node("Mul", ["mean_x", "tenth"], ["pull"]),
            helper.make_node("Mul", ["alp_local_prototypes", "rest"], ["stay"]),
            helper.make_node("Add", ["stay", "pull"], ["moved"]),
        ]
        graph.initializer.append(helper.make_tensor("tenth", TensorProto.FLOAT, [], [0.1]))
        graph.initializer.append(helper.make_tensor("rest", TensorProto.FLOAT, [], [0.9]))
    for index, node in enumerate(nodes):
        graph.node.insert(index, node)
    for port in inputs:
        graph.input.append(_value(port))
    for port in outputs:
        graph.output.append(_value(port))
    onnx.checker.check_model(model)
    return model.SerializeToString()


def _value(port: Port) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(port.name, TensorProto.FLOAT, list(port.shape))
