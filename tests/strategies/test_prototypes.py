"""Means of classes and their weighted means, against exact fractions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracles import prototypes as oracle
from toy_model import array, frozen_map

from protofleet.errors import InputError
from protofleet.strategies.aggregation import MEAN, build
from protofleet.strategies.prototypes import (
    NearestPrototype,
    class_counts_of,
    class_means,
    feature_width,
    merge_prototypes,
)
from protofleet.strategies.types import Update
from protofleet.tensors import Model

_FLOATS = st.floats(-1e3, 1e3, width=32)


def test_each_class_has_the_mean_of_its_rows_and_an_absent_one_zeros():
    features = array([[1, 2], [3, 4], [10, 0], [5, 6]])
    means, counts = class_means(features, np.array([2, 2, 0, 2]), 4)
    np.testing.assert_array_equal(means, [[10, 0], [0, 0], [3, 4], [0, 0]])
    np.testing.assert_array_equal(counts, [1, 0, 3, 0])
    assert (means.dtype, counts.dtype) == (np.float32, np.int64)


def test_means_are_summed_in_float64():
    """A float32 sum of 2^24 and ones stays at 2^24: every one would be lost."""
    features = np.ones((1025, 1), np.float32)
    features[0] = 2.0**24
    means, _ = class_means(features, np.zeros(1025, np.int64), 1)
    np.testing.assert_array_equal(means, np.float32((2**24 + 1024) / 1025))


@given(data=st.data(), n=st.integers(0, 12), width=st.integers(1, 3), classes=st.integers(1, 4))
def test_class_means_are_those_of_exact_arithmetic(data, n, width, classes):
    features = np.array(
        data.draw(
            st.lists(st.lists(_FLOATS, min_size=width, max_size=width), min_size=n, max_size=n)
        ),
        np.float32,
    ).reshape(n, width)
    y = np.array(data.draw(st.lists(st.integers(0, classes - 1), min_size=n, max_size=n)), np.int64)
    means, counts = class_means(features, y, classes)
    expected, sizes = oracle.class_means(features, y, classes)
    assert counts.tolist() == sizes
    for row, exact in zip(means, expected, strict=True):
        wanted = [0.0] * width if exact is None else list(map(float, exact))
        np.testing.assert_allclose(row, wanted, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize(
    ("features", "y"), [([[1.0, 2.0]], [0, 1]), ([1.0], [0]), ([[1.0]], [2]), ([[1.0]], [-1])]
)
def test_classes_that_do_not_fit_are_refused(features, y):
    with pytest.raises(InputError, match="class means: expected"):
        class_means(array(features), np.array(y), 2)


def test_prototypes_are_weighted_by_class_and_kept_where_nobody_has_the_class():
    """Class 0: (1·1 + 3·5)/4 = 4; class 1 from the second only; class 2 from nobody."""
    terms = [
        (array([[1], [100], [7]]), np.array([1, 0, 0])),
        (array([[5], [2], [7]]), np.array([3, 9, 0])),
    ]
    old = array([[-1], [-2], [-3]])
    np.testing.assert_array_equal(merge_prototypes(MEAN, terms, old), [[4], [2], [-3]])


def test_merging_nothing_gives_a_copy_of_the_old_prototypes():
    old = array([[1, 2]])
    merged = merge_prototypes(MEAN, [], old)
    np.testing.assert_array_equal(merged, old)
    assert not np.shares_memory(merged, old)


@given(data=st.data(), clients=st.integers(1, 4), classes=st.integers(1, 3))
def test_merged_prototypes_are_those_of_exact_arithmetic(data, clients, classes):
    def draw(shape, values):
        size = int(np.prod(shape))
        return np.array(data.draw(st.lists(values, min_size=size, max_size=size))).reshape(shape)

    prototypes = draw((clients, classes, 2), _FLOATS).astype(np.float32)
    weights = draw((clients, classes), st.integers(0, 1000))
    old = draw((classes, 2), _FLOATS).astype(np.float32)
    merged = merge_prototypes(MEAN, zip(prototypes, weights, strict=True), old)
    expected = oracle.weighted_rows(prototypes, weights.tolist(), old)
    np.testing.assert_allclose(merged, expected, rtol=1e-6, atol=1e-9)


def test_the_largest_numbers_and_counts_that_are_admitted_stay_finite():
    big = np.full((1, 2), 3e38, np.float32)
    terms = [(big, np.array([2**62])), (big, np.array([2**62]))]
    np.testing.assert_array_equal(merge_prototypes(MEAN, terms, np.zeros((1, 2), np.float32)), big)


@pytest.mark.parametrize(
    ("prototypes", "weights"),
    [([[1, 2]], [1]), ([[1], [2]], [1]), ([[1], [2]], [1, -1])],
)
def test_terms_that_do_not_fit_are_refused(prototypes, weights):
    with pytest.raises(InputError, match="prototypes: expected"):
        merge_prototypes(MEAN, [(array(prototypes), np.array(weights))], array([[0], [0]]))


@pytest.mark.parametrize("counts", [None, np.array([1, 2, 3])])
def test_an_update_without_counts_of_every_class_is_refused(counts):
    update = Update(client_id="a", round_id=1, num_examples=3, tensors={}, class_counts=counts)
    with pytest.raises(InputError, match=r"update of 'a': expected registered counts of 2 classes"):
        class_counts_of(update, 2)


def test_a_bundle_without_features_is_refused_with_the_remedy():
    params = frozen_map({"w": np.zeros((7, 3))})
    model = Model(params=params, buffers=frozen_map({}), num_classes=2, input_shape=(2,))
    with pytest.raises(InputError, match=r"no program 'features'.* --head NAME"):
        feature_width(model)


def test_the_nearest_prototype_scores_highest_and_an_absent_one_never():
    score = NearestPrototype(array([[0, 0], [3, 4], [1, 1]]), np.array([1, 1, 0]))
    scores = score(array([[0, 0], [1, 1], [3, 3]]))
    np.testing.assert_array_equal(
        scores, [[0, -25, -np.inf], [-2, -13, -np.inf], [-18, -1, -np.inf]]
    )


def test_nearest_prototypes_are_a_dense_layer_up_to_a_number_per_example():
    rng = np.random.default_rng(2)
    features, prototypes = (rng.normal(size=(n, 5)).astype(np.float32) for n in (20, 4))
    score = NearestPrototype(prototypes, np.array([1, 0, 1, 1]))
    weight, bias = score.linear()
    known = [0, 2, 3]
    gap = (features @ weight.T + bias)[:, known] - score(features)[:, known]
    np.testing.assert_allclose(gap - gap[:, :1], 0, atol=1e-4)
    assert np.isfinite(bias).all()
    assert not (features @ weight.T + bias).argmax(axis=1).tolist().count(1)


def test_a_robust_rule_goes_class_by_class_over_the_clients_that_have_it():
    """The liar of class 0 is one of four; class 1 is held by two, and class 2 by nobody."""
    rule = build("median", {})
    rows = [array([[1], [5], [0]]), array([[2], [7], [0]]), array([[3], [0], [0]])]
    weights = [np.array(one) for one in ([4, 4, 0], [1, 2, 0], [9, 0, 0])]
    liar = array([[900], [900], [900]]), np.array([2**50, 0, 0])
    terms = [*zip(rows, weights, strict=True), liar]
    old = array([[0], [0], [-3]])
    np.testing.assert_allclose(merge_prototypes(rule, terms, old), [[2.5], [6], [-3]])
