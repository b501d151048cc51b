"""Which updates are let in: every rule that bytes from a device must keep, in order of cost.

Size and hash were checked by the transfer before; here come blob, record, identity, names, shapes,
dtypes, finite numbers and their norm, the class counts behind it, and the strategy's own rules.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from protofleet.coordinator.plan import Plan
from protofleet.errors import RefusedError
from protofleet.strategies.types import Evaluation, Update, Uplink
from protofleet.strategies.updates import UpdateRecord, unpack_update
from protofleet.tensors import Tensors
from protofleet.tensors.blobs import check_finite

_MOST_SCORES = 8
_MOST_CHARS = 64
_NAME = re.compile(rf"[A-Za-z0-9 ._-]{{1,{_MOST_CHARS}}}")
_MOST_LOSS = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What an update must look like.

    Attributes:
        uplink: names, shapes and dtypes of its tensors.
        class_counts: whether clients must have registered theirs.
        check: the strategy's own rules.
        num_classes: C of the confusion counts.
        max_bytes: largest update.
        max_norm: largest Euclidean norm of a tensor.
    """

    uplink: Uplink
    class_counts: bool
    check: Callable[[Update], None]
    num_classes: int
    max_bytes: int
    max_norm: float


def expect_updates(plan: Plan) -> Expected:
    """What the strategy and the limits of a plan say of updates."""
    strategy, limits = plan.strategy, plan.config.limits
    return Expected(
        uplink=strategy.uplink,
        class_counts=strategy.description.class_counts,
        check=strategy.check,
        num_classes=plan.model.num_classes,
        max_bytes=limits.update_bytes,
        max_norm=limits.update_norm,
    )


def admit(
    data: bytes,
    expected: Expected,
    *,
    client_id: str,
    round_id: int,
    class_counts: tuple[int, ...] | None = None,
) -> UpdateRecord:
    """Check a complete update.

    Args:
        data: the transferred blob.
        expected: from ``expect_updates``.
        client_id: whose topic it came on.
        round_id: the round its manifest names.
        class_counts: what the client has registered; None: nothing.

    Raises:
        RefusedError: a rule is broken; the update must not be used.
    """
    update, record = unpack_update(data, max_bytes=expected.max_bytes)
    if (record.client_id, record.round_id) != (client_id, round_id):
        raise RefusedError(
            "identity",
            f"update of '{client_id}' for round {round_id}: its record names "
            f"'{record.client_id}' and round {record.round_id}",
        )
    expected.uplink.check(update.tensors)
    _check_evaluation(update.evaluation, expected.num_classes)
    check_finite(update.tensors)
    _check_norms(update.tensors, expected.max_norm)
    if expected.class_counts:
        update = _with_counts(update, class_counts)
    expected.check(update)
    return record


def _with_counts(update: Update, class_counts: tuple[int, ...] | None) -> Update:
    registered = None if class_counts is None else sum(class_counts)
    if class_counts is None or update.num_examples != registered:
        raise RefusedError(
            "class-counts",
            f"update of '{update.client_id}': expected num_examples to be the sum of its "
            f"registered class counts, {registered}, got {update.num_examples}",
        )
    return replace(update, class_counts=np.array(class_counts, np.int64))


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
