"""ALP's operators in ordinary ones: the plan by row and column scaling vectors.

Symbols and source: ``protofleet.export.models.alp``. TFLite wants to know in advance how many of
the best rows are taken; the number grows with the batch, so as many as ``MAX_TFLITE_BATCH``
examples need are taken, and those that the batch at hand does not need weigh nothing.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import fx

from protofleet.bundle.manifest import MAX_TFLITE_BATCH
from protofleet.errors import ExportError
from protofleet.export.capture.alp_nodes import node_attributes
from protofleet.export.tflite.basics import Basics
from protofleet.export.tflite.graph import F32, I32, I64, Value
from protofleet.export.tflite.lower import Lowering, Result, args_of, rule

_NORM_FLOOR = 1e-12


@rule(torch.ops.onnx_symbolic._symbolic.default)  # noqa: SLF001 - its name
def _alp_infer(low: Lowering, node: fx.Node) -> Result:
    x, local = _tensors(low, node, "AlpInfer")
    return _infer(low.basics, x, local, **node_attributes(node))


@rule(torch.ops.onnx_symbolic._symbolic_multi_out.default)  # noqa: SLF001 - its name
def _alp_train(low: Lowering, node: fx.Node) -> Result:
    x, local, global_ = _tensors(low, node, "AlpTrain")
    return _train(low.basics, x, local, global_, **node_attributes(node))


def _tensors(low: Lowering, node: fx.Node, name: str) -> list[Value]:
    inputs, operator = args_of(node)[:2]
    if operator != name:
        raise ExportError(f"operator '{operator}': expected {name}")
    return [low.full(tensor) for tensor in inputs]


def _infer(ops: Basics, x: Value, local: Value, *, epsilon: float, iterations: int) -> Value:
    rows = ops.reshape(x, (_rows(x), x.shape[2]))
    plan = _plan(ops, rows, local, epsilon, iterations)
    return ops.reshape(ops.gather(local, ops.argmax(plan, 1)), x.shape)


def _train(  # noqa: PLR0913 - the operator's arguments
    ops: Basics,
    x: Value,
    local: Value,
    global_: Value,
    *,
    variant: str,
    gamma: float,
    epsilon: float,
    iterations: int,
) -> tuple[Value, Value]:
    rows, count = ops.reshape(x, (_rows(x), x.shape[2])), local.shape[0]
    plan = _plan(ops, rows, ops.concat([local, global_], 0), epsilon, iterations)
    shares = ops.slice(plan, 1, count, plan.shape[1])
    chosen = ops.reshape(ops.gather(global_, ops.argmax(shares, 1)), x.shape)
    own = ops.slice(plan, 1, 0, count)
    if variant == "single_code":
        return chosen, _single(ops, rows, own, local, gamma)
    return chosen, _bulk(ops, x, rows, own, local, variant=variant, gamma=gamma)


def _rows(x: Value) -> int:
    return x.shape[0] * x.shape[1]


def _unit(ops: Basics, x: Value) -> Value:
    squares = ops.reduce("SUM", ops.binary("MUL", x, x), [-1], keep=True)
    return ops.binary("MUL", x, ops.unary("RSQRT", ops.binary("MAXIMUM", squares, _NORM_FLOOR)))


def _plan(ops: Basics, rows: Value, prototypes: Value, epsilon: float, iterations: int) -> Value:
    """The plan (N, P): rows first, columns last."""
    cosines = ops.matmul(_unit(ops, rows), _unit(ops, prototypes), b_transposed=True)
    kernel = ops.unary("EXP", ops.binary("DIV", cosines, epsilon))
    row: Value | None = None
    column: Value | None = None
    for _ in range(iterations):
        shared = kernel if column is None else ops.binary("MUL", kernel, column)
        row = ops.binary("DIV", 1.0, ops.reduce("SUM", shared, [1], keep=True))
        column = ops.binary(
            "DIV", 1.0, ops.reduce("SUM", ops.binary("MUL", kernel, row), [0], keep=True)
        )
    for scale in (row, column):
        kernel = kernel if scale is None else ops.binary("MUL", kernel, scale)
    return kernel


def _single(ops: Basics, rows: Value, plan: Value, local: Value, gamma: float) -> Value:
    """Every row overwrites its best prototype; of colliding rows the last one wins."""
    count = local.shape[0]
    best = ops.reshape(ops.argmax(plan, 1), (rows.shape[0], 1))
    columns = ops.graph.constant(np.arange(count)[None, :], I64)
    number = ops.running_count(rows.shape[0])
    turns = ops.select(ops.compare("EQUAL", columns, best), number, 0.0)
    last = ops.reduce("REDUCE_MAX", turns, [0])
    writer = ops.cast(ops.binary("MAXIMUM", ops.binary("SUB", last, 1.0), 0.0), I32)
    moved = _moved(ops, local, ops.gather(rows, writer), gamma)
    written = ops.reshape(ops.compare("GREATER", last, 0.0), (count, 1))
    return ops.select(written, moved, local)


def _bulk(  # noqa: PLR0913 - what the update depends on
    ops: Basics, x: Value, rows: Value, plan: Value, local: Value, *, variant: str, gamma: float
) -> Value:
    """Every prototype moves towards the rows that its plan column weighs most."""
    count, tokens = local.shape[0], x.shape[1]
    if variant == "bulk_code":
        # The reference counts samples, the paper tokens.
        most = max(1, MAX_TFLITE_BATCH // count)
        number = ops.unary("FLOOR", ops.binary("DIV", ops.count(), float(count)))
    else:
        most = -(-MAX_TFLITE_BATCH * tokens // count)
        tokens_in_all = ops.binary("MUL", ops.count(), float(tokens))
        number = ops.unary("CEIL", ops.binary("DIV", tokens_in_all, float(count)))
    spare = max(0, most - tokens)
    by_prototype = ops.transpose(_with_spare(ops, plan, spare), (1, 0))
    k = ops.graph.constant(np.array(most, np.int32), I32)
    weights, best = ops.graph.add_many(
        "TOPK_V2", [by_prototype, k], [((count, most), F32), ((count, most), I32)]
    )
    if most > 1:
        turns = ops.graph.constant(np.arange(most)[None, :], F32)
        needed = ops.compare("LESS", turns, ops.binary("MAXIMUM", number, 1.0))
        weights = ops.select(needed, weights, 0.0)
    if variant == "paper_pseudo":
        rows = _unit(ops, rows)
    else:
        weights = ops.binary("DIV", weights, ops.reduce("SUM", weights, [1], keep=True))
    members = ops.gather(_with_spare(ops, rows, spare), best)
    pulled = ops.matmul(ops.reshape(weights, (count, 1, most)), members)
    return _moved(ops, local, ops.reshape(pulled, local.shape), gamma)


def _with_spare(ops: Basics, x: Value, spare: int) -> Value:
    """Zero rows behind those of ``x``, so that a small batch has as many as are taken."""
    if not spare:
        return x
    zeros = ops.graph.constant(np.zeros((spare, 1)))
    more = ops.expand(zeros, (spare, x.shape[1]))
    # The first axis grows with the batch, but not in proportion; only its growing is used.
    return ops.graph.add("CONCATENATION", [x, more], (x.shape[0] - spare, x.shape[1]), axis=0)


def _moved(ops: Basics, local: Value, target: Value, gamma: float) -> Value:
    return ops.binary("ADD", ops.binary("MUL", local, gamma), ops.binary("MUL", target, 1 - gamma))
