"""Trades memory of a training program for cheap work: values are computed again, not kept.

Autograd keeps what the backward pass reads from the moment the forward pass made it. Much of that
is a sigmoid, a dropout mask or a normalised row: as cheap to compute again from its neighbours as
to read. Which values to keep is a minimum cut of the forward graph: what lies before the cut runs
once, what lies behind it runs once more, just before its first reader in the backward pass, and the
bytes that cross the cut are the fewest possible. A value computed twice has the same bits.

Thin matrix products count as cheap only where more would be kept without them than a small device
can afford: a tenth of HART's step is theirs.

Source: Zheng et al., as in PyTorch's ``min_cut_rematerialization_partition``, for one graph instead
of two.
"""

from __future__ import annotations

import math
from typing import Any

import networkx as nx
import sympy  # type: ignore[import-untyped]
import torch
from torch import Tensor, fx
from torch._functorch.compile_utils import fx_graph_cse

_aten = torch.ops.aten

_COPIES = frozenset({_aten.alias.default, _aten.clone.default, _aten.detach.default})
_PRODUCTS = {_aten.mm.default: 0, _aten.bmm.default: 0, _aten.addmm.default: 1}
_DEAR = frozenset(
    {
        _aten.convolution.default,
        _aten.max_pool2d_with_indices.default,
        _aten.avg_pool2d.default,
        _aten.topk.default,
        _aten.sort.default,
        _aten.scatter.src,
        _aten.scatter.value,
        _aten.scatter_add.default,
        _aten.index.Tensor,
        _aten.embedding.default,
    }
)
_SHALLOW = 32  # products over as many numbers cost no more than a pass over the result
_THIN = 64  # and over as many a few passes, which is better than to need more than
_AFFORDABLE = 24e6  # bytes, at the nominal batch
_NOMINAL_BATCH = 64  # at which bytes are weighed
_FARTHEST = 100
_NEVER = 1e18  # bytes: not infinite, so that some cut is always finite


def tidy(module: fx.GraphModule) -> None:
    """Drop copies, which mean nothing in a graph without writes, and merge equal nodes.

    A view's only size that depends on the batch follows from the others: -1 spares its computation.
    """
    graph = module.graph
    for node in graph.find_nodes(op="call_function", target=_aten.view.default):
        shape = _value(node).shape
        if sum(not isinstance(size, int) for size in shape) == 1 and 0 not in shape:
            sizes = [size if isinstance(size, int) else -1 for size in shape]
            node.args = (_args(node)[0], sizes)
    results = set(_results(graph))
    for node in list(graph.nodes):
        if node.target not in _COPIES:
            continue
        source = _args(node)[0]
        if node in results and (source.op != "call_function" or source in results):
            continue  # a result has a name of its own
        if node not in results and node.target == _aten.clone.default:
            continue  # it decides on strides, on which PyTorch lets views depend
        if node in results:
            results.add(source)
        node.replace_all_uses_with(source)
    for node in graph.find_nodes(op="call_function", target=_aten.permute.default):
        _turn_once(node)
    graph.eliminate_dead_code()
    module.graph = fx_graph_cse(graph)
    module.recompile()


def _turn_once(node: fx.Node) -> None:
    """Join a permutation with the one that it is applied to."""
    before, order = _args(node)
    if before.target != _aten.permute.default:
        return
    source, first = _args(before)
    joined = [first[axis] % len(first) for axis in order]
    if joined == sorted(joined) and source.op == "call_function":
        node.replace_all_uses_with(source)
    else:
        node.args = (source, joined)


def rematerialise(module: fx.GraphModule, symbol: sympy.Symbol) -> None:
    """Let the backward pass compute again what is cheap.

    Args:
        module: a training program; its first result is the loss, and what follows the loss in the
            graph is the backward pass. Changed in place.
        symbol: the batch size in its shapes.
    """
    graph = module.graph
    forward = _forward(graph)
    kept = _kept(forward, symbol, cheap=_SHALLOW)
    if _total(kept, symbol) > _AFFORDABLE:
        # Without any dear node the second cut is none, and all would be kept.
        kept = min(
            kept, _kept(forward, symbol, cheap=_THIN), key=lambda nodes: _total(nodes, symbol)
        )
    again: dict[fx.Node, fx.Node] = {}
    for node in [n for n in graph.nodes if n not in forward and n.op == "call_function"]:
        with graph.inserting_before(node):
            for source in node.all_input_nodes:
                if source in forward and source not in kept and source.op == "call_function":
                    node.replace_input_with(source, _copied(graph, source, kept, again))
    graph.eliminate_dead_code()
    graph.lint()
    module.recompile()


