"""Which updates are let in: every rule that bytes from a device must keep, in order of cost.

Size and hash were checked by the transfer before; here come blob, record, identity, names, shapes,
dtypes, finite numbers and their norm, the class counts behind it, and the strategy's own rules.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from protofleet.errors import RefusedError
from protofleet.federation.coding import DecodedUpdate
from protofleet.federation.plan import Plan
from protofleet.strategies.types import ClientTools, Evaluation, TrainTools, Update
from protofleet.tensors import Tensors
from protofleet.tensors.blobs import check_finite

_MOST_SCORES = 8
_MOST_CHARS = 64
_NAME = re.compile(rf"[A-Za-z0-9 ._-]{{1,{_MOST_CHARS}}}")
_MOST_LOSS = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedUpdate:
    """What an update must look like.

    Attributes:
        tensors: name → shape and dtype.
        rows: tensors whose first axis may have any length.
        may_abstain: whether an update without tensors is one.
        class_counts: whether clients must have registered theirs.
        check: the strategy's own rules.
        num_classes: C of the confusion counts.
        max_bytes: largest update.
        max_norm: largest Euclidean norm of a tensor.
    """

    tensors: Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]
    rows: frozenset[str]
    may_abstain: bool
    class_counts: bool
    check: Callable[[Update], None]
    num_classes: int
    max_bytes: int
    max_norm: float


def expect_updates(plan: Plan, input_shape: tuple[int, ...]) -> ExpectedUpdate:
    """Find out what the strategy sends up: run its client's half with no examples, once."""
    strategy, model, limits = plan.strategy, plan.model, plan.config.limits
    tools = ClientTools(
        client_id="",
        training=TrainTools(
            name="",
            x=np.zeros((0, *input_shape), np.float32),
            y=np.zeros(0, np.int64),
            grad_fns=dict.fromkeys(strategy.description.programs, _never),
            rng=np.random.default_rng(0),
        ),
        predict=_never,
        features=_never,
        layers=_never,
        evaluate=_unscored,
        confusion=_uncounted,
    )
    payload = strategy.downlink(plan.server_init(), "")
    _, update = strategy.client_update(strategy.client_init(model), payload, tools)
    return ExpectedUpdate(
        tensors={name: (value.shape, value.dtype) for name, value in update.tensors.items()},
        rows=frozenset(strategy.description.rows),
        may_abstain=strategy.description.may_abstain,
        class_counts=strategy.description.class_counts,
        check=strategy.check,
        num_classes=model.num_classes,
        max_bytes=limits.update_bytes,
        max_norm=limits.update_norm,
    )


def admit(
    decoded: DecodedUpdate, expected: ExpectedUpdate, *, client_id: str, round_id: int
) -> None:
    """Check a complete update.

    Args:
        decoded: from ``decode_update``, with the class counts that its client has registered.
        expected: from ``expect_updates``.
        client_id: whose topic it came on.
        round_id: the round its offer names.

    Raises:
        RefusedError: a rule is broken; the update must not be used.
    """
    update = decoded.update
    if (update.client_id, update.round_id) != (client_id, round_id):
        raise RefusedError(
            "identity",
            f"update of '{client_id}' for round {round_id}: its record names "
            f"'{update.client_id}' and round {update.round_id}",
        )
    _check_tensors(update.tensors, expected)
    _check_evaluation(update.evaluation, expected.num_classes)
    check_finite(update.tensors)
    _check_norms(update.tensors, expected.max_norm)
    if expected.class_counts:
        _check_counts(update)
    expected.check(update)


def _check_counts(update: Update) -> None:
    counts = update.class_counts
    registered = None if counts is None else int(counts.sum())
    if update.num_examples != registered:
        raise RefusedError(
            "class-counts",
            f"update of '{update.client_id}': expected num_examples to be the sum of its "
            f"registered class counts, {registered}, got {update.num_examples}",
        )


def _check_evaluation(evaluation: Evaluation, num_classes: int) -> None:
    if len(evaluation.more) > _MOST_SCORES:
        raise RefusedError(
            "evaluation",
            f"evaluation: expected at most {_MOST_SCORES} further scores, "
            f"got {len(evaluation.more)}",
        )
    for name in evaluation.more:
        if not _NAME.fullmatch(name):
            raise RefusedError(
                "evaluation",
                f"evaluation: expected a score's name of 1 to {_MOST_CHARS} characters of "
                f"A-Z a-z 0-9 space . _ -, got {name[:_MOST_CHARS]!r}",
            )
    if not (math.isnan(evaluation.own_loss) or 0 <= evaluation.own_loss <= _MOST_LOSS):
        raise RefusedError(
            "evaluation",
            f"evaluation: expected own_loss of 0 to {_MOST_LOSS:g}, got {evaluation.own_loss:g}",
        )
    every = {"own": evaluation.own, "pooled": evaluation.pooled, **evaluation.more}
    for name, counts in every.items():
        if counts is not None and len(counts) != num_classes:
            raise RefusedError(
                "evaluation",
                f"evaluation '{name}': expected {num_classes} classes, got {len(counts)}",
            )


def _check_tensors(tensors: Tensors, expected: ExpectedUpdate) -> None:
    if expected.may_abstain and not tensors:
        return
    surplus = tensors.keys() - expected.tensors.keys()
    if surplus:
        raise RefusedError("layout", f"tensor '{min(surplus)}': the strategy expects no such name")
    for name, (shape, dtype) in expected.tensors.items():
        if name not in tensors:
            raise RefusedError("layout", f"tensor '{name}': expected {shape} {dtype}, got nothing")
        got = tensors[name]
        start = 1 if name in expected.rows else 0
        same = got.ndim == len(shape) and got.shape[start:] == shape[start:]
        if not same or got.dtype != dtype:
            raise RefusedError(
                "layout",
                f"tensor '{name}': expected {shape} {dtype}, got {got.shape} {got.dtype}",
            )


def _check_norms(tensors: Tensors, limit: float) -> None:
    """Keep numbers out whose squares or sums overflow: they would make the next state infinite."""
    for name, value in tensors.items():
        if value.dtype.kind != "f":
            continue
        flat = value.reshape(-1).astype(np.result_type(value, np.float32), copy=False)
        with np.errstate(over="ignore"):
            norm = math.sqrt(float(np.dot(flat, flat)))
        if norm > limit:
            raise RefusedError(
                "norm", f"tensor '{name}': expected a norm of at most {limit:g}, got {norm:g}"
            )


def _never(*_: object, **__: object) -> Any:
    raise RuntimeError("a client without examples called a program")


def _unscored(*_: object, **__: object) -> Evaluation:
    return Evaluation()


def _uncounted(*_: object, **__: object) -> None:
    return None
