"""Codecs of updates: half floats, 8-bit integers, byte planes and the largest entries.

Decoders take what came from outside: they refuse what no encoder writes, and only new arrays are
written. Byte planes assume a little-endian machine, as the wire does.

Top-k keeps what is not sent for the next update: Stich et al., Sparsified SGD with memory,
arXiv:1809.07599v2, algorithm 1; Lin et al., Deep Gradient Compression, arXiv:1712.01887. The k-th
magnitude is not found by sorting: a sample bounds it from below, one pass collects the few entries
above that bound, and the exact selection happens among them. A sample that misleads costs a second
pass, never an entry.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from protofleet.errors import InputError
from protofleet.kernels.checks import Floats, Indices, finite, flat, read_only
from protofleet.kernels.native.pool import spread
from protofleet.kernels.native.switch import backend

Rounding = Literal["stochastic", "nearest"]
"""How ``int8_encode`` rounds."""

_GRAIN = 1 << 17  # elements: half a megabyte of float32
# From how many elements on threads are faster, though waking them takes a tenth of a millisecond.
_MANY = 1 << 21
_MANY_TO_ROUND = 1 << 20
_FLOAT32_INF = 0x7F800000
_LEAST_SCALE = np.finfo(np.float32).tiny
_MOST_SCALE = np.nextafter(np.finfo(np.float32).max / np.float32(127), np.float32(0))
_MANY_TO_SELECT = 1 << 19  # from here on threads are faster, though they must be woken
_SAMPLE = 1 << 13

Sparse = tuple[NDArray[np.uint32], Floats]


def fp16_encode(x: NDArray[Any]) -> NDArray[np.float16]:
    """``x: (n,) float32`` as ``(n,) float16``, rounded to nearest, ties to even.

    What rounds to an infinity becomes ±65504, the largest float16.

    Raises:
        InputError: another shape or dtype, NaN or an infinity.
    """
    x = read_only("fp16", x, 1)
    codes = np.empty(x.size, np.uint16)
    _convert("fp16", x, backend("codecs").fp16_encode, x.view(np.uint32), codes, _FLOAT32_INF)
    return codes.view(np.float16)


def fp16_decode(codes: NDArray[Any]) -> Floats:
    """``codes: (n,) float16`` as ``(n,) float32``, exactly.

    Raises:
        InputError: another shape or dtype, NaN or an infinity.
    """
    codes = _codes("fp16 codes", codes, np.float16)
    out = np.empty(codes.size, np.float32)
    bits, loop = out.view(np.uint32), backend("codecs").fp16_decode
    _convert("fp16 codes", codes, loop, codes.view(np.uint16), bits, 0x7C00)
    return out


def int8_encode(
    x: NDArray[Any], starts: NDArray[Any], *, seed: int = 0, rounding: Rounding = "stochastic"
) -> tuple[NDArray[np.int8], Floats]:
    """8-bit codes of a buffer, with one scale per segment: ``codes · scale`` is about ``x``.

    The scale is the segment's largest magnitude / 127 in float32 (at least 2^-126, so that no
    code depends on subnormal arithmetic). Stochastic rounding is ``floor(x / scale + r)``, ``r``
    uniform in [0, 1) with 24 bits drawn from ``seed`` and the element's index: its mean is ``x``,
    and it is off by less than ``scale``. Codes are within ±127.

    Args:
        x: ``(n,) float32``.
        starts: ``(s + 1,) int64``, where segments begin, and ``n``: segment ``i`` is
            ``x[starts[i]:starts[i + 1]]``.
        seed: of the rounding, below 2^64. The same seed gives the same codes everywhere.
        rounding: ``nearest`` rounds ties to even and draws nothing.

    Returns:
        codes ``(n,) int8`` and scales ``(s,) float32``.

    Raises:
        InputError: another shape or dtype, NaN or an infinity, boundaries that do not increase
            from 0 to ``n``, a seed outside its range.
    """
    x = read_only("int8", x, 1)
    starts = _boundaries(starts, x.size)
    seed = int(seed)  # of NumPy's own, arithmetic below would overflow
    if not 0 <= seed < 1 << 64:
        raise InputError(f"int8: expected a seed from 0 to 2^64 - 1, got {seed}")
    if rounding not in {"stochastic", "nearest"}:
        raise InputError(f"int8: expected stochastic or nearest rounding, got '{rounding}'")
    tops = _peaks(x, starts)
    if tops.max(initial=0) >= _FLOAT32_INF:
        finite("int8", x)
    scales = tops.view(np.float32) / np.float32(127)
    scales = np.minimum(np.maximum(scales, _LEAST_SCALE), _MOST_SCALE)
    codes = np.empty(x.size, np.int8)
    loops, keys = backend("codecs"), _keys(seed)

    def work(start: int, stop: int) -> None:
        within, bounds = _within(starts, start, stop)
        if rounding == "nearest":
            loops.nearest(x[start:stop], bounds, scales[within], codes[start:stop])
        else:
            numbers = np.array((*keys, start))
            loops.stochastic(x[start:stop], bounds, scales[within], numbers, codes[start:stop])

    spread(work, x.size, _grain(x.size, _MANY_TO_ROUND))
    return codes, scales


def int8_decode(codes: NDArray[Any], scales: NDArray[Any], starts: NDArray[Any]) -> Floats:
    """``codes · scale`` by segment, ``(n,) float32``.

    Args:
        codes: ``(n,) int8``, within ±127.
        scales: ``(s,) float32``.
        starts: ``(s + 1,) int64``, as for ``int8_encode``.

    Raises:
        InputError: another shape or dtype, a code of -128, a scale that is negative or not finite
            or so large that a product could overflow, boundaries that do not fit.
    """
    codes = _codes("int8 codes", codes, np.int8)
    starts = _boundaries(starts, codes.size)
    scales = read_only("int8 scales", scales, 1)
    if scales.size != starts.size - 1:
        raise InputError(f"int8 scales: expected {starts.size - 1}, got {scales.size}")
    good = (scales >= 0) & (scales <= _MOST_SCALE)
    if not good.all():
        wrong = int(np.argmin(good))
        raise InputError(
            f"int8 scales: expected 0 to {_MOST_SCALE}, got {scales[wrong]} at {wrong}"
        )
    if codes.min(initial=0) == -128:
        raise InputError(f"int8 codes: expected -127 to 127, got -128 at {int(np.argmin(codes))}")
    out = np.empty(codes.size, np.float32)
    loops = backend("codecs")

    def work(start: int, stop: int) -> None:
        within, bounds = _within(starts, start, stop)
        loops.rescale(codes[start:stop], bounds, scales[within], out[start:stop])

    spread(work, codes.size, _grain(codes.size, _MANY))
    return out


def shuffle_encode(items: NDArray[Any]) -> NDArray[np.uint8]:
    """First byte of every item, then every second byte, and so on: compressors like them so.

    Args:
        items: ``(n,)`` numbers of ``w`` bytes each.

    Returns:
        ``(w · n,) uint8``.

    Raises:
        InputError: not one dimension of numbers.
    """
    items = _codes("shuffle", items, _number("shuffle", items.dtype))
    width, size = items.dtype.itemsize, items.size
    planes = np.empty((width, size), np.uint8)
    if width not in {2, 4}:
        planes[:] = items.view(np.uint8).reshape(size, width).T
        return planes.reshape(-1)
    words = items.view(f"u{width}")
    loop = getattr(backend("codecs"), f"shuffle{width}")
    spread(
        lambda start, stop: loop(words[start:stop], *planes[:, start:stop]),
        size,
        _grain(size, _MANY),
    )
    return planes.reshape(-1)


def shuffle_decode(planes: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    """The items that ``shuffle_encode`` was given.

    Args:
        planes: ``(w · n,) uint8``.
        dtype: of the items, ``w`` bytes each.

    Raises:
        InputError: not one dimension of bytes, or no whole number of items.
    """
    planes = _codes("byte planes", planes, np.uint8)
    kind = _number("byte planes", np.dtype(dtype))
    width = kind.itemsize
    if planes.size % width:
        raise InputError(f"byte planes: expected a multiple of {width} bytes, got {planes.size}")
    size = planes.size // width
    items = np.empty(size, kind)
    planes = planes.reshape(width, size)
    if width not in {2, 4}:
        items.view(np.uint8).reshape(size, width)[:] = planes.T
        return items
    words = items.view(f"u{width}")
    loop = getattr(backend("codecs"), f"unshuffle{width}")
    spread(
        lambda start, stop: loop(words[start:stop], *planes[:, start:stop]),
        size,
        _grain(size, _MANY),
    )
    return items


def _grain(size: int, many: int) -> int:
    return _GRAIN if size >= many else max(size, 1)


def _codes(name: str, array: NDArray[Any], dtype: DTypeLike) -> NDArray[Any]:
    if array.dtype != dtype or array.ndim != 1:
        raise InputError(
            f"{name}: expected one dimension of {np.dtype(dtype)}, "
            f"got {array.dtype} of shape {array.shape}"
        )
    return np.require(array, None, ("C", "A"))


def _number(name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.kind not in "iufc":
        raise InputError(f"{name}: expected a dtype of numbers, got {dtype}")
    return dtype


def _convert(  # noqa: PLR0913, PLR0917 - a loop, its two arrays and its limit
    name: str,
    numbers: NDArray[Any],
    loop: Callable[..., None],
    source: NDArray[Any],
    target: NDArray[Any],
    infinity: int,
) -> None:
    """Run ``loop`` over parts; ``numbers`` are looked through if one reached ``infinity``."""
    worst = np.zeros(-(-source.size // _GRAIN), np.uint32)

    def work(start: int, stop: int) -> None:
        part = start // _GRAIN
        loop(source[start:stop], target[start:stop], worst[part : part + 1])

    spread(work, source.size, _grain(source.size, _MANY))
    if worst.max(initial=0) >= infinity:
        finite(name, numbers)


def _boundaries(starts: NDArray[Any], size: int) -> Indices:
    starts = _codes("segments", starts, np.int64)
    if not (starts.size and starts[0] == 0 and starts[-1] == size):
        ends = starts[[0, -1]].tolist() if starts.size else "none"
        raise InputError(f"segments: expected boundaries from 0 to {size}, got {ends}")
    if (starts[1:] < starts[:-1]).any():
        raise InputError("segments: expected boundaries that do not decrease")
    return starts


def _within(starts: Indices, start: int, stop: int) -> tuple[slice, Indices]:
    """Which segments a part of the buffer touches, and their boundaries counted from ``start``."""
    if stop - start == starts[-1]:
        return slice(0, starts.size - 1), starts
    first = int(np.searchsorted(starts, start, "right")) - 1
    last = int(np.searchsorted(starts, stop, "left"))
    return slice(first, last), np.minimum(np.maximum(starts[first : last + 1], start), stop) - start


def _peaks(x: Floats, starts: Indices) -> NDArray[np.uint32]:
    """Bits of every segment's largest magnitude; as integers they order NaN above all."""
    bits, loop = x.view(np.uint32), backend("codecs").peaks
    out = np.zeros(starts.size - 1, np.uint32)
    lock = threading.Lock()  # a segment may go on from one part into the next

    def work(start: int, stop: int) -> None:
        within, bounds = _within(starts, start, stop)
        tops = np.empty(bounds.size - 1, np.uint32)
        loop(bits[start:stop], bounds, tops)
        with lock:
            np.maximum(out[within], tops, out=out[within])

    spread(work, x.size, _grain(x.size, _MANY))
    return out


def _keys(seed: int) -> tuple[int, int]:
    """Two independent 32-bit keys: one step of SplitMix64 (Steele et al. 2014)."""
    z = (seed + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    z ^= z >> 31
    return z >> 32, z % 2**32


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
    loop = backend("codecs").select
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

    spread(work, delta.size, _GRAIN if delta.size >= _MANY_TO_SELECT else max(delta.size, 1))
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
