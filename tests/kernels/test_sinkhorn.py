"""Sinkhorn's algorithm against the log domain in float64 and against POT."""

import dataclasses
import os
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import sinkhorn as oracle

from protofleet.errors import InputError
from protofleet.kernels import set_threads, sinkhorn
from protofleet.kernels.native import pool

pytestmark = pytest.mark.usefixtures("backend")
_FLOOR = 5e-7  # share of the mass that float32 may put elsewhere
_DENORMAL = 1e-43  # below it float32 has two digits or none
examples = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
sizes = st.one_of(st.integers(1, 40), st.sampled_from([63, 64, 65, 130]))


@pytest.fixture
def any_threads():
    before = pool.threads()
    yield
    set_threads(before)


def problem(seed, n, m, zeros=0.0):
    """Costs in [0, 1], masses that sum to about one, read-only."""
    rng = np.random.default_rng(seed)
    points, others = rng.standard_normal((n, 3)), rng.standard_normal((m, 3)) + 0.5
    cost = np.square(points[:, None] - others).sum(axis=2)
    cost = (cost / cost.max()).astype(np.float32)
    masses = []
    for size in (n, m):
        mass = rng.random(size) + 0.01
        mass[1:] *= rng.random(size - 1) >= zeros
        masses.append((mass / mass.sum()).astype(np.float32))
    for array in (cost, *masses):
        array.flags.writeable = False
    return cost, *masses


def assert_plan(result, cost, a, b, epsilon):
    """The result is the oracle's after as many iterations."""
    f, g = oracle.sinkhorn(cost, a, b, epsilon, result.n_iter)
    expected = oracle.plan(cost, f, g, epsilon)
    mass = expected.sum()
    plan = result.plan()
    assert plan.dtype == np.float32
    assert np.abs(plan - expected).sum() <= _FLOOR * mass
    np.testing.assert_allclose(plan, expected, rtol=2e-5, atol=1e-20 * mass + _DENORMAL)
    np.testing.assert_array_equal(np.isinf(result.f), a == 0)
    np.testing.assert_array_equal(np.isinf(result.g), b == 0)
    rows, columns = a > 0, b > 0
    shift = np.median(result.f[rows] - f[rows])  # potentials are one constant apart
    scale = epsilon * 2e-5
    np.testing.assert_allclose(result.f[rows] - shift, f[rows], rtol=1e-12, atol=scale)
    np.testing.assert_allclose(result.g[columns] + shift, g[columns], rtol=1e-12, atol=scale)
    paid = expected * cost.astype(np.float64)
    assert result.cost == pytest.approx(paid.sum(), rel=1e-12, abs=_FLOOR * np.abs(paid).sum())
    assert result.marginal_error == pytest.approx(oracle.row_error(expected, a), abs=_FLOOR)


@examples
@given(
    shape=st.tuples(sizes, sizes),
    seed=st.integers(0, 1000),
    epsilon=st.sampled_from([10.0, 0.1, 0.01, 1e-3, 1e-4]),
    iterations=st.integers(1, 12),
    zeros=st.sampled_from([0.0, 0.5]),
)
def test_it_is_the_log_domain_s_plan_after_every_number_of_iterations(
    shape, seed, epsilon, iterations, zeros
):
    cost, a, b = problem(seed, *shape, zeros)
    result = sinkhorn(cost, a, b, epsilon=epsilon, max_iter=iterations, tol=0)
    assert result.n_iter == iterations
    assert_plan(result, cost, a, b, epsilon)


@examples
@given(
    seed=st.integers(0, 1000),
    scale=st.sampled_from([1e-40, 1e-20, 1e-3, 1e20, 1e37]),
    offset=st.sampled_from([-1.0, 0.0, 1.0]),
    ratio=st.sampled_from([1.0, 100.0, 1e4]),
    mass=st.sampled_from([1e-30, 1.0, 1e37]),
)
def test_units_of_cost_and_mass_do_not_matter(seed, scale, offset, ratio, mass):
    """Negative costs, denormal ones, sums of masses beyond float32."""
    cost, a, b = problem(seed, 23, 17)
    cost = ((cost + np.float32(offset)) * np.float32(scale)).astype(np.float32)
    a, b = a * np.float32(mass), b * np.float32(mass)
    epsilon = scale / ratio
    result = sinkhorn(cost, a, b, epsilon=epsilon, max_iter=5, tol=0)
    assert_plan(result, cost, a, b, epsilon)


