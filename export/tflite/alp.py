"""ALP's operators in ordinary ones: the plan by row and column scaling vectors.

Symbols and source: ``protofleet.export.models.alp``. TFLite wants to know in advance how many of
the best rows are taken; the number grows with the batch, so as many as ``MAX_TFLITE_BATCH``
examples need are taken, and those that the batch at hand does not need weigh nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
_LOWEST = -1e30
"""Below every cosine and every squared distance with a minus."""


@rule(torch.ops.onnx_symbolic._symbolic.default)  # noqa: SLF001 - its name
def _alp_infer(low: Lowering, node: fx.Node) -> Result:
    x, prototypes = _tensors(low, node, "AlpInfer", "AlpAblationInfer")
    return _infer(low.basics, x, prototypes, **node_attributes(node))


@rule(torch.ops.onnx_symbolic._symbolic_multi_out.default)  # noqa: SLF001 - its name
def _alp_train(low: Lowering, node: fx.Node) -> Result:
    x, local, global_ = _tensors(low, node, "AlpTrain", "AlpAblationTrain")
    return _train(low.basics, x, local, global_, **node_attributes(node))


def _tensors(low: Lowering, node: fx.Node, *names: str) -> list[Value]:
    inputs, operator = args_of(node)[:2]
    if operator not in names:
        raise ExportError(f"operator '{operator}': expected {' or '.join(names)}")
    return [low.full(tensor) for tensor in inputs]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Match:
    """How rows and prototypes are matched; fields as of ``models.alp.alp_ablation_train``."""

    assignment: str = "transport"
    epsilon: float = 1.0
    iterations: int = 0

    def scores(self, ops: Basics, rows: Value, prototypes: Value) -> Value:
        """How well they fit, (N, P)."""
        if self.assignment == "transport":
            return _plan(ops, rows, prototypes, self.epsilon, self.iterations)
        if self.assignment == "cosine":
            return ops.matmul(_unit(ops, rows), _unit(ops, prototypes), b_transposed=True)
        products = ops.matmul(rows, prototypes, b_transposed=True)
        others = ops.transpose(_squares(ops, prototypes), (1, 0))
        squares = ops.binary("ADD", _squares(ops, rows), others)
        return ops.binary("SUB", ops.binary("ADD", products, products), squares)

    def best(self, ops: Basics, scores: Value, tokens: int) -> Value:
        """The best column of every row; of a single row's plan, where all are equal, the first."""
        if self.assignment == "transport" and tokens == 1:
            several = ops.cast(ops.compare("GREATER", ops.count(), 1.0), F32)
            scores = ops.binary("MUL", scores, several)
        return ops.argmax(scores, 1)


def _infer(ops: Basics, x: Value, prototypes: Value, **how: Any) -> Value:
    rows, match = ops.reshape(x, (_rows(x), x.shape[2])), _Match(**how)
    best = match.best(ops, match.scores(ops, rows, prototypes), x.shape[1])
    return ops.reshape(ops.gather(prototypes, best), x.shape)


def _train(  # noqa: PLR0913 - the operator's arguments
    ops: Basics,
    x: Value,
    local: Value,
    global_: Value,
    *,
    variant: str,
    gamma: float,
    banks: str = "both",
    **how: Any,
) -> tuple[Value, Value]:
    rows, count = ops.reshape(x, (_rows(x), x.shape[2])), local.shape[0]
    match, tokens = _Match(**how), x.shape[1]
    if banks == "both":
        scores = match.scores(ops, rows, ops.concat([local, global_], 0))
        own, shares = ops.slice(scores, 1, 0, count), ops.slice(scores, 1, count, 2 * count)
    else:
        own = shares = match.scores(ops, rows, local if banks == "local" else global_)
    bank = local if banks == "local" else global_
    chosen = ops.reshape(ops.gather(bank, match.best(ops, shares, tokens)), x.shape)
    if variant == "single_code":
        best = match.best(ops, own, tokens)
        return chosen, _single(ops, rows, best, local, gamma)
    plain = match.assignment != "transport"
    return chosen, _bulk(ops, x, rows, own, local, variant=variant, gamma=gamma, plain=plain)


def _rows(x: Value) -> int:
    return x.shape[0] * x.shape[1]


def _squares(ops: Basics, x: Value) -> Value:
    return ops.reduce("SUM", ops.binary("MUL", x, x), [-1], keep=True)


def _unit(ops: Basics, x: Value) -> Value:
    floored = ops.binary("MAXIMUM", _squares(ops, x), _NORM_FLOOR)
    return ops.binary("MUL", x, ops.unary("RSQRT", floored))


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


def _single(ops: Basics, rows: Value, best: Value, local: Value, gamma: float) -> Value:
    """Every row overwrites its best prototype; of colliding rows the last one wins."""
    count = local.shape[0]
    best = ops.reshape(best, (rows.shape[0], 1))
    columns = ops.graph.constant(np.arange(count)[None, :], I64)
    number = ops.running_count(rows.shape[0])
    turns = ops.select(ops.compare("EQUAL", columns, best), number, 0.0)
    last = ops.reduce("REDUCE_MAX", turns, [0])
    writer = ops.cast(ops.binary("MAXIMUM", ops.binary("SUB", last, 1.0), 0.0), I32)
    moved = _moved(ops, local, ops.gather(rows, writer), gamma)
    written = ops.reshape(ops.compare("GREATER", last, 0.0), (count, 1))
    return ops.select(written, moved, local)


def _bulk(  # noqa: PLR0913 - what the update depends on
    ops: Basics,
    x: Value,
    rows: Value,
    scores: Value,
    local: Value,
    *,
    variant: str,
    gamma: float,
    plain: bool,
) -> Value:
    """Every prototype moves towards the rows that fit it best, if ``plain`` to their mean."""
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
    padded = _with_spare(ops, scores, spare, _LOWEST if plain else 0.0)
    by_prototype = ops.transpose(padded, (1, 0))
    k = ops.graph.constant(np.array(most, np.int32), I32)
    weights, best = ops.graph.add_many(
        "TOPK_V2", [by_prototype, k], [((count, most), F32), ((count, most), I32)]
    )
    if plain:
        weights = ops.expand(ops.graph.constant(np.ones((1, most)), F32), (count, most))
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


def _with_spare(ops: Basics, x: Value, spare: int, fill: float = 0.0) -> Value:
    """Rows of ``fill`` behind those of ``x``, so that a small batch has as many as are taken."""
    if not spare:
        return x
    filled = ops.graph.constant(np.full((spare, 1), fill))
    more = ops.expand(filled, (spare, x.shape[1]))
    # The first axis grows with the batch, but not in proportion; only its growing is used.
    return ops.graph.add("CONCATENATION", [x, more], (x.shape[0] - spare, x.shape[1]), axis=0)


def _moved(ops: Basics, local: Value, target: Value, gamma: float) -> Value:
    return ops.binary("ADD", ops.binary("MUL", local, gamma), ops.binary("MUL", target, 1 - gamma))
