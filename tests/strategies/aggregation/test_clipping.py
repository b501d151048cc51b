"""The norm clip, in arithmetic by hand: the median difference of four clients has length 1."""

import numpy as np
import pytest
from toy_model import array, zeros

from protofleet.strategies.aggregation import AGGREGATORS, MEAN, Clipped, build, clipped

_HONEST = [(array([1, 0]), 2.0), (array([0, 1]), 2.0), (array([-1, 0]), 2.0)]


@pytest.mark.parametrize("name", sorted(AGGREGATORS))
def test_where_nothing_is_long_not_a_bit_changes(name):
    rng, rule = np.random.default_rng(0), build(name, {})
    terms = [(rng.normal(size=7).astype(np.float32), weight) for weight in (3, 1, 4, 2)]
    old = rng.normal(size=7).astype(np.float32)
    told = []
    same = clipped(rule, 50.0, told.append).combine(old, terms)
    np.testing.assert_array_equal(same, rule.combine(old, terms))
    assert told == []


def test_a_long_difference_is_shortened_and_told():
    told = []
    terms = [*_HONEST, (array([5, 5]), 0.0), (array([0, 100]), 2.0)]
    combined = clipped(MEAN, 3.0, told.append).combine(zeros(2), terms)
    np.testing.assert_allclose(combined, [0, (1 + 3) / 4])
    assert told == [Clipped(position=4, norm=100.0, limit=3.0)]


def test_differences_count_from_the_server_s_vector():
    old = array([1000, 1000])
    moved = [(old + vector, weight) for vector, weight in [*_HONEST, (array([0, 100]), 2.0)]]
    np.testing.assert_allclose(clipped(MEAN, 3.0).combine(old, moved), [1000, 1001])


def test_rows_are_clipped_one_by_one_over_who_holds_them():
    """The liar is long in row 0 alone; row 1 is held by two, whose median is between them."""
    rows = [array([[1, 0], [1, 0]]), array([[0, 1], [9, 9]]), array([[90, 0], [0, 1]])]
    weights = [np.array([1, 1]), np.array([1, 0]), np.array([1, 1])]
    told = []
    rule = clipped(MEAN, 3.0, told.append)
    merged = rule.by_row(array([[0, 0], [0, 0]]), zip(rows, weights, strict=True))
    np.testing.assert_allclose(merged, [[4 / 3, 1 / 3], [0.5, 0.5]], rtol=1e-6)
    assert told == [Clipped(position=2, norm=90.0, limit=3.0)]


def test_where_most_have_changed_nothing_there_is_no_threshold():
    terms = [(array([0, 0]), 1.0), (array([0, 0]), 1.0), (array([3, 0]), 1.0)]
    np.testing.assert_allclose(clipped(MEAN, 3.0).combine(zeros(2), terms), [1, 0])


class _Counted(list):
    """Terms that tell how often they were read from the first on."""

    reads = 0

    def __iter__(self):
        self.reads += 1
        return super().__iter__()


@pytest.mark.parametrize("name", sorted(AGGREGATORS))
def test_a_mean_reads_terms_once_where_none_is_long_and_else_few_times(name):
    rule = build(name, {})
    terms, longer = _Counted(_HONEST * 5), _Counted([*_HONEST * 5, (array([0, 100]), 2.0)])
    clipped(rule, 3.0).combine(zeros(2), terms)
    clipped(rule, 3.0).combine(zeros(2), longer)
    if rule.incremental:
        # The norms found on the way are rough: read again to measure, and once more to combine.
        assert (terms.reads, longer.reads) == (1, 3)
    else:
        assert terms.reads > 1


def test_a_clipped_mean_has_the_bits_of_one_that_measures_first():
    rng = np.random.default_rng(1)
    old = rng.normal(size=1003).astype(np.float32)
    terms = [(rng.normal(size=1003).astype(np.float32), float(n % 3)) for n in range(21)]
    terms[4] = (terms[4][0] * 90, 2.0)
    rule = clipped(MEAN, 3.0)
    limited = rule.limit(old, terms)
    assert limited is not terms
    np.testing.assert_array_equal(rule.combine(old, terms), MEAN.combine(old, limited))


@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_at_the_threshold_distances_are_measured_to_the_last_bit(beyond):
    """One float32 step, less than the error of rough distances, decides if a term is clipped."""
    far = np.float32(3)
    for _ in range(abs(beyond)):
        far = np.nextafter(far, np.float32(3 + beyond))
    told = []
    clipped(MEAN, 3.0, told.append).combine(zeros(2), [*_HONEST, (array([0, far]), 2.0)])
    assert [one.position for one in told] == ([3] if beyond > 0 else [])
