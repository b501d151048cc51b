"""Squared distances, against differences one by one in float64."""

import numpy as np
import pytest

from protofleet.errors import InputError
from protofleet.kernels import SquaredDistances


def _found(vectors, origin, cuts):
    distances = SquaredDistances(len(vectors))
    for start, stop in zip([0, *cuts], [*cuts, vectors.shape[1]], strict=True):
        distances.add(vectors[:, start:stop], origin[start:stop])
    return distances.result()


@pytest.mark.parametrize("cuts", [[], [1], [3, 5000]])
def test_they_are_sums_of_squared_differences(cuts):
    rng = np.random.default_rng(0)
    origin = rng.normal(size=9001).astype(np.float32)
    vectors = origin + rng.normal(size=(6, 9001), scale=1e-3).astype(np.float32)
    vectors[5] += 1000
    expected = [[np.square(a.astype(float) - b).sum() for b in vectors] for a in vectors]
    found = _found(vectors, origin, cuts)
    np.testing.assert_allclose(found[:5, :5], np.array(expected)[:5, :5], rtol=1e-9)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    np.testing.assert_array_equal(found, found.T)


def test_equal_vectors_are_at_no_distance():
    vectors = np.full((3, 50), 0.1, np.float32)
    np.testing.assert_array_equal(_found(vectors, np.zeros(50, np.float32), []), np.zeros((3, 3)))


def test_blocks_of_another_shape_are_named():
    with pytest.raises(InputError, match=r"blocks \(3, width\).* got \(2, 4\) and \(4,\)"):
        SquaredDistances(3).add(np.zeros((2, 4), np.float32), np.zeros(4, np.float32))
