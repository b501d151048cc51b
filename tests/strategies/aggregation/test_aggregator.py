"""The record of a rule, its rows, and the registry."""

import numpy as np
import pytest
from toy_model import array

from protofleet.errors import InputError
from protofleet.strategies.aggregation import AGGREGATORS, MEAN, build


@pytest.mark.parametrize("name", sorted(AGGREGATORS))
def test_rows_are_combined_over_the_clients_that_have_them(name):
    """Row 0 of all three clients, row 1 of the second alone, row 2 of nobody."""
    terms = [
        (array([[1, 4], [9, 9], [9, 9]]), np.array([2, 0, 0])),
        (array([[1, 4], [5, 6], [9, 9]]), np.array([1, 3, 0])),
        (array([[1, 4], [9, 9], [9, 9]]), np.array([5, 0, 0])),
    ]
    old = array([[-1, -1], [-2, -2], [-3, -3]])
    merged = build(name, {}).by_row(old, iter(terms))
    np.testing.assert_array_equal(merged, [[1, 4], [5, 6], [-3, -3]])
    assert merged.dtype == np.float32


def test_rows_of_a_median_are_the_medians_of_who_has_them():
    terms = [
        (array([[1], [8]]), np.array([0.5, 0.5])),
        (array([[2], [3]]), np.array([0.9, 0.0])),
        (array([[9], [4]]), np.array([0.1, 0.2])),
    ]
    np.testing.assert_array_equal(build("median", {}).by_row(array([[0], [0]]), terms), [[2], [6]])


@pytest.mark.parametrize("name", sorted(AGGREGATORS))
def test_rules_have_the_name_that_they_are_built_by(name):
    assert build(name, {}).name == name


def test_the_mean_is_the_default():
    assert build("mean", {}) is MEAN


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "crum",
            {},
            "aggregation 'crum': unknown; expected one of centred_clipping, .*, mean, median",
        ),
        ("mean", {"weighted": True}, "'mean': unknown key `weighted`; known are none"),
        ("median", {"wieghted": True}, "'median': .*`wieghted`; known are liars, mixing, weighted"),
        ("median", {"weighted": 1}, "expected true or false, got a whole number"),
    ],
)
def test_wrong_names_and_settings_are_named(name, settings, message):
    with pytest.raises(InputError, match=message):
        build(name, settings)