def _args(node: fx.Node) -> tuple[Any, ...]:
    """A node's arguments, whose kinds its operator knows."""
    return node.args


def _results(graph: fx.Graph) -> tuple[fx.Node, ...]:
    (output,) = graph.find_nodes(op="output")
    results: tuple[fx.Node, ...] = _args(output)[0]
    return results


def _forward(graph: fx.Graph) -> dict[fx.Node, int]:
    """Nodes up to the loss, and their place."""
    loss = _results(graph)[0]
    found: dict[fx.Node, int] = {}
    for place, node in enumerate(graph.nodes):
        found[node] = place
        if node is loss:
            break
    return found


def _copied(
    graph: fx.Graph, node: fx.Node, kept: set[fx.Node], again: dict[fx.Node, fx.Node]
) -> fx.Node:
    """``node`` computed again at the present place, with all it needs that is not kept."""
    if node in kept or node.op != "call_function":
        return node
    if node not in again:
        sources = {n: _copied(graph, n, kept, again) for n in node.all_input_nodes}
        again[node] = graph.node_copy(node, lambda source: sources[source])
    return again[node]


def _kept(forward: dict[fx.Node, int], symbol: sympy.Symbol, *, cheap: int) -> set[fx.Node]:
    """What crosses the cheapest cut, and what no tensor is.

    Args:
        forward: up to the loss.
        symbol: the batch size.
        cheap: the most numbers that a product may sum up for it to be computed again.
    """
    network = nx.DiGraph()
    distance = _distances(forward)
    for node in forward:
        if node.op != "call_function":
            continue
        name = node.name
        size = _bytes(node, symbol) * 1.1 ** min(distance[node], _FARTHEST)
        network.add_edge((name, "in"), (name, "out"), capacity=size)
        if _dear(node, cheap):
            network.add_edge("source", (name, "in"), capacity=math.inf)
        for user in node.users:
            if user in forward:
                network.add_edge((name, "out"), (user.name, "in"), capacity=math.inf)
            elif user.op == "call_function":
                network.add_edge((name, "out"), "sink", capacity=math.inf)
    if "source" not in network or "sink" not in network:
        return set(forward)
    _, (before, _) = nx.minimum_cut(network, "source", "sink")
    return {
        node
        for node in forward
        if node.op != "call_function" or _is_number(node) or _crosses(node, before)
    }


def _total(kept: set[fx.Node], symbol: sympy.Symbol) -> float:
    return sum(_bytes(node, symbol) for node in kept if node.op == "call_function")


def _crosses(node: fx.Node, before: set[Any]) -> bool:
    return (node.name, "in") in before and (node.name, "out") not in before


def _distances(forward: dict[fx.Node, int]) -> dict[fx.Node, int]:
    """Steps from a node to the nearest reader in the backward pass: of equal cuts the last wins."""
    found: dict[fx.Node, int] = {}
    for node in reversed(forward):
        steps = (found[user] + 1 if user in forward else 0 for user in node.users)
        found[node] = min(steps, default=_FARTHEST)
    return found


def _dear(node: fx.Node, cheap: int) -> bool:
    """Whether computing ``node`` again takes longer than keeping it is worth."""
    if node.target in _PRODUCTS:
        left = _args(node)[_PRODUCTS[node.target]]
        return not isinstance(left, fx.Node) or _value(left).shape[-1] > cheap
    return node.target in _DEAR or getattr(node.target, "namespace", "") not in {"aten", ""}


def _is_number(node: fx.Node) -> bool:
    value = _value(node)
    return not isinstance(value, Tensor | tuple | list)


def _bytes(node: fx.Node, symbol: sympy.Symbol) -> float:
    """Size of a tensor at the nominal batch; a node of several tensors cannot be kept as such."""
    value = _value(node)
    if isinstance(value, tuple | list):
        return _NEVER
    if not isinstance(value, Tensor):
        return 0.0
    sizes = (_size(dimension, symbol) for dimension in value.shape)
    return float(math.prod(sizes) * value.element_size())


def _size(dimension: Any, symbol: sympy.Symbol) -> int:
    if isinstance(dimension, int):
        return dimension
    return int(dimension.node.expr.subs(symbol, _NOMINAL_BATCH))


def _value(node: fx.Node) -> Any:
    return node.meta.get("val")
