"""The coordinate-wise median, against NumPy's and against repeated clients."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import aggregation as oracle
from toy_model import array, zeros

from protofleet.errors import InputError
from protofleet.strategies.aggregation import TermsReader, build, median

PLAIN, WEIGHTED = build("median", {}), build("median", {"weighted": True})
_FLOATS = st.floats(-1e6, 1e6, width=32)


@st.composite
def _terms(draw, fewest=1):
    """Up to nine clients of up to five numbers, many of them equal, and integer weights."""
    clients, size = draw(st.integers(fewest, 9)), draw(st.integers(1, 5))
    numbers = st.one_of(_FLOATS, st.sampled_from([-1.0, 0.0, 2.0]))
    each = st.lists(numbers, min_size=size, max_size=size)
    vectors = draw(st.lists(each, min_size=clients, max_size=clients))
    weights = draw(st.lists(st.integers(1, 6), min_size=clients, max_size=clients))
    return array(vectors), weights


def _combined(rule, vectors, weights):
    return rule.combine(zeros(vectors.shape[1]), list(zip(vectors, weights, strict=True)))


@given(_terms())
def test_it_is_numpys_median_of_every_number(drawn):
    """One client, even and odd numbers of them; weights do not count."""
    vectors, weights = drawn
    combined = _combined(PLAIN, vectors, weights)
    assert combined.dtype == np.float32
    np.testing.assert_array_equal(combined, oracle.median(vectors))
    np.testing.assert_array_equal(combined, np.median(vectors, axis=0))


@given(_terms(fewest=2), st.data())
def test_the_order_of_clients_does_not_matter(drawn, data):
    vectors, weights = drawn
    order = data.draw(st.permutations(range(len(weights))))
    for rule in (PLAIN, WEIGHTED):
        np.testing.assert_array_equal(
            _combined(rule, vectors, weights),
            _combined(rule, vectors[order], [weights[index] for index in order]),
        )


@given(_terms())
def test_weighted_a_client_counts_as_often_as_its_weight(drawn):
    vectors, weights = drawn
    combined = _combined(WEIGHTED, vectors, weights)
    np.testing.assert_array_equal(combined, oracle.weighted_median(vectors, weights))


def test_one_of_three_cannot_move_it_beyond_the_others_and_no_weight_helps():
    terms = [(array([1, -1]), 10), (array([2, -2]), 10), (array([9e5, 9e5]), 10**9)]
    np.testing.assert_array_equal(PLAIN.combine(zeros(2), terms), [2, -1])
    np.testing.assert_array_equal(WEIGHTED.combine(zeros(2), terms), [9e5, 9e5])


def test_a_client_without_examples_has_no_effect():
    terms = [(array([7]), 0), (array([1]), 3), (array([2]), 4)]
    np.testing.assert_array_equal(PLAIN.combine(zeros(1), terms), [1.5])
    assert PLAIN.combine(zeros(1), terms[:1]) is None
    assert PLAIN.combine(zeros(1), []) is None


@pytest.mark.parametrize("rule", [PLAIN, WEIGHTED])
def test_blocks_of_coordinates_change_no_bit_and_bound_the_memory(rule, monkeypatch):
    """Memory for seven numbers of a client at a time: 100 numbers take 15 passes."""
    rng = np.random.default_rng(0)
    vectors, passes = rng.normal(size=(6, 100)).astype(np.float32), []

    def read():
        passes.append(1)
        return zip(vectors, itertools.repeat(2.0))

    whole = rule.combine(zeros(100), TermsReader(read, 6))
    assert len(passes) == 1
    of_number = 4 if rule is PLAIN else 32
    monkeypatch.setattr(median, "_BLOCK_BYTES", (of_number * 6 + 32) * 7 + 1)
    np.testing.assert_array_equal(rule.combine(zeros(100), TermsReader(read, 6)), whole)
    assert len(passes) == 1 + 15


def test_the_largest_numbers_do_not_overflow():
    terms = [(array([3e38]), 1), (array([3.2e38]), 1)]
    np.testing.assert_array_equal(PLAIN.combine(zeros(1), terms), array([3.1e38]))


@pytest.mark.parametrize(
    ("vector", "weight", "message"),
    [
        (array([1, 2, 3]), 1, r"term 1: expected \(2,\) float32, got \(3,\) float32"),
        (np.array([1.0, 2.0]), 1, "got .* float64"),
        (array([1, np.inf]), 1, "expected finite numbers"),
        (array([1, 2]), -1, "expected a weight from 0, got -1"),
        (array([1, 2]), np.nan, "expected a weight from 0, got nan"),
    ],
)
def test_terms_that_do_not_fit_are_refused(vector, weight, message):
    with pytest.raises(InputError, match=message):
        PLAIN.combine(zeros(2), [(array([0, 0]), 1), (vector, weight)])
