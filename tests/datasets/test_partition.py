import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofleet.datasets.digits import load_digits
from protofleet.datasets.partition import dirichlet, stratified_split
from protofleet.errors import InputError


@given(clients=st.integers(1, 6), alpha=st.sampled_from([0.3, 1.0, 100.0]), seed=st.integers(0, 99))
def test_dirichlet_is_a_partition(clients, alpha, seed):
    labels = np.random.default_rng(1).integers(0, 4, 300)
    parts = dirichlet(labels, clients, alpha=alpha, rng=np.random.default_rng(seed))
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(300))
    assert min(map(len, parts)) >= 10


def test_small_alpha_is_more_skewed():
    labels = np.repeat(np.arange(10), 200)

    def classes_held(alpha):
        parts = dirichlet(labels, 8, alpha=alpha, rng=np.random.default_rng(0))
        return np.mean([(np.bincount(labels[part], minlength=10) > 5).sum() for part in parts])

    assert classes_held(0.1) < classes_held(10.0)


def test_impossible_partition_says_what_to_change():
    with pytest.raises(InputError, match="fewer clients"):
        dirichlet(np.zeros(5, np.int64), 3, alpha=1.0, rng=np.random.default_rng(0))


def test_split_keeps_proportions_and_single_examples():
    labels = np.array([0] * 20 + [1] * 10 + [2])
    train, test = stratified_split(labels, test_fraction=0.3, rng=np.random.default_rng(0))
    assert np.bincount(labels[test], minlength=3).tolist() == [6, 3, 0]
    assert np.array_equal(np.sort(np.concatenate([train, test])), np.arange(31))


def test_digits_are_scaled_images():
    images, labels = load_digits()
    assert images.shape == (1797, 1, 8, 8)
    assert images.min() == 0
    assert images.max() == 1
    assert labels.shape == (1797,)
