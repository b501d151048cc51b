"""Walks a captured graph and writes every ATen operator in operators of TFLite."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx

from protofleet.errors import ExportError
from protofleet.export.capture import CapturedProgram
from protofleet.export.capture.source import place_of
from protofleet.export.tflite.basics import Basics, Operand
from protofleet.export.tflite.graph import BOOL, F32, I64, Graph, Shape, SharedTables, Value

Result = Any
"""A value, a tuple of values, or a number that the batch size may decide."""
Rule = Callable[["Lowering", fx.Node], Result]

RULES: dict[Any, Rule] = {}
"""How to write an operator; the modules beside this one fill it."""

# Whole numbers are counts, places and masks here, which are the same in every width.
_DTYPES = {
    torch.float32: F32,
    **dict.fromkeys((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8), I64),
    torch.bool: BOOL,
}


def rule(*targets: Any) -> Callable[[Rule], Rule]:
    """Register a function as the way to write operators."""

    def register(function: Rule) -> Rule:
        for target in targets:
            RULES[target] = function
        return function

    return register


def dims(value: Tensor) -> Shape:
    """The shape of a traced tensor, with ``-k`` for k times the batch size.

    Raises:
        ExportError: an axis is another function of the batch size.
    """
    return tuple(size if isinstance(size, int) else _multiple(size) for size in value.shape)


def _multiple(size: Any) -> int:
    expression = size.node.expr
    (symbol,) = expression.free_symbols
    factor = sympy.simplify(expression / symbol)
    if not factor.is_Integer:
        raise ExportError(f"size {expression}: expected a multiple of the batch size")
    return -int(factor)


def dtype_of(dtype: torch.dtype) -> np.dtype[Any]:
    """The NumPy dtype.

    Raises:
        ExportError: TFLite programs do not carry it.
    """
    if dtype not in _DTYPES:
        raise ExportError(f"expected float32, integers or bool, got {dtype}")
    return _DTYPES[dtype]


class Lowering:
    """One program on its way into a subgraph.

    A result may stay smaller than its shape says: an axis of 1 in its place is repeated only where
    an operator does not do that by itself.

    Attributes:
        graph: the subgraph.
        basics: operators on its values.
    """

    def __init__(self, program: CapturedProgram, graph: Graph) -> None:
        self.graph = graph
        self._program = program
        self._values: dict[fx.Node, Result] = {}
        self._bind_inputs()

    def _bind_inputs(self) -> None:
        placeholders = self._program.graph.graph.find_nodes(op="placeholder")
        constants = self._program.constants
        free = [node for node in placeholders if node.name not in constants]
        batch: Value | None = None
        for node, port in zip(free, self._program.inputs, strict=True):
            value = self.graph.input(port.name, dims(node.meta["val"]), np.dtype(port.dtype))
            self._values[node] = value
            if port.role == "input" and batch is None and value.shape[:1] == (-1,):
                batch = value
        if batch is None:
            raise ExportError("program: expected an input with a batch axis")
        self.basics = Basics(self.graph, batch)
        for node in placeholders:
            if node.name in constants:
                content = constants[node.name].detach().numpy()
                self._values[node] = self.graph.constant(
                    content, dtype_of(constants[node.name].dtype)
                )

    def run(self) -> dict[str, Value]:
        """Write everything; results by port name."""
        nodes = self._program.graph.graph.nodes
        for node in nodes:
            if node.op == "call_function":
                self.graph.origin = node
                self._values[node] = self._write(node)
        (output,) = self._program.graph.graph.find_nodes(op="output")
        results: dict[str, Value] = {}
        for port, node in zip(self._program.outputs, output.args[0], strict=True):
            value = self.full(node)
            if value.tensor in {v.tensor for v in results.values()} or self._is_input(value):
                value = self.graph.copy(value)
            results[port.name] = value
        return results

    def _write(self, node: fx.Node) -> Result:
        write = RULES.get(node.target)
        if write is None:
            raise ExportError(f"{place_of(node)}: operator {node.target} has no TFLite form")
        try:
            return write(self, node)
        except ExportError as error:
            raise ExportError(f"{place_of(node)}: {node.target}: {error}") from error

    def _is_input(self, value: Value) -> bool:
        return any(
            isinstance(known, Value) and known.tensor == value.tensor
            for node, known in self._values.items()
            if node.op == "placeholder"
        )

    def get(self, argument: Any) -> Any:
        """What an argument stands for: a value that may still want repeating, or a number."""
        if isinstance(argument, fx.Node):
            return self._values[argument]
        if isinstance(argument, (list, tuple)):
            return [self.get(item) for item in argument]
        return argument

    def small(self, node: Any) -> Value:
        """A tensor argument, perhaps with axes of 1 in place of repeated ones."""
        value = self.get(node)
        if not isinstance(value, Value):
            raise ExportError(f"expected a tensor, got {value!r}")
        return value

    def full(self, node: fx.Node) -> Value:
        """A tensor argument in its whole shape."""
        return self.basics.expand(self.small(node), dims(node.meta["val"]))

    def operand(self, argument: Any) -> Operand:
        """A tensor as by ``small``, or a number."""
        value = self.get(argument)
        if isinstance(value, (Value, float, int)):
            return value
        raise ExportError(f"expected a tensor or a number, got {value!r}")

    def shape(self, node: fx.Node, index: int | None = None) -> Shape:
        """The whole shape of a node's result."""
        value = node.meta["val"]
        return dims(value if index is None else value[index])

    def dtype(self, node: fx.Node) -> np.dtype[Any]:
        """The dtype of a node's result."""
        return dtype_of(node.meta["val"].dtype)


def nodes_in_order(program: CapturedProgram, name: str) -> list[fx.Node | None]:
    """Which captured operator each operator of the TFLite subgraph is of; None: of none.

    For messages: the program is written once more, since the file does not say it.
    """
    graph = Graph(SharedTables(), name)
    subgraph, _ = graph.finish(Lowering(program, graph).run())
    return graph.origins(subgraph)


def args_of(node: fx.Node) -> tuple[Any, ...]:
    """A node's positional arguments: nodes, numbers, lists."""
    return node.args


def axes_of(argument: Any, rank: int) -> list[int]:
    """A list of axes, non-negative; None or an empty list: all."""
    if argument is None or argument == []:
        return list(range(rank))
    listed: Sequence[int] = argument if isinstance(argument, (list, tuple)) else [argument]
    return [axis % rank for axis in listed]
