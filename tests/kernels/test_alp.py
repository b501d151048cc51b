"""The ALP plan against the paper's listing in float64."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import alp as oracle

from protofleet.errors import InputError
from protofleet.kernels import alp_infer, alp_train, set_threads
from protofleet.kernels.native.pool import threads

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


@pytest.mark.jit
def test_paper_sized_bulk_update_with_eight_embeddings_per_prototype():
    """B·Z/G = 8 in the last block: the top-k path at its real size."""
    x, local, global_ = arrays(3, (64, 8, 64, 192))
    _, moved = alp_train(x, local, global_, variant="paper_text")
    q = oracle.plan(x.reshape(-1, 192), np.concatenate((local, global_)), 0.05, 3)
    sure = clear_columns(q[:, :64], 8)
    assert sure.sum() > 50
    expected = oracle.update(x, local, q[:, :64], "paper_text", 0.999)
    np.testing.assert_allclose(moved[sure], expected[sure], **_FLOAT32)


@pytest.mark.jit
def test_numba_and_numpy_agree_on_the_paper_s_largest_layer(monkeypatch):
    x, local, global_ = arrays(4, (64, 8, 2048, 192))
    results = []
    for switch in "10":
        monkeypatch.setenv("PROTOFLEET_NUMBA", switch)
        results.append(alp_train(x, local, global_))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-5, atol=1e-6)


@pytest.mark.jit
@pytest.mark.parametrize("count", [40, 129, 512, 1500])
@pytest.mark.parametrize("variant", ["bulk_code", "paper_text"])
def test_numbers_of_threads_change_no_bit(count, variant):
    x, local, global_ = arrays(5, (64, 8, count, 192))
    before, results = threads(), []
    try:
        for number in (1, 2, 3):
            set_threads(number)
            results.append((*alp_train(x, local, global_, variant=variant), alp_infer(x, local)))
    finally:
        set_threads(before)
    for other in results[1:]:
        for one, two in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("count", [16, 17, 63, 65, 127, 513, 700])
def test_every_number_of_panels_equals_the_listing(count):
    x, local, global_ = arrays(9, (3, 2, count, 8))
    chosen, moved = alp_train(x, local, global_, variant="paper_pseudo", gamma=0.5)
    q = oracle.plan(x.reshape(-1, 8), np.concatenate((local, global_)), 0.05, 3)
    assert_best(q[:, count:], chosen, global_)
    sure = clear_columns(q[:, :count], 1)
    expected = oracle.update(x, local, q[:, :count], "paper_pseudo", 0.5)
    np.testing.assert_allclose(moved[sure], expected[sure], **_FLOAT32)


@examples
@given(
    shape=shapes,
    seed=st.integers(0, 1000),
    epsilon=st.floats(0.01, 0.05),
    iterations=st.integers(1, 11),
)
def test_low_temperatures_equal_the_listing_in_logarithms(shape, seed, epsilon, iterations):
    x, local, global_ = arrays(seed, shape)
    chosen, moved = alp_train(
        *(x, local, global_),
        variant="paper_pseudo",
        gamma=0.5,
        epsilon=epsilon,
        iterations=iterations,
    )
    active = np.concatenate((local, global_))
    q = np.exp(oracle.log_plan(x.reshape(-1, x.shape[2]), active, epsilon, iterations))
    count = len(local)
    assert_best(q[:, count:], chosen, global_)
    sure = clear_columns(q[:, :count], oracle.count("paper_pseudo", *x.shape[:2], count))
    expected = oracle.update(x, local, q[:, :count], "paper_pseudo", 0.5)
    np.testing.assert_allclose(moved[sure], expected[sure], rtol=3e-4, atol=3e-5)


def test_a_half_that_a_row_hardly_reaches_still_has_a_best_column():
    """Both global prototypes are worth less than exp(-150) to the first embedding."""
    angles = np.deg2rad([[0, 180, 120], [0, 0, 0], [180, 120, 120]])
    x, local, global_ = np.stack((np.cos(angles), np.sin(angles)), axis=2).astype(np.float32)
    chosen, _ = alp_train(x[:, None], local[:2], global_[:2], epsilon=0.01)
    values = oracle.log_plan(x, np.concatenate((local[:2], global_[:2])), 0.01, 3)[:, 2:]
    np.testing.assert_array_equal(chosen[:, 0], global_[values.argmax(axis=1)])


@pytest.mark.parametrize("variant", ["bulk_code", "paper_text"])
def test_with_several_rows_per_prototype_nan_is_refused_and_the_largest_numbers_are_not(variant):
    x, local, _ = (array.copy() for array in arrays(12, (6, 2, 3, 4)))
    _, moved = alp_train(*(np.full_like(a, 1e37) for a in (x, local, local)), variant=variant)
    np.testing.assert_allclose(moved, 1e37, rtol=1e-5)
    x[1, 1, 1] = np.nan
    with pytest.raises(InputError, match="embeddings: expected finite numbers"):
        alp_train(x, local, local, variant=variant)


@pytest.mark.parametrize("epsilon", [0.01, 0.05])
@pytest.mark.parametrize("shape", [(1, 1, 300, 4), (40, 1, 1, 4)])
def test_many_iterations_neither_overflow_nor_vanish(epsilon, shape):
    """Rows and columns cannot both sum to one unless there are as many of each."""
    x, local, global_ = arrays(10, shape)
    settings_ = {"epsilon": epsilon, "iterations": 60}
    chosen, moved = alp_train(x, local, global_, variant="paper_pseudo", gamma=0.0, **settings_)
    q = np.exp(oracle.log_plan(x[:, 0], np.concatenate((local, global_)), epsilon, 60))
    assert_best(q[:, len(local) :], chosen, global_)
    expected = oracle.update(x, local, q[:, : len(local)], "paper_pseudo", 0.0)
    np.testing.assert_allclose(moved, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("seed", [4, 71, 149])
def test_scalings_that_leave_float32_in_many_iterations_equal_the_logarithms(seed):
    """Points along arcs, whose mass has far to go: scalings grow beyond exp(88)."""
    rng = np.random.default_rng(seed)
    n, count = rng.integers(2, 30, 2)
    arc = rng.uniform(0, np.pi * rng.uniform(0.1, 1), n) * rng.choice([1, 0.05], n)
    other = rng.uniform(0, np.pi, count) * rng.choice([1, 0.3], count)
    rows, local = (
        np.stack((np.cos(angle), np.sin(angle)), axis=1).astype(np.float32)
        for angle in (arc, other)
    )
    settings_ = {"epsilon": 0.01, "iterations": 60}
    _, moved = alp_train(
        rows[:, None], local, local, variant="paper_pseudo", gamma=0.0, **settings_
    )
    q = np.exp(oracle.log_plan(rows, np.concatenate((local, local)), 0.01, 60))[:, :count]
    sure = clear_columns(q, oracle.count("paper_pseudo", n, 1, count))
    expected = oracle.update(rows[:, None], local, q, "paper_pseudo", 0.0)
    assert sure.sum() > count / 2
    np.testing.assert_allclose(moved[sure], expected[sure], rtol=1e-3, atol=1e-3)


def test_opposite_clusters_at_the_lowest_epsilon_equal_the_logarithms():
    """Prototypes that no embedding is near: their columns' numbers start at exp(-200)."""
    rng = np.random.default_rng(11)
    pole = np.eye(8, dtype=np.float32)[0]
    x = (pole + 0.1 * rng.standard_normal((12, 2, 8))).astype(np.float32)
    local = (
        0.1 * rng.standard_normal((20, 8)) + pole * np.sign(np.arange(20) - 15)[:, None]
    ).astype(np.float32)
    for iterations in (1, 3, 4, 10):
        chosen = alp_infer(x, local, epsilon=0.01, iterations=iterations)
        log_q = oracle.log_plan(x.reshape(-1, 8), local, 0.01, iterations)
        assert_best(np.exp(log_q - log_q.max(axis=1, keepdims=True)), chosen, local)


