import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedKFold

from protofleet.datasets.splits import divide_like, folds_split, in_time_split, random_split


@given(st.lists(st.integers(0, 4), min_size=40, max_size=200), st.integers(2, 10))
def test_folds_are_those_of_scikit_learn(labels, folds):
    """The oracle is StratifiedKFold without shuffling; the first 7 of 10 train, and so on."""
    labels = np.array([*labels, *[3, 0, 4, 1, 2] * folds])
    kept = max(1, folds - 3)
    tests = [test for _, test in StratifiedKFold(folds).split(labels, labels)]
    train, test = folds_split(labels, folds=folds, train_folds=kept)
    assert train.tolist() == sorted(np.concatenate(tests[:kept]))
    assert test.tolist() == sorted(np.concatenate(tests[kept:]))


def test_random_split_ignores_classes_and_keeps_one_for_training():
    train, test = random_split(40, test_fraction=0.25, rng=np.random.default_rng(0))
    assert (len(train), len(test)) == (30, 10)
    assert sorted([*train, *test]) == list(range(40))
    train, test = random_split(1, test_fraction=0.9, rng=np.random.default_rng(0))
    assert (len(train), len(test)) == (1, 0)


def test_in_time_the_last_of_each_class_test_and_overlaps_are_left_out():
    """Rows 2 and 5 overlap the training rows 1 and 4; row 8 overlaps only a test row."""
    labels = np.array([0, 0, 0, 1, 1, 1, 0, 0, 0])
    follows = np.array([0, 1, 1, 0, 1, 1, 0, 0, 1], bool)
    train, test = in_time_split(labels, follows, test_fraction=0.4)
    assert train.tolist() == [0, 1, 2, 3, 4, 6]
    assert test.tolist() == [7, 8]


def test_in_time_leaves_out_a_test_row_before_a_training_row():
    """A test row that the next training row overlaps is seen in training, too."""
    labels = np.array([1, 1, 0, 0])
    train, test = in_time_split(labels, np.array([0, 0, 1, 0], bool), test_fraction=0.5)
    assert train.tolist() == [0, 2]
    assert test.tolist() == [3]


def test_test_rows_follow_the_clients_train_proportions():
    counts = np.array([[30, 0, 5], [10, 0, 0], [0, 0, 15]])
    labels = np.repeat([0, 1, 2], 8)
    parts = divide_like(labels, counts, rng=np.random.default_rng(0))
    assert [np.bincount(labels[rows], minlength=3).tolist() for rows in parts] == [
        [6, 0, 2],
        [2, 0, 0],
        [0, 0, 6],
    ]
    assert len(set(np.concatenate(parts))) == 16


@pytest.mark.parametrize("seed", range(5))
def test_all_test_rows_of_trained_classes_are_divided(seed):
    rng = np.random.default_rng(seed)
    labels, counts = rng.integers(0, 6, 500), rng.integers(0, 30, (7, 6))
    parts = divide_like(labels, counts, rng=rng)
    assert sorted(np.concatenate(parts)) == list(range(500))
    got = np.stack([np.bincount(labels[rows], minlength=6) for rows in parts])
    exact = counts / counts.sum(axis=0) * np.bincount(labels)
    assert np.abs(got - exact).max() <= 1
