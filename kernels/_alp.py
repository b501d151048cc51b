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

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels._alp_plan import Plan, solve, unit
from protofleet.kernels._check import Floats, finite, read_only
from protofleet.kernels._pool import spread
from protofleet.kernels._switch import backend

AlpVariant = Literal["bulk_code", "single_code", "paper_text", "paper_pseudo"]
"""How local prototypes move; ``alp_train`` documents them."""

Mask = NDArray[np.bool_]

_MIN_EPSILON = 0.01
_GRAIN = 1 << 17  # numbers that are worth a thread


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
    plan = solve(rows, (local, global_), top, epsilon, iterations)
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
    plan = solve(rows, (local,), 0, epsilon, iterations)
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


def _move(plan: Plan, variant: AlpVariant, gamma: float, out: Floats) -> None:
    x, local, weights = plan.x, plan.local, plan.weights
    if variant == "paper_pseudo":
        weights = weights * plan.column_scaling()
        x = unit(x)
    else:
        weights = weights / weights.sum(axis=0)
    loop, top = backend("alp").move, plan.top

    def work(start: int, stop: int) -> None:
        loop(local, x, top, weights, gamma, start, stop, out)

    spread(work, len(local), -(-_GRAIN // local.shape[1]))


def _overwrite(plan: Plan, gamma: float, out: Floats) -> None:
    x, local = plan.x, plan.local
    last = np.full(len(local), -1, np.int64)
    last[plan.winners(0)] = np.arange(len(x))  # of repeated indices NumPy keeps the last one
    hit = last >= 0
    moved = np.float32(gamma) * local[hit] + np.float32(1.0 - gamma) * x[last[hit]]
    if out.ctypes.data != local.ctypes.data:
        out[:] = local
    out[hit] = moved