@pytest.mark.parametrize("variant", _VARIANTS)
@pytest.mark.parametrize("valid", [[0, 1, 3], [4], [0, 1, 2, 3, 4]])
def test_masked_examples_are_as_if_they_were_not_there(variant, valid):
    """Not a bit of the others changes, whatever the padding holds."""
    x, local, global_ = (array.copy() for array in arrays(12, (5, 3, 2, 16)))
    mask = np.isin(np.arange(5), valid)
    x[~mask] = np.nan
    chosen, moved = alp_train(x, local, global_, variant=variant, mask=mask)
    expected, expected_moved = alp_train(x[valid], local, global_, variant=variant)
    np.testing.assert_array_equal(chosen[mask], expected)
    np.testing.assert_array_equal(chosen[~mask], 0)
    np.testing.assert_array_equal(moved, expected_moved)
    inferred = alp_infer(x, local, mask=mask)
    np.testing.assert_array_equal(inferred[mask], alp_infer(x[valid], local))
    np.testing.assert_array_equal(inferred[~mask], 0)


def test_a_batch_of_padding_alone_moves_nothing():
    x, local, global_ = arrays(13, (3, 2, 4, 8))
    nobody = np.zeros(3, np.bool_)
    chosen, moved = alp_train(x, local, global_, mask=nobody)
    np.testing.assert_array_equal(chosen, np.zeros_like(x))
    np.testing.assert_array_equal(moved, local)
    np.testing.assert_array_equal(alp_infer(x, local, mask=nobody), np.zeros_like(x))


