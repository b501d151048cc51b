"""Prototypes spread over the unit sphere.

Source: Mettes, van der Pol and Snoek, "Hyperspherical Prototype Networks" (arXiv:1901.10514),
section 3.1; FedHP (Fonio et al., ESANN 2024) starts its server with them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels.checks import Floats, Indices, finite, read_only
from protofleet.kernels.native.pool import one_blas_thread, spread
from protofleet.kernels.native.switch import backend
from protofleet.kernels.steps import sgd_step

_BLOCK_VALUES = 1 << 21  # similarities held at once: 8 MiB
_FEW = 48  # rows up to which two products of halves beat the symmetric product


def uniform_loss(prototypes: NDArray[Any]) -> tuple[float, Floats]:
    """How near each prototype is to its nearest other one, and the gradient of that.

    The mean over the rows of the largest entry of ``P Pᵀ - 2 I``. Row i's largest entry (i, j),
    of equal ones that with the lowest j, pulls on rows i and j; on the diagonal twice on row i,
    which happens only where ``|p|^2 - 2`` reaches every other product.

    Args:
        prototypes: ``(C, d) float32``, may be read-only; rows need not have unit length.

    Returns:
        The loss and its gradient ``(C, d) float32``, a new array.

    Raises:
        InputError: wrong shape or dtype, empty, a number that is not finite, or a product that
            leaves float32.
    """
    prototypes = read_only("prototypes", prototypes, 2)
    if not prototypes.size:
        raise InputError(f"prototypes: expected at least one, got shape {prototypes.shape}")
    best, largest = _largest(prototypes)
    loss = float(largest.mean(dtype=np.float64))
    if not np.isfinite(loss):
        finite("prototypes", prototypes)
        raise InputError("prototypes: expected products within float32, got larger ones")
    return loss, _gradient(prototypes, best)


def hyperspherical_prototypes(  # noqa: PLR0913 - the optimiser's settings, by keyword
    classes: int,
    width: int,
    *,
    rng: np.random.Generator,
    steps: int = 1000,
    lr: float = 0.1,
    momentum: float = 0.9,
    weight_decay: float = 1e-4,
) -> Floats:
    """Unit vectors that ``uniform_loss`` has driven apart.

    They start uniform in [0, 1); before every step of SGD, and at the end, rows are scaled to
    unit length outside the gradient, and the velocity stays as it is. The steps do not settle:
    10 classes end with a mean largest cosine near -0.07, where -1/9 is the least there can be.

    Args:
        classes: number of prototypes, at least 1.
        width: their dimension, at least 1.
        rng: where the start comes from.
        steps: steps of SGD.
        lr: learning rate.
        momentum: share of the velocity that stays.
        weight_decay: factor of the prototypes added to their gradient.

    Returns:
        ``(classes, width) float32``, rows of unit length.

    Raises:
        InputError: a number out of range, or settings with which the steps leave float32.
    """
    if classes < 1 or width < 1 or steps < 0:
        raise InputError(
            "hyperspherical prototypes: expected at least 1 class, width 1 and 0 steps, "
            f"got {classes}, {width} and {steps}"
        )
    prototypes = rng.random((classes, width), dtype=np.float32)
    velocity = np.zeros(prototypes.size, np.float32)
    descend = partial(sgd_step, lr=lr, momentum=momentum, weight_decay=weight_decay)
    for _ in range(steps):
        unit_rows(prototypes)
        gradient = _gradient(prototypes, _largest(prototypes)[0])
        descend(prototypes.reshape(-1), gradient.reshape(-1), velocity)
    if not unit_rows(prototypes):
        raise InputError(
            "hyperspherical prototypes: expected steps that stay within float32, "
            f"got lr {lr}, momentum {momentum} and weight decay {weight_decay}"
        )
    return prototypes


def unit_rows(rows: Floats) -> bool:
    """Scale rows to unit length in place, those shorter than 1e-6 by that; norms are float64.

    Args:
        rows: ``(n, d) float32``, C-order, written.

    Returns:
        False if a number was not finite; the rows are then useless.
    """
    good = np.zeros(1, np.int64)
    backend("sphere").unit_rows(rows, good)
    return bool(good[0])


def _largest(prototypes: Floats) -> tuple[Indices, Floats]:
    """Column and value of the largest entry of every row of ``P Pᵀ - 2 I``."""
    count = len(prototypes)
    best, largest = np.empty(count, np.int64), np.empty(count, np.float32)
    step = max(1, _BLOCK_VALUES // count) if count > _FEW else -(-count // 2)

    def work(first: int, last: int) -> None:
        for start in range(first, last, step):
            part = slice(start, min(start + step, last))
            with np.errstate(over="ignore", invalid="ignore"):
                products = prototypes[part] @ prototypes.T
                products.reshape(-1)[start :: count + 1] -= np.float32(2)
            np.argmax(products, axis=1, out=best[part])
            largest[part] = products[np.arange(len(products)), best[part]]

    if count <= _FEW:
        work(0, count)
    else:  # A product with its own transpose gains nothing from the library's threads.
        with one_blas_thread():
            spread(work, count, step)
    return best, largest


def _gradient(prototypes: Floats, best: Indices) -> Floats:
    gradient = np.empty_like(prototypes)
    backend("sphere").pull(prototypes, best, gradient)
    return gradient
