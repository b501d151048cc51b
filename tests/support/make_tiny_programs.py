"""Makes the programs of the tiny bundle, which are committed, so that its users need no onnx.

    python tests/support/make_tiny_programs.py

The model is linear with a softmax; parameters are ``w (features, classes)`` and ``b (classes,)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx import TensorProto, checker, helper
from tiny_bundle import PROGRAMS

_SIZES = ((4, 3), (4, 5), (40, 3))
"""Features and classes of the models that tests use."""


def programs() -> dict[str, bytes]:
    """Each program's bytes by its path below ``PROGRAMS``."""
    kinds = {"infer": _infer, "features": _features, "train": _train}
    return {
        f"{features}x{classes}/{name}.onnx": make(features, classes)
        for features, classes in _SIZES
        for name, make in kinds.items()
    }


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
    nodes: Sequence[Any],
    features: int,
    classes: int,
    outputs: Mapping[str, list[Any]],
    constants: Sequence[Any] = (),
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
        initializer=constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


if __name__ == "__main__":
    for path, program in programs().items():
        (PROGRAMS / path).parent.mkdir(parents=True, exist_ok=True)
        (PROGRAMS / path).write_bytes(program)
