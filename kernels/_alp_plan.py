"""The plan of ALP: how its panels are laid out, filled and scaled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels._blas import one_blas_thread
from protofleet.kernels._check import Floats, Indices, finite, read_only
from protofleet.kernels._pool import spread, threads
from protofleet.kernels._switch import backend

_PANEL = 512  # columns at most: with as many rows a panel fills a core's cache
_LEAST = 64  # columns of a panel that is worth being one of two
_LANES = 16  # a multiple of it: every row starts with a whole vector
_CACHED = 1 << 18  # values of a kernel that stays in one core's cache as a whole
_ALONE = 1 << 24  # products of numbers that one thread has done before another one wakes up
_WORTH = 1 << 20  # values that are worth a thread in a pass that scales

_FLOOR = 1e-12  # under the root of a norm
_LARGE = 1e34  # sum of squares of rows whose products stay inside float32
_DIRECT = 0.03  # below it exp(2 / epsilon) times the scalings leaves float32
_RENEWED = 3  # scalings grow by less than N · M each time: three times stay inside float32


class Plan(NamedTuple):
    """Arrays of ``solve`` in ``_alp_numba``, which documents them, in its order."""

    kernel: Floats
    x: Floats
    local: Floats
    global_: Floats
    rows: Floats
    columns: Floats
    parts: Floats
    totals: NDArray[np.float64]
    best: NDArray[np.int32]
    top: NDArray[np.int32]
    weights: Floats
    tops: int
    iterations: int

    def winners(self, half: int) -> Indices:
        """The column with the largest value of every row: 0 of ``local``, 1 of ``global_``."""
        width = self.kernel.shape[2]
        panels = -(-len(self.local) // width)
        own = slice(half * panels, (half + 1) * panels)
        best = self.best[own]
        if panels == 1:
            return np.asarray(best[0], np.int64)
        panel = self.parts[self.iterations % 2, own].argmax(axis=0)
        found: Indices = panel * width + best[panel, np.arange(best.shape[1])]
        return found

    def column_scaling(self) -> Floats:
        """Scaling v of the local columns, such that columns of the plan sum to one."""
        size, width = len(self.local), self.kernel.shape[2]
        active = size * (len(self.kernel) // -(-size // width))
        v: Floats = self.columns[2].reshape(-1)[:size] * np.float32(active / len(self.x))
        return v


def solve(
    x: Floats, prototypes: tuple[Floats, ...], top: int, epsilon: float, iterations: int
) -> Plan:
    """The plan of ``x (N, d)`` with local and, if given, global prototypes.

    Args:
        x: read-only, as all arrays here.
        prototypes: one or two arrays ``(G, d)``.
        top: how many rows are wanted of every local column; 0: the best column of rows instead.
        epsilon: temperature.
        iterations: scalings of rows and columns.

    Raises:
        InputError: a number that is not finite.
    """
    plan = _laid_out(x, prototypes, top, iterations)
    if epsilon >= _DIRECT:
        plan.rows[1] = -1.0 / epsilon  # cancelled by rows; keeps every exponent below zero
        plan.columns[1] = 0.0
        if _direct(plan, epsilon):
            return plan
    finite("embeddings", x)
    for name, given in zip(("local prototypes", "global prototypes"), prototypes, strict=False):
        finite(name, given)
    local, global_ = unit(plan.local), unit(plan.global_)
    done = _careful(plan._replace(x=unit(x), local=local, global_=global_), epsilon)
    return done._replace(x=x, local=plan.local, global_=plan.global_)


def unit(rows: Floats) -> Floats:
    """Every row divided by its length, or by 1e-6 where that is shorter."""
    square = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    made = (rows / np.sqrt(np.maximum(square, _FLOOR))[:, None]).astype(np.float32)
    return read_only("rows", made, 2)


def _laid_out(x: Floats, prototypes: tuple[Floats, ...], top: int, iterations: int) -> Plan:
    local = prototypes[0]
    n, size = len(x), len(local)
    count = max(-(-size // _PANEL), min(2, -(-size // _LEAST)))
    width = -(-size // (count * _LANES)) * _LANES
    half = -(-size // width)
    panels = half * len(prototypes)
    picked = (top, size) if top else (1, 1)
    return Plan(
        kernel=np.empty((panels, n, width), np.float32),
        x=x,
        local=local,
        global_=prototypes[-1],
        rows=np.empty((2, n), np.float32),
        columns=np.empty((3, panels, width), np.float32),
        parts=np.empty((3, panels, n), np.float32),
        totals=np.empty(panels + 1, np.float64),
        best=np.empty((panels, n), np.int32),
        top=np.empty(picked, np.int32),
        weights=np.empty(picked, np.float32),
        tops=half if top else 0,
        iterations=iterations,
    )


@np.errstate(over="ignore", invalid="ignore")  # found out from the norms afterwards
def _multiply(plan: Plan, first: int, stop: int) -> None:
    """Fill panels with the inner products of rows and prototypes."""
    width, size = plan.kernel.shape[2], len(plan.local)
    half = -(-size // width)
    for p in range(first, stop):
        start = p % half * width
        own = (plan.local if p < half else plan.global_)[start : start + width]
        np.matmul(plan.x, own.T, out=plan.kernel[p, :, : len(own)])


def _direct(plan: Plan, epsilon: float) -> bool:
    """Whether the numbers allowed the short way: products first, their scale afterwards."""
    loop, panels, end = backend("alp").solve, len(plan.kernel), plan.iterations + 2
    size = plan.kernel.size

    def fill(first: int, stop: int) -> None:
        for p in range(first, stop):
            _multiply(plan, p, p + 1)
            loop(*plan, 1, 2, p, p + 1, epsilon, _FLOOR)

    with one_blas_thread():
        if size * plan.x.shape[1] < _ALONE or (size < _CACHED and threads() == 1):
            _multiply(plan, 0, panels)
            loop(*plan, 0, end, 0, panels, epsilon, _FLOOR)
            return bool((plan.totals < _LARGE).all())
        loop(*plan, 0, 1, 0, panels, epsilon, _FLOOR)
        spread(fill, panels, 1)
    if not (plan.totals < _LARGE).all():
        return False
    _scale(plan, 2, end, epsilon)
    return True


def _scale(plan: Plan, begin: int, end: int, epsilon: float) -> None:
    loop, panels = backend("alp").solve, len(plan.kernel)
    grain = -(-_WORTH * panels // plan.kernel.size)
    if grain >= panels or threads() == 1:
        loop(*plan, begin, end, 0, panels, epsilon, _FLOOR)
        return
    for stage in range(begin, end):

        def work(first: int, stop: int, stage: int = stage) -> None:
            loop(*plan, stage, stage + 1, first, stop, epsilon, _FLOOR)

        spread(work, panels, grain)


def _careful(plan: Plan, epsilon: float) -> Plan:
    """The plan of rows of unit length at any epsilon: scalings are kept as logarithms.

    A few scalings at a time run as ever on ``exp((cos + f + g) / epsilon)``, whose rows sum to
    one; then f and g take them over. What underflows is too small to matter until then: columns
    summed to one have rows of sum 1/N at least, and rows summed to one columns of 1/M.
    """
    loop, panels, left = backend("alp").solve, len(plan.kernel), plan.iterations
    f, g = plan.rows[1], plan.columns[1]
    plan.columns[:] = 1.0  # also where panels have no columns
    with one_blas_thread():
        _multiply(plan, 0, panels)
    _balance(plan, epsilon)
    while True:
        now = min(_RENEWED, left)
        left -= now
        plan = plan._replace(iterations=now if not left else now + 1)
        loop(*plan, 0, 2, 0, panels, epsilon, 1.0)
        plan.parts[0] = 0.0
        plan.parts[0, 0] = 1.0
        _scale(plan, 2, now + 2, epsilon)
        if not left:
            _choose(plan, epsilon)
            return plan
        f -= np.log(plan.parts[now % 2].sum(axis=0))
        g += np.log(plan.columns[2])
        with one_blas_thread():
            _multiply(plan, 0, panels)


def _choose(plan: Plan, epsilon: float) -> None:
    """Best columns from logarithms: all that a row has of one half may have underflowed."""
    with one_blas_thread():
        _multiply(plan, 0, len(plan.kernel))
    width, size = plan.kernel.shape[2], len(plan.local)
    half, scale = -(-size // width), np.float32(1.0 / epsilon)
    heights = plan.columns[1] + np.log(plan.columns[2])
    for p, panel in enumerate(plan.kernel):
        used = min(width, size - p % half * width)
        scores = panel[:, :used] * scale + heights[p, :used]
        plan.best[p] = scores.argmax(axis=1)
        plan.parts[plan.iterations % 2, p] = scores.max(axis=1)


def _balance(plan: Plan, epsilon: float) -> None:
    """Start f such that rows of the kernel sum to one, g such that 1 is a column's largest."""
    f, g = plan.rows[1], plan.columns[1]
    size, width = len(plan.local), plan.kernel.shape[2]
    starts = [p * width for p in range(-(-size // width))] * 2
    panels = [panel[:, : size - start] for panel, start in zip(plan.kernel, starts, strict=False)]
    scale = np.float32(1.0 / epsilon)
    highest = np.max([panel.max(axis=1) for panel in panels], axis=0)
    sums = sum(np.exp((panel - highest[:, None]) * scale).sum(axis=1) for panel in panels)
    f[:] = -highest * scale - np.log(sums)
    for p, panel in enumerate(panels):
        g[p, : panel.shape[1]] = -(panel * scale + f[:, None]).max(axis=0)
