"""K-means against scikit-learn and against brute force."""

import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from oracles import kmeans as oracle
from sklearn.cluster import KMeans

from protofleet.errors import InputError
from protofleet.kernels import cluster_means, kmeans, kmeans_plusplus, kmeans_restarts
from protofleet.kernels.native import pool

module = sys.modules["protofleet.kernels.kmeans"]  # by attribute it is the function
pytestmark = pytest.mark.usefixtures("backend")
examples = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def points_around(seed, k, per_cluster, width, spread):
    rng = np.random.default_rng(seed)
    init = rng.standard_normal((k, width)).astype(np.float32)
    noise = rng.standard_normal((per_cluster, k, width)).astype(np.float32)
    points = (init + spread * noise + 3).reshape(-1, width).astype(np.float32)
    init = init + np.float32(3)
    points.flags.writeable = init.flags.writeable = False
    return points, init


@pytest.mark.parametrize("spread", [0.05, 0.4, 1.0])
@pytest.mark.parametrize("guessed", [False, True])
def test_it_is_scikit_learn_s_lloyd(spread, guessed):
    points, init = points_around(1, 16, 30, 8, spread)
    guess = np.tile(np.arange(16), 30) if guessed else None
    mine = kmeans(points, init, guess=guess)
    theirs = KMeans(16, init=init, n_init=1, algorithm="lloyd").fit(points)
    np.testing.assert_array_equal(mine.labels, theirs.labels_)
    np.testing.assert_allclose(mine.centers, theirs.cluster_centers_, rtol=1e-5, atol=1e-5)
    assert mine.n_iter == theirs.n_iter_
    assert mine.inertia == pytest.approx(theirs.inertia_, rel=1e-5)


@pytest.mark.parametrize(("max_iter", "tol"), [(1, 1e-4), (3, 0.0), (300, 0.5)])
def test_it_stops_where_scikit_learn_stops(max_iter, tol):
    points, init = points_around(2, 12, 20, 5, 1.0)
    mine = kmeans(points, init, max_iter=max_iter, tol=tol)
    theirs = KMeans(12, init=init, n_init=1, algorithm="lloyd", max_iter=max_iter, tol=tol)
    theirs.fit(points)
    assert mine.n_iter == theirs.n_iter_
    np.testing.assert_array_equal(mine.labels, theirs.labels_)
    np.testing.assert_allclose(mine.centers, theirs.cluster_centers_, rtol=1e-5, atol=1e-5)


