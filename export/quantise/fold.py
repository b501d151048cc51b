"""Simplifies a TFLite graph whose weights are constants.

A program that takes its weights as inputs computes at every call what now never changes, adds its
biases apart, and moves image axes to and fro. Operators that read constants only become their
results; products with one matrix become dense layers; a bias and a ReLU go into the layer before
them; reshapes in a row become one; transpositions that undo each other go.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from numpy.typing import NDArray

from protofleet.export.quantise.convolution import name_convolutions
from protofleet.export.quantise.graph import Operation, TfliteGraph, until_done
from protofleet.export.quantise.halving import worth_halving

LAYERS = ("FULLY_CONNECTED", "CONV_2D")
"""Operators that a bias and an activation belong to."""

_MOVES = {"RESHAPE", "TRANSPOSE"}
_COMMUTES_WITH_RELU = {*_MOVES, "MAX_POOL_2D"}


def simplify(graph: TfliteGraph) -> None:
    """Fold, fuse and cancel as far as possible."""
    _fold(graph)
    _name_layers(graph)
    name_convolutions(graph)
    _merge_reshapes(graph)
    until_done(graph, _fuse_bias)
    until_done(graph, _fuse_relu)
    _merge_reshapes(graph)
    until_done(graph, _cancel_transposes)
    graph.sweep()


def _fold(graph: TfliteGraph) -> None:
    """Replace what constants decide by its value, computed by LiteRT itself."""
    foldable = _without_doubles(graph, _constant_operations(graph))
    kept = [one for one in graph.operations if one not in foldable]
    needed = {tensor for one in kept for tensor in one.inputs} | {*graph.outputs.values()}
    wanted = {t for one in foldable for t in one.outputs if t in needed}
    for tensor, value in graph.compute(foldable, wanted).items():
        graph.set_constant(tensor, value)
    graph.operations = kept


def _constant_operations(graph: TfliteGraph) -> list[Operation]:
    known = {-1, *graph.constants}
    found = []
    for one in graph.operations:
        if known.issuperset(one.inputs):
            found.append(one)
            known.update(one.outputs)
    return found


def _without_doubles(graph: TfliteGraph, operations: list[Operation]) -> list[Operation]:
    """Leave out what depends on a matrix that others read as it is.

    It would lie in the file twice; and ALP's prototypes would pass for a layer's weights.
    """
    consumers = graph.consumers()
    folded = operations
    while True:
        tainted = {
            tensor
            for tensor, content in graph.constants.items()
            if worth_halving(content)
            and any(reader not in folded for reader in consumers.get(tensor, ()))
        }
        remaining = []
        for one in folded:
            if tainted.intersection(one.inputs):
                tainted.update(one.outputs)
            else:
                remaining.append(one)
        if len(remaining) == len(folded):
            return folded
        folded = remaining


def _name_layers(graph: TfliteGraph) -> None:
    """Turn products with one constant matrix into dense layers, which take a bias and 8 bits."""
    for index, one in enumerate(graph.operations):
        weights = graph.constants.get(one.inputs[-1])
        if one.name != "BATCH_MATMUL" or weights is None or one.record.builtinOptions.adjX:
            continue
        if weights.size != weights.shape[-2] * weights.shape[-1]:
            continue
        matrix = weights.reshape(weights.shape[-2:])
        if not one.record.builtinOptions.adjY:
            matrix = matrix.T
        dense = graph.new_operation(
            "FULLY_CONNECTED",
            [one.inputs[0], graph.new_constant(np.ascontiguousarray(matrix))],
            one.outputs,
        )
        dense.record.builtinOptionsType = schema.BuiltinOptions.FullyConnectedOptions
        dense.record.builtinOptions = schema.FullyConnectedOptionsT(keepNumDims=True)
        graph.operations[index] = dense


def _merge_reshapes(graph: TfliteGraph) -> None:
    """Let a reshape read what the reshape before it reads: only the last shape counts."""
    for index, one in enumerate(graph.operations):
        if one.name == "TRANSPOSE" and _keeps_order(graph, one):
            graph.operations[index] = graph.new_reshape(one.inputs[0], one.outputs[0])
    producers = graph.producers()
    for one in graph.operations:
        while one.name == "RESHAPE" and (before := producers.get(one.inputs[0])) is not None:
            if before.name != "RESHAPE":
                break
            one.inputs = [before.inputs[0], *one.inputs[1:]]
    same = {
        one.outputs[0]: one.inputs[0]
        for one in graph.operations
        if one.name == "RESHAPE"
        and graph.signature(one.inputs[0]) == graph.signature(one.outputs[0])
        and one.outputs[0] not in graph.outputs.values()
    }
    for one in graph.operations:
        one.inputs = [same.get(tensor, tensor) for tensor in one.inputs]
    graph.sweep()


def _keeps_order(graph: TfliteGraph, transpose: Operation) -> bool:
    """Whether only axes of length 1 change places."""
    source = graph.signature(transpose.inputs[0])
    longer = [axis for axis in graph.constants[transpose.inputs[1]] if source[axis] != 1]
    return longer == sorted(longer) and source.count(-1) <= 1


def _fuse_bias(graph: TfliteGraph) -> bool:
    """Move one constant that is added to a layer's result into the layer."""
    for one in graph.operations:
        if one.name != "ADD" or one.record.builtinOptions.fusedActivationFunction:
            continue
        constants = [t for t in one.inputs if t in graph.constants]
        if len(constants) != 1:
            continue
        (source,) = (t for t in one.inputs if t not in graph.constants)
        path = _path_to_layer(graph, source, _MOVES)
        if path is None or graph.shape(source) != graph.shape(one.outputs[0]):
            continue
        bias = _per_channel(graph, graph.constants[constants[0]], path)
        if bias is None or not _is_free(graph, path[0]):
            continue
        _add_bias(graph, path[0], bias)
        _skip(graph, one, source)
        return True
    return False


