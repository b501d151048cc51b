"""The largest entries of an update; what is not sent is kept for the next one.

Sources: Stich et al., Sparsified SGD with memory, arXiv:1809.07599v2, algorithm 1; Lin et al.,
Deep Gradient Compression, arXiv:1712.01887.

The k-th magnitude is not found by sorting: a sample bounds it from below, one pass collects the
few entries above that bound, and the exact selection happens among them. A sample that misleads
costs a second pass, never an entry.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels._check import Floats, finite, flat, read_only
from protofleet.kernels._pool import spread
from protofleet.kernels._switch import backend

_GRAIN = 1 << 17
_MANY = 1 << 19  # from here on threads are faster, though they must be woken
_SAMPLE = 1 << 13
_FLOAT32_INF = 0x7F800000

Sparse = tuple[NDArray[np.uint32], Floats]


def topk_encode(delta: NDArray[Any], residual: Floats, k: int) -> Sparse:
    """The ``k`` largest magnitudes of ``delta + residual``; ties go to the lowest index.

    Args:
        delta: ``(n,) float32``, n at most 2^32.
        residual: ``(n,) float32``, what earlier calls did not send (zeros at first). Becomes
            ``delta + residual`` with zeros where an entry is sent.
        k: how many to send, 0 to n.

    Returns:
        indices ``(k,) uint32``, ascending, and values ``(k,) float32``.

    Raises:
        InputError: a buffer of another shape or dtype, a sum that is not finite, a ``k`` out of
            range. The residual is then as before.
    """
    delta = read_only("delta", delta, 1)
    size = delta.size
    flat("residual", residual, size)
    if size > 1 << 32:
        raise InputError(f"top-k: expected at most {1 << 32} numbers, got {size}")
    if not 0 <= k <= size:
        raise InputError(f"top-k: expected k from 0 to {size}, got {k}")
    found, sums = _collect(delta, residual, _lower_bound(delta, residual, k))
    if found.size < k:
        found, sums = _collect(delta, residual, 0)
    chosen = _largest(sums, k)
    indices, values = found[chosen], sums[chosen]
    np.add(residual, delta, out=residual)
    residual[indices] = 0
    return indices, values


def topk_decode(indices: NDArray[Any], values: NDArray[Any], size: int) -> Floats:
    """The dense ``(size,) float32`` buffer: ``values`` at ``indices``, zero elsewhere.

    Args:
        indices: ``(k,) uint32``, ascending, below ``size``.
        values: ``(k,) float32``.
        size: of the result; the receiver's own number, never a sender's.

    Raises:
        InputError: another shape or dtype, indices that do not increase or are too large, a value
            that is not finite, a negative size.
    """
    if size < 0:
        raise InputError(f"top-k: expected a size of at least 0, got {size}")
    if indices.dtype != np.uint32 or indices.ndim != 1:
        raise InputError(
            "top-k indices: expected one dimension of uint32, "
            f"got {indices.dtype} of shape {indices.shape}"
        )
    values = read_only("top-k values", values, 1)
    if values.size != indices.size:
        raise InputError(f"top-k values: expected {indices.size}, got {values.size}")
    finite("top-k values", values)
    if not (indices[1:] > indices[:-1]).all():
        raise InputError("top-k indices: expected each to be larger than the one before")
    if indices.size and indices[-1] >= size:
        raise InputError(f"top-k indices: expected below {size}, got {indices[-1]}")
    out = np.zeros(size, np.float32)
    out[indices] = values
    return out


def _magnitude(sums: Floats) -> NDArray[np.uint32]:
    """Bits without sign: integers in the order of the magnitudes."""
    return sums.view(np.uint32) & np.uint32(0x7FFFFFFF)


def _lower_bound(delta: Floats, residual: Floats, k: int) -> int:
    """A magnitude, as bits, that almost surely at least ``k`` entries reach, and few more."""
    step = max(1, delta.size // _SAMPLE)
    with np.errstate(over="ignore", invalid="ignore"):
        sample = _magnitude(delta[::step] + residual[::step])
    expected = k / step
    rank = math.ceil(expected + 4 * math.sqrt(expected)) + 4
    if rank >= sample.size:
        return 0
    return max(1, int(np.partition(sample, sample.size - rank)[sample.size - rank]))


def _collect(delta: Floats, residual: Floats, threshold: int) -> Sparse:
    """Indices and sums whose magnitude reaches ``threshold`` (bits), in ascending order."""
    loop = backend("topk").collect
    parts: dict[int, Sparse] = {}
    worst: list[int] = []

    def work(start: int, stop: int) -> None:
        indices = np.empty(stop - start, np.uint32)
        values = np.empty(stop - start, np.float32)
        numbers = np.array((threshold, start, 0, 0))
        loop(delta[start:stop], residual[start:stop], indices, values, numbers)
        count = int(numbers[2])
        parts[start] = indices[:count], values[:count]
        worst.append(int(numbers[3]))

    spread(work, delta.size, _GRAIN if delta.size >= _MANY else max(delta.size, 1))
    if max(worst, default=0) >= _FLOAT32_INF:
        finite("delta", delta)
        finite("residual", residual)
        with np.errstate(over="ignore"):
            finite("delta + residual", delta + residual)
    if not parts:
        return np.empty(0, np.uint32), np.empty(0, np.float32)
    indices, values = zip(*(parts[start] for start in sorted(parts)), strict=True)
    return np.concatenate(indices), np.concatenate(values)


def _largest(sums: Floats, k: int) -> NDArray[np.bool_]:
    """Which ``k`` of ``sums`` are largest in magnitude; among equal ones the first."""
    if k == 0:
        return np.zeros(sums.size, np.bool_)
    magnitude = _magnitude(sums)
    least = np.partition(magnitude, sums.size - k)[sums.size - k]
    chosen: NDArray[np.bool_] = magnitude > least
    ties = np.flatnonzero(magnitude == least)
    chosen[ties[: k - int(np.count_nonzero(chosen))]] = True
    return chosen