@examples
@given(
    seed=st.integers(0, 10_000),
    k=st.integers(1, 12),
    n=st.integers(1, 40),
    width=st.integers(1, 6),
)
def test_brute_force_finds_the_same(seed, k, n, width):
    """Empty clusters included: k is often larger than n."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((n, width)).astype(np.float32)
    init = rng.standard_normal((k, width)).astype(np.float32)
    assert_lloyd(points, init, max_iter=20)


@examples
@given(seed=st.integers(0, 10_000), k=st.integers(1, 12), spread=st.sampled_from([0.01, 0.5, 2]))
def test_a_guess_changes_no_result(seed, k, spread):
    points, init = points_around(seed, k, 5, 3, spread)
    plain = kmeans(points, init)
    guess = np.random.default_rng(seed).integers(0, k, len(points))
    helped = kmeans(points, init, guess=guess)
    np.testing.assert_array_equal(plain.labels, helped.labels)
    np.testing.assert_array_equal(plain.centers, helped.centers)


def test_an_empty_cluster_keeps_its_row():
    points = np.array([[0, 0], [2, 0]], np.float32)
    init = np.array([[50, 50], [1, 0]], np.float32)
    result = kmeans(points, init)
    np.testing.assert_array_equal(result.centers, init)
    np.testing.assert_array_equal(result.labels, [1, 1])


def with_empty_clusters(seed, k=12):
    """Points around a third of the centres; the others are far off and lose everything."""
    rng = np.random.default_rng(seed)
    init = rng.standard_normal((k, 4)).astype(np.float32)
    points = (np.repeat(init[: k // 3], 15, axis=0) + rng.standard_normal((k // 3 * 15, 4))).astype(
        np.float32
    )
    init[k // 3 :] += np.float32(20)
    return points, init


@pytest.mark.parametrize("seed", range(6))
def test_relocated_clusters_are_scikit_learn_s(seed):
    points, init = with_empty_clusters(seed)
    mine = kmeans(points, init, empty="relocate")
    theirs = KMeans(len(init), init=init, n_init=1, algorithm="lloyd").fit(points)
    np.testing.assert_array_equal(mine.labels, theirs.labels_)
    np.testing.assert_allclose(mine.centers, theirs.cluster_centers_, rtol=1e-5, atol=1e-5)
    assert mine.n_iter == theirs.n_iter_
    assert mine.relocated >= 8
    kept = kmeans(points, init)
    assert kept.relocated == 0
    assert mine.inertia < 0.8 * kept.inertia


@pytest.mark.parametrize("start", range(0, 240, 40))
def test_relocation_among_random_points_ends_as_scikit_learn_s(start):
    """Clusters that lose their only point included; which of several goes where is left open."""
    relocated = 0
    for seed in range(start, start + 40):
        rng = np.random.default_rng(seed)
        n, k, width = rng.integers((20, 3, 1), (120, 20, 8))
        points = rng.standard_normal((n, width)).astype(np.float32)
        init = (rng.standard_normal((k, width)) * rng.choice([1, 2, 4])).astype(np.float32)
        mine = kmeans(points, init, empty="relocate")
        theirs = KMeans(k, init=init, n_init=1, algorithm="lloyd").fit(points)
        sizes = [np.bincount(labels, minlength=k) for labels in (mine.labels, theirs.labels_)]
        np.testing.assert_array_equal(*map(np.sort, sizes))
        assert mine.inertia == pytest.approx(theirs.inertia_, rel=1e-5)
        assert mine.n_iter == theirs.n_iter_
        relocated += mine.relocated
    assert relocated > 40


@pytest.mark.filterwarnings("ignore:Number of distinct clusters")
@pytest.mark.parametrize(("lost", "largest", "stands"), [(0, 1, 15.5), (1, 0, 31 / 3)])
def test_a_cluster_that_loses_its_only_point_goes_where_scikit_learn_puts_it(lost, largest, stands):
    """0 goes to the empty cluster; the largest has 10, 10, 11, the mean of all is 31 / 4.

    Before the largest it stands at 31 / 4 + 3 (31 / 3 - 31 / 4), after it at 31 / 3.
    """
    points = np.array([[0], [10], [10], [11]], np.float32)
    init = np.full((3, 1), 90, np.float32)
    init[lost], init[largest] = 3, 10.3
    mine = kmeans(points, init, empty="relocate", max_iter=1)
    theirs = KMeans(3, init=init, n_init=1, max_iter=1).fit(points)
    np.testing.assert_allclose(mine.centers, theirs.cluster_centers_, atol=1e-5)
    assert mine.centers[lost] == pytest.approx(stands)


@examples
@given(
    seed=st.integers(0, 10_000),
    k=st.integers(1, 12),
    n=st.integers(1, 40),
    width=st.integers(1, 6),
)
def test_brute_force_relocates_the_same(seed, k, n, width):
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((n, width)).astype(np.float32)
    init = rng.standard_normal((k, width)).astype(np.float32)
    result = kmeans(points, init, max_iter=20, empty="relocate")
    expected = oracle.relocating_kmeans(points, init, 20, 1e-4)
    np.testing.assert_allclose(result.centers, expected[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(result.labels, expected[1])
    assert (result.n_iter, result.relocated) == expected[2:]


def test_a_cluster_takes_the_farthest_point_and_leaves_the_others_mean():
    """From 0, 2, 7 around 3: the empty one takes 7, the mean of the others is 1."""
    points = np.array([[0], [2], [7]], np.float32)
    result = kmeans(points, np.array([[3], [50]], np.float32), empty="relocate")
    np.testing.assert_array_equal(result.centers, [[1], [7]])
    np.testing.assert_array_equal(result.labels, [0, 0, 1])
    assert result.relocated == 1


def test_nothing_is_relocated_where_every_point_lies_on_its_centre():
    points = np.zeros((4, 2), np.float32)
    init = np.array([[0, 0], [5, 5]], np.float32)
    result = kmeans(points, init, empty="relocate")
    np.testing.assert_array_equal(result.centers, init)
    assert result.relocated == 0


def test_another_way_with_empty_clusters_is_refused():
    points = np.zeros((4, 2), np.float32)
    with pytest.raises(InputError, match="empty clusters: expected keep or relocate, got 'drop'"):
        kmeans(points, points, empty="drop")


def test_points_at_the_centres_stay_there_to_the_bit():
    """One client: its prototypes are the centres, and must come back unchanged."""
    _, init = points_around(3, 64, 1, 192, 0.0)
    result = kmeans(init, init, guess=np.arange(64))
    np.testing.assert_array_equal(result.centers, init)
    assert result.inertia == 0.0


def test_equal_centres_share_the_lowest_label():
    points = np.ones((4, 3), np.float32)
    init = np.ones((3, 3), np.float32)
    np.testing.assert_array_equal(kmeans(points, init).labels, [0, 0, 0, 0])


def test_far_from_the_origin_the_digits_suffice():
    """Distances are taken around the mean: 1e4 times the spread costs no label."""
    points, init = points_around(4, 8, 20, 4, 0.05)
    far = kmeans(points + np.float32(1000), init + np.float32(1000))
    np.testing.assert_array_equal(far.labels, kmeans(points, init).labels)


@pytest.fixture
def tiny_blocks(monkeypatch):
    """Blocks of a few points and a thread for a few numbers: small arrays meet every seam."""
    monkeypatch.setattr(module, "_BLOCK_VALUES", 32 * 7)
    monkeypatch.setattr(module, "_WORK", 100)


def assert_lloyd(points, init, **settings):
    """Every label, centre and count of iterations is that of brute force; returns the result."""
    result = kmeans(points, init, **settings)
    max_iter, tol = settings.get("max_iter", 300), settings.get("tol", 1e-4)
    centers, labels, n_iter = oracle.kmeans(points, init, max_iter, tol)
    np.testing.assert_array_equal(result.labels, labels)
    np.testing.assert_allclose(result.centers, centers, rtol=3e-7)
    assert result.n_iter == n_iter
    assert result.inertia == pytest.approx(oracle.inertia_of(points, centers, labels), rel=1e-6)
    return result


@pytest.mark.parametrize("spread", [0.1, 0.4, 0.8, 3.0])
@pytest.mark.parametrize("tol", [0.0, 1e-4])
@pytest.mark.usefixtures("tiny_blocks")
def test_bounds_cost_no_label_over_many_iterations(spread, tol):
    points, init = points_around(5, 24, 12, 5, spread)
    result = assert_lloyd(points, init[np.random.default_rng(0).permutation(24)], tol=tol)
    assert spread < 0.4 or result.n_iter > 3


@examples
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 30),
    k=st.integers(1, 12),
    grid=st.booleans(),
    move=st.sampled_from([0.0, 0.02, 0.5]),
)
def test_bounds_hold_wherever_centres_move(seed, n, k, grid, move):
    """On a grid of integers, centres are as far as another one, or equal to it."""
    rng = np.random.default_rng(seed)
    points, centers = rng.standard_normal((n, 3)), rng.standard_normal((k, 3))
    if grid:
        points, centers = np.round(2 * points), np.round(2 * centers)
    points, centers = points.astype(np.float32), centers.astype(np.float32)
    search = module._Search(points, centers, np.zeros(n, np.int64))
    for _ in range(4):
        labels = search.nearest(centers)
        np.testing.assert_array_equal(labels, oracle.labels_of(points, centers))
        distances = oracle.distances(points, centers)
        assert (search.upper >= distances[np.arange(n), labels] * (1 - 1e-15)).all()
        distances[np.arange(n), labels] = np.inf
        assert (search.lower <= distances.min(axis=1) * (1 + 1e-15)).all()
        which = rng.random((k, 1)) < 0.5
        centers = (centers + which * move * rng.standard_normal((k, 3))).astype(np.float32)


@pytest.mark.jit
@pytest.mark.parametrize("width", [2, 33])
def test_brute_force_agrees_on_overlapping_clusters(width):
    points = np.random.default_rng(width).standard_normal((3001, width)).astype(np.float32)
    assert assert_lloyd(points, points[::31], tol=0.0).n_iter > 10


@examples
@given(seed=st.integers(0, 10_000), k=st.integers(1, 20), n=st.integers(1, 30))
def test_ties_go_to_the_lowest_label(seed, k, n):
    """On a grid of integers many centres are equally far, or equal."""
    rng = np.random.default_rng(seed)
    points = rng.integers(-2, 3, (n, 2)).astype(np.float32)
    init = rng.integers(-2, 3, (k, 2)).astype(np.float32)
    guess = rng.integers(0, k, n)
    assert_lloyd(points, init, guess=guess, max_iter=1)
    np.testing.assert_array_equal(
        kmeans(points, init, guess=guess, tol=1e30).labels,
        oracle.labels_of(points, oracle.means_of(points, oracle.labels_of(points, init), init)),
    )


@pytest.mark.parametrize("scale", [1e-44, 1e-40, 1e-20, 1e20, 1e37])
@pytest.mark.parametrize("guessed", [False, True])
def test_any_magnitude_gives_the_labels_of_brute_force(scale, guessed):
    points, init = points_around(8, 6, 9, 4, 0.7)
    points, init = (np.asarray(a * scale, np.float32) for a in (points - 3, init - 3))
    guess = np.tile(np.arange(6), 9) if guessed else None
    result = kmeans(points, init, guess=guess)
    np.testing.assert_array_equal(result.labels, oracle.labels_of(points, result.centers))
    np.testing.assert_allclose(
        result.centers, oracle.means_of(points, result.labels, init), rtol=1e-6, atol=3e-45
    )


def test_the_largest_numbers_overflow_nothing():
    high = np.finfo(np.float32).max
    points = np.array([[high, -high], [-high, high], [high, high]], np.float32)
    result = kmeans(points, points)
    np.testing.assert_array_equal(result.labels, [0, 1, 2])
    np.testing.assert_array_equal(result.centers, points)


@pytest.mark.parametrize("spread", [0.05, 0.8])
@pytest.mark.usefixtures("tiny_blocks")
def test_threads_change_no_bit(monkeypatch, spread):
    points, init = points_around(9, 20, 15, 20, spread)
    results = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(pool._Setting, "threads", threads)
        results.append(kmeans(points, init))
    for other in results[1:]:
        np.testing.assert_array_equal(results[0].labels, other.labels)
        np.testing.assert_array_equal(results[0].centers, other.centers)
        assert (results[0].n_iter, results[0].inertia) == (other.n_iter, other.inertia)


@pytest.mark.jit
def test_memory_beyond_the_points_is_a_few_numbers_per_point(backend):
    points, init = points_around(10, 64, 600, 64, 0.9)
    kmeans(points, init, max_iter=2)
    tracemalloc.start()
    kmeans(points, init, max_iter=3)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    blocks = 3 * 4 * module._BLOCK_VALUES + 3 * 8 * module._MOST_ROWS * 64
    per_point = 20 if backend == "numpy" else 10
    assert peak < blocks + 8 * (per_point * len(points) + 6 * init.size)


def test_numba_and_numpy_give_the_same_bits(monkeypatch):
    points, init = points_around(6, 50, 30, 24, 0.8)
    results = []
    for switch in "10":
        monkeypatch.setenv("PROTOFLEET_NUMBA", switch)
        results.append(kmeans(points, init))
    np.testing.assert_array_equal(results[0].labels, results[1].labels)
    np.testing.assert_array_equal(results[0].centers, results[1].centers)


@examples
@example(seed=316, n=7, k=3).via("two candidates that leave the same inertia")
@given(seed=st.integers(0, 10_000), n=st.integers(1, 30), k=st.integers(1, 30))
def test_seeds_are_those_of_greedy_kmeans_plusplus(seed, n, k):
    points = np.random.default_rng(seed).standard_normal((n, 3)).astype(np.float32)
    k = min(k, n)
    seeds = kmeans_plusplus(points, k, np.random.default_rng(seed))
    numbers, tied = oracle.kmeans_plusplus(points, k, np.random.default_rng(seed))
    assume(not tied)
    np.testing.assert_array_equal(seeds, points[numbers])
    assert len(set(numbers.tolist())) == k


def test_more_seeds_than_distinct_points_repeat_one():
    seeds = kmeans_plusplus(np.ones((5, 2), np.float32), 4, np.random.default_rng(0))
    np.testing.assert_array_equal(seeds, np.ones((4, 2)))


def test_restarts_find_what_scikit_learn_finds():
    points, _ = points_around(11, 7, 12, 4, 0.1)
    mine = kmeans_restarts(points, 7, rng=np.random.default_rng(0))
    theirs = KMeans(7, n_init=10, random_state=0).fit(points)
    assert mine.inertia == pytest.approx(theirs.inertia_, rel=1e-5)
    again = kmeans_restarts(points, 7, rng=np.random.default_rng(0))
    np.testing.assert_array_equal(mine.labels, again.labels)


def test_restarts_return_the_best_run():
    points, _ = points_around(12, 7, 12, 4, 1.0)
    mine = kmeans_restarts(points, 5, rng=np.random.default_rng(0), restarts=6)
    rng = np.random.default_rng(0)
    runs = [kmeans(points, kmeans_plusplus(points, 5, rng)).inertia for _ in range(6)]
    assert mine.inertia == min(runs) < max(runs)


def test_cluster_means_keep_the_given_row_of_an_unused_label():
    points = np.array([[1, 2], [3, 4], [9, 9]], np.float32)
    init = np.full((3, 2), 7, np.float32)
    means = cluster_means(points, np.array([0, 0, 2]), init)
    np.testing.assert_array_equal(means, [[2, 3], [7, 7], [9, 9]])


def test_wrong_inputs_are_named():
    points, init = points_around(7, 3, 4, 2, 1.0)
    with pytest.raises(InputError, match=r"expected points \(n, d\)"):
        kmeans(points, init[:, :1])
    with pytest.raises(InputError, match="max_iter >= 1"):
        kmeans(points, init, max_iter=0)
    with pytest.raises(InputError, match="k-means guess: expected"):
        kmeans(points, init, guess=np.full(len(points), 3))
    with pytest.raises(InputError, match="expected restarts >= 1, got 0"):
        kmeans_restarts(points, 2, rng=np.random.default_rng(0), restarts=0)
    with pytest.raises(InputError, match=r"expected 1 <= k <= n .* got k=13 of \(12, 2\)"):
        kmeans_plusplus(points, 13, np.random.default_rng(0))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("row", [0, 2, 11])
def test_a_number_that_is_not_finite_is_found(value, row):
    points, init = points_around(7, 3, 4, 2, 1.0)
    bad = points.copy()
    bad[row, 1] = value
    with pytest.raises(InputError, match=rf"points: expected finite .* {value} at \({row}, 1\)"):
        kmeans(bad, init)
    with pytest.raises(InputError, match="initial centres: expected finite"):
        kmeans(points, bad[[row]])


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 0], r"labels: expected \(3,\) integers, got int64 of shape \(2,\)"),
        ([0, 0, -1], "labels: expected labels from 0 to 1, got -1 to 0"),
        ([0, 0, 2], "labels: expected labels from 0 to 1, got 0 to 2"),
        ([0.0, 0.0, 1.0], "labels: expected .* integers, got float64"),
    ],
)
def test_labels_that_point_elsewhere_are_refused(labels, message):
    """Sums are written where labels point to."""
    points, init = np.ones((3, 2), np.float32), np.ones((2, 2), np.float32)
    with pytest.raises(InputError, match=message):
        cluster_means(points, np.array(labels), init)


def test_centres_of_another_width_or_none_are_refused():
    with pytest.raises(InputError, match=r"got \(3, 2\) and \(1, 1\)"):
        cluster_means(np.ones((3, 2), np.float32), np.zeros(3, int), np.ones((1, 1), np.float32))
    with pytest.raises(InputError, match=r"got \(0, 2\) and \(1, 2\)"):
        cluster_means(np.ones((0, 2), np.float32), np.zeros(0, int), np.ones((1, 2), np.float32))
