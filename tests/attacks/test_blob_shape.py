from __future__ import annotations

import pytest
from attacks.hostile import assert_refused, blob, entry

_SHAPES = [
    [2],
    [0],
    [1 << 62, 4],
    [1 << 32, 1 << 32],
    [0, 1 << 62],
    [-1],
    [True],
    [1.0],
    ["1"],
    [1] * 9,
    {},
]


@pytest.mark.parametrize("shape", _SHAPES, ids=str)
def test_a_shape_that_does_not_fill_its_bytes_is_refused(forge, shape):
    """Products that wrap around 2**64 to the right number among them."""
    data = blob({"a": entry(shape, 0, 4)}, bytes(4))
    assert_refused("blob-shape", *forge.put_params(data).both())
