"""Krum: the client nearest to its neighbours; multi-Krum: the mean of the n - f nearest to theirs.

Source: Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine Learning with Adversaries: Byzantine
Tolerant Gradient Descent" (NeurIPS 2017), section 4. A client's score is the sum of its squared
distances to its neighbours; the lowest wins, of equal ones the lower client.

Deviation: neighbours are the n - f - 1 nearest others, as in later work of the same group
(arXiv:2302.01772) and in ByzFL, not n - f - 2: f below n/2 then suffices.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.strategies.aggregation.aggregator import Aggregator
from protofleet.strategies.aggregation.mixing import mixed
from protofleet.strategies.aggregation.robust import RobustSettings, Squares, by_distances
from protofleet.strategies.settings import parse_record


def build(settings: Mapping[str, Any]) -> Aggregator:
    """Krum.

    Raises:
        InputError: unknown setting, wrong type, or no such number of liars.
    """
    return _build("krum", settings, _nearest_one)


def build_multi(settings: Mapping[str, Any]) -> Aggregator:
    """Multi-Krum.

    Raises:
        InputError: as in ``build``.
    """
    return _build("multi_krum", settings, _nearest)


def _build(name: str, settings: Mapping[str, Any], weigh: Any) -> Aggregator:
    chosen = parse_record(f"aggregation '{name}'", settings, RobustSettings)
    return mixed(by_distances(name, partial(weigh, chosen)), chosen)


def _nearest_one(settings: RobustSettings, squares: Squares) -> NDArray[np.float64]:
    return _chosen(squares, settings.count(len(squares) - 1), 1)


def _nearest(settings: RobustSettings, squares: Squares) -> NDArray[np.float64]:
    liars = settings.count(len(squares) - 1)
    return _chosen(squares, liars, len(squares) - 1 - liars)


def _chosen(squares: Squares, liars: int, count: int) -> NDArray[np.float64]:
    """Equal coefficients for the ``count`` clients of the lowest scores."""
    apart = np.sort(squares[1:, 1:], axis=1)
    scores = apart[:, 1 : len(apart) - liars].sum(axis=1)
    coefficients = np.zeros(len(squares))
    coefficients[1 + np.argsort(scores, kind="stable")[:count]] = 1 / count
    return coefficients
