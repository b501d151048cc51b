"""Writes a captured program as an ONNX model that any ONNX Runtime runs."""

from __future__ import annotations

import contextlib
import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnx_ir import passes
from onnx_ir.passes import common
from onnxscript.optimizer import fold_constants
from torch import fx
from torch.export import ExportedProgram, ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.onnx import OnnxExporterError
from torch.utils import _pytree as pytree

from protofleet.bundle.manifest import Port
from protofleet.errors import ExportError
from protofleet.export.capture import CapturedProgram
from protofleet.export.capture.limits import MAX_CONSTANT_BYTES, MAX_TABLE_BYTES
from protofleet.export.capture.source import place_of
from protofleet.export.onnx import alp, recurrent
from protofleet.export.onnx.registry import shared_registry

OPSET = 18
_ORIGIN = "pkg.torch.onnx.fx_node"
_FLOATS = frozenset({onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE, onnx.TensorProto.FLOAT16})


def to_onnx(program: CapturedProgram, *, name: str) -> bytes:
    """Serialise; input and output names are the ports' names.

    Args:
        program: what to write.
        name: the graph's name, e.g. ``train``.

    Raises:
        ExportError: an operator has no ONNX form (the message names module and line), or the
            file would hold a tensor of a weight's size.
    """
    model = _translate(program)
    _strip(model.graph)
    alp.define_functions(model)
    recurrent.define_functions(model)
    _put_results_last(model.graph)
    model.graph.name = name
    model.producer_name, model.producer_version = "protofleet", ""
    if program.objective is not None:
        onnx.helper.set_model_props(model, {"objective": program.objective.name})
    _check(model, program)
    for value, port in zip(_ends(model.graph), (*program.inputs, *program.outputs), strict=True):
        _set_shape(value, port)
    data: bytes = model.SerializeToString(deterministic=True)
    return data


def nodes_by_name(program: CapturedProgram) -> dict[str, fx.Node]:
    """Which captured operator each node of the ONNX model is of.

    For messages: the program is translated once more, since the file does not say it.
    """
    captured = {node.name: node for node in program.graph.graph.nodes}
    found = {}
    for node in _translate(program).graph.node:
        told = {one.key: one.value for one in node.metadata_props}
        # A node that took another's place has its name and says nothing of its origin.
        origin = told.get(_ORIGIN, f"%{node.name.removeprefix('node_')} ")
        name = origin.removeprefix("%").split(" ", 1)[0]
        if name in captured:
            found[node.name] = captured[name]
    return found


def _translate(program: CapturedProgram) -> onnx.ModelProto:
    try:
        with _quiet(), shared_registry():
            result = torch.onnx.export(
                _exported_program(program),
                dynamo=True,
                verbose=False,
                opset_version=OPSET,
                optimize=False,
                input_names=[port.name for port in program.inputs],
                output_names=[port.name for port in program.outputs],
            )
    except OnnxExporterError as error:
        raise _explained(error, program.graph.graph) from error
    if result is None:
        raise ExportError("torch.onnx.export: expected a program, got nothing")
    with _quiet():
        _simplify(result.model)
    # Of two results that are one value the passes name both by the second.
    for value, port in zip(result.model.graph.outputs, program.outputs, strict=True):
        value.name = port.name
    return result.model_proto


def _simplify(model: ir.Model) -> None:
    """Fold constants and drop what is unused.

    What is computed twice is so on purpose (``rematerialise``).

    ONNX Runtime fuses the rest when it loads; the exporter's own rewriting takes longer than
    everything else together.
    """
    # What is larger than an initialiser may be stays an operator: a table of zeros, for example.
    limit = MAX_CONSTANT_BYTES // 8
    fold_constants(model, onnx_shape_inference=False, output_size_limit=limit)
    passes.Sequential(
        common.IdentityEliminationPass(),
        common.RemoveUnusedNodesPass(),
        common.RemoveUnusedFunctionsPass(),  # type: ignore[no-untyped-call]
        common.RemoveUnusedOpsetsPass(),
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.RemoveUnusedNodesPass(),
        common.OutputFixPass(),
        common.NameFixPass(),
    )(model)
    for node in tuple(model.graph):
        if node.op_type == "MatMul":
            _absorb_transposes(model.graph, node)
        elif node.op_type == "MaxPool":
            _keep_padding(model.graph, node)
    common.RemoveUnusedNodesPass()(model)


