"""The loops of ``compiled/norms.py`` in NumPy, for floats of any kind."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_PART = 1 << 15
"""Numbers at a time: as float64 they stay in the cache."""


def squares(values: NDArray[Any], start: NDArray[Any] | None) -> float:
    """``np.square(values.astype(np.float64) - start).sum()`` of flat arrays."""
    size = min(_PART, values.size)
    return _sum(values, start, (np.empty(size), np.empty(size)))


def both_squares(values: NDArray[Any], start: NDArray[Any]) -> tuple[float, float]:
    """``squares(values, start)`` and ``squares(values, None)``."""
    return squares(values, start), squares(values, None)


def _sum(
    values: NDArray[Any],
    start: NDArray[Any] | None,
    memory: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> float:
    if values.size <= _PART:
        apart = memory[0][: values.size]
        np.copyto(apart, values)
        if start is not None:
            other = memory[1][: values.size]
            np.copyto(other, start)
            np.subtract(apart, other, out=apart)
        return float(np.add.reduce(np.square(apart, out=apart)))
    middle = values.size // 2
    middle -= middle % 8  # where NumPy's sum in pairs divides
    left, right = (None, None) if start is None else (start[:middle], start[middle:])
    return _sum(values[:middle], left, memory) + _sum(values[middle:], right, memory)
