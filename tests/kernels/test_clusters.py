"""Client similarity, predicted prototypes and the Davies-Bouldin index against loops and others."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import clusters as oracle
from sklearn.metrics import davies_bouldin_score

from protofleet.errors import InputError
from protofleet.kernels import (
    davies_bouldin,
    predict_missing_prototypes,
    set_threads,
    shared_class_similarity,
)
from protofleet.kernels.native import pool
from protofleet.kernels.plain import clusters as loops

pytestmark = pytest.mark.usefixtures("backend")
examples = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def population(seed, shape, *, scale=1.0, share=0.6):
    """Prototypes of clients, absent ones NaN: they must not be looked at."""
    rng = np.random.default_rng(seed)
    prototypes = (scale * rng.standard_normal(shape)).astype(np.float32)
    present = rng.random(shape[:2]) < share
    prototypes[~present] = np.nan
    prototypes.flags.writeable = present.flags.writeable = False
    return prototypes, present


@examples
@given(
    seed=st.integers(0, 10_000),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(1, 9)),
    scale=st.sampled_from([1e-40, 1.0, 1e37]),
    share=st.sampled_from([0.0, 0.3, 0.8, 1.0]),
)
def test_similarity_is_the_mean_over_the_shared_classes(seed, shape, scale, share):
    prototypes, present = population(seed, shape, scale=scale, share=share)
    mine = shared_class_similarity(prototypes, present)
    assert mine.dtype == np.float32
    np.testing.assert_allclose(mine, oracle.similarity(prototypes, present), atol=2e-6)


@examples
@given(
    seed=st.integers(0, 10_000),
    shape=st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(1, 9)),
    scale=st.sampled_from([1e-40, 1.0, 1e37]),
    share=st.sampled_from([0.0, 0.2, 0.6, 1.0]),
    neighbours=st.integers(1, 12),
)
def test_missing_prototypes_follow_the_definition(seed, shape, scale, share, neighbours):
    """Similarities of five values make ties frequent; some clients resemble no owner at all."""
    prototypes, present = population(seed, shape, scale=scale, share=share)
    rng = np.random.default_rng(seed)
    levels = np.array([-0.5, -0.25, 0, 0.5, 1], np.float32)
    similarity = levels[rng.integers(0, 5, (shape[0], shape[0]))]
    mine = predict_missing_prototypes(prototypes, present, similarity, neighbours=neighbours)
    expected = oracle.predicted(prototypes, present, similarity, neighbours)
    np.testing.assert_allclose(mine, expected, rtol=1e-5, atol=1e-6 * scale + 1e-44)
    np.testing.assert_array_equal(mine[present], prototypes[present])


def test_a_class_of_one_owner_is_predicted_as_it_is():
    prototypes = np.zeros((3, 2, 4), np.float32)
    present = np.array([[True, True], [True, False], [True, False]])
    prototypes[0, 1] = [0.1, 0.2, 0.3, 0.7]
    similarity = np.array([[1, 0.3, -1], [0.3, 1, 1], [-1, 1, 1]], np.float32)
    filled = predict_missing_prototypes(prototypes, present, similarity)
    np.testing.assert_array_equal(filled[1, 1], prototypes[0, 1])
    np.testing.assert_array_equal(filled[2, 1], prototypes[0, 1])


def test_predicted_prototypes_predict_nothing():
    """The client most similar to the last one owns no class of its own: it has no say."""
    prototypes = np.zeros((3, 1, 1), np.float32)
    prototypes[0] = 8
    present = np.array([[True], [False], [False]])
    similarity = np.array([[1, 0.5, 0.1], [0.5, 1, 0.9], [0.1, 0.9, 1]], np.float32)
    filled = predict_missing_prototypes(prototypes, present, similarity)
    np.testing.assert_array_equal(filled, np.full((3, 1, 1), 8))


def test_of_equally_similar_owners_the_first_take_part():
    prototypes = np.array([[1], [2], [4], [8], [0]], np.float32)[:, None]
    present = np.array([[True]] * 4 + [[False]])
    similarity = np.zeros((5, 5), np.float32)
    similarity[4] = [0.5, 0.5, 0.5, 1, 1]
    filled = predict_missing_prototypes(prototypes, present, similarity, neighbours=2)
    assert filled[4, 0, 0] == pytest.approx((0.5 * 1 + 1 * 8) / 1.5)


def test_a_class_that_nobody_owns_stays_zero():
    prototypes, present = population(1, (4, 3, 5), share=1.0)
    present = present.copy()
    present[:, 1] = False
    similarity = shared_class_similarity(prototypes, present)
    filled = predict_missing_prototypes(prototypes, present, similarity)
    np.testing.assert_array_equal(filled[:, 1], np.zeros((4, 5)))
    np.testing.assert_array_equal(filled[:, 0], prototypes[:, 0])


def clustered(seed, n, clusters, width, scale=1.0):
    rng = np.random.default_rng(seed)
    points = (scale * rng.standard_normal((n, width))).astype(np.float32)
    labels = rng.permutation(np.arange(n) % clusters)
    points.flags.writeable = labels.flags.writeable = False
    return points, labels


@pytest.mark.parametrize(("n", "width"), [(3, 1), (12, 2), (36, 3), (105, 40), (200, 9)])
def test_davies_bouldin_is_scikit_learn_s(n, width):
    for clusters in {2, max(2, n // 4), n - 1}:
        points, labels = clustered(n, n, clusters, width)
        expected = davies_bouldin_score(points.astype(np.float64), labels)
        assert davies_bouldin(points, labels) == pytest.approx(expected, rel=1e-6)


@examples
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(3, 40),
    share=st.floats(0, 1),
    width=st.integers(1, 12),
    scale=st.sampled_from([1e-4, 1.0, 1e18, 1e37]),
)
def test_davies_bouldin_follows_its_definition(seed, n, share, width, scale):
    clusters = 2 + int(share * (n - 3))
    points, labels = clustered(seed, n, clusters, width, scale)
    expected = oracle.davies_bouldin(points, labels)
    assert davies_bouldin(points, labels) == pytest.approx(expected, rel=1e-9)


@examples
@given(
    seed=st.integers(0, 10_000),
    names=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=4, max_size=4, unique=True),
)
def test_the_names_of_clusters_do_not_matter(seed, names):
    points, labels = clustered(seed, 15, 4, 3)
    plain = davies_bouldin(points, labels)
    assert davies_bouldin(points, np.array(names)[labels]) == pytest.approx(plain, rel=1e-12)
    assert davies_bouldin(points, np.array([9, 2, 14, 3])[labels]) == pytest.approx(plain)


@pytest.mark.parametrize(
    ("points", "labels"),
    [
        ([[0, 0], [2, 2], [0, 2], [2, 0], [5, 5], [7, 7]], [0, 0, 1, 1, 2, 2]),
        ([[0, 0], [2, 2], [0, 2], [2, 0]], [0, 0, 1, 1]),
        ([[1, 1], [1, 1], [3, 4], [3, 4]], [0, 0, 1, 1]),
        ([[1, 1], [1, 1], [1, 1]], [0, 1, 1]),
        ([[-1, 0], [1, 0], [-1, 1e-9], [1, 1e-9]], [0, 0, 1, 1]),
        ([[0, 0], [0, 1e-9], [1, 0], [1, 1e-9]], [0, 0, 1, 1]),
    ],
    ids=[
        "two clusters with one centre",
        "only one centre",
        "no spread",
        "one place",
        "almost one centre",
        "almost no spread",
    ],
)
def test_coincident_points_and_centres_are_treated_as_scikit_learn_does(points, labels):
    points, labels = np.array(points, np.float32), np.array(labels)
    mine = davies_bouldin(points, labels)
    assert mine == pytest.approx(davies_bouldin_score(points, labels), rel=1e-6)
    assert mine == pytest.approx(oracle.davies_bouldin(points, labels), rel=1e-12)


def test_blocks_of_clusters_give_what_one_gives(monkeypatch):
    monkeypatch.setenv("PROTOFLEET_NUMBA", "0")
    points, labels = clustered(3, 90, 31, 4)
    whole = davies_bouldin(points, labels)
    monkeypatch.setattr(loops, "_VALUES", 31 * 4 * 7)
    assert davies_bouldin(points, labels) == whole


def test_numba_and_numpy_give_the_same(monkeypatch):
    prototypes, present = population(4, (20, 5, 11))
    similarity = shared_class_similarity(prototypes, present)
    points, labels = clustered(4, 70, 17, 11)
    results = []
    for switch in "10":
        monkeypatch.setenv("PROTOFLEET_NUMBA", switch)
        filled = predict_missing_prototypes(prototypes, present, similarity)
        results.append((filled, davies_bouldin(points, labels)))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    assert results[0][1] == pytest.approx(results[1][1], rel=1e-12)


def test_threads_change_no_bit():
    """Clients are compared in blocks of 256: here there are three."""
    prototypes, present = population(5, (600, 4, 33))
    results = []
    before = pool.threads()
    for threads in (1, 2):
        set_threads(threads)
        results.append(shared_class_similarity(prototypes, present))
    set_threads(before)
    np.testing.assert_array_equal(*results)


def test_wrong_populations_are_named():
    prototypes, present = population(6, (4, 3, 2), share=1.0)
    similarity = np.eye(4, dtype=np.float32)
    with pytest.raises(InputError, match=r"present: expected \(4, 3\) bool"):
        shared_class_similarity(prototypes, present.T)
    with pytest.raises(InputError, match=r"present: expected \(4, 3\) bool"):
        predict_missing_prototypes(prototypes, present.astype(np.int8), similarity)
    with pytest.raises(InputError, match=r"expected similarity \(4, 4\)"):
        predict_missing_prototypes(prototypes, present, similarity[:3])
    with pytest.raises(InputError, match="neighbours >= 1, got"):
        predict_missing_prototypes(prototypes, present, similarity, neighbours=0)
    bad = prototypes.copy()
    bad[1, 2, 0] = np.inf
    with pytest.raises(InputError, match="prototypes: expected finite numbers, got inf"):
        shared_class_similarity(bad, present)
    with pytest.raises(InputError, match=r"prototypes: expected finite .* at \(1, 2, 0\)"):
        predict_missing_prototypes(bad, present, similarity)
    with pytest.raises(InputError, match="similarity: expected finite numbers, got nan"):
        predict_missing_prototypes(prototypes, present, similarity * np.float32(np.nan))


@pytest.mark.parametrize("clusters", [1, 6])
def test_one_cluster_and_clusters_of_one_have_no_index(clusters):
    points, _ = clustered(7, 6, 2, 3)
    with pytest.raises(InputError, match=f"2 to 5 clusters of 6 points, got {clusters}"):
        davies_bouldin(points, np.arange(6) % clusters)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_wrong_points_are_named(bad):
    points, labels = clustered(8, 6, 3, 3)
    with pytest.raises(InputError, match=r"expected points \(n, d\), not empty"):
        davies_bouldin(points, labels[:3])
    with pytest.raises(InputError, match=r"expected points \(n, d\), not empty"):
        davies_bouldin(points[:0], labels[:0])
    points = points.copy()
    points[4, 1] = bad
    with pytest.raises(InputError, match=r"points: expected finite .* at \(4, 1\)"):
        davies_bouldin(points, labels)


def test_prototypes_without_numbers_are_similar_to_none():
    similarity = shared_class_similarity(np.zeros((2, 3, 0), np.float32), np.ones((2, 3), bool))
    np.testing.assert_array_equal(similarity, np.zeros((2, 2)))
