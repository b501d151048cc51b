"""K-means against scikit-learn and against brute force."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import kmeans as oracle
from sklearn.cluster import KMeans

from protofleet.errors import InputError
from protofleet.kernels import cluster_means, kmeans

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
    mine = kmeans(points, init, max_iter=20)
    centers, labels, n_iter = oracle.kmeans(points, init, 20, 1e-4)
    np.testing.assert_array_equal(mine.labels, labels)
    np.testing.assert_allclose(mine.centers, centers, rtol=1e-4, atol=1e-5)
    assert mine.n_iter == n_iter


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


def test_many_blocks_give_what_one_gives(monkeypatch):
    from protofleet.kernels import _kmeans  # noqa: PLC0415 - its block size is what is tested

    points, init = points_around(5, 32, 20, 6, 0.7)
    whole = kmeans(points, init)
    monkeypatch.setattr(_kmeans, "_BLOCK_VALUES", 32 * 7)
    np.testing.assert_array_equal(whole.labels, kmeans(points, init).labels)


def test_numba_and_numpy_give_the_same_bits(monkeypatch):
    points, init = points_around(6, 50, 30, 24, 0.8)
    results = []
    for switch in "10":
        monkeypatch.setenv("PROTOFLEET_NUMBA", switch)
        results.append(kmeans(points, init))
    np.testing.assert_array_equal(results[0].centers, results[1].centers)


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
    bad = points.copy()
    bad[2, 1] = np.nan
    with pytest.raises(InputError, match=r"points: expected finite numbers, got nan at \(2, 1\)"):
        kmeans(bad, init)
