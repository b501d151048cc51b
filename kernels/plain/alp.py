"""The kernels of ``compiled/alp.py`` in NumPy, for devices without Numba."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels.checks import Floats

_LARGE = 1e34  # as in _alp_plan
_LOWEST = np.float32(-87)  # exp is a normal number


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def solve(
    kernel: Floats,
    x: Floats,
    local: Floats,
    global_: Floats,
    rows: Floats,
    columns: Floats,
    parts: Floats,
    totals: NDArray[np.float64],
    best: NDArray[np.int32],
    top: NDArray[np.int32],
    weights: Floats,
    tops: int,
    iterations: int,
    begin: int,
    end: int,
    first: int,
    stop: int,
    epsilon: float,
    floor: float,
) -> None:
    """Stages ``begin`` to ``end`` of a plan, for the panels ``first`` to ``stop``; see there."""
    width = kernel.shape[2]
    halves = -(-len(local) // width)
    mass = np.float32(len(x) / (len(local) * (len(kernel) // halves)))
    for stage in range(begin, end):
        if stage > 1 and not (totals < _LARGE).all():
            return  # NaN may follow, of which no rows can be chosen; the caller reads the totals
        u = parts[2, first]
        if stage == 0:
            totals[-1] = _inverse_norms(x, floor, epsilon, rows[0])
        elif stage > 1:
            np.divide(np.float32(1), parts[stage % 2].sum(axis=0), out=u)
        for p in range(first, stop):
            start = p % halves * width
            columns_of = slice(start, min(start + width, len(local)))
            size = columns_of.stop - start
            panel, v = kernel[p, :, :size], columns[2, p, :size]
            if stage == 1:
                own = (local if p < halves else global_)[columns_of]
                totals[p] = _inverse_norms(own, floor, 1.0, columns[0, p, :size])
                _exponentials(panel, rows, columns[:, p, :size], parts[0, p])
            elif stage > 1:
                np.divide(mass, u @ panel, out=v)
                if stage <= iterations:
                    np.matmul(panel, v, out=parts[(stage + 1) % 2, p])
                elif p < tops:
                    _top_rows(panel, u, top[:, columns_of], weights[:, columns_of])
                else:
                    values = panel * v
                    np.argmax(values, axis=1, out=(found := np.empty(len(panel), np.intp)))
                    best[p] = found
                    parts[(stage + 1) % 2, p] = values[np.arange(len(panel)), found]


def _inverse_norms(x: Floats, floor: float, epsilon: float, out: Floats) -> float:
    square = np.einsum("ij,ij->i", x, x, dtype=np.float64)
    np.divide(1.0 / epsilon, np.sqrt(np.maximum(square, floor)), out=out, casting="same_kind")
    return float(square.sum())


def _exponentials(panel: Floats, rows: Floats, columns: Floats, part: Floats) -> None:
    panel *= rows[0][:, None]
    panel *= columns[0]
    panel += rows[1][:, None]
    panel += columns[1]
    np.maximum(panel, _LOWEST, out=panel)
    np.exp(panel, out=panel)
    np.sum(panel, axis=1, out=part)


def _top_rows(panel: Floats, u: Floats, top: NDArray[np.int32], weights: Floats) -> None:
    """The rows above a column's k-th value, and the first of those that equal it."""
    values = u[:, None] * panel
    k = len(top)
    if k == 1:
        found = values.argmax(axis=0)[None]
    else:
        least = np.partition(values, len(values) - k, axis=0)[len(values) - k]
        above, equal = values > least, values == least
        equal &= np.cumsum(equal, axis=0) <= k - above.sum(axis=0)
        found = np.nonzero((above | equal).T)[1].reshape(-1, k).T
    top[:] = found
    weights[:] = np.take_along_axis(values, found, axis=0)


def move(
    local: Floats,
    x: Floats,
    rows: NDArray[np.int32],
    weights: Floats,
    gamma: float,
    start: int,
    stop: int,
    out: Floats,
) -> None:
    """``out = gamma · local + (1 - gamma) · Σ_k weights[k] · x[rows[k]]`` from start to stop."""
    part = out[start:stop]
    np.multiply(np.float32(gamma), local[start:stop], out=part)
    step = np.float32(1.0 - gamma)
    for picked, weight in zip(rows[:, start:stop], weights[:, start:stop], strict=True):
        part += (step * weight)[:, None] * x[picked]
