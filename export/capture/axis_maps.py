"""Fixed linear maps along one axis: lookups, padding, resizing and averaging are all of this kind.

A map is a list of rows, one for each entry of the result, which says what it is the sum of. The
gradient of a map is the transposed map: so both directions are one lookup of fixed places, a
product with fixed weights, and a sum over as many entries as the longest row has.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from protofleet.export.capture.limits import MAX_CONSTANT_BYTES

Row = Sequence[tuple[int, float]]
"""Places on the axis, and the weight of each."""

_aten = torch.ops.aten


def take(x: Tensor, axis: int, places: Sequence[int]) -> Tensor:
    """The entries at ``places`` of an axis of fixed size, in their order."""
    axis %= x.dim()
    size, count = int(x.shape[axis]), len(places)
    steps = {b - a for a, b in itertools.pairwise(places)} or {1}
    if steps == {1} and count == size:
        return x
    if len(steps) == 1 and min(steps) > 0:
        (step,) = steps
        part: Tensor = _aten.slice.Tensor(x, axis, places[0], places[-1] + 1, step)
        return part
    return x.index_select(axis, torch.tensor(places))


def put(values: Tensor, axis: int, places: Sequence[int], size: int) -> Tensor:
    """Zeros of ``size`` along an axis, with ``values`` added at ``places``: ``take``'s gradient."""
    return combine(values, axis, transposed([[(place, 1.0)] for place in places], size))


def transposed(rows: Sequence[Row], size: int) -> list[list[tuple[int, float]]]:
    """The gradient's map, for an axis of ``size`` entries."""
    turned: list[list[tuple[int, float]]] = [[] for _ in range(size)]
    for number, row in enumerate(rows):
        for place, weight in row:
            turned[place].append((number, weight))
    return turned


def combine(x: Tensor, axis: int, rows: Sequence[Row]) -> Tensor:
    """Apply a map to an axis of fixed size."""
    axis %= x.dim()
    taps = max(1, *(len(row) for row in rows))
    if 4 * taps * len(rows) > MAX_CONSTANT_BYTES and all(w == 1 for row in rows for _, w in row):
        # Weights of 0 where a row ends early would be a larger constant than a program may hold.
        size = int(x.shape[axis])
        rows = [[*row, *[(size, 1.0)] * (taps - len(row))] for row in rows]
        x = torch.cat((x, torch.zeros_like(x.narrow(axis, 0, 1))), axis)
    filled = [[*row, *[(row[-1][0] if row else 0, 0.0)] * (taps - len(row))] for row in rows]
    found = take(x, axis, [place for row in filled for place, _ in row])
    weights = [[weight for _, weight in row] for row in filled]
    behind = [1] * (x.dim() - axis - 1)
    if taps == 1:
        return _weighted(found, weights, [len(rows), *behind])
    apart = found.reshape(*x.shape[:axis], len(rows), taps, *x.shape[axis + 1 :])
    return _weighted(apart, weights, [len(rows), taps, *behind]).sum(axis + 1)


def _weighted(x: Tensor, weights: Sequence[Sequence[float]], shape: Sequence[int]) -> Tensor:
    if all(weight == 1 for row in weights for weight in row):
        return x
    return x * torch.tensor(weights, dtype=x.dtype).reshape(*shape)
