"""Aggregation rules: how the server makes one vector of its clients', one file each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from protofleet.errors import InputError
from protofleet.strategies.aggregation import (
    centred_clipping,
    exact_mean,
    geometric_median,
    krum,
    mean,
    median,
    trimmed_mean,
)
from protofleet.strategies.aggregation.aggregator import Aggregator, Terms, TermsReader
from protofleet.strategies.aggregation.clipping import Clipped, clipped
from protofleet.strategies.aggregation.mean import MEAN

__all__ = [
    "AGGREGATORS",
    "MEAN",
    "Aggregator",
    "Clipped",
    "Terms",
    "TermsReader",
    "build",
    "clipped",
]

AGGREGATORS: dict[str, Callable[[Mapping[str, Any]], Aggregator]] = {
    "centred_clipping": centred_clipping.build,
    "exact_mean": exact_mean.build,
    "geometric_median": geometric_median.build,
    "krum": krum.build,
    "mean": mean.build,
    "median": median.build,
    "multi_krum": krum.build_multi,
    "trimmed_mean": trimmed_mean.build,
}
"""Factories by name: each takes the rule's settings."""


def build(name: str, settings: Mapping[str, Any]) -> Aggregator:
    """The aggregation rule ``name``.

    Args:
        name: key of ``AGGREGATORS``.
        settings: what differs from the rule's defaults.

    Raises:
        InputError: unknown name or setting, or a wrong value.
    """
    if name not in AGGREGATORS:
        known = ", ".join(sorted(AGGREGATORS))
        raise InputError(f"aggregation '{name}': unknown; expected one of {known}")
    return AGGREGATORS[name](settings)
