"""The exact mean: the plain one's numbers, the same bits in any order."""

import numpy as np
import pytest
from toy_model import array, zeros

from protofleet.errors import InputError
from protofleet.strategies.aggregation import MEAN, build

EXACT = build("exact_mean", {})


def _terms(size=5, clients=9):
    rng = np.random.default_rng(1)
    return [(rng.normal(size=size).astype(np.float32), int(k + 1)) for k in range(clients)]


def test_it_is_the_mean_in_any_order_with_the_same_bits():
    terms = _terms()
    combined = EXACT.combine(zeros(5), terms)
    np.testing.assert_allclose(combined, MEAN.combine(zeros(5), terms), rtol=1e-7)
    np.testing.assert_array_equal(combined, EXACT.combine(zeros(5), terms[::-1]))
    assert EXACT.incremental


def test_without_weight_there_is_no_mean():
    assert EXACT.combine(zeros(2), []) is None
    assert EXACT.combine(zeros(2), [(array([1, 2]), 0)]) is None


def test_rows_are_combined_one_by_one():
    old = array([[1, 1], [2, 2]])
    rows = array([[3, 3], [4, 4]])
    merged = EXACT.by_row(old, [(rows, np.array([1, 0])), (rows + 1, np.array([3, 0]))])
    np.testing.assert_array_equal(merged, [[3.75, 3.75], [2, 2]])


def test_it_has_no_settings():
    with pytest.raises(InputError, match="aggregation 'exact_mean'"):
        build("exact_mean", {"liars": 1})
