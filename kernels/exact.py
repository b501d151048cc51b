"""Exact sums of weighted float32 buffers: no order and no partition changes a bit.

A product of a weight and a number is cut into three limbs, multiples of 2^(32 T), 2^(32 (T - 1))
and 2^(32 (T - 2)), and limbs are added up in float64, exactly. T is one for each block of 4096
elements: the smallest with |product| <= 2^(32 T + 31) for all of them. What a product has below its
lowest limb is rounded away, alike whatever else is added: at most 2^-65 of a bound of the block's
products. The method is that of Demmel and Nguyen, "Parallel Reproducible Summation" (IEEE
Transactions on Computers 64(7), 2015).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels.checks import Floats, Indices, finite, read_only
from protofleet.kernels.native.pool import spread
from protofleet.kernels.native.switch import backend

MOST_TERMS = 1 << 22
"""Of a sum: as many limbs of 2^31 units are exact in float64."""
LIMBS = 3
_BLOCK = 1 << 12
_GRAIN = 1 << 4  # blocks
_PENDING = 8  # buffers of an iterator that are held: more save little
_PENDING_BYTES = 48 << 20  # and how much memory they may take together
_LOWEST, _HIGHEST = -7, 6  # T of the smallest and the largest product
_LEAST_WEIGHT, _MOST_WEIGHT = 2.0**-64, 2.0**64
_MAGIC = np.array([1.5 * 2.0 ** (52 + 32 * t) for t in range(_LOWEST - 2, _HIGHEST + 1)])
"""Added to a number and taken away again, each rounds it to a multiple of its 2^(32 t)."""


class _Term(NamedTuple):
    name: str
    buffer: Floats
    weight: float


class ExactSum:
    """Sum of weighted buffers, and of other such sums; memory does not grow with their number.

    Attributes:
        weight: sum of the weights so far; exact where they are integers with a sum below 2^53.
        terms: number of buffers so far, at most ``MOST_TERMS``.
        size: of each buffer.
        limbs: ``(blocks, 3, 4096) float64``, the highest first; zeros behind the last element.
        tops: T of each block of 4096 elements, ``(blocks,) int64``.
    """

    def __init__(self, size: int) -> None:
        self.weight, self.terms = 0.0, 0
        self.size, blocks = size, -(-size // _BLOCK)
        self.limbs = np.zeros((blocks, LIMBS, _BLOCK), np.float64)
        self.tops: Indices = np.full(blocks, _LOWEST, np.int64)

    def add_all(self, terms: Iterable[tuple[NDArray[Any], float]]) -> None:
        """Add all; after a refusal the sum is of no use.

        Args:
            terms: ``(size,) float32`` buffers and their weights. A list is summed in one pass;
                of an iterator up to 8 buffers or 48 MiB are held at a time, which must not be
                written meanwhile. A buffer of weight zero is not even looked at.

        Raises:
            InputError: wrong shape or dtype, a number that is not finite, a weight that is neither
                0 nor one of 2^-64 to 2^64, or more than ``MOST_TERMS`` buffers.
        """
        for batch in self._batches(terms):
            self._accumulate(batch)
            for term in batch:
                self.weight += term.weight

    def merge(self, other: Self) -> None:
        """Add another sum of buffers of this size.

        Raises:
            InputError: it is of another size, or there are more than ``MOST_TERMS`` buffers.
        """
        if other.size != self.size:
            raise InputError(
                f"exact sum: expected one of {self.size} values, got one of {other.size}"
            )
        self._count(other.terms)
        top = np.maximum(self.tops, other.tops)
        self.limbs = _raised(self.limbs, top - self.tops) + _raised(other.limbs, top - other.tops)
        self.tops = top
        self.weight += other.weight

    def mean(self) -> Floats:
        """The sum divided by the weight, ``(size,) float32``.

        Raises:
            InputError: nothing with a positive weight was added.
        """
        if self.weight == 0:
            raise InputError("weighted mean: expected a positive weight, got none")
        weight, divide = self.weight, backend("exact").divide
        mean = np.empty(self.size, np.float32)
        spread(lambda a, b: divide(self.limbs, weight, mean, a, b), self.tops.size, _GRAIN)
        return mean

    def _batches(self, terms: Iterable[tuple[NDArray[Any], float]]) -> Iterator[list[_Term]]:
        """Checked terms of positive weight, as many at a time as may be held; one list, reused."""
        size = self.size
        held = _PENDING_BYTES // max(4 * size, 1)
        most = len(terms) if isinstance(terms, Sequence) else min(_PENDING, max(held, 1))
        batch: list[_Term] = []
        for position, (buffer, weight) in enumerate(terms):
            name = f"weighted mean, buffer {position}"
            if not (weight == 0 or _LEAST_WEIGHT <= weight <= _MOST_WEIGHT):
                raise InputError(
                    f"{name}: expected a weight of 0, or of 2^-64 to 2^64, got {weight}"
                )
            if weight == 0:
                continue
            if buffer.size != size:
                raise InputError(f"{name}: expected {size} values, got {buffer.size}")
            self._count(1)
            batch.append(_Term(name, read_only(name, buffer, 1), float(weight)))
            if len(batch) == most:
                yield batch
                batch.clear()
        if batch:
            yield batch

    def _count(self, terms: int) -> None:
        self.terms += terms
        if self.terms > MOST_TERMS:
            raise InputError(
                f"weighted mean: expected at most {MOST_TERMS} buffers, got {self.terms}"
            )

    def _accumulate(self, batch: Sequence[_Term]) -> None:
        buffers, weights = [term.buffer for term in batch], np.array([t.weight for t in batch])
        powers = np.array([math.frexp(term.weight)[1] for term in batch])  # weight < 2 ** power
        bad = np.zeros(1, np.int64)
        accumulate = backend("exact").accumulate

        def part(start: int, stop: int) -> None:
            accumulate(self.limbs, self.tops, buffers, weights, powers, _MAGIC, (start, stop), bad)

        spread(part, self.tops.size, _GRAIN)
        if bad[0]:
            for term in batch:
                finite(term.name, term.buffer)


def _raised(limbs: NDArray[np.float64], by: Indices) -> NDArray[np.float64]:
    """Limbs for larger numbers: ``by`` limbs of each block move down, the lowest are given up."""
    if not by.any():
        return limbs
    raised = np.zeros_like(limbs)
    for step in range(LIMBS):
        chosen = by == step
        raised[chosen, step:] = limbs[chosen, : LIMBS - step]
    return raised
