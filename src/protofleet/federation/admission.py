"""Which updates are let in: every rule that bytes from a device must keep, in order of cost.

Size and hash were checked by the transfer before, names, shapes and dtypes when it was decoded;
here come identity, evaluation, finite numbers and their norm, the class counts behind it, and the
strategy's own rules.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from protofleet.errors import RefusedError
from protofleet.federation.client_limits import Norms, measured
from protofleet.federation.coding import DecodedUpdate, largest_blob
from protofleet.federation.plan import Plan
from protofleet.strategies.tasks import TASKS, LearningTask
from protofleet.strategies.types import Evaluation, TensorSchemas, Update
from protofleet.tensors import Tensors
from protofleet.tensors.blobs import check_finite

_MOST_SCORES = 8
_MOST_CHARS = 64
_NAME = re.compile(rf"[A-Za-z0-9 ._-]{{1,{_MOST_CHARS}}}")
_TAKEN = frozenset({"personalisation", "generalisation", "global"})
_MOST_LOSS = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedUpdate:
    """What an update must look like.

    Attributes:
        uplink: names, shapes and dtypes of its tensors.
        class_counts: whether clients must have registered theirs.
        check: the strategy's own rules.
        task: what form an evaluation's statistics have.
        outputs: number of classes, targets or labels.
        max_bytes: largest update.
        max_norm: largest Euclidean norm of a tensor.
    """

    uplink: TensorSchemas
    class_counts: bool
    check: Callable[[Update], None]
    task: LearningTask
    outputs: int
    max_bytes: int
    max_norm: float


def expect_updates(plan: Plan) -> ExpectedUpdate:
    """What the strategy and the limits of a plan say of updates."""
    strategy, limits = plan.strategy, plan.config.limits
    return ExpectedUpdate(
        uplink=strategy.uplink,
        class_counts=strategy.description.class_counts,
        check=strategy.check,
        task=TASKS[plan.model.task],
        outputs=len(plan.bundle.manifest.outputs),
        max_bytes=limits.update_bytes or largest_blob(strategy.uplink),
        max_norm=limits.update_norm,
    )


def admit(
    decoded: DecodedUpdate,
    expected: ExpectedUpdate,
    *,
    client_id: str,
    round_id: int,
    baseline: Tensors,
) -> dict[str, float]:
    """Check a complete update.

    Args:
        decoded: from ``decode_update``, read with the forms of ``expected`` and with the class
            counts that its client has registered.
        expected: from ``expect_updates``.
        client_id: whose topic it came on.
        round_id: the round its offer names.
        baseline: what its client started from.

    Raises:
        RefusedError: a rule is broken; the update must not be used.

    Returns:
        Norms of its differences, as ``claims.difference_norms`` has them.
    """
    update = decoded.update
    if (update.client_id, update.round_id) != (client_id, round_id):
        raise RefusedError(
            "identity",
            f"update of '{client_id}' for round {round_id}: its record names "
            f"'{update.client_id[:_MOST_CHARS]}' and round {update.round_id}",
        )
    _check_evaluation(update.evaluation, expected)
    differences, norms = measured(update.tensors, baseline)
    _check_numbers(update.tensors, norms, expected.max_norm)
    if expected.class_counts:
        _check_counts(update)
    expected.check(update)
    return differences


def _check_counts(update: Update) -> None:
    counts = update.class_counts
    registered = None if counts is None else int(counts.sum())
    if update.num_examples != registered:
        raise RefusedError(
            "class-counts",
            f"update of '{update.client_id}': expected num_examples to be the sum of its "
            f"registered class counts, {registered}, got {update.num_examples}",
        )


def _check_evaluation(evaluation: Evaluation, expected: ExpectedUpdate) -> None:
    if len(evaluation.more) > _MOST_SCORES:
        raise RefusedError(
            "evaluation",
            f"evaluation: expected at most {_MOST_SCORES} further scores, "
            f"got {len(evaluation.more)}",
        )
    for name in evaluation.more:
        if name in _TAKEN:
            raise RefusedError(
                "evaluation", f"evaluation '{name}': expected another name for a further score"
            )
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
    # Pairs: a further score may be called as one of these, and must not hide it.
    every = (
        ("own", evaluation.own),
        ("start", evaluation.start),
        ("pooled", evaluation.pooled),
        *evaluation.more.items(),
    )
    for name, statistics in every:
        if statistics is not None:
            expected.task.check(f"evaluation '{name}'", statistics, expected.outputs)


def _check_numbers(tensors: Tensors, norms: Norms, limit: float) -> None:
    """Every number is finite, and no tensor so long that its squares or sums overflow.

    Those would make the next state infinite.
    """
    if not all(map(math.isfinite, norms.values())):
        check_finite(tensors)  # else they are, as a norm is not where one of its numbers is not
    for name in tensors:
        if name in norms and norms[name] > limit:
            raise RefusedError(
                "norm",
                f"tensor '{name}': expected a norm of at most {limit:g}, got {norms[name]:g}",
            )
