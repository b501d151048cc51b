"""Scores of a round and of a run, from the statistics that clients report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np

from protofleet.federation.records import Metrics, Scores, Spread
from protofleet.strategies.scores import MetricName, MetricValues, Statistics
from protofleet.strategies.tasks import METRICS, TASKS, LearningTask, defined
from protofleet.strategies.types import Evaluation
from protofleet.tensors import TaskName

_MOST_NAMES = 8
"""Further scores of a round; clients choose the names, and one may invent any number of them."""
_MOST_EXAMPLES = 10.0
"""Times the median number of test examples: a client states its own, and could outvote all."""


def round_scores(
    evaluations: Iterable[Evaluation],
    server: Statistics | None,
    *,
    task: TaskName = "classification",
    targets: Sequence[str] = (),
) -> Scores:
    """Mean and population standard deviation of the clients' scores, and the server's score.

    ``personalisation`` is each client's model on its own test part, with ``sample_…`` over all
    clients' test samples alike (``sample_accuracy`` is FedALA's score); ``generalisation`` the
    same model on the union of all test parts; ``own_loss`` the mean of the clients' mean losses;
    ``more`` the eight further scores that most clients have. Clients without examples, and those
    for which a score is not defined, are left out of it.

    Args:
        evaluations: of the participants' own models.
        server: statistics of the server's model on the pooled test part.
        task: what form the statistics have.
        targets: names of targets or labels.
    """
    evaluations, kind = tuple(evaluations), TASKS[task]
    losses = [one.own_loss for one in evaluations if math.isfinite(one.own_loss)]
    own = [one.own for one in evaluations if one.own is not None and one.own.any()]
    return Scores(
        task=task,
        personalisation=_metrics(kind, own, over_samples=True),
        generalisation=_metrics(kind, (one.pooled for one in evaluations)),
        own_loss=_spread(losses),
        more=_further(kind, evaluations),
        targets=_of_targets(kind, own, targets),
        global_=_metrics(kind, [server]),
    )


def run_scores(rounds: Iterable[Scores], final: Scores | None = None) -> Scores:
    """Scores of a run: those of its best round, ties to the earlier one.

    The best round has the largest mean accuracy; without classes, the smallest mean RMSE or the
    largest mean macro-F1 (``LearningTask.selects``). The clients' scores all come from the round
    that is best on their own test parts, or from the final fit where there was one; the server's
    model has its own best round.
    """
    rounds = list(rounds)
    task = rounds[0].task if rounds else "classification"
    owned = [one for one in rounds if one.personalisation]
    best = final or max(
        owned,
        key=lambda one: _quality(TASKS[task], one.personalisation),
        default=Scores(task=task),
    )
    scored = (one.global_ for one in rounds)
    return msgspec.structs.replace(
        best, global_=max(scored, key=lambda one: _quality(TASKS[task], one), default=None)
    )


def last_scores(rounds: Iterable[Scores], final: Scores | None = None) -> Scores:
    """Scores of a run as each section was scored last, in the final fit where there was one.

    The server's model is that of the rounds, because a final fit is not aggregated.
    """
    found = Scores()
    for scores in rounds:
        scored = {name: value for name, value in msgspec.structs.asdict(scores).items() if value}
        found = msgspec.structs.replace(found, **scored)
    return run_scores([found], final)


def _quality(task: LearningTask, metrics: Metrics | None) -> float:
    """The selecting score, larger for better models."""
    found = metrics.get(task.selects) if metrics else None
    if found is None:
        return -math.inf
    return -found.mean if METRICS[task.selects].lower_is_better else found.mean


def _metrics(
    task: LearningTask, tables: Iterable[Statistics | None], *, over_samples: bool = False
) -> Metrics | None:
    """Scores of models on test parts that have examples; None if none has."""
    known = [table for table in tables if table is not None and table.any()]
    if not known:
        return None
    each = [task.score(table) for table in known]
    columns = {name: [one[name] for one in each] for name in task.metrics}
    if over_samples:
        together = task.score(_sum(_believed(task, known)))
        columns |= {alike: [together[name]] for name, alike in task.over_samples.items()}
    return _spreads(columns)


def _spreads(columns: Mapping[MetricName, list[float]]) -> Metrics:
    found = {
        name: _spread([value for value in values if not math.isnan(value)])
        for name, values in columns.items()
    }
    return {name: spread for name, spread in found.items() if spread is not None}


def _further(task: LearningTask, evaluations: tuple[Evaluation, ...]) -> dict[str, Metrics]:
    having = Counter(name for one in evaluations for name in one.more)
    names = sorted(having, key=lambda name: (-having[name], name))[:_MOST_NAMES]
    found = {
        name: _metrics(task, (one.more.get(name) for one in evaluations)) for name in sorted(names)
    }
    return {name: metrics for name, metrics in found.items() if metrics is not None}


def _of_targets(
    task: LearningTask, own: list[Statistics], targets: Sequence[str]
) -> dict[str, MetricValues]:
    if not own or not task.each:
        return {}
    each = task.score_each(_sum(_believed(task, own)))
    return {target: defined(one) for target, one in zip(targets, each, strict=True)}


def _believed(task: LearningTask, tables: list[Statistics]) -> list[Statistics]:
    """Tables that count for no more examples than a multiple of the median table."""
    sizes = [task.size(table) for table in tables]
    most = _MOST_EXAMPLES * float(np.median(sizes))
    return [
        table if size <= most else (table * (most / size)).astype(table.dtype)
        for table, size in zip(tables, sizes, strict=True)
    ]


def _sum(tables: list[Statistics]) -> Statistics:
    return np.asarray(np.sum(tables, axis=0))


def _spread(values: list[float]) -> Spread | None:
    if not values:
        return None
    return Spread(mean=float(np.mean(values)), std=float(np.std(values)), n=len(values))
