"""Compiled kernels of the ALP plan.

Columns lie in panels: one product of matrices fills a panel, and each pass over it finds it in
the cache. Column sums are complete within a panel; row sums are parts that every reader adds in
the order of the panels, so that no bit depends on who computed which panel.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels.checks import Floats
from protofleet.kernels.native.kernel import FUSE, REDUCE, helper, kernel

_LOG2_E = np.float32(1.4426950408889634)


@kernel(
    *("f4[3] out", "f4[2]", "f4[2]", "f4[2]", "f4[2] out", "f4[3] out", "f4[3] out", "f8[1] out"),
    *("i4[2] out", "i4[2] out", "f4[2] out", "i8", "i8", "i8", "i8", "i8", "i8", "f8", "f8"),
    flags=REDUCE,
)
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
    """Stages ``begin`` to ``end`` of a plan, for the panels ``first`` to ``stop``.

    Stage 0 takes the norms of ``x``; 1 turns inner products into the kernel; 2 to ``iterations``
    scale rows, then columns; the one after does so too and chooses.

    Args:
        kernel: ``(P, N, W)``, panels of inner products, then of ``exp((cos + f + g) / epsilon)``.
        x: ``(N, d)``.
        local: ``(G, d)``, the columns of the first panels.
        global_: ``(G, d)``, the columns of the others, if any.
        rows: ``(2, N)``: ``1 / (|x| epsilon)`` and ``f / epsilon``.
        columns: ``(3, P, W)``: ``1 / |p|``, ``g / epsilon`` and the columns' scaling v.
        parts: ``(3, P, N)``: twice the panels' parts of the row sums, by turns (the last stage
            writes the largest ``kernel · v`` of rows there), and the rows' scaling u.
        totals: ``(P + 1,)``: sums of squares of the panels' prototypes and of ``x``; not finite
            or huge where the plan is not to be used.
        best: ``(P, N)``, column within the panel of the largest value, the lowest of equals.
        top: ``(k, G)``, rows of the largest values of a local column, falling.
        weights: ``(k, G)``, those values, ``u · kernel``.
        tops: panels of which ``top`` is wanted instead of ``best``.
        iterations: see above.
        begin: first stage.
        end: stage after the last.
        first: first panel.
        stop: panel after the last.
        epsilon: temperature.
        floor: lowest square of a norm.
    """
    width = kernel.shape[2]
    halves = -(-local.shape[0] // width)
    mass = np.float32(x.shape[0] / (local.shape[0] * (kernel.shape[0] // halves)))
    u = parts[2, first]
    for stage in range(begin, end):
        if stage == 0:
            totals[kernel.shape[0]] = _inverse_norms(
                x, 0, x.shape[0], floor, 1.0 / epsilon, rows[0]
            )
        elif stage > 1:
            _add(parts[stage % 2], u)
        for p in range(first, stop):
            start = p % halves * width
            size = min(width, local.shape[0] - start)
            v = columns[2, p, :size]
            if stage == 1:
                own = local if p < halves else global_
                inverse = columns[0, p, :size]
                totals[p] = _inverse_norms(own, start, start + size, floor, 1.0, inverse)
                _exponentials(kernel[p], rows, inverse, columns[1, p, :size], parts[0, p])
            elif stage > 1:
                _scale_columns(kernel[p], u, mass, v)
                if stage <= iterations:
                    _row_sums(kernel[p], v, parts[(stage + 1) % 2, p])
                elif p < tops:
                    _top_rows(kernel[p], u, start, start + size, top, weights)
                else:
                    _best_columns(kernel[p], v, best[p], parts[(stage + 1) % 2, p])


@helper(REDUCE)
def _inverse_norms(
    x: Floats, start: int, stop: int, floor: float, scale: float, out: Floats
) -> Any:
    total = 0.0
    for i in range(start, stop):
        row = x[i]
        square = np.float32(0)
        for j in range(row.size):
            square += row[j] * row[j]
        total += np.float64(square)
        out[i - start] = np.float32(scale / math.sqrt(max(np.float64(square), floor)))
    return total


@helper(FUSE)
def _exp2(x: Any) -> Any:
    """2^x within 2 ulp for x <= 126, 2^-126 below: Cephes polynomial of x less an integer."""
    magic = np.float32(12582912.0)  # 1.5 · 2^23: adding it rounds to an integer
    x = max(x, np.float32(-126))
    shifted = np.float32(x + magic)
    r = np.float32(x - np.float32(shifted - magic))
    p = np.float32(1.535336188319500e-4)
    p = np.float32(p * r + np.float32(1.339887440266574e-3))
    p = np.float32(p * r + np.float32(9.618437357674640e-3))
    p = np.float32(p * r + np.float32(5.550332471162809e-2))
    p = np.float32(p * r + np.float32(2.402264791363012e-1))
    p = np.float32(p * r + np.float32(6.931472028550421e-1))
    p = np.float32(p * r + np.float32(1.0))
    exponent = np.int32(shifted.view(np.int32) << np.int32(23))
    return np.int32(p.view(np.int32) + exponent).view(np.float32)


@helper(REDUCE)
def _exponentials(panel: Floats, rows: Floats, inverse: Floats, g: Floats, part: Floats) -> None:
    for i in range(panel.shape[0]):
        row = panel[i]
        scale = np.float32(rows[0, i] * _LOG2_E)
        f = rows[1, i]
        total = np.float32(0)
        for j in range(inverse.size):
            row[j] = _exp2(np.float32(row[j] * scale * inverse[j] + (f + g[j]) * _LOG2_E))
            total += row[j]
        part[i] = total


@helper(REDUCE)
def _add(parts: Floats, u: Floats) -> None:
    for i in range(u.size):
        u[i] = np.float32(0)
    for p in range(parts.shape[0]):
        part = parts[p]
        for i in range(u.size):
            u[i] += part[i]
    for i in range(u.size):
        u[i] = np.float32(1) / u[i]


@helper(REDUCE)
def _scale_columns(panel: Floats, u: Floats, mass: Any, v: Floats) -> None:
    for j in range(v.size):
        v[j] = np.float32(0)
    whole = panel.shape[0] // 4 * 4
    for i in range(0, whole, 4):  # four rows: v travels to the cache and back once for all
        a, b, c, d = panel[i], panel[i + 1], panel[i + 2], panel[i + 3]
        ua, ub, uc, ud = u[i], u[i + 1], u[i + 2], u[i + 3]
        for j in range(v.size):
            v[j] += (ua * a[j] + ub * b[j]) + (uc * c[j] + ud * d[j])
    for i in range(whole, panel.shape[0]):
        row = panel[i]
        for j in range(v.size):
            v[j] += u[i] * row[j]
    for j in range(v.size):
        v[j] = mass / v[j]


@helper(REDUCE)
def _row_sums(panel: Floats, v: Floats, part: Floats) -> None:
    for i in range(panel.shape[0]):
        row = panel[i]
        total = np.float32(0)
        for j in range(v.size):
            total += row[j] * v[j]
        part[i] = total


@helper()
def _best_columns(panel: Floats, v: Floats, best: NDArray[np.int32], value: Floats) -> None:
    """Values are positive: their bits compare as integers do, with the column as lower digits."""
    last = np.int64(0x7FFFFFFF)
    for i in range(panel.shape[0]):
        row = panel[i]
        top = last
        for j in range(v.size):
            bits = np.int64(np.float32(row[j] * v[j]).view(np.int32))
            top = max(top, (bits << np.int64(32)) | (last - j))
        best[i] = np.int32(last - (top & last))
        value[i] = np.int32(top >> np.int64(32)).view(np.float32)


@helper()
def _top_rows(
    panel: Floats, u: Floats, start: int, stop: int, top: NDArray[np.int32], weights: Floats
) -> None:
    last = top.shape[0] - 1
    for k in range(top.shape[0]):
        for j in range(start, stop):
            weights[k, j] = np.float32(-1)
            top[k, j] = np.int32(0)
    lowest = weights[last, start:stop]
    owner = top[last, start:stop]
    for i in range(panel.shape[0]):
        row = panel[i]
        scale = u[i]
        changed = np.int32(0)
        for j in range(lowest.size):
            value = np.float32(scale * row[j])
            better = value > lowest[j]
            lowest[j] = value if better else lowest[j]
            owner[j] = np.int32(i) if better else owner[j]
            changed |= np.int32(better)
        if last and changed:
            _bubble(top, weights, i, start, stop)


@helper()
def _bubble(top: NDArray[np.int32], weights: Floats, i: int, start: int, stop: int) -> None:
    last = top.shape[0] - 1
    for j in range(start, stop):
        if top[last, j] != i:
            continue
        k = last
        while k > 0 and weights[k, j] > weights[k - 1, j]:
            weights[k, j], weights[k - 1, j] = weights[k - 1, j], weights[k, j]
            top[k, j], top[k - 1, j] = top[k - 1, j], top[k, j]
            k -= 1


@kernel("f4[2]", "f4[2]", "i4[2]", "f4[2]", "f8", "i8", "i8", "f4[2] out", flags=FUSE)
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
    """``out = gamma · local + (1 - gamma) · Σ_k weights[k] · x[rows[k]]`` from start to stop.

    ``out`` may be ``local``.
    """
    keep = np.float32(gamma)
    step = np.float32(1.0 - gamma)
    for j in range(start, stop):
        for c in range(local.shape[1]):
            out[j, c] = keep * local[j, c]
        for k in range(rows.shape[0]):
            weight = np.float32(step * weights[k, j])
            row = x[rows[k, j]]
            for c in range(local.shape[1]):
                out[j, c] += weight * row[c]
