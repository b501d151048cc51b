"""Weighted mean: each client counts by its weight, usually its number of examples.

Sums run in float64 in the order of the clients; each result is rounded to float32 once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.kernels import WeightedMean
from protofleet.strategies.aggregation.aggregator import Aggregator, Rows, RowsTerm, Terms, Vector
from protofleet.strategies.settings import parse_record


class MeanSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The mean has none."""


def build(settings: Mapping[str, Any]) -> Aggregator:
    """The mean.

    Raises:
        InputError: a setting.
    """
    parse_record("aggregation 'mean'", settings, MeanSettings)
    return MEAN


def _combine(old: Vector, terms: Terms) -> Vector | None:
    mean = WeightedMean(old.size)
    mean.add_all(terms)
    return mean.result() if mean.weight else None


def _combine_measured(old: Vector, terms: Terms) -> tuple[Vector | None, NDArray[np.float64]]:
    mean = WeightedMean(old.size)
    distances = mean.add_all_measured(terms, old)
    return (mean.result() if mean.weight else None), distances


def _combine_rows(old: Rows, terms: Iterable[RowsTerm]) -> Rows:
    total, weight = np.zeros(old.shape, np.float64), np.zeros(len(old), np.float64)
    for rows, weights in terms:
        held = weights > 0
        total[held] += weights[held, None] * rows[held].astype(np.float64)
        weight += weights
    merged = old.copy()
    held = weight > 0
    merged[held] = total[held] / weight[held, None]
    return merged


MEAN = Aggregator(
    name="mean",
    incremental=True,
    combine=_combine,
    combine_rows=_combine_rows,
    combine_measured=_combine_measured,
)