def _absorb_transposes(graph: ir.Graph, node: ir.Node) -> None:
    """Turn a product of transposed matrices into one node, as ONNX Runtime would.

    The node that it makes for that has a number behind all others, and so another place in the
    order of execution, which ``_put_results_last`` arranges.
    """
    sides = [_untransposed(value) for value in node.inputs]
    if not any(transposed for _, transposed in sides):
        return
    (a, trans_a), (b, trans_b) = sides
    attributes = {"transA": int(trans_a), "transB": int(trans_b)}
    product = ir.node("Gemm", [a, b], attributes, name=node.name)
    (old,), (new,) = node.outputs, product.outputs
    new.name, new.shape, new.type = old.name, old.shape, old.type
    ir.convenience.replace_nodes_and_values(graph, node, [node], [product], [old], [new])


def _keep_padding(graph: ir.Graph, pool: ir.Node) -> None:
    """Name all axes of the padding before a pool, which ONNX Runtime then does not fuse with it.

    A pool's own padding is never the largest, and zeros are where all else is below (seen in 1.31).
    """
    padded = pool.inputs[0]
    pad = None if padded is None else padded.producer()
    if pad is None or pad.op_type != "Pad" or len(pad.inputs) != 3:
        return
    rank = 2 + len(pool.attributes["kernel_shape"].as_ints())
    axes = ir.Value(name=f"{pad.name}_axes", const_value=ir.tensor(list(range(rank))))
    graph.register_initializer(axes)
    pad.resize_inputs(4)
    pad.replace_input_with(3, axes)


def _untransposed(value: ir.Value | None) -> tuple[ir.Value | None, bool]:
    """The matrix of which ``value`` is the transpose, or ``value`` itself."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != "Transpose":
        return value, False
    matrix = node.attributes["perm"].as_ints() == (1, 0)
    return (node.inputs[0], True) if matrix else (value, False)


class _FlatProgram(ExportedProgram):
    """A program whose graph is flat already: decomposing again would trace it once more."""

    def run_decompositions(self, *args: Any, **kwargs: Any) -> ExportedProgram:
        """Trace anew only for operators that the exporter itself wants broken down."""
        table = args[0] if args else {}
        if any(node.target in table for node in self.graph.nodes):
            traced: ExportedProgram = super().run_decompositions(*args, **kwargs)
            return traced
        return self


def _exported_program(program: CapturedProgram) -> ExportedProgram:
    """The traced graph in the form that the ONNX exporter takes as it is.

    Exporting the graph anew would trace it once more, and would specialise sizes. The exporter
    promotes types in the graph that it is given, hence a copy.
    """
    graph = copy.deepcopy(program.graph.graph)
    recurrent.name_nodes(graph)
    placeholders = graph.find_nodes(op="placeholder")
    (output,) = graph.find_nodes(op="output")
    inputs = [node for node in placeholders if node.name not in program.constants]
    signature = ExportGraphSignature(
        input_specs=[_input_spec(node, program) for node in placeholders],
        output_specs=[
            OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(name=node.name), None)
            for node in output.args[0]
        ],
    )
    return _FlatProgram(
        root=program.graph,
        graph=graph,
        graph_signature=signature,
        state_dict={},
        range_constraints={},
        module_call_graph=[_call_entry(len(inputs), len(program.outputs))],
        constants={f"constant.{name}": value for name, value in program.constants.items()},
    )


def _input_spec(node: fx.Node, program: CapturedProgram) -> InputSpec:
    argument = TensorArgument(name=node.name)
    if node.name in program.constants:
        return InputSpec(InputKind.CONSTANT_TENSOR, argument, f"constant.{node.name}")
    return InputSpec(InputKind.USER_INPUT, argument, None)


def _call_entry(inputs: int, outputs: int) -> ModuleCallEntry:
    signature = ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=pytree.tree_flatten(((0,) * inputs, {}))[1],
        out_spec=pytree.tree_flatten((0,) * outputs)[1],
    )
    return ModuleCallEntry(fqn="", signature=signature)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's progress notes and its notices to its own developers to itself.

    One of the passes tells of results that are constants, as a gradient of zeros is.
    """
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnx_ir.passes")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _explained(error: OnnxExporterError, graph: fx.Graph) -> ExportError:
    """Name the module and line of the operator at which the exporter gave up."""
    causes: list[BaseException] = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    text = " ".join(str(cause) for cause in causes)
    for node in graph.nodes:
        if node.op == "call_function" and (
            f"%{node.name} :" in text or f"node {node.name}." in text
        ):
            return ExportError(f"{place_of(node)}: operator {node.target} has no ONNX form")
    return ExportError(f"no ONNX form: {str(causes[-1]).splitlines()[0]}")


