"""The noise: normal, the same from a seed, and never twice without one."""

from __future__ import annotations

import numpy as np
import pytest

from protofleet.federation.noise import SEED_BYTES, Noise, new_seed, repeated_seed


@pytest.fixture(scope="module")
def numbers():
    return Noise(bytes(range(32)))(1_000_001)


def test_the_numbers_are_normal(numbers):
    """Moments, tails, and independence of neighbours, within five standard errors."""
    n = len(numbers)
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((numbers**power).mean() - expected) < 5 * np.sqrt(variance / n)
    assert abs((np.abs(numbers) > 3).mean() - 0.0026998) < 5 * np.sqrt(0.0027 / n)
    for lag in (1, 2, n // 2):
        assert abs((numbers[lag:] * numbers[:-lag]).mean()) < 5 / np.sqrt(n - lag)


def test_a_seed_gives_the_same_numbers_and_calls_go_on(numbers):
    again = Noise(bytes(range(32)))
    np.testing.assert_array_equal(again(1_000_001), numbers)
    assert not np.isin(again(1000), numbers).any()


def test_rounds_and_runs_have_their_own_seeds():
    assert len({new_seed(1), new_seed(1), new_seed(2)}) == 3
    assert repeated_seed(1, 2) == repeated_seed(1, 2)
    assert len({repeated_seed(1, 2), repeated_seed(1, 3), repeated_seed(2, 2)}) == 3
    assert {len(new_seed(1)), len(repeated_seed(0, 1))} == {SEED_BYTES}
