"""Exact sums against fractions, and against themselves in other orders and portions."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from oracles import means as oracle

from protofleet.errors import InputError
from protofleet.kernels import ExactSum
from protofleet.kernels.exact import MOST_TERMS
from protofleet.kernels.native import pool

pytestmark = pytest.mark.usefixtures("backend")
examples = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
weights = st.one_of(st.integers(0, 2**29), st.floats(2.0**-64, 2.0**64))


@st.composite
def terms(draw, least=0):
    size = draw(st.sampled_from([0, 1, 3, 17]))
    buffers = arrays(np.float32, size, elements=floats)
    return size, draw(st.lists(st.tuples(buffers, weights), min_size=least, max_size=19))


def summed(size, made):
    total = ExactSum(size)
    total.add_all(made)
    return total


def bits(total):
    return total.limbs.tobytes(), total.tops.tobytes()


@examples
@given(terms(least=1))
def test_the_mean_is_the_exact_one_rounded_once(sized):
    size, made = sized
    total = summed(size, made)
    if not any(weight for _, weight in made):
        with pytest.raises(InputError, match="expected a positive weight"):
            total.mean()
        return
    exact = oracle.weighted(*zip(*made, strict=True))
    largest = max((float(np.abs(b).max(initial=0)) for b, w in made if w), default=0.0)
    for mine, right in zip(total.mean(), exact, strict=True):
        assert float(mine) == pytest.approx(float(right), rel=1e-7, abs=largest * 1e-14 + 2e-45)


@examples
@given(terms(), st.data())
def test_neither_order_nor_partition_change_a_bit_of_the_sum(sized, data):
    size, made = sized
    whole = summed(size, made)
    shuffled = data.draw(st.permutations(made))
    assert bits(summed(size, iter(shuffled))) == bits(whole)
    cut = data.draw(st.integers(0, len(made)))
    parts = data.draw(st.permutations([summed(size, shuffled[:cut]), summed(size, shuffled[cut:])]))
    both = ExactSum(size)
    for part in parts:
        both.merge(part)
    assert bits(both) == bits(whole)
    assert both.terms == whole.terms == sum(weight > 0 for _, weight in made)


@examples
@given(floats, st.integers(1, 2**29))
def test_the_mean_of_one_is_itself_to_the_bit(value, weight):
    buffer = np.array([value, value, value], np.float32)
    np.testing.assert_array_equal(summed(3, [(buffer, weight)]).mean(), buffer)


@pytest.mark.jit
def test_neither_threads_nor_compiler_change_a_bit(monkeypatch):
    size = 200_003  # many blocks, and an odd end
    rng = np.random.default_rng(0)
    made = [(rng.standard_normal(size, np.float32), rng.random()) for _ in range(11)]
    made[7][0][:9000] *= np.float32(1e20)  # some blocks make room for larger numbers on the way
    made[2][0][9000:] *= np.float32(1e-20)
    results = set()
    for switch in "10":
        monkeypatch.setenv("PROTOFLEET_NUMBA", switch)
        for threads in (1, 2, 3):
            monkeypatch.setattr(pool._Setting, "threads", threads)
            total = summed(size, made)
            backwards = summed(size, iter(made[::-1]))
            assert bits(total) == bits(backwards)
            results.add((*bits(total), total.mean().tobytes()))
    assert len(results) == 1


def test_what_cancels_leaves_the_small_numbers_as_they_were():
    large, small = np.array([3e3], np.float32), np.array([1.5e-7], np.float32)
    total = summed(1, [(large, 7), (small, 1), (-large, 7)])
    assert total.mean()[0] == np.float32(float(small[0]) / 15)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 3, 4, 16])
def test_what_is_not_finite_is_named(value, place):
    made = [(np.array([k, 1], np.float32), 1) for k in range(17)]
    made[place][0][1] = value
    with pytest.raises(InputError, match=rf"buffer {place}: expected finite numbers, got {value}"):
        summed(2, made)


def test_other_refusals_name_what_was_expected():
    good = (np.ones(2, np.float32), 1)
    for weight in (-1, np.nan, np.inf, 1e30, 1e-30):
        with pytest.raises(InputError, match="buffer 1: expected a weight of 0, or of 2"):
            summed(2, [good, (good[0], weight)])
    with pytest.raises(InputError, match="buffer 1: expected 2 values, got 3"):
        summed(2, [good, (np.ones(3, np.float32), 1)])
    with pytest.raises(InputError, match="buffer 0: expected a float32 array of 1 dim"):
        summed(2, [(np.zeros(2), 1)])
    with pytest.raises(InputError, match="expected one of 2 values, got one of 3"):
        summed(2, [good]).merge(ExactSum(3))
    many = summed(2, [good])
    many.terms = MOST_TERMS
    with pytest.raises(InputError, match="at most 4194304 buffers"):
        many.add_all([good])
