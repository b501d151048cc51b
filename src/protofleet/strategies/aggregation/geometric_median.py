"""Geometric median: the vector with the least sum of distances to the clients'.

Sources: Pillutla, Kakade and Harchaoui, "Robust Aggregation for Federated Learning"
(arXiv:1912.13445): Weiszfeld's algorithm, smoothed: a distance below ``smoothing`` counts as that.
While less than half of the clients lie, it stays as near to the others as they are to each other,
up to a factor.

It begins at the server's vector; its points are combinations of the clients', so that their
distances follow from those of the clients to each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from protofleet.strategies.aggregation.aggregator import Aggregator
from protofleet.strategies.aggregation.mixing import mixed
from protofleet.strategies.aggregation.robust import RobustSettings, Squares, by_distances
from protofleet.strategies.bounds import Bounds, Count
from protofleet.strategies.settings import parse_record

_STILL = 1e-9


class GeometricMedianSettings(RobustSettings, frozen=True, forbid_unknown_fields=True):
    """Settings of the geometric median; ``liars`` matters to mixing alone.

    Attributes:
        smoothing: in the unit of the parameters.
        steps: most steps of Weiszfeld's algorithm; it ends when no coefficient changes any more.
    """

    smoothing: Annotated[float, Bounds(1e-30)] = 1e-6
    steps: Count = 100


def build(settings: Mapping[str, Any]) -> Aggregator:
    """The geometric median.

    Raises:
        InputError: unknown setting, wrong type or a value outside its range.
    """
    chosen = parse_record("aggregation 'geometric_median'", settings, GeometricMedianSettings)
    return mixed(by_distances("geometric_median", partial(_weigh, chosen)), chosen)


def _weigh(settings: GeometricMedianSettings, squares: Squares) -> NDArray[np.float64]:
    coefficients = np.zeros(len(squares))
    coefficients[0] = 1
    for _ in range(settings.steps):
        before = coefficients
        inverse = 1 / np.maximum(distances_to(coefficients, squares)[1:], settings.smoothing)
        coefficients = np.concatenate(([0.0], inverse / inverse.sum()))
        if np.abs(coefficients - before).max() < _STILL:
            break
    return coefficients


def distances_to(coefficients: NDArray[np.float64], squares: Squares) -> NDArray[np.float64]:
    """Distances ``(n + 1,)`` of all vectors to a combination of them."""
    across = squares @ coefficients
    return np.sqrt(np.maximum(across - 0.5 * (coefficients @ across), 0))
