"""Trimmed mean: of every number the f smallest and the f largest go, and the others are averaged.

Source: Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates" (arXiv:1803.01498), definition 2. While at most f of n clients lie, f below n/2,
each number stays within what the others sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.strategies.aggregation.aggregator import Aggregator, Rows
from protofleet.strategies.aggregation.mixing import mixed
from protofleet.strategies.aggregation.robust import RobustSettings, by_coordinates
from protofleet.strategies.settings import parse_record


def build(settings: Mapping[str, Any]) -> Aggregator:
    """The trimmed mean.

    Raises:
        InputError: unknown setting, wrong type, or no such number of liars.
    """
    chosen = parse_record("aggregation 'trimmed_mean'", settings, RobustSettings)
    return mixed(by_coordinates("trimmed_mean", partial(_reduce, chosen)), chosen)


def _reduce(settings: RobustSettings, values: Rows) -> NDArray[np.float64]:
    trimmed = settings.count(len(values))
    sorted_ = np.sort(values.T, axis=1)
    means: NDArray[np.float64] = sorted_[:, trimmed : len(values) - trimmed].mean(
        axis=1, dtype=np.float64
    )
    return means
