"""The noise of a round: standard normal numbers that nobody can foresee, and the same from a seed.

AES-256 in counter mode stretches 32 bytes of the operating system's randomness; Box and Muller's
transform makes normal numbers of it. Each number is half the sum of four, so that the gaps between
floating-point numbers do not give away what was added (Holohan and Braghin, "Secure Random Sampling
in Differential Privacy", arXiv:2107.10138).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

SEED_BYTES = 32
_SUMMED = 4
_BLOCK = 1 << 18
"""Numbers at a time, so that the uniform ones below them need little memory."""

SeedFn = Callable[[int], bytes]
"""The seed of a round's noise, ``SEED_BYTES``; the same until the round is committed."""


def new_seed(_round_id: int) -> bytes:
    """A seed from the operating system, a new one at each call."""
    return secrets.token_bytes(SEED_BYTES)


def repeated_seed(noise_seed: int, round_id: int) -> bytes:
    """A seed that anybody can compute: for experiments."""
    return hashlib.sha256(f"protofleet noise {noise_seed} {round_id}".encode()).digest()


class Noise:
    """Standard normal numbers, one call after the other.

    Args:
        seed: ``SEED_BYTES`` that are used for nothing else.
    """

    def __init__(self, seed: bytes) -> None:
        self._stream = Cipher(algorithms.AES256(seed), modes.CTR(bytes(16))).encryptor()

    def __call__(self, size: int) -> NDArray[np.float64]:
        """The next ``size`` numbers, ``(size,) float64``."""
        numbers = np.empty(size)
        for start in range(0, size, _BLOCK):
            part = numbers[start : start + _BLOCK]
            drawn = self._normal(_SUMMED * part.size).reshape(_SUMMED, part.size)
            part[...] = drawn.sum(axis=0) / 2
        return numbers

    def _normal(self, size: int) -> NDArray[np.float64]:
        """Box and Muller's, of an even number of them."""
        radius, angle = self._uniform(size).reshape(2, size // 2)
        length = np.sqrt(-2.0 * np.log(radius))
        angle = 2.0 * np.pi * angle
        return np.concatenate([length * np.cos(angle), length * np.sin(angle)])

    def _uniform(self, size: int) -> NDArray[np.float64]:
        """In (0, 1]: 53 random bits and one."""
        bits = np.frombuffer(self._stream.update(bytes(8 * size)), "<u8") >> 11
        return (bits.astype(np.float64) + 1.0) * 2.0**-53
