"""Names the inputs and outputs of a traced graph, in the terms of the manifest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import torch
from torch import Tensor, fx

from protofleet.bundle.manifest import Port, Role
from protofleet.errors import ExportError
from protofleet.export.capture.limits import MAX_CONSTANT_BYTES, MAX_TABLE_BYTES
from protofleet.export.capture.source import place_of
from protofleet.export.capture.tracing import Trace, shape_template

_COPIES = {
    torch.ops.aten.clone.default,
    torch.ops.aten.detach.default,
    torch.ops.aten.alias.default,
    torch.ops.aten.lift_fresh_copy.default,
}
_DTYPES: dict[torch.dtype, Literal["float32", "int64"]] = {
    torch.float32: "float32",
    torch.int64: "int64",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What the function's arguments and results are called, in their order.

    Attributes:
        params, buffers, constants, batch: arguments; constants with their values.
        outputs: named results.
        trains: results begin with loss, gradients and buffers.
    """

    params: tuple[str, ...]
    buffers: tuple[str, ...]
    constants: Mapping[str, Tensor]
    batch: tuple[str, ...]
    outputs: tuple[str, ...]
    trains: bool


def finish(
    trace: Trace, names: Names
) -> tuple[tuple[Port, ...], tuple[Port, ...], dict[str, Tensor]]:
    """Drop unused inputs and unchanged buffers, and name the rest.

    Returns:
        Ports of the inputs and of the outputs, and the values of the graph's other placeholders,
        which come first in the graph.

    Raises:
        ExportError: a tensor has a dtype that ports do not carry, or a constant is as large as
            a weight.
    """
    graph = trace.graph.graph
    placeholders = graph.find_nodes(op="placeholder")
    arguments = dict(zip(placeholders, _arguments(trace, names), strict=True))
    outputs = _name_results(trace, names, arguments)
    constants = _lift_attributes(trace.graph)
    inputs = []
    for node, port in arguments.items():
        if not node.users:
            graph.erase_node(node)
        elif isinstance(port, Port):
            inputs.append(port)
        else:
            constants[node.name] = port
    _order_placeholders(graph, constants)
    for node in graph.find_nodes(op="placeholder")[: len(constants)]:
        _check_constant(node, constants[node.name])
    trace.graph.recompile()
    return tuple(inputs), outputs, constants


def _arguments(trace: Trace, names: Names) -> list[Port | Tensor]:
    """What every placeholder is, in order: a port, or a constant's value."""
    nodes = iter(trace.graph.graph.find_nodes(op="placeholder"))

    def port(prefix: str, role: Role, key: str) -> Port:
        return _port(trace, next(nodes), prefix + key, role, key)

    ports: list[Port | Tensor] = [port("param.", "param", key) for key in names.params]
    ports += [port("state.", "state", key) for key in names.buffers]
    for value in names.constants.values():
        next(nodes)
        ports.append(value)
    ports += [port("", "input", key) for key in names.batch]
    for index, request in enumerate(trace.noise):
        named = port("noise.", "noise", str(index))
        ports.append(msgspec.structs.replace(named, distribution=request.distribution))
    return ports


def _name_results(
    trace: Trace, names: Names, arguments: Mapping[fx.Node, Port | Tensor]
) -> tuple[Port, ...]:
    """Ports of the results; a buffer that the function leaves alone is no result."""
    graph = trace.graph.graph
    (output,) = graph.find_nodes(op="output")
    results = iter(output.args[0])
    kept: list[fx.Node] = []
    ports: list[Port] = []

    def keep(node: fx.Node, name: str, role: Role, key: str) -> None:
        kept.append(_distinct(graph, node, kept, output))
        ports.append(_port(trace, kept[-1], name, role, key))

    if names.trains:
        keep(next(results), "loss", "loss", "loss")
        for key in names.params:
            keep(next(results), f"grad.{key}", "grad", key)
        for key in names.buffers:
            node = next(results)
            if not _is_input(node, arguments, key):
                keep(node, f"new.{key}", "state", key)
    for key in names.outputs:
        keep(next(results), key, "output", key)
    output.args = (tuple(kept),)
    graph.eliminate_dead_code()
    return tuple(ports)


def _is_input(node: fx.Node, arguments: Mapping[fx.Node, Port | Tensor], key: str) -> bool:
    port = arguments.get(_copied(node))
    return isinstance(port, Port) and port.role == "state" and port.key == key


def _copied(node: fx.Node) -> fx.Node:
    """What a node is a copy of, in the end."""
    while node.target in _COPIES:
        (node,) = node.all_input_nodes
    return node


def _distinct(
    graph: fx.Graph, node: fx.Node, others: Sequence[fx.Node], output: fx.Node
) -> fx.Node:
    """The node, or a copy if it is an input or another result too: names are one to one."""
    if node.op == "call_function" and _copied(node) not in map(_copied, others):
        return node
    with graph.inserting_before(output):
        copy = graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta = dict(node.meta)
    return copy


def _lift_attributes(module: fx.GraphModule) -> dict[str, Tensor]:
    """Turn tensors that the trace embedded into placeholders with values."""
    graph = module.graph
    constants: dict[str, Tensor] = {}
    for node in list(graph.nodes):
        if node.op != "get_attr" or not node.users:
            continue
        value = getattr(module, node.target)
        first = next(iter(graph.nodes))
        with graph.inserting_before(first):
            lifted = graph.placeholder(f"constant_{len(constants)}")
        lifted.meta = dict(node.meta)
        node.replace_all_uses_with(lifted)
        graph.erase_node(node)
        constants[lifted.name] = value
    return constants


def _order_placeholders(graph: fx.Graph, constants: Mapping[str, Tensor]) -> None:
    """Constants first, then the inputs in their order."""
    placeholders = graph.find_nodes(op="placeholder")
    ordered = sorted(placeholders, key=lambda node: node.name not in constants)
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node in ordered:
        first.prepend(node)


def _port(trace: Trace, node: fx.Node, name: str, role: Role, key: str) -> Port:
    value = node.meta["val"]
    dtype = _DTYPES.get(value.dtype)
    if dtype is None:
        raise ExportError(f"{role} '{key}': expected float32 or int64, got {value.dtype}")
    shape = shape_template(value.shape, trace.batch_symbol, f"{role} '{key}'")
    return Port(name=name, role=role, key=key, dtype=dtype, shape=shape)


def holds_infinity(value: Tensor) -> bool:
    """Whether a tensor is a mask for sums before a softmax, or the like; not known without data."""
    if value.is_meta or not value.is_floating_point():
        return False
    return bool(torch.isinf(value).any())


def _check_constant(node: fx.Node, value: Tensor) -> None:
    table = not value.is_floating_point()
    most = MAX_TABLE_BYTES if table else MAX_CONSTANT_BYTES
    if value.nbytes <= most:
        return
    place = next((place_of(user) for user in node.users), "model")
    if table:
        remedy = "make it in forward, as of torch.arange"
    elif holds_infinity(value):
        remedy = (
            "make it in forward, as torch.full(…).triu(1), or of finite numbers (a mask: -1e9) in "
            "a persistent float32 buffer, so that the bundle holds it once"
        )
    else:
        remedy = "register it as a persistent float32 buffer, so that the bundle holds it once"
    raise ExportError(
        f"{place}: constant of shape {tuple(value.shape)}: expected at most {most} bytes, got "
        f"{value.nbytes}: {remedy}"
    )
