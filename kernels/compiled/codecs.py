"""Compiled loops of the codecs.

Floats are taken apart as integers, so that every loop runs in vector lanes and gives NumPy's bits.
Products of the generator are formed in 64 bits and cut: the compiler takes 32 of them, and plain
Python warns of no overflow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels.checks import Floats, Indices
from protofleet.kernels.native.kernel import helper, kernel

Words = NDArray[Any]
Bytes = NDArray[np.uint8]

_LOW = np.uint64(0xFFFFFFFF)
_FIRST = np.uint64(0x7FEB352D)
_SECOND = np.uint64(0x846CA68B)
_SELECT_BLOCK = 64  # of ``select``: four vectors of 512 bits; most blocks hold nothing to collect


@helper()
def _as_float(bits: Any) -> Any:
    return np.uint32(bits).view(np.float32)


@helper()
def _as_bits(value: Any) -> Any:
    return np.float32(value).view(np.uint32)


@kernel("u4[1]", "u2[1] out", "u4[1] out")
def fp16_encode(bits: Words, out: Words, worst: Words) -> None:
    """float32 bits to float16 bits; ``worst[0]`` becomes the largest bits without sign."""
    top = np.uint32(0)
    for i in range(bits.size):
        size = np.uint32(bits[i] & np.uint32(0x7FFFFFFF))
        sign = np.uint32(np.uint32(bits[i] >> np.uint32(16)) & np.uint32(0x8000))
        top = max(top, size)
        size = min(size, np.uint32(1199562752))  # 65504
        odd = np.uint32(np.uint32(size >> np.uint32(13)) & np.uint32(1))
        # Adding 0.5 leaves multiples of 2^-24, a subnormal's unit, rounded to even.
        tiny = _as_bits(_as_float(size) + np.float32(0.5))
        if size < np.uint32(0x38800000):  # 2^-14
            code = np.uint32(tiny - np.uint32(0x3F000000))
        else:
            code = np.uint32((size - np.uint32(0x37FFF001) + odd) >> np.uint32(13))
        out[i] = np.uint16(code | sign)
    worst[0] = top


@kernel("u2[1]", "u4[1] out", "u4[1] out")
def fp16_decode(codes: Words, out: Words, worst: Words) -> None:
    """float16 bits to float32 bits; ``worst[0]`` becomes the largest code without sign."""
    top = np.uint32(0)
    unit = np.float32(6.103515625e-05)  # 2^-14
    for i in range(codes.size):
        size = np.uint32(codes[i] & np.uint32(0x7FFF))
        sign = np.uint32(np.uint32(codes[i] & np.uint32(0x8000)) << np.uint32(16))
        top = max(top, size)
        wide = np.uint32(size << np.uint32(13))
        tiny = _as_bits(_as_float(wide + np.uint32(0x38800000)) - unit)
        normal = np.uint32(wide + np.uint32(0x38000000))
        out[i] = np.uint32((tiny if size < np.uint32(0x400) else normal) | sign)
    worst[0] = top


@kernel("u4[1]", "i8[1]", "u4[1] out")
def peaks(bits: Words, bounds: Indices, out: Words) -> None:
    """Largest bits without sign of every segment ``bounds[s]:bounds[s + 1]``; 0 if empty."""
    for s in range(out.size):
        top = np.uint32(0)
        part = bits[bounds[s] : bounds[s + 1]]
        for i in range(part.size):
            size = np.uint32(part[i] & np.uint32(0x7FFFFFFF))
            top = max(top, size)
        out[s] = top


@helper()
def _noise(index: Any, key: Any, tweak: Any) -> Any:
    """24 random bits from an index: Wellons' ``lowbias32`` with a second key in its middle."""
    h = np.uint32((np.uint64(index) + np.uint64(key)) & _LOW)
    h = np.uint32(h ^ np.uint32(h >> np.uint32(16)))
    h = np.uint32((np.uint64(h) * _FIRST) & _LOW)
    h = np.uint32(h ^ np.uint32(h >> np.uint32(15)) ^ tweak)
    h = np.uint32((np.uint64(h) * _SECOND) & _LOW)
    h = np.uint32(h ^ np.uint32(h >> np.uint32(16)))
    return np.int32(h >> np.uint32(8))


@kernel("f4[1]", "i8[1]", "f4[1]", "i8[1]", "i1[1] out")
def stochastic(
    x: Floats, bounds: Indices, scales: Floats, keys: Indices, codes: NDArray[np.int8]
) -> None:
    """``codes = floor(x / scale + r)`` by segment. ``keys``: two of the generator, first index."""
    key = np.uint32(keys[0])
    tweak = np.uint32(keys[1])
    for s in range(scales.size):
        scale = scales[s]
        offset = np.uint32(keys[2] + bounds[s])
        part = x[bounds[s] : bounds[s + 1]]
        out = codes[bounds[s] : bounds[s + 1]]
        for i in range(part.size):
            quotient = np.float32(part[i] / scale)
            low = np.int32(quotient)
            low = np.int32(low - np.int32(1)) if np.float32(low) > quotient else low
            share = np.float32(quotient - np.float32(low))
            r = np.float32(_noise(np.uint64(i) + offset, key, tweak)) * np.float32(2.0**-24)
            code = np.int32(low + np.int32(1)) if r < share else low
            code = min(code, np.int32(127))
            out[i] = np.int8(max(code, np.int32(-127)))


