"""Scores against scikit-learn and by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score

from protofleet.errors import InputError
from protofleet.strategies.scores import accuracy, confusion, macro_f1

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
