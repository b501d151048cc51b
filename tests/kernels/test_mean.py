"""Weighted means against exact fractions, and against themselves in other portions."""

import weakref

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from oracles import means as oracle

from protofleet.errors import InputError
from protofleet.kernels import WeightedMean
from protofleet.kernels.native import pool

pytestmark = pytest.mark.usefixtures("backend")
examples = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
floats = st.floats(width=32, allow_nan=False, allow_infinity=False)
weights = st.one_of(st.integers(0, 2**29), st.floats(0, 1e250))


@st.composite
def terms(draw, least=0):
    size = draw(st.sampled_from([0, 1, 3, 17]))
    buffers = st.builds(frozen, arrays(np.float32, size, elements=floats))
    return size, draw(st.lists(st.tuples(buffers, weights), min_size=least, max_size=19))


def frozen(buffer):
    buffer.flags.writeable = False
    return buffer


def filled(*values):
    return frozen(np.array(values, np.float32))


def mean_of(size, parts):
    mean = WeightedMean(size)
    for part in parts:
        mean.add_all(part)
    return mean


@examples
@given(terms(least=1))
def test_the_mean_is_the_exact_one_rounded_once(sized):
    size, made = sized
    mean = mean_of(size, [made])
    if not any(weight for _, weight in made):
        with pytest.raises(InputError, match="expected a positive weight"):
            mean.result()
        return
    exact = oracle.weighted(*zip(*made, strict=True))
    largest = max((float(np.abs(b).max(initial=0)) for b, w in made if w), default=0.0)
    for mine, right in zip(mean.result(), exact, strict=True):
        assert float(mine) == pytest.approx(float(right), rel=1e-7, abs=largest * 1e-14 + 2e-45)


@examples
@given(terms(), st.data())
def test_portions_change_no_bit(sized, data):
    """Singly, all at once, lazily, or in two calls: the order of additions is the same."""
    size, made = sized
    cut = data.draw(st.integers(0, len(made)))
    means = [
        mean_of(size, [made]),
        mean_of(size, [iter(made)]),
        mean_of(size, [made[:cut], made[cut:]]),
        mean_of(size, [iter(made[:cut]), made[cut:]]),
        WeightedMean(size),
    ]
    for buffer, weight in made:
        means[-1].add(buffer, weight)
    assert len({mean.weight for mean in means}) == 1
    if means[0].weight:
        assert len({mean.result().tobytes() for mean in means}) == 1


@examples
@given(floats, st.integers(1, 2**29))
def test_the_mean_of_one_is_itself_to_the_bit(value, weight):
    buffer = filled(value, value, value)
    mean = WeightedMean(3)
    mean.add(buffer, weight)
    np.testing.assert_array_equal(mean.result(), buffer)


@pytest.mark.jit
def test_neither_threads_nor_compiler_change_a_bit(monkeypatch):
    size = 200_003  # several blocks of either implementation, and an odd end
    rng = np.random.default_rng(0)
    made = [(rng.standard_normal(size, np.float32), rng.random()) for _ in range(11)]
    results = set()
    for switch in "10":
        monkeypatch.setenv("PROTOFLEET_NUMBA", switch)
        for threads in (1, 2, 3):
            monkeypatch.setattr(pool._Setting, "threads", threads)
            results.add(mean_of(size, [made]).result().tobytes())
    assert len(results) == 1


def test_buffers_may_lie_anywhere():
    """One inside another, strided, or not even aligned."""
    long = np.arange(12, dtype=np.float32)
    unaligned = np.frombuffer(b"\0" + long[:4].tobytes(), np.float32, offset=1)
    buffers = [long[4:8], long[6:10], long[::3], unaligned, long[4:8]]
    mean = mean_of(4, [[(buffer, k + 1) for k, buffer in enumerate(buffers)]])
    expected = sum((k + 1) * b.astype(np.float64) for k, b in enumerate(buffers)) / 15
    np.testing.assert_array_equal(mean.result(), expected.astype(np.float32))


