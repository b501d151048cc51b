"""Centred clipping: from the server's vector the mean of the clients' differences, each shortened.

Source: Karimireddy, He and Jaggi, "Learning from History for Byzantine Robust Optimization"
(arXiv:2012.10333), algorithm 2: v becomes v plus the mean of (x_i - v) min(1, τ / |x_i - v|). A
liar moves v by at most τ / n a step.

Deviations:
    - v begins at the server's vector, which is where the clients began.
    - Without ``radius`` τ is the median of the clients' distances to v, anew in each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from protofleet.strategies.aggregation.aggregator import Aggregator
from protofleet.strategies.aggregation.geometric_median import distances_to
from protofleet.strategies.aggregation.mixing import mixed
from protofleet.strategies.aggregation.robust import RobustSettings, Squares, by_distances
from protofleet.strategies.bounds import Bounds, Count
from protofleet.strategies.settings import parse_record


class CentredClippingSettings(RobustSettings, frozen=True, forbid_unknown_fields=True):
    """Settings of centred clipping; ``liars`` matters to mixing alone.

    Attributes:
        radius: τ, in the unit of the parameters; absent: the median distance.
        steps: how often v moves.
    """

    radius: Annotated[float, Bounds(1e-30)] | None = None
    steps: Count = 3


def build(settings: Mapping[str, Any]) -> Aggregator:
    """Centred clipping.

    Raises:
        InputError: unknown setting, wrong type or a value outside its range.
    """
    chosen = parse_record("aggregation 'centred_clipping'", settings, CentredClippingSettings)
    return mixed(by_distances("centred_clipping", partial(_weigh, chosen)), chosen)


def _weigh(settings: CentredClippingSettings, squares: Squares) -> NDArray[np.float64]:
    coefficients = np.zeros(len(squares))
    coefficients[0] = 1
    for _ in range(settings.steps):
        apart = distances_to(coefficients, squares)[1:]
        radius = float(np.median(apart)) if settings.radius is None else settings.radius
        shares = np.minimum(1, radius / np.maximum(apart, np.finfo(float).tiny)) / len(apart)
        coefficients = coefficients * (1 - shares.sum())
        coefficients[1:] += shares
    return coefficients