@pytest.mark.parametrize("ratio", [1e4, 1e8, 1e15, 1e30, 1e300])
def test_the_smallest_epsilons_give_finite_plans_with_the_right_columns(ratio):
    cost, a, b = problem(1, 30, 40)
    result = sinkhorn(cost, a, b, epsilon=1 / ratio, max_iter=30)
    plan = result.plan()
    assert np.isfinite(plan).all()
    assert np.isfinite([result.cost, result.marginal_error]).all()
    np.testing.assert_allclose(plan.sum(axis=0), b, rtol=1e-5)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("n", [10, 40])
@pytest.mark.parametrize("ratio", [100, 300])
@pytest.mark.parametrize("iterations", [30, 200])
def test_mass_that_must_move_far_brings_back_entries_that_had_underflowed(
    power, n, ratio, iterations
):
    """Mass at one end of a line goes to the other: scalings grow until potentials take them up."""
    line = np.linspace(0, 1, n, dtype=np.float32)
    cost = np.abs(line[:, None] - line) ** power
    a = np.exp(-8 * line)
    a /= a.sum()
    b = a[::-1].copy()
    result = sinkhorn(cost, a, b, epsilon=1 / ratio, max_iter=iterations, tol=0)
    assert_plan(result, cost, a, b, 1 / ratio)


def test_masses_of_very_different_size_are_met():
    cost, a, b = problem(2, 30, 30)
    a, b = a.copy(), b.copy()
    a[3], b[5] = 1e-15, 1e-12
    a, b = a / a.sum(), b / b.sum()
    result = sinkhorn(cost, a, b, epsilon=0.1)
    assert result.converged
    plan = result.plan()
    np.testing.assert_allclose(plan[3].sum(), a[3], rtol=1e-4)
    np.testing.assert_allclose(plan[:, 5].sum(), b[5], rtol=1e-4)


def test_it_stops_when_the_rows_are_met():
    cost, a, b = problem(3, 50, 60)
    result = sinkhorn(cost, a, b, epsilon=0.05, tol=1e-5)
    assert result.converged
    assert result.n_iter < 1000
    assert 0 < result.marginal_error <= 1e-5
    np.testing.assert_allclose(np.abs(result.plan().sum(axis=1) - a).sum(), 0, atol=1.1e-5)
    before = sinkhorn(cost, a, b, epsilon=0.05, tol=0, max_iter=result.n_iter - 2)
    assert before.marginal_error > 1e-5
    assert_plan(result, cost, a, b, 0.05)


def test_too_few_iterations_are_a_flag_and_no_error():
    cost, a, b = problem(4, 50, 60)
    result = sinkhorn(cost, a, b, epsilon=0.01, max_iter=2)
    assert not result.converged
    assert result.n_iter == 2
    assert result.marginal_error > 1e-6


def test_the_last_iteration_may_be_the_one_that_converges():
    cost, a, b = problem(3, 50, 60)
    stopped = sinkhorn(cost, a, b, epsilon=0.05, tol=1e-5)
    last = sinkhorn(cost, a, b, epsilon=0.05, tol=1e-5, max_iter=stopped.n_iter - 1)
    assert last.n_iter == stopped.n_iter - 1
    assert last.converged == (last.marginal_error <= 1e-5)


def test_no_tolerance_runs_every_iteration():
    cost, a, b = problem(5, 20, 20)
    assert sinkhorn(cost, a, b, epsilon=1.0, max_iter=300, tol=0).n_iter == 300
    assert sinkhorn(cost[:1, :1], epsilon=1.0, max_iter=7, tol=0).n_iter == 7


def test_masses_are_equal_where_none_are_given():
    cost, a, _ = problem(6, 12, 8)
    plan = sinkhorn(cost, epsilon=0.1).plan()
    np.testing.assert_allclose(plan.sum(axis=0), 1 / 8, rtol=1e-5)
    np.testing.assert_allclose(plan.sum(axis=1), 1 / 12, rtol=1e-4)
    one_given = sinkhorn(cost, 3 * a, epsilon=0.1).plan()
    np.testing.assert_allclose(one_given.sum(axis=0), 3 / 8, rtol=1e-5)
    other_given = sinkhorn(cost.T, None, 3 * a, epsilon=0.1).plan()
    np.testing.assert_allclose(other_given.sum(axis=0), 3 * a, rtol=1e-5)
    assert other_given.sum() == pytest.approx(3, rel=1e-5)


@pytest.mark.parametrize("epsilon", [0.5, 0.02])
def test_it_is_pot_s_plan(epsilon):
    for library in ("PYTORCH", "JAX", "TENSORFLOW", "CUPY"):
        os.environ.setdefault(f"POT_BACKEND_DISABLE_{library}", "1")
    ot = pytest.importorskip("ot")
    cost, a, b = problem(7, 60, 45)
    mine = sinkhorn(cost, a, b, epsilon=epsilon, max_iter=2000, tol=2e-7)
    double = (array.astype(np.float64) for array in (a, b, cost))
    theirs = ot.sinkhorn(*double, epsilon, numItermax=2000, stopThr=1e-12, warn=False)
    assert np.abs(mine.plan() - theirs).sum() < 2e-6


