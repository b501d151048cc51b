"""TFLite programs with the weights inside: in half precision, or computing with 8 bits."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np

from protofleet.errors import ExportError
from protofleet.export.quantise.fold import LAYERS, simplify
from protofleet.export.quantise.graph import TfliteGraph
from protofleet.export.quantise.halving import worth_halving
from protofleet.tensors import Tensors

_QUANTISED = "int8/"
_PASSES_ON = {"MAX_POOL_2D", "RESHAPE", "TRANSPOSE"}
"""Operators that hand numbers on: between two layers they work on 8 bits just as well."""


def bake(model: bytes, signature: str, values: Tensors) -> TfliteGraph:
    """One program of a file, its inputs ``values`` turned into constants.

    Args:
        model: a TFLite file.
        signature: the program.
        values: arrays by input name.

    Raises:
        ExportError: the file has no such signature, or a value another shape than the input.
    """
    graph = TfliteGraph(model, signature)
    for name, value in values.items():
        if name in graph.inputs:
            graph.set_constant(graph.inputs.pop(name), np.array(value, np.float32))
    simplify(graph)
    return graph


def to_float16(graph: TfliteGraph, signature: str) -> bytes:
    """Matrices and kernels in float16, widened when the file is loaded; the rest in float32."""
    _halve(graph, except_for=set())
    return graph.pack(signature)


def _halve(graph: TfliteGraph, *, except_for: set[int]) -> None:
    """Store constants in float16 and widen each by an operator of its own."""
    graph.sweep()
    widened = []
    for tensor in {t for one in graph.operations for t in one.inputs} - except_for:
        content = graph.constants.get(tensor)
        if content is not None and worth_halving(content):
            half = graph.new_constant(content.astype(np.float16))
            del graph.constants[tensor]
            widened.append(graph.new_operation("DEQUANTIZE", [half], [tensor]))
    graph.operations = widened + graph.operations


def to_int8(graph: TfliteGraph, signature: str, batches: Sequence[Tensors]) -> bytes:
    """Dense and convolutional layers with 8-bit weights (per channel) and activations.

    Other matrices, such as prototypes, are stored in float16.

    Args:
        graph: the program with its values.
        signature: what to call it.
        batches: calibration examples by input name.

    Raises:
        ExportError: there is no layer with constant weights.
    """
    # Slow to import: only who quantises to 8 bits pays for it.
    from ai_edge_quantizer import qtyping, quantizer  # noqa: PLC0415

    weights = _mark(graph)
    if not weights:
        raise ExportError("int8: expected a dense or convolutional layer with constant weights")
    _halve(graph, except_for=weights)
    work = quantizer.Quantizer(bytearray(graph.pack(signature)))
    for name in (*LAYERS, *_PASSES_ON):
        work.add_static_config(
            regex=f"^{_QUANTISED}",
            operation_name=qtyping.TFLOperationName(name),
            activation_num_bits=8,
            weight_num_bits=8,
        )
    with _quiet():
        found = work.calibrate({signature: list(batches)}, num_threads=1)
        return bytes(work.quantize(found, enable_progress_report=False).quantized_model)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep progress bars, and LiteRT's warning that every tensor is kept, to themselves."""
    with (
        warnings.catch_warnings(),
        Path(os.devnull).open("w", encoding="utf-8") as nowhere,
        redirect_stderr(nowhere),
        redirect_stdout(nowhere),
    ):
        warnings.simplefilter("ignore", UserWarning)
        yield


def _mark(graph: TfliteGraph) -> set[int]:
    """Rename the results of what shall be quantised; its weights and biases."""
    marked: set[int] = set()
    weights: set[int] = set()
    for one in graph.operations:
        if one.name in LAYERS and one.inputs[1] in graph.constants:
            weights.update(one.inputs[1:])
            marked.update(one.outputs)
        elif one.name in _PASSES_ON and one.inputs[0] in marked:
            marked.update(one.outputs)
    for tensor in marked:
        graph.rename(tensor, f"{_QUANTISED}{tensor}")
    return weights
