"""Sums of squares of whole models, without a copy of the model in between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels.native.pool import spread, threads
from protofleet.kernels.native.switch import backend

_GRAIN = 1 << 16
"""Numbers that are worth another thread."""


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


def squared_distance_and_norm(
    values: NDArray[Any], start: NDArray[Any] | None
) -> tuple[float, float]:
    """``squared_distance(values, start)`` and that of ``values`` alone, in one pass over memory.

    The second has a relative error below 1e-9 of a model's size: its squares are added up in any
    order. A number that is not finite makes both sums so, without a warning.

    Args:
        values: floats of any shape.
        start: of the same shape; None: zeros.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        if start is None:
            distance = squared_distance(values)
            return distance, distance
        found: tuple[float, float] = backend("norms").both_squares(
            values.reshape(-1), start.reshape(-1)
        )
        return found


def squared_distances(
    vectors: Iterable[NDArray[Any] | None], start: NDArray[Any]
) -> NDArray[np.float64]:
    """``squared_distance`` of each to ``start``, NaN for None; long vectors on a thread each.

    Args:
        vectors: floats of the shape of ``start``; no more are held than there are threads.
        start: of any shape.

    Returns:
        ``(n,) float64``.
    """
    found: list[NDArray[np.float64]] = []
    left = iter(vectors)
    while some := tuple(islice(left, threads())):
        found.append(np.full(len(some), np.nan))
        grain = max(1, _GRAIN // max(start.size, 1))
        spread(partial(_measure, some, start, found[-1]), len(some), grain)
    return np.concatenate(found) if found else np.empty(0)


def _measure(
    vectors: Sequence[NDArray[Any] | None],
    start: NDArray[Any],
    out: NDArray[np.float64],
    first: int,
    stop: int,
) -> None:
    for index in range(first, stop):
        vector = vectors[index]
        if vector is not None:
            out[index] = squared_distance(vector, start)
