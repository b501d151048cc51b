"""Confidence intervals of means, by Student's t."""

from __future__ import annotations

import math
from functools import cache

from protofleet.errors import InputError

_CONFIDENCE = 0.95
_HALVINGS = 60


def half_interval(std: float, n: int) -> float:
    """Half the width of the 95 % interval of a mean over independent values.

    Args:
        std: their population standard deviation.
        n: how many.

    Raises:
        InputError: fewer than two values.
    """
    if n < 2:
        raise InputError(f"interval: expected at least two values, got {n}")
    # ``std`` divides by n; its unbiased square by n - 1, and the mean's by n once more.
    return t_quantile(n - 1) * std / math.sqrt(n - 1)


@cache
def t_quantile(degrees: int, confidence: float = _CONFIDENCE) -> float:
    """The number that |t| of so many degrees of freedom stays below with this probability.

    Raises:
        InputError: no degree of freedom, or a probability outside (0, 1).
    """
    if degrees < 1 or not 0 < confidence < 1:
        raise InputError(
            f"t: expected degrees >= 1 and a confidence in (0, 1), got {degrees}, {confidence}"
        )
    # As an angle, t = sqrt(degrees) tan(angle), the probability is a finite series.
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _inside(middle, degrees) < confidence else (low, middle)
    return math.sqrt(degrees) * math.tan((low + high) / 2)


def _inside(angle: float, degrees: int) -> float:
    """P(|t| < sqrt(degrees) tan(angle)): Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = term if degrees > 1 else 0.0
    for k in range(2 + odd, degrees, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
