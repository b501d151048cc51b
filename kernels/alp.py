"""Alignment with prototypes (ALP): the transport plan, the choice and the prototype update.

Source: Ek et al., "FedAli: Personalized Federated Learning Alignment with Prototype Layers for
Generalized Mobile Services" (arXiv:2411.10595), and the authors' published code.

A plan couples N embeddings with the active prototypes. It starts from
``exp(cos(x_i, p_j) / epsilon)``; each iteration divides every row by its sum, then every column.
As rows come first, columns end with sum one and rows are only roughly balanced. Every embedding
of the call takes part in every column, so a result depends on the whole batch.

How: the matrix of the plan is filled and scaled in panels of columns, each of which stays in the
cache while it is worked on; the plan itself is ``diag(u) · kernel · diag(v)`` and never formed.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels.checks import Floats, Indices, finite, read_only
from protofleet.kernels.native.pool import one_blas_thread, spread, threads
from protofleet.kernels.native.switch import backend

AlpVariant = Literal["bulk_code", "single_code", "paper_text", "paper_pseudo"]
"""How local prototypes move; ``alp_train`` documents them."""

Mask = NDArray[np.bool_]

_MIN_EPSILON = 0.01
_GRAIN = 1 << 17  # numbers that are worth a thread
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


def alp_train(  # noqa: PLR0913 - the attributes of the AlpTrain operator, by keyword
    x: NDArray[Any],
    local: NDArray[Any],
    global_: NDArray[Any],
    *,
    variant: AlpVariant = "bulk_code",
    gamma: float = 0.999,
    epsilon: float = 0.05,
    iterations: int = 3,
    mask: Mask | None = None,
    out: Floats | None = None,
) -> tuple[Floats, Floats]:
    """Align a training batch with the global prototypes and move the local ones.

    The active set is ``local`` above ``global_``. Every embedding gets the raw global prototype
    with the largest plan value. Every local prototype p becomes ``gamma · p + (1 - gamma) · m``:

    =============== =========================== ==================================== =============
    variant         embeddings in m             weights                              embeddings
    =============== =========================== ==================================== =============
    `bulk_code`     top ``max(1, B // G)``      its plan column, scaled to sum one   raw
    `single_code`   the last one that has p as  one; p stays where there is none     raw
                    its best local prototype
    `paper_text`    top ``ceil(B · Z / G)``     its plan column, scaled to sum one   raw
    `paper_pseudo`  top ``ceil(B · Z / G)``     its plan column as it is             unit length
    =============== =========================== ==================================== =============

    Args:
        x: ``(B, Z, d) float32`` embeddings; any array but ``out`` may be read-only.
        local: ``(G, d) float32``.
        global_: ``(G, d) float32``.
        variant: see above.
        gamma: share of the old prototype that stays, in [0, 1].
        epsilon: temperature of the plan, at least 0.01.
        iterations: row-and-column scalings, at least 1.
        mask: ``(B,) bool``, the examples that count. The others take no part, as if they were
            not in the batch, and get zeros.
        out: ``(G, d) float32``, C-order, where the new local prototypes are written: ``local``
            itself, or an array that overlaps none of the others.

    Returns:
        The chosen prototypes ``(B, Z, d)``, a new float32 array, and the new local prototypes
        ``(G, d)``, ``out`` or a new array. Of equal plan values the lowest index wins.

    Raises:
        InputError: wrong shape or dtype, a number that is not finite, an unknown variant or a
            setting outside its range. ``out`` is then as before.
    """
    if variant not in get_args(AlpVariant):
        known = ", ".join(get_args(AlpVariant))
        raise InputError(f"ALP variant: expected one of {known}; got '{variant}'")
    if not 0.0 <= gamma <= 1.0:
        raise InputError(f"ALP gamma: expected a number in [0, 1], got {gamma}")
    x = _embeddings(x, epsilon, iterations)
    moved = _target(out, local, global_, x)
    local = _prototypes("local prototypes", local, x)
    global_ = read_only("global prototypes", global_, 2)
    if global_.shape != local.shape:
        raise InputError(
            f"global prototypes: expected {local.shape} as the local ones, got {global_.shape}"
        )
    rows, batch = _valid(x, mask)
    if not batch:
        finite("local prototypes", local)
        finite("global prototypes", global_)
        moved[:] = local
        return np.zeros_like(x), moved
    top = _top(variant, batch, len(rows), len(local))
    plan = _solve(rows, (local, global_), top, epsilon, iterations)
    chosen = _scattered(global_.take(plan.winners(1), axis=0), x, mask)
    if variant == "single_code":
        _overwrite(plan, gamma, moved)
    else:
        _move(plan, variant, gamma, moved)
    return chosen, moved


def alp_infer(
    x: NDArray[Any],
    local: NDArray[Any],
    *,
    epsilon: float = 0.05,
    iterations: int = 3,
    mask: Mask | None = None,
) -> Floats:
    """Align a batch with the local prototypes alone, as a device does when it infers.

    Args:
        x: ``(B, Z, d) float32`` embeddings; any array here may be read-only.
        local: ``(G, d) float32``.
        epsilon: temperature of the plan, at least 0.01.
        iterations: row-and-column scalings, at least 1.
        mask: as of ``alp_train``.

    Returns:
        The raw local prototype with the largest plan value, ``(B, Z, d) float32``.

    Raises:
        InputError: wrong shape or dtype, a number that is not finite, a setting out of range.
    """
    x = _embeddings(x, epsilon, iterations)
    local = _prototypes("local prototypes", local, x)
    rows, batch = _valid(x, mask)
    if not batch:
        finite("local prototypes", local)
        return np.zeros_like(x)
    plan = _solve(rows, (local,), 0, epsilon, iterations)
    return _scattered(local.take(plan.winners(0), axis=0), x, mask)


def _embeddings(x: NDArray[Any], epsilon: float, iterations: int) -> Floats:
    x = read_only("embeddings", x, 3)
    if not x.size:
        raise InputError(f"embeddings: expected at least one, got shape {x.shape}")
    if not _MIN_EPSILON <= epsilon < np.inf:
        raise InputError(f"ALP epsilon: expected at least {_MIN_EPSILON}, got {epsilon}")
    if iterations < 1:
        raise InputError(f"ALP iterations: expected at least 1, got {iterations}")
    return x


def _prototypes(name: str, prototypes: NDArray[Any], x: Floats) -> Floats:
    prototypes = read_only(name, prototypes, 2)
    if not len(prototypes) or prototypes.shape[1] != x.shape[2]:
        raise InputError(f"{name}: expected (G, {x.shape[2]}), got {prototypes.shape}")
    return prototypes


def _target(
    out: Floats | None, local: NDArray[Any], global_: NDArray[Any], x: NDArray[Any]
) -> Floats:
    if out is None:
        return np.empty(local.shape, np.float32)
    fits = out.shape == local.shape and out.dtype == np.float32
    if not (fits and out.flags.c_contiguous and out.flags.aligned and out.flags.writeable):
        raise InputError(
            f"ALP out: expected a writable, C-ordered {local.shape} float32 array, "
            f"got {out.shape} {out.dtype}, writable={out.flags.writeable}"
        )
    same = out is local or out.ctypes.data == local.ctypes.data
    others = (x, global_) if same else (x, global_, local)
    if any(np.may_share_memory(out, other) for other in others):
        raise InputError("ALP out: expected the local prototypes or an array of its own")
    return out


def _valid(x: Floats, mask: Mask | None) -> tuple[Floats, int]:
    """The embeddings that count, ``(N, d)``, and of how many examples they are."""
    if mask is None:
        return x.reshape(-1, x.shape[2]), len(x)
    if mask.dtype != np.bool_ or mask.shape != x.shape[:1]:
        raise InputError(
            f"ALP mask: expected a ({len(x)},) bool array, got {mask.dtype} of shape {mask.shape}"
        )
    kept = x[mask]
    return read_only("embeddings", kept.reshape(-1, x.shape[2]), 2), len(kept)


def _scattered(chosen: Floats, x: Floats, mask: Mask | None) -> Floats:
    if mask is None:
        return chosen.reshape(x.shape)
    whole = np.zeros_like(x)
    whole[mask] = chosen.reshape(-1, *x.shape[1:])
    return whole


def _top(variant: AlpVariant, batch: int, embeddings: int, prototypes: int) -> int:
    if variant == "single_code":
        return 0
    count = batch // prototypes if variant == "bulk_code" else -(-embeddings // prototypes)
    return max(1, count)


def _move(plan: _Plan, variant: AlpVariant, gamma: float, out: Floats) -> None:
    x, local, weights = plan.x, plan.local, plan.weights
    if variant == "paper_pseudo":
        weights = weights * plan.column_scaling()
        x = _unit(x)
    else:
        weights = weights / weights.sum(axis=0)
    loop, top = backend("alp").move, plan.top

    def work(start: int, stop: int) -> None:
        loop(local, x, top, weights, gamma, start, stop, out)

    spread(work, len(local), -(-_GRAIN // local.shape[1]))


def _overwrite(plan: _Plan, gamma: float, out: Floats) -> None:
    x, local = plan.x, plan.local
    last = np.full(len(local), -1, np.int64)
    last[plan.winners(0)] = np.arange(len(x))  # of repeated indices NumPy keeps the last one
    hit = last >= 0
    moved = np.float32(gamma) * local[hit] + np.float32(1.0 - gamma) * x[last[hit]]
    if out.ctypes.data != local.ctypes.data:
        out[:] = local
    out[hit] = moved


class _Plan(NamedTuple):
    """Arrays of ``solve`` in ``compiled/alp.py``, which documents them, in its order."""

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
        if len(self.x) == 1:
            # Columns of one row that sum to one are equal: what differs is rounding.
            return np.zeros(1, np.int64)
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


def _solve(
    x: Floats, prototypes: tuple[Floats, ...], top: int, epsilon: float, iterations: int
) -> _Plan:
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
    local, global_ = _unit(plan.local), _unit(plan.global_)
    done = _log_domain(plan._replace(x=_unit(x), local=local, global_=global_), epsilon)
    return done._replace(x=x, local=plan.local, global_=plan.global_)


def _unit(rows: Floats) -> Floats:
    """Every row divided by its length, or by 1e-6 where that is shorter."""
    square = np.einsum("ij,ij->i", rows, rows, dtype=np.float64)
    made = (rows / np.sqrt(np.maximum(square, _FLOOR))[:, None]).astype(np.float32)
    return read_only("rows", made, 2)


def _laid_out(x: Floats, prototypes: tuple[Floats, ...], top: int, iterations: int) -> _Plan:
    local = prototypes[0]
    n, size = len(x), len(local)
    count = max(-(-size // _PANEL), min(2, -(-size // _LEAST)))
    width = -(-size // (count * _LANES)) * _LANES
    half = -(-size // width)
    panels = half * len(prototypes)
    picked = (top, size) if top else (1, 1)
    return _Plan(
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
def _multiply(plan: _Plan, first: int, stop: int) -> None:
    """Fill panels with the inner products of rows and prototypes."""
    width, size = plan.kernel.shape[2], len(plan.local)
    half = -(-size // width)
    for p in range(first, stop):
        start = p % half * width
        own = (plan.local if p < half else plan.global_)[start : start + width]
        np.matmul(plan.x, own.T, out=plan.kernel[p, :, : len(own)])


def _direct(plan: _Plan, epsilon: float) -> bool:
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


def _scale(plan: _Plan, begin: int, end: int, epsilon: float) -> None:
    loop, panels = backend("alp").solve, len(plan.kernel)
    grain = -(-_WORTH * panels // plan.kernel.size)
    if grain >= panels or threads() == 1:
        loop(*plan, begin, end, 0, panels, epsilon, _FLOOR)
        return
    for stage in range(begin, end):

        def work(first: int, stop: int, stage: int = stage) -> None:
            loop(*plan, stage, stage + 1, first, stop, epsilon, _FLOOR)

        spread(work, panels, grain)


def _log_domain(plan: _Plan, epsilon: float) -> _Plan:
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


def _choose(plan: _Plan, epsilon: float) -> None:
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


def _balance(plan: _Plan, epsilon: float) -> None:
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
