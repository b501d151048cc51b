"""Failures of a runtime on a program that we wrote, told by the line of the model behind them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray
from torch import fx

from protofleet.errors import ExportError
from protofleet.export.capture import CapturedProgram
from protofleet.export.capture.source import place_of
from protofleet.export.onnx.write import nodes_by_name
from protofleet.export.parity.inputs import Arrays, Runner
from protofleet.export.source_locations import first_line
from protofleet.export.tflite.lower import nodes_in_order

_REMEDY = (
    "write that line in other operators (docs/results/operators.md lists what trains), and give "
    "each axis by its number, as in .squeeze(-1) and .flatten(1)"
)
# How ONNX Runtime names a node: while it loads a program, and while it runs one.
_ONNX_NODES = re.compile(r"Node \(([^)]+)\)|Name:'([^']+)'|node named '([^']+)'")
_LITERT_NODE = re.compile(r"Node number (\d+) \(")


@contextmanager
def failures_told(program: CapturedProgram, name: str, runner: str) -> Iterator[None]:
    """Turn what a runtime raises inside into an ExportError that names the model's line.

    Args:
        program: that is loaded or run.
        name: its name in the bundle.
        runner: what runs it, as messages call it.
    """
    try:
        yield
    except ExportError:
        raise
    except Exception as error:  # the runtimes' errors share no narrower root
        node = _node(program, name, str(error))
        where = f"{place_of(node)}: operator {node.target} " if node else ""
        what = f"program '{name}' in {runner}: {where}fails"
        raise ExportError(f"{what}: {_reason(error)}; {_REMEDY}") from error


def told(program: CapturedProgram, name: str, runner: str, run: Runner) -> Runner:
    """The runner, its failures as by ``failures_told``."""

    def guarded(feed: Arrays) -> Mapping[str, NDArray[Any]]:
        with failures_told(program, name, runner):
            return run(feed)

    return guarded


def _node(program: CapturedProgram, name: str, text: str) -> fx.Node | None:
    """The captured operator that a runtime's message is about, by its name or number there.

    A runtime that fuses or delegates operators has names of its own: then None.
    """
    if found := _LITERT_NODE.search(text):
        nodes, number = nodes_in_order(program, name), int(found[1])
        return nodes[number] if number < len(nodes) else None
    if found := _ONNX_NODES.search(text):
        return nodes_by_name(program).get(next(filter(None, found.groups())))
    return None


def _reason(error: Exception) -> str:
    """The first line of a runtime's message, without the file of its own source and its codes."""
    line = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", first_line(error))
    return re.sub(r"\S*/\S+\.(?:cc|h)(?::\d+)? ", "", line)
