"""Declarations of updates: names, shapes and dtypes, a free first axis, all optional or none."""

import numpy as np
import pytest

from protofleet.errors import RefusedError
from protofleet.strategies.types import TensorSchema, TensorSchemas, float32_schemas
from protofleet.tensors import Layout

_W, _ROWS = np.zeros((2, 3), np.float32), np.zeros((5, 4), np.uint8)
_UPLINK = TensorSchemas(
    required={"w": TensorSchema((2, 3))},
    optional={"rows": TensorSchema((None, 4), "uint8", 5), "b": TensorSchema(())},
)
_BOTH = {"rows": _ROWS, "b": np.zeros((), np.float32)}


@pytest.mark.parametrize(
    "tensors",
    [{"w": _W}, {"w": _W, **_BOTH}, {"w": _W, **_BOTH, "rows": _ROWS[:0]}],
)
def test_declared_tensors_are_let_in(tensors):
    _UPLINK.check(tensors)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, r"tensor 'w': expected \(2, 3\) float32, got nothing"),
        ({"w": _W.T}, r"got \(3, 2\) float32"),
        ({"w": _W.astype(np.float64)}, r"got \(2, 3\) float64"),
        ({"w": _W, "x": _W}, "tensor 'x': the strategy expects no such name"),
        ({"w": _W, "rows": _ROWS}, r"tensor 'b': expected \(\) float32, got nothing"),
        (
            {"w": _W, **_BOTH, "rows": _ROWS[:, :3]},
            r"expected \(n, 4\) uint8 with n <= 5, got \(5, 3\) uint8",
        ),
        (
            {"w": _W, **_BOTH, "rows": np.zeros((6, 4), np.uint8)},
            r"uint8 with n <= 5, got \(6, 4\)",
        ),
        (
            {"w": _W, **_BOTH, "rows": _ROWS[0]},
            r"expected \(n, 4\) uint8 with n <= 5, got \(4,\) uint8",
        ),
    ],
)
def test_other_names_shapes_and_dtypes_are_refused(tensors, message):
    with pytest.raises(RefusedError, match=message) as caught:
        _UPLINK.check(tensors)
    assert caught.value.rule == "layout"


def test_a_layout_s_tensors_are_float32():
    forms = float32_schemas(Layout.of({"w": (2, 3), "b": ()}))
    assert forms == {"w": TensorSchema((2, 3), "float32"), "b": TensorSchema((), "float32")}
