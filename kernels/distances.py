"""Squared distances of many long vectors to each other, read block by block of coordinates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels.native.pool import one_blas_thread

_BLOCK = 1 << 12  # coordinates of a product: their float64 copies stay in the cache


class SquaredDistances:
    """Pairwise squared distances of n vectors; memory does not grow with their length.

    They come from products in float64 of the vectors' differences to an origin, on one thread, so
    that they do not depend on the number of threads. An origin near the vectors keeps their
    rounding error at 1e-16 times the larger of the two squared distances to it.

    Args:
        n: number of vectors.
    """

    def __init__(self, n: int) -> None:
        self._products = np.zeros((n, n), np.float64)

    def add(self, block: NDArray[np.float32], origin: NDArray[np.float32]) -> None:
        """Add the same coordinates of all vectors.

        Args:
            block: ``(n, width) float32``.
            origin: ``(width,) float32``.

        Raises:
            InputError: other shapes.
        """
        if block.shape != (len(self._products), *origin.shape) or origin.ndim != 1:
            raise InputError(
                f"squared distances: expected blocks ({len(self._products)}, width) and an origin "
                f"(width,), got {block.shape} and {origin.shape}"
            )
        with one_blas_thread():
            for start in range(0, origin.size, _BLOCK):
                part = slice(start, start + _BLOCK)
                apart = block[:, part].astype(np.float64) - origin[part]
                self._products += apart @ apart.T

    def result(self) -> NDArray[np.float64]:
        """``(n, n) float64``, symmetric, zeros on the diagonal."""
        squares = np.diag(self._products)
        found = np.maximum(squares[:, None] + squares - 2 * self._products, 0)
        np.fill_diagonal(found, 0)
        return found
