"""Scores against scikit-learn and by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    f1_score,
    mean_absolute_error,
    precision_score,
    r2_score,
    recall_score,
    root_mean_squared_error,
)

from protofleet.errors import InputError, RefusedError
from protofleet.strategies.scores import (
    LARGEST_ERROR,
    accuracy,
    check_confusion,
    check_error_sums,
    check_label_counts,
    confusion,
    error_sums,
    label_counts,
    label_scores,
    macro_f1,
    mean_binary_cross_entropy,
    mean_huber,
    mean_square,
    micro_f1,
    regression_scores,
)

classes = st.integers(0, 5)


@given(st.lists(st.tuples(classes, classes), min_size=1, max_size=50))
def test_scores_are_scikit_learn_s(pairs):
    """Classes that occur nowhere do not count."""
    y_true, y_pred = np.array(pairs).T
    counts = confusion(y_true, y_pred, 6)
    np.testing.assert_array_equal(counts, confusion_matrix(y_true, y_pred, labels=range(6)))
    assert accuracy(counts) == pytest.approx(accuracy_score(y_true, y_pred))
    assert macro_f1(counts) == pytest.approx(f1_score(y_true, y_pred, average="macro"))


def test_no_examples_have_no_score():
    empty = confusion(np.zeros(0, np.int64), np.zeros(0, np.int64), 3)
    assert empty.shape == (3, 3)
    assert math.isnan(accuracy(empty))
    assert math.isnan(macro_f1(empty))


def test_labels_outside_the_classes_are_refused():
    with pytest.raises(InputError, match="expected predicted classes below 2, got 0 to 2"):
        confusion(np.array([0, 1]), np.array([0, 2]), 2)
    with pytest.raises(InputError, match="expected true classes below 2, got -1 to 0"):
        confusion(np.array([-1, 0]), np.array([0, 1]), 2)
    with pytest.raises(InputError, match="expected labels of one length"):
        confusion(np.array([1]), np.array([0, 1]), 2)


def _numbers(columns):
    return st.lists(
        st.lists(st.floats(-100, 100, width=32), min_size=columns, max_size=columns),
        min_size=2,
        max_size=30,
    )


@given(_numbers(4))
def test_scores_of_a_regression_are_scikit_learn_s_and_add_up(rows):
    """Of each target; the sums of two halves give what those of the whole give."""
    values = np.array(rows, np.float32)
    y, outputs = values[:, :2], values[:, 2:]
    half = len(y) // 2
    sums = error_sums(outputs[:half], y[:half]) + error_sums(outputs[half:], y[half:])
    np.testing.assert_allclose(sums, error_sums(outputs, y), rtol=1e-9, atol=1e-6)
    check_error_sums("claim", sums, 2)
    for index, found in enumerate(regression_scores(sums)):
        true, said = y[:, index].astype(float), outputs[:, index].astype(float)
        assert found["mae"] == pytest.approx(mean_absolute_error(true, said), abs=1e-6)
        assert found["rmse"] == pytest.approx(root_mean_squared_error(true, said), abs=1e-5)
        if true.std() > 0.1:
            assert found["r2"] == pytest.approx(r2_score(true, said), rel=1e-6, abs=1e-6)


def test_r2_of_values_that_do_not_vary_is_not_defined():
    same = np.full((5, 1), 1000.25, np.float32)
    (found,) = regression_scores(error_sums(same + np.float32(1), same))
    assert (found["mae"], math.isnan(found["r2"])) == (1.0, True)
    (nothing,) = regression_scores(error_sums(same[:0], same[:0]))
    assert all(map(math.isnan, nothing.values()))


def test_outputs_that_are_no_numbers_count_as_the_largest_error():
    """A diverged model has a terrible score, and its claim is one that is let in."""
    outputs = np.array([[math.nan], [math.inf], [-math.inf], [1.0]], np.float32)
    sums = error_sums(outputs, np.ones((4, 1), np.float32))
    check_error_sums("claim", sums, 1)
    assert regression_scores(sums)[0]["mae"] == pytest.approx(0.75 * LARGEST_ERROR)


def _changed(index, value):
    sums = error_sums(np.array([[1], [4]], "f4"), np.array([[2], [2]], "f4"))
    sums[0, index] = value
    return sums


@pytest.mark.parametrize(
    ("sums", "expected"),
    [
        (np.zeros((2, 5)), r"of shape \(1, 5\)"),
        (np.zeros((1, 4)), r"of shape \(1, 5\)"),
        (_changed(0, 1.5), "one whole number of examples"),
        (_changed(0, -2.0), "not negative"),
        (_changed(1, -3.0), "not negative"),
        (_changed(1, 3.5), "errors that fit their squares"),
        (_changed(2, 1.0), "errors that fit their squares"),
        (_changed(2, 10.0), "squared errors that fit"),
        (_changed(3, 5.0), "values that fit their squares"),
        (_changed(0, 0.0), "errors that fit their squares"),
        (_changed(4, 1e60), "at most 1e"),
    ],
)
def test_sums_of_errors_that_cannot_be_are_refused(sums, expected):
    with pytest.raises(RefusedError, match=expected) as caught:
        check_error_sums("claim", sums, 1)
    assert caught.value.rule == "evaluation"


@given(st.lists(st.tuples(*[st.booleans()] * 6), min_size=1, max_size=40))
def test_scores_of_labels_are_scikit_learn_s(rows):
    """Of each label, and all decisions together; labels that occur nowhere do not count."""
    flags = np.array(rows)
    y, said = flags[:, :3], flags[:, 3:]
    counts = label_counts(np.where(said, 0.1, -0.1).astype(np.float32), y.astype(np.float32))
    check_label_counts("claim", counts, 3)
    settings = {"average": None, "zero_division": np.nan}
    for name, score in (("f1", f1_score), ("precision", precision_score), ("recall", recall_score)):
        found = [one[name] for one in label_scores(counts)]
        np.testing.assert_allclose(found, score(y, said, **settings))
    expected = f1_score(y, said, average="micro", zero_division=np.nan)
    assert micro_f1(counts) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([[1, 2, 3, 4]], r"of shape \(2, 4\)"),
        ([[1, 2, 3, 4], [1, 1, 1, 1]], "as many examples for every label"),
        ([[1, 2, 3, -1], [1, 1, 1, 2]], "whole numbers from 0"),
        ([[1.5, 2, 3, 3.5], [1, 2, 3, 4]], "whole numbers from 0"),
    ],
)
def test_counts_of_labels_that_cannot_be_are_refused(counts, expected):
    with pytest.raises(RefusedError, match=expected):
        check_label_counts("claim", np.array(counts), 2)


@pytest.mark.parametrize("counts", [np.zeros((3, 2), np.int64), np.eye(2) / 2])
def test_confusion_counts_that_cannot_be_are_refused(counts):
    with pytest.raises(RefusedError, match="claim: expected"):
        check_confusion("claim", counts, 2)


def test_other_shapes_than_the_true_values_are_refused():
    with pytest.raises(InputError, match=r"got \(2, 1\) and \(2, 2\)"):
        error_sums(np.zeros((2, 1), "f4"), np.zeros((2, 2), "f4"))
    with pytest.raises(InputError, match=r"got \(2,\) and \(2,\)"):
        label_counts(np.zeros(2, "f4"), np.zeros(2, "f4"))


def test_mean_losses_are_their_formulas():
    outputs, y = np.array([[0.5, -3], [2, 0]], "f4"), np.array([[0, 1], [1, 0]], "f4")
    assert mean_square(outputs, y) == pytest.approx((0.25 + 16 + 1) / 4)
    assert mean_huber(outputs, y) == pytest.approx((0.125 + 3.5 + 0.5) / 4)
    terms = [1 / (1 + math.exp(0.5)), 1 / (1 + math.exp(3)), 1 / (1 + math.exp(-2)), 0.5]
    assert mean_binary_cross_entropy(outputs, y) == pytest.approx(-np.mean(np.log(terms)))
    assert mean_binary_cross_entropy(np.full((1, 1), 1e4, "f4"), np.zeros((1, 1), "f4")) == 1e4
    empty = np.zeros((0, 2), "f4")
    for loss in (mean_square, mean_huber, mean_binary_cross_entropy):
        assert math.isnan(loss(empty, empty))
