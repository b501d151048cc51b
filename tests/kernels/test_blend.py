"""Sums of models with weights, and their products with a vector, against float64."""

import numpy as np
import pytest

from protofleet.errors import InputError
from protofleet.kernels import blend, inner_products


@pytest.mark.parametrize(("n", "size"), [(1, 1), (3, 100), (7, 20_011)])
def test_they_are_the_matrix_products(n, size):
    rng = np.random.default_rng(n)
    rows = rng.standard_normal((n, size)).astype(np.float32)
    rows.flags.writeable = False
    weights, vector = rng.standard_normal(n), rng.standard_normal(size).astype(np.float32)
    out = np.empty(size, np.float32)
    blend(rows, weights, out)
    np.testing.assert_allclose(out, weights @ rows.astype(np.float64), atol=2e-6)
    expected = rows.astype(np.float64) @ vector.astype(np.float64)
    np.testing.assert_allclose(inner_products(rows, vector), expected, atol=1e-6 * size)


def test_wrong_shapes_are_refused():
    rows, out = np.zeros((2, 3), np.float32), np.zeros(3, np.float32)
    with pytest.raises(InputError, match=r"rows of models: expected \(1, 3\), got \(2, 3\)"):
        blend(rows, np.ones(1), out)
    with pytest.raises(InputError, match=r"rows of models: expected \(2, 4\), got \(2, 3\)"):
        inner_products(rows, np.zeros(4, np.float32))
    out.flags.writeable = False
    with pytest.raises(InputError, match="blend: expected a writable"):
        blend(rows, np.ones(2), out)
