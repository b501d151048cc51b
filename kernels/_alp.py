"""Alignment with prototypes (ALP): the transport plan, the choice and the prototype update.

Source: Ek et al., "FedAli: Personalized Federated Learning Alignment with Prototype Layers for
Generalized Mobile Services" (arXiv:2411.10595), and the authors' published code.

A plan couples N embeddings with the active prototypes. It starts from
``exp(cos(x_i, p_j) / epsilon)``; each iteration divides every row by its sum, then every column.
As rows come first, columns end with sum one and rows are only roughly balanced. Every embedding
of the call takes part in every column, so a result depends on the whole batch.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels._check import Floats, Indices, finite, read_only
from protofleet.kernels._switch import backend

AlpVariant = Literal["bulk_code", "single_code", "paper_text", "paper_pseudo"]
"""How local prototypes move; ``alp_train`` documents them."""

_MIN_EPSILON = 0.03  # below it exp(2 / epsilon) times the scalings leaves float32


class _Plan(NamedTuple):
    """``diag(u) · kernel · diag(v)`` over N rows and M columns, float32, C-order."""

    kernel: Floats
    u: Floats
    v: Floats


def alp_train(  # noqa: PLR0913 - the attributes of the AlpTrain operator, by keyword
    x: NDArray[Any],
    local: NDArray[Any],
    global_: NDArray[Any],
    *,
    variant: AlpVariant = "bulk_code",
    gamma: float = 0.999,
    epsilon: float = 0.05,
    iterations: int = 3,
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
        x: ``(B, Z, d) float32`` embeddings; any array here may be read-only.
        local: ``(G, d) float32``.
        global_: ``(G, d) float32``.
        variant: see above.
        gamma: share of the old prototype that stays, in [0, 1].
        epsilon: temperature of the plan, at least 0.03.
        iterations: row-and-column scalings, at least 1.

    Returns:
        The chosen prototypes ``(B, Z, d)`` and the new local prototypes ``(G, d)``, new float32
        arrays. Of equal plan values the lowest index wins.

    Raises:
        InputError: wrong shape or dtype, a number that is not finite, an unknown variant or a
            setting outside its range.
    """
    if variant not in get_args(AlpVariant):
        known = ", ".join(get_args(AlpVariant))
        raise InputError(f"ALP variant: expected one of {known}; got '{variant}'")
    if not 0.0 <= gamma <= 1.0:
        raise InputError(f"ALP gamma: expected a number in [0, 1], got {gamma}")
    x, local = _embeddings(x), read_only("local prototypes", local, 2)
    global_ = read_only("global prototypes", global_, 2)
    _check_prototypes("local prototypes", local, x)
    if global_.shape != local.shape:
        raise InputError(
            f"global prototypes: expected {local.shape} as the local ones, got {global_.shape}"
        )
    plan = _plan(x, np.concatenate((local, global_)), epsilon, iterations)
    chosen = global_[_best(plan, len(local))].reshape(x.shape)
    return chosen, _moved(x, local, plan, variant, gamma)


def alp_infer(
    x: NDArray[Any], local: NDArray[Any], *, epsilon: float = 0.05, iterations: int = 3
) -> Floats:
    """Align a batch with the local prototypes alone, as a device does when it infers.

    Args:
        x: ``(B, Z, d) float32`` embeddings; any array here may be read-only.
        local: ``(G, d) float32``.
        epsilon: temperature of the plan, at least 0.03.
        iterations: row-and-column scalings, at least 1.

    Returns:
        The raw local prototype with the largest plan value, ``(B, Z, d) float32``.

    Raises:
        InputError: wrong shape or dtype, a number that is not finite, a setting out of range.
    """
    x, local = _embeddings(x), read_only("local prototypes", local, 2)
    _check_prototypes("local prototypes", local, x)
    plan = _plan(x, local, epsilon, iterations)
    chosen: Floats = local[_best(plan, 0)].reshape(x.shape)
    return chosen


def _embeddings(x: NDArray[Any]) -> Floats:
    x = read_only("embeddings", x, 3)
    if not x.size:
        raise InputError(f"embeddings: expected at least one, got shape {x.shape}")
    return x


def _check_prototypes(name: str, prototypes: Floats, x: Floats) -> None:
    if not len(prototypes) or prototypes.shape[1] != x.shape[2]:
        raise InputError(f"{name}: expected (G, {x.shape[2]}), got {prototypes.shape}")


def _plan(x: Floats, active: Floats, epsilon: float, iterations: int) -> _Plan:
    if not _MIN_EPSILON <= epsilon < np.inf:
        raise InputError(f"ALP epsilon: expected at least {_MIN_EPSILON}, got {epsilon}")
    if iterations < 1:
        raise InputError(f"ALP iterations: expected at least 1, got {iterations}")
    loops = backend("alp")
    flat_x = x.reshape(-1, x.shape[2])
    rows = _unit("embeddings", flat_x, 1.0 / epsilon)
    columns = _unit("prototypes", active, 1.0)
    kernel = rows @ columns.T
    u = np.empty(len(rows), np.float32)
    sums = np.zeros(len(active), np.float32)
    # Rows cancel the factor exp(-1 / epsilon), which keeps every product below inside float32.
    loops.first_scaling(kernel, u, sums, 1.0 / epsilon)
    for _ in range(iterations - 1):
        v = np.float32(1) / sums
        sums = np.zeros_like(sums)
        loops.scaling(kernel, u, v, sums)
    return _Plan(kernel, u, np.float32(1) / sums)


def _unit(name: str, rows: Floats, scale: float) -> Floats:
    out = np.empty_like(rows)
    if not backend("alp").unit_rows(read_only(name, rows, 2), out, scale):
        finite(name, rows)
    return out


def _best(plan: _Plan, start: int) -> Indices:
    chosen = np.empty(len(plan.kernel), np.int64)
    backend("alp").best_columns(plan.kernel, plan.v, start, chosen)
    return chosen


def _moved(x: Floats, local: Floats, plan: _Plan, variant: AlpVariant, gamma: float) -> Floats:
    flat_x = x.reshape(-1, x.shape[2])
    if variant == "single_code":
        return _overwritten(flat_x, local, plan, gamma)
    prototypes = len(local)
    count = len(x) // prototypes if variant == "bulk_code" else -(-len(flat_x) // prototypes)
    picked = np.empty((max(1, count), prototypes), np.int64)
    weights = np.empty(picked.shape, np.float32)
    loops = backend("alp")
    loops.best_rows(plan.kernel, plan.u, picked, weights)
    if variant == "paper_pseudo":
        weights *= plan.v[:prototypes]
        flat_x = read_only("embeddings", _unit("embeddings", flat_x, 1.0), 2)
    else:
        weights /= weights.sum(axis=0)
    moved: Floats = loops.move(local, flat_x, picked, weights, gamma)
    return moved


def _overwritten(x: Floats, local: Floats, plan: _Plan, gamma: float) -> Floats:
    best = np.empty(len(x), np.int64)
    own = np.ascontiguousarray(plan.kernel[:, : len(local)])
    backend("alp").best_columns(own, plan.v[: len(local)], 0, best)
    last = np.full(len(local), -1, np.int64)
    last[best] = np.arange(len(x))  # of repeated indices NumPy keeps the last assignment
    hit = last >= 0
    moved = local.copy()
    moved[hit] = np.float32(gamma) * local[hit] + np.float32(1.0 - gamma) * x[last[hit]]
    return moved