def test_weight_zero_is_not_looked_at():
    bad = filled(np.nan, np.inf)
    mean = mean_of(2, [[(filled(1, 2), 3), (bad, 0)], [(bad, 0)]])
    mean.add(bad, 0)
    np.testing.assert_array_equal(mean.result(), [1, 2])
    assert mean.weight == 3


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("weight", [5e-324, 1.0, 1e268])
@pytest.mark.parametrize("place", [0, 3, 4, 16])
@pytest.mark.parametrize("kind", [list, iter])
def test_what_is_not_finite_is_named_and_leaves_the_mean_as_it_was(value, weight, place, kind):
    made = [(filled(k, 1), 1) for k in range(17)]
    made[place] = (filled(2, value), weight)
    mean = WeightedMean(2)
    for _ in range(2):  # with nothing in it, then with something
        before = (mean.weight, mean.weight and mean.result().tobytes())
        message = rf"buffer {place}: expected finite numbers, got {value} at \(1,\)"
        with pytest.raises(InputError, match=message):
            mean.add_all(kind(made))
        with pytest.raises(InputError, match=f"expected finite numbers, got {value}"):
            mean.add(*made[place])
        assert before == (mean.weight, mean.weight and mean.result().tobytes())
        mean.add_all([(filled(1, 2), 1)])
    np.testing.assert_array_equal(mean.result(), [1, 2])


def test_infinities_that_cancel_are_seen():
    made = [(filled(np.inf), 1), (filled(-np.inf), 1)]
    with pytest.raises(InputError, match="buffer 0: expected finite numbers, got inf"):
        mean_of(1, [made])


def test_other_refusals_leave_the_mean_as_it_was_too():
    mean = mean_of(2, [[(filled(1, 2), 1)]])
    good = (filled(5, 5), 1)

    def broken():
        yield from [good] * 9
        raise OSError("a file is gone")

    with pytest.raises(OSError, match="a file is gone"):
        mean.add_all(broken())
    with pytest.raises(InputError, match="buffer 1: expected 2 values, got 3"):
        mean.add_all([good, (filled(0, 0, 0), 1)])
    with pytest.raises(InputError, match="buffer 1: expected a float32 array of 1 dim"):
        mean.add_all([good, (np.zeros(2), 1)])
    for weight in (-1, np.nan, np.inf, 2e269):
        with pytest.raises(InputError, match="buffer 1: expected a weight of at least 0"):
            mean.add_all([good, (filled(0, 0), weight)])
    np.testing.assert_array_equal(mean.result(), [1, 2])
    assert mean.weight == 1


def test_the_largest_numbers_and_weights_do_not_overflow():
    top = np.finfo(np.float32).max
    mean = mean_of(2, [[(filled(top, -top), 1e268)] * 9])
    np.testing.assert_array_equal(mean.result(), [top, -top])


def test_few_buffers_of_an_iterator_are_alive_at_once():
    alive, most = weakref.WeakValueDictionary(), 0

    def made():
        nonlocal most
        for k in range(40):
            buffer = filled(k, k)
            alive[k] = buffer
            most = max(most, len(alive))
            yield buffer, 1

    mean = mean_of(2, [made()])
    np.testing.assert_array_equal(mean.result(), [19.5, 19.5])
    assert most <= 18


def test_measured_means_have_the_same_bits_and_near_distances():
    size = 40_003  # several blocks, and an odd end
    rng = np.random.default_rng(2)
    origin = rng.standard_normal(size, np.float32)
    made = [
        (origin + rng.standard_normal(size, np.float32) * 10.0**-k, float(k % 4)) for k in range(11)
    ]
    mean = WeightedMean(size)
    distances = mean.add_all_measured(iter(made[:7]), origin)
    distances = np.append(distances, mean.add_all_measured(made[7:], origin))
    assert mean.result().tobytes() == mean_of(size, [made]).result().tobytes()
    apart = [np.linalg.norm(b.astype(np.float64) - origin) if w else np.nan for b, w in made]
    np.testing.assert_allclose(distances, apart, rtol=1e-9)


def test_a_measured_mean_that_is_refused_is_as_it_was():
    mean = mean_of(2, [[(filled(1, 2), 1)]])
    with pytest.raises(InputError, match=r"buffer 1: expected finite numbers, got nan at \(0,\)"):
        mean.add_all_measured([(filled(3, 4), 1), (filled(np.nan, 1), 1)], filled(0, 0))
    with pytest.raises(InputError, match="expected an origin of 2 values, got 1"):
        mean.add_all_measured([(filled(3, 4), 1)], filled(0))
    np.testing.assert_array_equal(mean.result(), [1, 2])