@pytest.mark.parametrize("variant", _VARIANTS)
def test_out_takes_the_new_prototypes_also_in_place(variant):
    x, local, global_ = arrays(14, (5, 3, 6, 16))
    chosen, moved = alp_train(x, local, global_, variant=variant, gamma=0.5)
    for target in (np.full_like(local, np.nan), local.copy()):
        source = target if np.isfinite(target).all() else local
        again, result = alp_train(x, source, global_, variant=variant, gamma=0.5, out=target)
        assert result is target
        np.testing.assert_array_equal(target, moved)
        np.testing.assert_array_equal(again, chosen)


def test_out_is_as_before_after_an_error():
    x, local, global_ = (array.copy() for array in arrays(15, (2, 2, 3, 4)))
    x[1, 1, 1] = np.inf
    before = local.copy()
    with pytest.raises(InputError, match="embeddings: expected finite numbers"):
        alp_train(x, local, global_, out=local)
    np.testing.assert_array_equal(local, before)


def test_out_that_cannot_be_written_or_overlaps_is_refused():
    x, local, global_ = arrays(16, (2, 2, 3, 4))
    for out in (local, np.empty((3, 5), np.float32), np.empty((3, 4)), np.empty((4, 3)).T):
        with pytest.raises(InputError, match=r"ALP out: expected a writable, C-ordered \(3, 4\)"):
            alp_train(x, local, global_, out=out)
    both = np.zeros((4, 4), np.float32)
    for arguments in (
        (x, both[:3], global_),
        (x, local, both[:3]),
        (both[None, :3], local, global_),
    ):
        with pytest.raises(InputError, match="or an array of its own"):
            alp_train(*arguments, out=both[1:])


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


@pytest.mark.parametrize("epsilon", [0.01, 0.05])
@pytest.mark.parametrize("variant", ["bulk_code", "single_code"])
def test_a_single_embedding_takes_the_first_prototype(variant, epsilon):
    """Each column sums to one, so that all are equal but for rounding."""
    for seed in range(30):
        x, local, global_ = arrays(seed, (1, 1, 70, 5))
        chosen, moved = alp_train(x, local, global_, variant=variant, gamma=0.5, epsilon=epsilon)
        np.testing.assert_array_equal(chosen[0, 0], global_[0])
        np.testing.assert_array_equal(alp_infer(x, local, epsilon=epsilon)[0, 0], local[0])
        hit = slice(1) if variant == "single_code" else slice(None)
        np.testing.assert_allclose(moved[hit], (local[hit] + x[0]) / 2, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("k", [1, 3])
def test_equal_embeddings_of_a_column_go_to_the_lowest_index(k):
    """They point one way and differ in length alone, by powers of two."""
    lengths = np.array([2, 8, 1, 4, 32, 16], np.float32)
    x = lengths[:, None, None] * np.array([1, 0.5], np.float32)
    local = np.tile(np.array([[1, 0], [0, 1]], np.float32), (3 // k, 1))
    _, moved = alp_train(x, local, local, gamma=0.0)
    np.testing.assert_allclose(moved, [x[:k, 0].mean(axis=0)] * len(local), rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e-7, 1e16, 1e18, 1e37])
def test_tiny_and_huge_numbers_equal_the_listing(scale):
    """Also side by side with rows that are short enough for the norm's floor."""
    x, local, global_ = (array.copy() for array in arrays(6, (4, 2, 8, 16), scale))
    x[1] = 1e-8
    local[2] = -1e-7
    chosen, moved = alp_train(x, local, global_, variant="paper_text", gamma=0.5)
    q = oracle.plan(x.reshape(-1, 16), np.concatenate((local, global_)), 0.05, 3)
    assert_best(q[:, 8:], chosen, global_)
    sure = clear_columns(q[:, :8], 1)
    expected = oracle.update(x, local, q[:, :8], "paper_text", 0.5)
    np.testing.assert_allclose(moved[sure], expected[sure], rtol=2e-5, atol=2e-6 * scale)
    assert_best(oracle.plan(x.reshape(-1, 16), local, 0.05, 3), alp_infer(x, local), local)


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
        ({"epsilon": 0.009}, "epsilon: expected at least 0.01"),
        ({"epsilon": np.nan}, "epsilon: expected at least 0.01"),
        ({"iterations": 0}, "iterations: expected at least 1"),
        ({"mask": np.ones(3, np.bool_)}, r"mask: expected a \(2,\) bool array"),
        ({"mask": np.ones(2)}, r"mask: expected a \(2,\) bool array, got float64"),
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
