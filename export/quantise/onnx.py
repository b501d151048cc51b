"""ONNX programs with the weights inside: in half precision, or computing with 8 bits."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir import passes
from onnx_ir.passes import common
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxscript.optimizer import fold_constants

from protofleet.errors import ExportError
from protofleet.export.quantise.halving import worth_halving
from protofleet.tensors import Tensors

_LAYERS = {"Conv", "Gemm", "MatMul"}
_PASSES_ON = {"MaxPool", "Relu"}
"""Operators that work on 8 bits just as well between two layers."""

_NO_LIMIT = 1 << 30


def bake(model: bytes, values: Tensors) -> onnx.ModelProto:
    """A program with its inputs ``values`` turned into constants, and what they decide computed.

    ALP nodes stay nodes, so that a runtime can still replace them by its kernels.

    Args:
        model: the serialised ONNX model.
        values: arrays by input name.

    Raises:
        ExportError: a value has another shape than the input.
    """
    read = ir.from_proto(onnx.load_from_string(model))
    for value in list(read.graph.inputs):
        if value.name in values:
            _set_constant(read.graph, value, values[value.name])
    fold_constants(
        read, onnx_shape_inference=False, input_size_limit=_NO_LIMIT, output_size_limit=_NO_LIMIT
    )
    passes.Sequential(
        common.RemoveUnusedNodesPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.RemoveUnusedNodesPass(),
        common.NameFixPass(),
    )(read)
    baked: onnx.ModelProto = ir.to_proto(read)
    for number, node in enumerate(baked.graph.node):
        node.name = f"{node.op_type}.{number}"
    baked.graph.ClearField("value_info")
    return baked


def _set_constant(graph: ir.Graph, value: ir.Value, content: NDArray[Any]) -> None:
    shape = () if value.shape is None else tuple(value.shape)
    if shape != content.shape:
        raise ExportError(f"ONNX input '{value.name}': expected {shape}, got {content.shape}")
    value.const_value = ir.tensor(np.array(content, np.float32), name=value.name)
    graph.inputs.remove(value)
    graph.register_initializer(value)


def to_float16(model: onnx.ModelProto, name: str) -> bytes:
    """Matrices and kernels in float16, widened when the file is loaded; the rest in float32."""
    return _written(_halved(model), name)


def _halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float32 constants stored in float16, each widened by a node of its own."""
    graph = model.graph
    casts = []
    for tensor in graph.initializer:
        content = onnx.numpy_helper.to_array(tensor)
        if worth_halving(content):
            half = f"{tensor.name}.float16"
            casts.append(
                onnx.helper.make_node("Cast", [half], [tensor.name], to=onnx.TensorProto.FLOAT)
            )
            tensor.CopyFrom(onnx.numpy_helper.from_array(content.astype(np.float16), half))
    nodes = [*casts, *graph.node]
    graph.ClearField("node")
    graph.node.extend(nodes)
    return model


def to_int8(model: onnx.ModelProto, name: str, batches: Iterable[Tensors]) -> bytes:
    """Dense and convolutional layers with 8-bit weights (per channel) and activations.

    Other matrices, such as prototypes, are stored in float16.

    Args:
        model: the program with its values.
        name: what to call it.
        batches: calibration examples by input name.

    Raises:
        ExportError: there is no layer with constant weights.
    """
    layers = _layers(model.graph)
    if not layers:
        raise ExportError("int8: expected a dense or convolutional layer with constant weights")
    between = [node.name for node in model.graph.node if node.op_type in _PASSES_ON]
    with tempfile.TemporaryDirectory() as folder, _quiet():
        source, target = Path(folder, "float.onnx"), Path(folder, "int8.onnx")
        source.write_bytes(model.SerializeToString())
        quantize_static(
            source,
            target,
            _Reader(batches),
            quant_format=QuantFormat.QDQ,
            nodes_to_quantize=[*layers, *between],
            op_types_to_quantize=sorted(_LAYERS | _PASSES_ON),
            per_channel=True,
            # Processors without VNNI add two products in 16 bits, which 8-bit weights overflow.
            reduce_range=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod.MinMax,
            # What leaves a dense layer need not be rounded: normalisation, attention or a ReLU
            # follows, in float32.
            extra_options={"OpTypesToExcludeOutputQuantization": ["Gemm", "MatMul"]},
        )
        return _written(_halved(onnx.load(target)), name)


def _layers(graph: onnx.GraphProto) -> list[str]:
    """Names of the layers whose weights are constants: kernels, and matrices (k, n)."""
    ranks = {tensor.name: len(tensor.dims) for tensor in graph.initializer}
    return [
        node.name
        for node in graph.node
        if (node.op_type == "Conv" and node.input[1] in ranks)
        or (node.op_type in ("Gemm", "MatMul") and ranks.get(node.input[1]) == 2)
    ]


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """Hands out batches until there are none."""

    def __init__(self, batches: Iterable[Tensors]) -> None:
        self._batches = iter(batches)

    def get_next(self) -> Tensors | None:
        return next(self._batches, None)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep advice on preprocessing to itself: the program is folded already."""
    level = logging.root.level
    logging.root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logging.root.setLevel(level)


def _written(model: onnx.ModelProto, name: str) -> bytes:
    model.graph.name = name
    model.producer_name, model.producer_version = "protofleet", ""
    onnx.checker.check_model(model, full_check=False)
    data: bytes = model.SerializeToString(deterministic=True)
    return data