@pytest.mark.jit
def test_numbers_of_threads_change_no_bit(any_threads):  # noqa: ARG001 - it puts them back
    cost, _, _ = problem(8, 1500, 1501)
    results = []
    for threads in (1, 2, 5):
        set_threads(threads)
        result = sinkhorn(cost, epsilon=2e-3, max_iter=12, tol=0)
        fields = [getattr(result, f.name) for f in dataclasses.fields(result)[:-1]]
        results.append((*fields, result.plan()))
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.jit
@pytest.mark.parametrize("epsilon", [0.05, 5e-4])
def test_large_problems_are_the_log_domain_s_too(epsilon):
    cost, a, b = problem(9, 1100, 1234, 0.1)
    assert_plan(sinkhorn(cost, a, b, epsilon=epsilon, max_iter=6, tol=0), cost, a, b, epsilon)


def test_numba_and_numpy_agree(monkeypatch):
    cost, a, b = problem(10, 90, 70, 0.2)
    plans = []
    for switch in "10":
        monkeypatch.setenv("PROTOFLEET_NUMBA", switch)
        plans.append(sinkhorn(cost, a, b, epsilon=0.01, max_iter=9).plan())
    np.testing.assert_allclose(*plans, rtol=1e-5, atol=1e-30)


def test_a_transposed_view_is_taken_as_it_is():
    cost, a, b = problem(11, 9, 14)
    mine = sinkhorn(cost.T, b, a, epsilon=0.1).plan()
    np.testing.assert_array_equal(mine, sinkhorn(cost.T.copy(), b, a, epsilon=0.1).plan())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [(0, 0), (4, 2)])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_number_that_is_not_finite_is_refused(value, where):
    arrays = [array.copy() for array in problem(12, 5, 3)]
    for which, name in enumerate(("cost", "a", "b")):
        wrong = [array.copy() for array in arrays]
        wrong[which][where if not which else min(where[0], 2)] = value
        with pytest.raises(InputError, match=f"{name}: expected finite numbers"):
            sinkhorn(*wrong, epsilon=0.1)
    arrays[0][:] = value
    with pytest.raises(InputError, match="cost: expected finite numbers"):
        sinkhorn(*arrays, epsilon=0.1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": 0.0}, "expected epsilon > 0, got 0.0"),
        ({"epsilon": np.nan}, "expected epsilon > 0, got nan"),
        ({"epsilon": np.inf}, "expected epsilon > 0, got inf"),
        ({"epsilon": 1e-310}, "expected epsilon > 0, got 1e-310"),
        ({"max_iter": 0}, "expected max_iter >= 1 and tol >= 0, got 0"),
        ({"tol": -1e-3}, "expected max_iter >= 1 and tol >= 0, got 1000 and -0.001"),
        ({"tol": np.nan}, "expected max_iter >= 1 and tol >= 0, got 1000 and nan"),
    ],
)
def test_settings_out_of_range_are_named(change, message):
    with pytest.raises(InputError, match=message):
        sinkhorn(*problem(13, 5, 3), **{"epsilon": 0.1, **change})


def test_wrong_shapes_and_masses_are_named():
    cost, a, b = problem(14, 5, 3)
    wrong = {
        "cost: expected a float32 array of 2 dimensions": (cost[0], a, b),
        "cost: expected at least one row and column": (cost[:0], a[:0], b),
        "a: expected a float32 array of 1 dimensions": (cost, a.astype(np.float64), b),
        r"a: expected shape \(5,\)": (cost, b, b),
        r"b: expected shape \(3,\)": (cost, a, a),
        "a: expected masses of at least 0": (cost, a - a.max(), b),
        "b: expected masses of at least 0": (cost, a, 0 * b),
        "marginals: expected equal sums": (cost, a, b * np.float32(1.0001)),
    }
    for message, arrays in wrong.items():
        with pytest.raises(InputError, match=message):
            sinkhorn(*arrays, epsilon=0.1)


def test_the_documentation_s_example_runs(capsys):
    text = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text()
    (code,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        if "sinkhorn(" in block
    ]
    found = {}
    exec(code, found)  # noqa: S102 - the example as it is printed
    assert capsys.readouterr().out.endswith("True\n")
    np.testing.assert_allclose(found["plan"].sum(axis=0), 1 / 5, rtol=1e-5)
    np.testing.assert_allclose(found["plan"].sum(axis=1), 1 / 64, rtol=1e-3)
    assert (np.bincount(found["nearest"]) > 0).all()
