"""Sums of squares in parts have the bits of NumPy's in one."""

from __future__ import annotations

import numpy as np
import pytest

from protofleet.kernels import squared_distance


@pytest.mark.parametrize(
    "shape",
    [
        (0,),
        (1,),
        (7,),
        (128,),
        (129,),
        (1_003,),
        (1 << 15,),
        ((1 << 15) + 1,),
        (999_983,),
        (40_000, 3),
        (3, 7, 129, 65),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_the_sum_has_numpys_bits(shape, dtype, backend):  # noqa: ARG001 - either
    rng = np.random.default_rng(0)
    values, start = (rng.normal(size=shape).astype(dtype) for _ in range(2))
    wide = values.astype(np.float64)
    assert squared_distance(values) == np.square(wide).sum()
    assert squared_distance(values, start) == np.square(wide - start).sum()


def test_what_is_not_finite_shows(backend):  # noqa: ARG001 - either
    values = np.ones(70_000, np.float32)
    values[66_000] = np.nan
    assert np.isnan(squared_distance(values))
