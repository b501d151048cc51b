"""The weighted mean, against sums in float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import aggregation as oracle
from toy_model import array, zeros

from protofleet.errors import InputError
from protofleet.kernels import WeightedMean
from protofleet.strategies.aggregation import MEAN, TermsReader

_FLOATS = st.floats(-1e3, 1e3, width=32)


@given(data=st.data(), clients=st.integers(1, 12), size=st.integers(1, 4))
def test_the_mean_is_that_of_float64_rounded_once(data, clients, size):
    each = st.lists(_FLOATS, min_size=size, max_size=size)
    vectors = array(data.draw(st.lists(each, min_size=clients, max_size=clients)))
    weights = data.draw(st.lists(st.integers(1, 50), min_size=clients, max_size=clients))
    combined = MEAN.combine(zeros(size), list(zip(vectors, weights, strict=True)))
    assert combined.dtype == np.float32
    np.testing.assert_array_equal(combined, oracle.mean(vectors, weights).astype(np.float32))


def test_terms_are_read_once():
    reads = []

    def read():
        reads.append("again")
        return iter([(array([1.0]), 1), (array([4.0]), 2)])

    np.testing.assert_array_equal(MEAN.combine(zeros(1), TermsReader(read, 2)), [3.0])
    assert (MEAN.incremental, reads) == (True, ["again"])


def test_without_weight_there_is_no_mean():
    assert MEAN.combine(zeros(2), []) is None
    assert MEAN.combine(zeros(2), [(array([1, 2]), 0)]) is None


def test_row_by_row_gives_the_bits_of_each_row_alone():
    rng = np.random.default_rng(3)
    terms = [
        (rng.normal(size=(4, 5)).astype(np.float32), rng.integers(0, 9, 4) * (row > 0))
        for row in range(7)
    ]
    old = rng.normal(size=(4, 5)).astype(np.float32)
    merged = MEAN.by_row(old, terms)
    for index in range(4):
        alone = WeightedMean(5)
        alone.add_all((rows[index].copy(), float(weights[index])) for rows, weights in terms)
        np.testing.assert_array_equal(merged[index], alone.result())


@pytest.mark.parametrize("term", [([1, 2, 3], 1), ([1, np.nan], 1), ([1, 2], -1)])
def test_terms_that_do_not_fit_are_refused(term):
    with pytest.raises(InputError, match="expected"):
        MEAN.combine(zeros(2), [(array(term[0]), term[1])])
