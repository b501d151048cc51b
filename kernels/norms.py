"""Sums of squares of whole models, without a copy of the model in between."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from protofleet.kernels.native.switch import backend


def squared_distance(values: NDArray[Any], start: NDArray[Any] | None = None) -> float:
    """The sum of the squares of ``values - start``, of ``values`` alone without ``start``.

    Every difference is taken in float64, and they are added up in pairs as NumPy does, so that the
    sum is ``np.square(values.astype(np.float64) - start).sum()`` to the last bit.

    Args:
        values: floats of any shape.
        start: of the same shape.
    """
    other = None if start is None else start.reshape(-1)
    found: float = backend("norms").squares(values.reshape(-1), other)
    return found
