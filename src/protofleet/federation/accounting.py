"""Differential privacy in numbers: what a run has spent, and what a wish costs.

A round's sum, of differences clipped to one norm, gets Gaussian noise of z times that norm; z is
the ``noise_multiplier``. Two federations are neighbours if one has a device more, with all of its
data. Rounds compose exactly to Gaussian differential privacy (Dong, Roth and Su, arXiv:1905.02383,
corollaries 1 and 3.3): k rounds of one device are one release with μ = √k / z, whose δ at ε is that
of Balle and Wang (arXiv:1805.06530, theorem 8).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from protofleet.errors import InputError

_SQRT_2 = math.sqrt(2.0)
_TAIL = -30.0
"""Below, a normal's tail is summed as a series: ``math.erfc`` has no such small numbers."""
_HALVINGS = 200
_INTERVAL = 1e-3
"""Of privacy losses: ε comes out larger by a 5000th than with a tenth of it, ten times as fast."""
_MOST_ROUNDS = 10**9


def mu_of(noise_multiplier: float, rounds: int) -> float:
    """μ of so many rounds of one device."""
    return math.sqrt(rounds) / noise_multiplier


def gaussian_delta(epsilon: float, mu: float) -> float:
    """δ at ε of μ-Gaussian differential privacy."""
    if mu == 0:
        return 0.0
    upper = -epsilon / mu + mu / 2
    lower = epsilon + _log_normal_cdf(-epsilon / mu - mu / 2)
    return max(math.exp(_log_normal_cdf(upper)) - math.exp(lower), 0.0)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest ε at which μ-Gaussian differential privacy has δ, rounded up by 1e-12 of it."""
    if gaussian_delta(0.0, mu) <= delta:
        return 0.0
    most = 1.0
    while gaussian_delta(most, mu) > delta:
        most *= 2
    return _least(lambda epsilon: gaussian_delta(epsilon, mu) <= delta, 0.0, most)


def epsilon_of(noise_multiplier: float, rounds: int, delta: float) -> float:
    """ε at δ of a device that takes part in so many rounds."""
    return gaussian_epsilon(mu_of(noise_multiplier, rounds), delta)


def noise_for(epsilon: float, rounds: int, delta: float) -> float:
    """The least noise multiplier with which so many rounds stay within ε at δ."""
    return least_noise(epsilon, lambda noise: epsilon_of(noise, rounds, delta))


def least_noise(epsilon: float, spent: Callable[[float], float]) -> float:
    """The least noise multiplier, to a millionth, of which ``spent`` is not above ε."""
    most = 1.0
    while spent(most) > epsilon:
        most *= 2
    return _least(lambda noise: spent(noise) <= epsilon, most / 1024, most, precision=1e-6)


def rounds_within(epsilon: float, noise_multiplier: float, delta: float) -> int:
    """How many rounds of one device stay within ε at δ; 0: not even one."""
    low, high = 0, 1
    while high < _MOST_ROUNDS and epsilon_of(noise_multiplier, high, delta) <= epsilon:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        fits = epsilon_of(noise_multiplier, middle, delta) <= epsilon
        low, high = (middle, high) if fits else (low, middle)
    return low


def sampled_epsilon(noise_multiplier: float, rate: float, rounds: int, delta: float) -> float:
    """ε at δ of rounds to which each device is drawn by itself, and nobody learns who was.

    Poisson sampling of a Gaussian sum, composed by its privacy loss distribution, pessimistically
    rounded (dp-accounting; Koskela et al., arXiv:1906.03049).

    Args:
        noise_multiplier: of the sum.
        rate: probability with which a device is drawn.
        rounds: how many.
        delta: δ.

    Raises:
        InputError: dp-accounting is not installed.
    """
    if not rounds:
        return 0.0
    try:
        import dp_accounting as dp  # noqa: PLC0415 - an extra, and seconds to load
        from dp_accounting.pld import PLDAccountant  # noqa: PLC0415 - as above
    except ImportError as error:
        raise InputError(
            "privacy.sampling = 'secret' is accounted by dp-accounting, which is not installed: "
            "pip install 'protofleet[privacy]'"
        ) from error
    accountant = PLDAccountant(
        dp.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=_INTERVAL
    )
    event = dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise_multiplier))
    accountant.compose(event, rounds)
    return float(accountant.get_epsilon(delta))


def _least(
    fits: Callable[[float], bool], low: float, high: float, *, precision: float = 1e-12
) -> float:
    """The least number between ``low`` and ``high`` that fits; ``high`` does."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if fits(middle) else (middle, high)
        if high - low <= precision * high:
            break
    return high


def _log_normal_cdf(x: float) -> float:
    """Logarithm of the standard normal distribution function, also far out."""
    if x > _TAIL:
        return math.log(math.erfc(-x / _SQRT_2) / 2)
    inverse = 1 / (x * x)
    series = 1 - inverse * (1 - 3 * inverse * (1 - 5 * inverse * (1 - 7 * inverse)))
    return -x * x / 2 - math.log(-x * math.sqrt(2 * math.pi)) + math.log(series)
