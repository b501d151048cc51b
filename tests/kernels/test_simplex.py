"""Least quadratic forms on the simplex against every face, projected steps and the conditions."""

import numpy as np
import pytest
from oracles import simplex as oracle

from protofleet.errors import InputError
from protofleet.kernels import gram, set_threads, simplex_minimum
from protofleet.kernels.native import pool


def form(size, rank, seed, spread=1.0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(size, rank)) * rng.uniform(0.1, 3, size=(size, 1)) + 0.3
    return rows @ rows.T + np.diag(spread * rng.uniform(0, 1, size))


@pytest.mark.parametrize("size", [1, 2, 5, 8])
@pytest.mark.parametrize("spread", [1.0, 1e-3, 30.0])
@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_best_of_all_faces(size, spread, seed):
    wanted = form(size, 3, seed, spread)
    found = simplex_minimum(wanted)
    np.testing.assert_allclose(found, oracle.least(wanted), atol=1e-6)
    assert found.min() >= 0
    np.testing.assert_allclose(found.sum(), 1, rtol=1e-12)


def test_it_is_where_projected_steps_end():
    wanted = form(40, 12, 9)
    np.testing.assert_allclose(simplex_minimum(wanted), oracle.descended(wanted), atol=1e-6)


@pytest.mark.parametrize("size", [60, 300])
def test_nothing_is_gained_by_any_move(size):
    """No slope along an edge from the minimum goes down; where there is weight all are equal."""
    wanted = form(size, 20, 4)
    found = simplex_minimum(wanted)
    slopes = wanted @ found
    least = found @ slopes
    assert slopes.min() >= least * (1 - 1e-6)
    np.testing.assert_allclose(slopes[found > 0], least, rtol=1e-6)
    assert 0 < (found > 0).sum() < size


def test_a_form_without_a_single_minimum_has_one_answer():
    """Two equal directions share; of a form of zeros all do."""
    np.testing.assert_allclose(simplex_minimum(np.ones((2, 2))), [0.5, 0.5])
    np.testing.assert_allclose(simplex_minimum(np.zeros((4, 4))), [0.25] * 4)
    np.testing.assert_allclose(simplex_minimum(np.diag([0.0, 1.0, 1.0])), [1, 0, 0], atol=1e-8)


@pytest.fixture
def _threads():
    before = pool.threads()
    yield
    set_threads(before)


@pytest.mark.usefixtures("_threads")
def test_threads_change_no_bit():
    rows = np.random.default_rng(2).normal(size=(200, 700)).astype(np.float32)
    outcomes = []
    for threads in (1, 3):
        set_threads(threads)
        products = gram(rows)
        outcomes.append((products, simplex_minimum(products)))
    for one, two in zip(*outcomes, strict=True):
        np.testing.assert_array_equal(one, two)


def test_gram_is_the_products_of_rows():
    rows = np.random.default_rng(1).normal(size=(3, 5)).astype(np.float32)
    rows.flags.writeable = False
    exact = rows.astype(np.float64)
    np.testing.assert_allclose(gram(rows), exact @ exact.T, rtol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gram(np.zeros(3)), r"rows: expected \(n, m\), got \(3,\)"),
        (lambda: gram(np.full((2, 2), np.nan)), "rows: expected finite"),
        (lambda: simplex_minimum(np.zeros((2, 3))), r"form: expected \(n, n\)"),
        (lambda: simplex_minimum(np.zeros((0, 0))), "form: expected"),
        (lambda: simplex_minimum(np.full((2, 2), np.inf)), "form: expected finite"),
    ],
)
def test_wrong_inputs_are_named(call, message):
    with pytest.raises(InputError, match=message):
        call()
