"""Weighted mean by exact sums: neither the order of the clients nor cells change a bit.

The float64 sums of ``mean.py`` depend in their last bits on how clients are grouped. Here sums are
exact (``kernels.ExactSum``) and are rounded once, which takes about three times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from protofleet.kernels import ExactSum
from protofleet.strategies.aggregation.aggregator import Aggregator, Terms, Vector
from protofleet.strategies.settings import parse_record


class ExactMeanSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The exact mean has none."""


def build(settings: Mapping[str, Any]) -> Aggregator:
    """The exact mean.

    Raises:
        InputError: a setting.
    """
    parse_record("aggregation 'exact_mean'", settings, ExactMeanSettings)
    return Aggregator(name="exact_mean", incremental=True, combine=_combine)


def _combine(old: Vector, terms: Terms) -> Vector | None:
    total = ExactSum(old.size)
    total.add_all(terms)
    return total.mean() if total.weight else None
