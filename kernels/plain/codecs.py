"""The loops of ``compiled/codecs.py`` in NumPy, in blocks that stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels.checks import Floats, Indices

Words = NDArray[Any]
Bytes = NDArray[np.uint8]

_BLOCK = 1 << 14
_SIZE = np.uint32(0x7FFFFFFF)
_SELECT_BLOCK = 1 << 15


def _blocks(size: int) -> Iterator[slice]:
    return (slice(start, min(start + _BLOCK, size)) for start in range(0, size, _BLOCK))


def fp16_encode(bits: Words, out: Words, worst: Words) -> None:
    """float32 bits to float16 bits; ``worst[0]`` becomes the largest bits without sign."""
    values, halves = bits.view(np.float32), out.view(np.float16)
    worst[0] = 0
    for part in _blocks(bits.size):
        worst[0] = max(worst[0], (bits[part] & _SIZE).max())
        halves[part] = np.clip(values[part], -65504, 65504)


def fp16_decode(codes: Words, out: Words, worst: Words) -> None:
    """float16 bits to float32 bits; ``worst[0]`` becomes the largest code without sign."""
    values, halves = out.view(np.float32), codes.view(np.float16)
    worst[0] = 0
    for part in _blocks(codes.size):
        worst[0] = max(worst[0], (codes[part] & 0x7FFF).max())
        values[part] = halves[part]


def peaks(bits: Words, bounds: Indices, out: Words) -> None:
    """Largest bits without sign of every segment ``bounds[s]:bounds[s + 1]``; 0 if empty."""
    out[:] = 0
    for part in _blocks(bits.size):
        cuts, covered = _covered(bounds, part)
        if cuts.size:
            tops = np.maximum.reduceat(bits[part] & _SIZE, cuts)
            out[covered] = np.maximum(out[covered], tops)


def stochastic(
    x: Floats, bounds: Indices, scales: Floats, keys: Indices, codes: NDArray[np.int8]
) -> None:
    """``codes = floor(x / scale + r)`` by segment. ``keys``: two of the generator, first index."""
    for part in _blocks(x.size):
        quotient = x[part] / _spread_out(scales, bounds, part)
        low = np.floor(quotient)
        index = np.arange(part.start + keys[2], part.stop + keys[2]).astype(np.uint32)
        r = _noise(index, np.uint32(keys[0]), np.uint32(keys[1]))
        codes[part] = np.clip(low + (r < quotient - low), -127, 127)


def _noise(h: NDArray[np.uint32], key: np.uint32, tweak: np.uint32) -> Floats:
    h += key
    h ^= h >> 16
    h *= np.uint32(0x7FEB352D)
    h ^= h >> 15
    h ^= tweak
    h *= np.uint32(0x846CA68B)
    h ^= h >> 16
    return (h >> 8).astype(np.float32) * np.float32(2.0**-24)


def nearest(x: Floats, bounds: Indices, scales: Floats, codes: NDArray[np.int8]) -> None:
    """``codes = x / scale`` rounded to the nearest, ties to even, by segment."""
    for part in _blocks(x.size):
        codes[part] = np.rint(x[part] / _spread_out(scales, bounds, part))


def rescale(codes: NDArray[np.int8], bounds: Indices, scales: Floats, out: Floats) -> None:
    """``out = codes · scale`` by segment."""
    for part in _blocks(codes.size):
        np.multiply(codes[part], _spread_out(scales, bounds, part), out=out[part])


def _covered(bounds: Indices, part: slice) -> tuple[Indices, Indices]:
    """Where the segments that are not empty within ``part`` start there, and which they are."""
    local = np.clip(bounds, part.start, part.stop) - part.start
    covered = np.flatnonzero(local[1:] > local[:-1])
    return local[covered], covered


def _spread_out(scales: Floats, bounds: Indices, part: slice) -> Floats:
    local = np.clip(bounds, part.start, part.stop)
    return np.repeat(scales, np.diff(local))


def shuffle4(items: Words, *planes: Bytes) -> None:
    """The first byte of every item to the first plane and so on."""
    rows = items.view(np.uint8).reshape(items.size, len(planes))
    for part in _blocks(items.size):
        for p, plane in enumerate(planes):
            plane[part] = rows[part, p]


def unshuffle4(items: Words, *planes: Bytes) -> None:
    """The reverse of ``shuffle4``."""
    rows = items.view(np.uint8).reshape(items.size, len(planes))
    for part in _blocks(items.size):
        for p, plane in enumerate(planes):
            rows[part, p] = plane[part]


shuffle2, unshuffle2 = shuffle4, unshuffle4


def select(
    delta: Floats, residual: Floats, indices: NDArray[Any], values: Floats, numbers: Indices
) -> None:
    """Entries of ``delta + residual`` that reach a threshold, in ascending order.

    ``numbers``: threshold as bits without sign and index of the first entry; becomes, in the
    places after, how many entries were found and the largest bits of all.
    """
    threshold, offset = numbers[:2]
    count = worst = 0
    for start in range(0, delta.size, _SELECT_BLOCK):
        with np.errstate(over="ignore", invalid="ignore"):
            sums = delta[start : start + _SELECT_BLOCK] + residual[start : start + _SELECT_BLOCK]
        bits = sums.view(np.uint32) & np.uint32(0x7FFFFFFF)
        worst = max(worst, int(bits.max()))
        found = np.flatnonzero(bits >= threshold)
        indices[count : count + found.size] = found + (offset + start)
        values[count : count + found.size] = sums[found]
        count += found.size
    numbers[2:] = count, worst
