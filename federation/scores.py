"""Scores of a round and of a run, from the confusion counts that clients report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.federation.records import Metrics, Scores, Spread
from protofleet.strategies.scores import accuracy, macro_f1
from protofleet.strategies.types import Evaluation

_Counts = NDArray[np.int64]

_MOST_NAMES = 8
"""Further scores of a round; clients choose the names, and one may invent any number of them."""


def round_scores(evaluations: Iterable[Evaluation], server: _Counts | None) -> Scores:
    """Mean and population standard deviation of the clients' scores, and the server's score.

    ``personalisation`` is each client's model on its own test part, with ``sample_accuracy`` over
    all clients' test samples alike (FedALA's score); ``generalisation`` the same model on the union
    of all test parts; ``own_loss`` the mean of the clients' mean losses; ``more`` the eight further
    scores that most clients have. Clients without examples are left out.

    Args:
        evaluations: of the participants' own models.
        server: confusion counts ``(C, C) int64`` of the server's model on the pooled test part.
    """
    evaluations = tuple(evaluations)
    losses = [one.own_loss for one in evaluations if math.isfinite(one.own_loss)]
    own = [one.own for one in evaluations if one.own is not None]
    return Scores(
        personalisation=_metrics(own, sample_accuracy=True),
        generalisation=_metrics(one.pooled for one in evaluations),
        own_loss=_spread(losses) if losses else None,
        more=_further(evaluations),
        global_=_metrics([server]),
    )


def run_scores(rounds: Iterable[Scores], final: Scores | None = None) -> Scores:
    """Scores of a run: those of its best round, by mean accuracy, ties to the earlier one.

    The clients' scores all come from the round that is best on their own test parts, or from the
    final fit where there was one; the server's model has its own best round.
    """
    rounds = list(rounds)
    owned = [one for one in rounds if one.personalisation]
    best = final or max(owned, key=lambda one: _mean(one.personalisation), default=Scores())
    return msgspec.structs.replace(
        best, global_=max((one.global_ for one in rounds), key=_mean, default=None)
    )


def _mean(metrics: Metrics | None) -> float:
    return metrics.accuracy.mean if metrics else -math.inf


def _metrics(tables: Iterable[_Counts | None], *, sample_accuracy: bool = False) -> Metrics | None:
    """Scores of models on test parts that have examples; None if none has."""
    counts = [table for table in tables if table is not None and table.any()]
    if not counts:
        return None
    right = sum(int(np.trace(table)) for table in counts)
    total = sum(int(table.sum()) for table in counts)
    return Metrics(
        macro_f1=_spread([macro_f1(table) for table in counts]),
        accuracy=_spread([accuracy(table) for table in counts]),
        sample_accuracy=_spread([right / total]) if sample_accuracy else None,
    )


def _further(evaluations: tuple[Evaluation, ...]) -> dict[str, Metrics]:
    having = Counter(name for one in evaluations for name in one.more)
    names = sorted(having, key=lambda name: (-having[name], name))[:_MOST_NAMES]
    found = {name: _metrics(one.more.get(name) for one in evaluations) for name in sorted(names)}
    return {name: metrics for name, metrics in found.items() if metrics is not None}


def _spread(values: list[float]) -> Spread:
    return Spread(mean=float(np.mean(values)), std=float(np.std(values)))
