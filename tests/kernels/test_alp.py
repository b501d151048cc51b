"""The ALP plan against the paper's listing in float64."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import alp as oracle
from threadpoolctl import threadpool_limits

from protofleet.errors import InputError
from protofleet.kernels import alp_infer, alp_train

pytestmark = pytest.mark.usefixtures("backend")
_VARIANTS = ("bulk_code", "single_code", "paper_text", "paper_pseudo")
_FLOAT32 = {"rtol": 2e-5, "atol": 2e-6}
_CLEAR = 1e-3  # relative distance of plan values that float32 rounding cannot reverse

shapes = st.tuples(
    st.integers(1, 9), st.integers(1, 4), st.integers(1, 300), st.sampled_from([1, 2, 16, 37])
)
examples = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def arrays(seed, shape, scale=1.0):
    batch, tokens, count, width = shape
    rng = np.random.default_rng(seed)
    made = [
        (scale * rng.standard_normal(s)).astype(np.float32)
        for s in ((batch, tokens, width), (count, width), (count, width))
    ]
    for array in made:
        array.flags.writeable = False
    return made


def assert_best(values, chosen, prototypes):
    """Every chosen row is a raw prototype whose plan value is the largest, up to rounding."""
    for row, value in zip(chosen.reshape(-1, prototypes.shape[1]), values, strict=True):
        index = np.flatnonzero((prototypes == row).all(axis=1))[0]
        assert value[index] >= value.max() * (1 - _CLEAR)


def clear_columns(q, k):
    """Columns whose k-th and next value are far enough apart to be told in float32."""
    ordered = -np.sort(-q, axis=0)
    rest = np.zeros(q.shape[1]) if k >= len(q) else ordered[k]
    return rest < ordered[k - 1] * (1 - _CLEAR)


@pytest.mark.parametrize("variant", _VARIANTS)
@examples
@given(shape=shapes, seed=st.integers(0, 1000))
def test_train_equals_the_paper_s_listing(variant, shape, seed):
    x, local, global_ = arrays(seed, shape)
    chosen, moved = alp_train(x, local, global_, variant=variant, gamma=0.9)
    rows = x.reshape(-1, x.shape[2])
    q = oracle.plan(rows, np.concatenate((local, global_)), 0.05, 3)
    mine = q[:, : len(local)]
    assert_best(q[:, len(local) :], chosen, global_)
    expected = oracle.update(x, local, mine, variant, 0.9)
    if variant == "single_code":
        sure = np.full(len(local), clear_columns(mine.T, 1).all())
    else:
        sure = clear_columns(mine, oracle.count(variant, *x.shape[:2], len(local)))
    np.testing.assert_allclose(moved[sure], expected[sure], **_FLOAT32)


@examples
@given(shape=shapes, seed=st.integers(0, 1000), iterations=st.integers(1, 5))
def test_infer_takes_the_best_of_the_plan_over_local_prototypes_alone(shape, seed, iterations):
    x, local, _ = arrays(seed, shape)
    chosen = alp_infer(x, local, iterations=iterations)
    q = oracle.plan(x.reshape(-1, x.shape[2]), local, 0.05, iterations)
    assert_best(q, chosen, local)


def test_paper_sized_bulk_update_with_eight_embeddings_per_prototype():
    """B·Z/G = 8 in the last block: the top-k path at its real size."""
    x, local, global_ = arrays(3, (64, 8, 64, 192))
    _, moved = alp_train(x, local, global_, variant="paper_text")
    q = oracle.plan(x.reshape(-1, 192), np.concatenate((local, global_)), 0.05, 3)
    sure = clear_columns(q[:, :64], 8)
    assert sure.sum() > 50
    expected = oracle.update(x, local, q[:, :64], "paper_text", 0.999)
    np.testing.assert_allclose(moved[sure], expected[sure], **_FLOAT32)


def test_numba_and_numpy_agree_on_the_paper_s_largest_layer(monkeypatch):
    x, local, global_ = arrays(4, (64, 8, 2048, 192))
    results = []
    for switch in "10":
        monkeypatch.setenv("PROTOFLEET_NUMBA", switch)
        results.append(alp_train(x, local, global_))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-5, atol=1e-6)


def test_numbers_of_threads_change_no_bit():
    x, local, global_ = arrays(5, (64, 8, 512, 192))
    results = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            results.append(alp_train(x, local, global_))
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


def test_collisions_in_single_code_are_won_by_the_last_embedding():
    x = np.array([[[1, 0]], [[2, 0]], [[3, 0]]], np.float32)
    local = np.array([[1, 0], [0, 1]], np.float32)
    _, moved = alp_train(x, local, local, variant="single_code", gamma=0.5)
    np.testing.assert_allclose(moved, [[2, 0], [0, 1]])


def test_equal_values_go_to_the_lowest_index():
    """Four equal prototypes and equal embeddings: all plan values are equal."""
    x = np.ones((3, 1, 4), np.float32)
    local = np.ones((4, 4), np.float32)
    global_ = np.arange(1, 5, dtype=np.float32)[:, None] * np.ones((4, 4), np.float32)
    chosen, _ = alp_train(x, local, global_)
    np.testing.assert_array_equal(chosen, np.ones((3, 1, 4)))


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e18, 1e37])
def test_tiny_and_huge_numbers_stay_finite(scale):
    x, local, global_ = arrays(6, (4, 2, 8, 16), scale)
    for result in (*alp_train(x, local, global_), alp_infer(x, local)):
        assert np.isfinite(result).all()


@pytest.mark.parametrize("variant", _VARIANTS)
def test_rows_of_zeros_are_couplings_like_any_other(variant):
    """A zero row has cosine zero with everything: no division by zero."""
    x, local, global_ = (array.copy() for array in arrays(7, (4, 2, 8, 16)))
    x[1], local[2], global_[3] = 0, 0, 0
    chosen, moved = alp_train(x, local, global_, variant=variant)
    assert np.isfinite(chosen).all()
    assert np.isfinite(moved).all()


def test_opposite_embeddings_at_the_lowest_epsilon_stay_finite():
    """exp(2 / 0.03) times the column scalings is the largest quotient that is allowed."""
    x = np.array([[[1, 0]], [[-1, 0]], [[1, 1e-3]]], np.float32)
    local = np.array([[1, 0], [-1, 0], [-1, 1e-3]], np.float32)
    chosen, moved = alp_train(x, local, local[::-1].copy(), epsilon=0.03, iterations=10)
    assert np.isfinite(chosen).all()
    assert np.isfinite(moved).all()
    np.testing.assert_array_equal(alp_infer(x[:2], local, epsilon=0.03)[0], local[:1])


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_number_that_is_not_finite_is_refused(value, which):
    made = [array.copy() for array in arrays(8, (2, 2, 3, 16))]
    made[which][-1, -1] = value
    with pytest.raises(InputError, match="expected finite numbers"):
        alp_train(*made)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variant": "best"}, "expected one of bulk_code, single_code"),
        ({"gamma": 1.5}, r"gamma: expected a number in \[0, 1\]"),
        ({"epsilon": 0.01}, "epsilon: expected at least 0.03"),
        ({"iterations": 0}, "iterations: expected at least 1"),
    ],
)
def test_settings_out_of_range_are_named(change, message):
    with pytest.raises(InputError, match=message):
        alp_train(*arrays(0, (2, 2, 3, 4)), **change)


def test_wrong_shapes_and_dtypes_are_named():
    x, local, global_ = arrays(0, (2, 2, 3, 4))
    with pytest.raises(InputError, match=r"expected \(3, 4\) as the local ones, got \(2, 4\)"):
        alp_train(x, local, global_[:2])
    with pytest.raises(InputError, match="local prototypes: expected a float32 array"):
        alp_infer(x, local.astype(np.float64))
    with pytest.raises(InputError, match=r"local prototypes: expected \(G, 4\)"):
        alp_infer(x, local[:, :3])
    with pytest.raises(InputError, match="embeddings: expected at least one"):
        alp_infer(x[:0], local)