def _fuse_relu(graph: TfliteGraph) -> bool:
    """Move one ReLU into the layer before it."""
    for one in graph.operations:
        if one.name != "RELU":
            continue
        path = _path_to_layer(graph, one.inputs[0], _COMMUTES_WITH_RELU)
        if path is None or not _is_free(graph, path[0]):
            continue
        activation = schema.ActivationFunctionType.RELU
        path[0].record.builtinOptions.fusedActivationFunction = activation
        _skip(graph, one, one.inputs[0])
        return True
    return False


def _path_to_layer(graph: TfliteGraph, tensor: int, through: set[str]) -> list[Operation] | None:
    """The layer that ``tensor`` comes from and what lies between, which nothing else reads."""
    producers, consumers = graph.producers(), graph.consumers()
    path: list[Operation] = []
    while tensor in producers and len(consumers[tensor]) == 1:
        if tensor in graph.outputs.values():
            return None
        path.append(producers[tensor])
        if path[-1].name in LAYERS:
            return path[::-1]
        if path[-1].name not in through:
            return None
        tensor = path[-1].inputs[0]
    return None


def _is_free(graph: TfliteGraph, layer: Operation) -> bool:
    """Whether the layer has constant weights and no activation yet."""
    record = layer.record.builtinOptions
    return not record.fusedActivationFunction and layer.inputs[1] in graph.constants


def _per_channel(
    graph: TfliteGraph, added: NDArray[Any], path: list[Operation]
) -> NDArray[np.float32] | None:
    """``added`` as one value per channel of the layer, if that is all it holds."""
    value = np.broadcast_to(added, graph.shape(path[-1].outputs[0]))
    for one in reversed(path[1:]):
        if one.name == "TRANSPOSE":
            value = value.transpose(np.argsort(graph.constants[one.inputs[1]]))
        else:
            value = value.reshape(graph.shape(one.inputs[0]))
    rows = value.reshape(-1, value.shape[-1])
    return np.ascontiguousarray(rows[0], np.float32) if (rows == rows[0]).all() else None


def _add_bias(graph: TfliteGraph, layer: Operation, bias: NDArray[np.float32]) -> None:
    has_bias = len(layer.inputs) > 2 and layer.inputs[2] >= 0
    present = graph.constants[layer.inputs[2]] if has_bias else np.zeros_like(bias)
    layer.inputs = [*layer.inputs[:2], graph.new_constant(present + bias)]


def _skip(graph: TfliteGraph, one: Operation, source: int) -> None:
    """Let the operator before ``one`` write the result of ``one``."""
    before = graph.producers()[source]
    before.outputs = [one.outputs[0] if t == source else t for t in before.outputs]
    graph.operations.remove(one)


def _cancel_transposes(graph: TfliteGraph) -> bool:
    """Let the readers of one doubly transposed tensor read the tensor itself."""
    producers = graph.producers()
    for one in graph.operations:
        before = producers.get(one.inputs[0])
        if one.name != "TRANSPOSE" or before is None or before.name != "TRANSPOSE":
            continue
        first, second = (graph.constants[t.inputs[1]] for t in (before, one))
        is_undone = np.array_equal(first[second], np.arange(len(first)))
        if not is_undone or one.outputs[0] in graph.outputs.values():
            continue
        for reader in graph.operations:
            reader.inputs = [before.inputs[0] if t == one.outputs[0] else t for t in reader.inputs]
        graph.operations.remove(one)
        return True
    return False