@kernel("f4[1]", "i8[1]", "f4[1]", "i1[1] out")
def nearest(x: Floats, bounds: Indices, scales: Floats, codes: NDArray[np.int8]) -> None:
    """``codes = x / scale`` rounded to the nearest, ties to even, by segment."""
    magic = np.float32(12582912.0)  # 1.5 · 2^23: adding it rounds to an integer
    for s in range(scales.size):
        scale = scales[s]
        part = x[bounds[s] : bounds[s + 1]]
        out = codes[bounds[s] : bounds[s + 1]]
        for i in range(part.size):
            rounded = np.float32(np.float32(np.float32(part[i] / scale) + magic) - magic)
            out[i] = np.int8(np.int32(rounded))


@kernel("i1[1]", "i8[1]", "f4[1]", "f4[1] out")
def rescale(codes: NDArray[np.int8], bounds: Indices, scales: Floats, out: Floats) -> None:
    """``out = codes · scale`` by segment."""
    for s in range(scales.size):
        scale = scales[s]
        part = codes[bounds[s] : bounds[s + 1]]
        values = out[bounds[s] : bounds[s + 1]]
        for i in range(part.size):
            values[i] = np.float32(part[i]) * scale


@kernel("u4[1]", "u1[1] out", "u1[1] out", "u1[1] out", "u1[1] out")
def shuffle4(items: Words, a: Bytes, b: Bytes, c: Bytes, d: Bytes) -> None:
    """The lowest byte of every item to ``a``, the next to ``b`` and so on."""
    byte = np.uint32(0xFF)
    for i in range(items.size):
        a[i] = np.uint8(items[i] & byte)
        b[i] = np.uint8(items[i] >> np.uint32(8) & byte)
        c[i] = np.uint8(items[i] >> np.uint32(16) & byte)
        d[i] = np.uint8(items[i] >> np.uint32(24))


@kernel("u4[1] out", "u1[1]", "u1[1]", "u1[1]", "u1[1]")
def unshuffle4(items: Words, a: Bytes, b: Bytes, c: Bytes, d: Bytes) -> None:
    """The reverse of ``shuffle4``."""
    for i in range(items.size):
        low = np.uint32(a[i]) | np.uint32(b[i]) << np.uint32(8)
        high = np.uint32(c[i]) | np.uint32(d[i]) << np.uint32(8)
        items[i] = np.uint32(low | high << np.uint32(16))


@kernel("u2[1]", "u1[1] out", "u1[1] out")
def shuffle2(items: Words, a: Bytes, b: Bytes) -> None:
    """The low byte of every item to ``a``, the high one to ``b``."""
    for i in range(items.size):
        a[i] = np.uint8(items[i] & np.uint16(0xFF))
        b[i] = np.uint8(items[i] >> np.uint16(8))


@kernel("u2[1] out", "u1[1]", "u1[1]")
def unshuffle2(items: Words, a: Bytes, b: Bytes) -> None:
    """The reverse of ``shuffle2``."""
    for i in range(items.size):
        items[i] = np.uint16(np.uint16(a[i]) | np.uint16(np.uint16(b[i]) << np.uint16(8)))


@helper()
def _magnitude(a: Any, b: Any) -> Any:
    return np.int32(np.float32(a + b).view(np.int32) & np.int32(0x7FFFFFFF))


@kernel("f4[1]", "f4[1]", "u4[1] out", "f4[1] out", "i8[1] out")
def select(
    delta: Floats, residual: Floats, indices: NDArray[Any], values: Floats, numbers: Indices
) -> None:
    """Entries of ``delta + residual`` that reach a threshold, in ascending order.

    ``numbers``: threshold as bits without sign and index of the first entry; becomes, in the
    places after, how many entries were found and the largest bits of all.
    """
    threshold = np.int32(numbers[0])
    count = 0
    worst = np.int32(0)
    for start in range(0, delta.size, _SELECT_BLOCK):
        a = delta[start : start + _SELECT_BLOCK]
        b = residual[start : start + _SELECT_BLOCK]
        top = np.int32(0)
        if a.size == _SELECT_BLOCK:
            for i in range(_SELECT_BLOCK):
                bits = _magnitude(a[i], b[i])
                top = max(top, bits)
        else:
            for i in range(a.size):
                bits = _magnitude(a[i], b[i])
                top = max(top, bits)
        worst = max(worst, top)
        if top >= threshold:
            for i in range(a.size):
                indices[count] = np.uint32(numbers[1] + start + i)
                values[count] = np.float32(a[i] + b[i])
                count += 1 if _magnitude(a[i], b[i]) >= threshold else 0
    numbers[2] = count
    numbers[3] = worst
