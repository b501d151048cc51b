"""Sums of squares in parts have the bits of NumPy's in one."""

from __future__ import annotations

import numpy as np
import pytest

from protofleet.kernels import squared_distance, squared_distance_and_norm


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


@pytest.mark.parametrize("size", [0, 7, 129, 1_003, 999_983])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_distance_and_norm_in_one_pass_are_those_of_two(size, dtype, backend):  # noqa: ARG001
    rng = np.random.default_rng(1)
    values, start = (rng.normal(size=size).astype(dtype) for _ in range(2))
    distance, norm = squared_distance_and_norm(values, start)
    assert distance == squared_distance(values, start)
    assert norm == pytest.approx(squared_distance(values), rel=1e-12)
    assert squared_distance_and_norm(values, None) == (squared_distance(values),) * 2


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_neither_hides_what_is_not_finite(bad, backend):  # noqa: ARG001 - either
    values, start = np.ones(70_000, np.float32), np.ones(70_000, np.float32)
    values[3] = bad
    assert not np.isfinite(squared_distance_and_norm(values, start)).any()
