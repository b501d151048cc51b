import numpy as np

from protofleet.datasets._signals import (
    same_runs,
    scale_sensors,
    standardise,
    window_starts,
)


def test_window_starts_with_and_without_an_exact_end():
    assert window_starts(256, 128, 64).tolist() == [0, 64, 128]
    assert window_starts(256, 128, 64, use_exact_end=False).tolist() == [0, 64]
    assert window_starts(257, 128, 64, use_exact_end=False).tolist() == [0, 64, 128]
    assert window_starts(127, 128, 64).tolist() == []


def test_runs_end_where_any_key_changes():
    assert same_runs(np.array([1, 1, 2, 2]), np.array([5, 6, 6, 6])) == [(0, 1), (1, 2), (2, 4)]
    assert same_runs(np.array([], np.int64)) == []


def test_constants_become_zero():
    """Also those whose mean rounds, so that their deviation is not exactly zero."""
    features = np.column_stack([np.full(7, 0.1), np.full(7, 1e9 + 0.1), np.zeros(7)])
    assert (np.abs(standardise(features)) < 1e-4).all()
    assert (np.abs(scale_sensors(np.full((7, 128, 6), 0.1, np.float32))) < 1e-4).all()


def test_tiny_scales_are_standardised():
    """WESAD's columns differ by seven orders of magnitude."""
    column = np.array([1.0, 2.0, 3.0, 4.0])
    both = standardise(np.column_stack([column * 1e-7, column * 1e7]))
    assert np.allclose(both[:, 0], both[:, 1])
    assert np.allclose(both[:, 0], [-1.3416408, -0.4472136, 0.4472136, 1.3416408])


def test_missing_values_become_the_mean_and_do_not_count():
    features = np.array([[1.0, np.nan], [3.0, np.nan], [np.nan, np.nan]])
    assert standardise(features).tolist() == [[-1, 0], [1, 0], [0, 0]]
    assert standardise(features, scale=False).tolist() == [[1, 0], [3, 0], [2, 0]]
