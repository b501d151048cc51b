"""Writes captured programs as one TFLite model with a signature for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import flatbuffers
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from protofleet.errors import ExportError
from protofleet.export.capture import CapturedProgram
from protofleet.export.tflite import (  # noqa: F401 - they register how operators are written
    activations,
    alp,
    convolution,
    elementwise,
    functions,
    linear,
    lookups,
    moves,
    order,
    recurrent,
)
from protofleet.export.tflite.graph import Graph, SharedTables
from protofleet.export.tflite.lower import Lowering
from protofleet.runtime import open_interpreter

__all__ = ["tflite_runner", "to_tflite"]

_SCHEMA_VERSION = 3


def to_tflite(programs: Mapping[str, CapturedProgram]) -> bytes:
    """Serialise; signatures are named as the programs, inputs and outputs as the ports.

    Args:
        programs: by name.

    Raises:
        ExportError: an operator has no TFLite form; the message names program, module and line.
    """
    tables = SharedTables()
    subgraphs: list[Any] = []
    signatures: list[Any] = []
    for name, program in programs.items():
        graph = Graph(tables, name)
        try:
            results = Lowering(program, graph).run()
        except ExportError as error:
            raise ExportError(f"TFLite program '{name}': {error}") from error
        subgraph, signature = graph.finish(results)
        signature.subgraphIndex = len(subgraphs)
        subgraphs.append(subgraph)
        signatures.append(signature)
    record = schema.ModelT(
        version=_SCHEMA_VERSION,
        operatorCodes=tables.codes(),
        subgraphs=subgraphs,
        description="protofleet",
        buffers=tables.buffers(),
        signatureDefs=signatures,
    )
    builder = flatbuffers.Builder(1 << 20)
    builder.Finish(record.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def tflite_runner(
    data: bytes, name: str
) -> Callable[[Mapping[str, NDArray[Any]]], Mapping[str, NDArray[Any]]]:
    """Plain LiteRT on one signature: inputs by port name → outputs by port name.

    What it cannot run raises LiteRT's own RuntimeError or ValueError, with the operator's number.
    """
    signature = open_interpreter(data).get_signature_runner(name)

    def run(feed: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        try:
            results: Mapping[str, NDArray[Any]] = signature(**feed)
        except (RuntimeError, ValueError):
            # A delegate takes many operators as one and does not say which fails; LiteRT's own do.
            open_interpreter(data, delegates=False).get_signature_runner(name)(**feed)
            raise
        return results

    return run
