"""Student's t against printed tables."""

import pytest

from protofleet.errors import InputError
from protofleet.federation.outcomes.intervals import half_interval, t_quantile
from protofleet.federation.records import Spread


@pytest.mark.parametrize(
    ("degrees", "expected"),
    [(1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (9, 2.262), (30, 2.042), (1000, 1.962)],
)
def test_quantiles_are_those_of_the_tables(degrees, expected):
    assert t_quantile(degrees) == pytest.approx(expected, abs=5e-4)


def test_another_confidence():
    assert t_quantile(5, 0.99) == pytest.approx(4.032, abs=5e-4)


def test_the_interval_of_three_values_uses_the_unbiased_deviation():
    """1, 2, 3: mean 2, unbiased deviation 1, so 4.303 / √3."""
    found = Spread(mean=2.0, std=(2 / 3) ** 0.5, n=3)
    assert half_interval(found.std, found.n) == pytest.approx(4.3027 / 3**0.5, rel=1e-4)


def test_too_few_values_are_refused():
    with pytest.raises(InputError, match="at least two values, got 1"):
        half_interval(0.0, 1)
    with pytest.raises(InputError, match="degrees >= 1"):
        t_quantile(0)
