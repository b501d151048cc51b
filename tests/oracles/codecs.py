"""Codecs as they are defined, one number at a time or by plain sorting."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np


def random_share(seed, index):
    """24 random bits as a fraction: SplitMix64 of the seed, Wellons' lowbias32 of the index."""
    word = (1 << 64) - 1
    z = (seed + 0x9E3779B97F4A7C15) & word
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & word
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & word
    z ^= z >> 31
    h = (index + (z >> 32)) & 0xFFFFFFFF
    h ^= h >> 16
    h = (h * 0x7FEB352D) & 0xFFFFFFFF
    h ^= h >> 15
    h ^= z & 0xFFFFFFFF
    h = (h * 0x846CA68B) & 0xFFFFFFFF
    h ^= h >> 16
    return Fraction(h >> 8, 1 << 24)


def int8(values, starts, *, seed, rounding):
    """Codes and scales, with exact arithmetic after the one float32 division."""
    codes, scales = [], []
    for start, stop in pairwise(starts):
        peak = np.abs(values[start:stop]).max(initial=np.float32(0))
        scale = max(peak / np.float32(127), np.finfo(np.float32).tiny)
        if float(scale) * 127 > float(np.finfo(np.float32).max):
            scale = np.nextafter(scale, np.float32(0))
        scales.append(scale)
        for index in range(start, stop):
            quotient = Fraction(float(values[index] / scale))
            # "r < share rounds up" is floor(x / scale + r'), with r' = 1 - 2^-24 - r in [0, 1).
            share = 1 - Fraction(1, 1 << 24) - random_share(seed, index)
            code = round(quotient) if rounding == "nearest" else math.floor(quotient + share)
            codes.append(min(max(code, -127), 127))
    return np.array(codes, np.int8), np.array(scales, np.float32)


def topk(sums, k):
    """Indices of the k largest magnitudes, the first among equals, in ascending order."""
    order = np.lexsort((np.arange(sums.size), -np.abs(sums.astype(np.float64))))
    return np.sort(order[:k])


def shuffle(items):
    return (
        np.frombuffer(items.tobytes(), np.uint8).reshape(items.size, items.itemsize).T.reshape(-1)
    )