def _strip(graph: onnx.GraphProto) -> None:
    """Remove what no runtime reads: origins of nodes and the shapes of intermediate values."""
    graph.ClearField("value_info")
    graph.ClearField("metadata_props")
    for value in _ends(graph):
        value.ClearField("metadata_props")
    for node in graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _strip(attribute.g)


def _put_results_last(graph: onnx.GraphProto) -> None:
    """Order nodes such that ONNX Runtime runs a backward pass with little memory.

    It starts from the last node that none reads, runs what that one needs, and goes on to the one
    before. So the results come last, the last of the backward pass first: the gradients of a layer
    are then made as soon as they can be, and what they read is free.
    """
    read = {name for node in graph.node for name in node.input}
    results = [node for node in graph.node if read.isdisjoint(node.output)]
    others = [node for node in graph.node if not read.isdisjoint(node.output)]
    ordered = [*others, *reversed(results)]
    del graph.node[:]
    graph.node.extend(ordered)


def _ends(graph: onnx.GraphProto) -> tuple[onnx.ValueInfoProto, ...]:
    return (*graph.input, *graph.output)


def _set_shape(value: onnx.ValueInfoProto, port: Port) -> None:
    """As the port says it: the exporter calls the batch by a symbol of its trace."""
    shape = onnx.TensorShapeProto()
    for size in port.shape:
        axis = shape.dim.add()
        if isinstance(size, int):
            axis.dim_value = size
        else:
            axis.dim_param = size
    value.type.tensor_type.shape.CopyFrom(shape)


def _check(model: onnx.ModelProto, program: CapturedProgram) -> None:
    onnx.checker.check_model(model, full_check=False)
    for tensor in model.graph.initializer:
        floats = tensor.data_type in _FLOATS
        if tensor.ByteSize() > (MAX_CONSTANT_BYTES if floats else 2 * MAX_TABLE_BYTES):
            raise ExportError(
                f"initialiser '{tensor.name}' of shape {list(tensor.dims)}: expected no constant "
                f"above {MAX_CONSTANT_BYTES} bytes: register it as a persistent buffer"
            )
    _check_names(model.graph.input, program.inputs)
    _check_names(model.graph.output, program.outputs)


def _check_names(values: Sequence[Any], ports: Sequence[Port]) -> None:
    got, expected = [value.name for value in values], [port.name for port in ports]
    if got != expected:
        surplus = set(got).symmetric_difference(expected)
        raise ExportError(f"ONNX model: expected the ports' names in order, differing {surplus}")
