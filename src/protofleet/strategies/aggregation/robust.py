"""What rules share that withstand liars: blocks of all clients, distances, how many may lie.

Clients count alike in them: ``num_examples`` only decides whether one counts at all (not with 0).

Geometric median, centred clipping, Krum and multi-Krum are combinations of the clients' vectors
and the server's own whose coefficients follow from all distances between them. So such a rule is a
function ``Weigh``, its vectors are read once for the distances and once for the combination, and
its iterations cost n² whatever the size of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels import SquaredDistances, WeightedMean
from protofleet.strategies.aggregation.aggregator import (
    Aggregator,
    Rows,
    Terms,
    TermsReader,
    Vector,
    positive,
)
from protofleet.strategies.bounds import Bounded

_BLOCK_BYTES = 128 << 20  # memory of a block of coordinates: more clients, more passes over them
_MIXED_BYTES = 24  # of a client's number in it: itself, mixed, and what a rule makes of it
_OLD_BYTES = 32  # of a coordinate, beside its clients' numbers

Squares = NDArray[np.float64]
"""``(n + 1, n + 1)``, squared distances of the server's vector, which is the first, and the n
clients' to each other."""

Weigh = Callable[[Squares], NDArray[np.float64]]
"""Coefficients ``(n + 1,)`` of the server's vector and the clients', at least 0, with sum 1."""


class RobustSettings(Bounded, frozen=True):
    """What rules know that withstand liars.

    Attributes:
        liars: how many of a round's clients may lie: a share (float, below 0.5) or a count
            (integer). Where a round has too few clients for that, as many as the rule bears.
        mixing: nearest-neighbour mixing comes first (``mixing.py``).
    """

    liars: int | float = 0.2
    mixing: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        good = 0 <= self.liars < 0.5 if isinstance(self.liars, float) else self.liars >= 0
        if not good:
            raise InputError(
                f"setting 'liars': expected a count from 0 or a share below 0.5, got {self.liars}"
            )

    def count(self, clients: int) -> int:
        """How many of so many clients may lie: less than half; shares are rounded up."""
        wanted = self.liars
        if isinstance(wanted, float):
            # The subtrahend undoes float noise, as in ``federation.settings.count_of``.
            wanted = math.ceil(wanted * clients - 1e-9)
        return min(wanted, max((clients - 1) // 2, 0))


def blocks(
    rule: str, old: Vector, terms: Terms, *, each: int = _MIXED_BYTES
) -> Iterator[tuple[slice, Rows]]:
    """The vectors that count, some coordinates of all of them at a time.

    Args:
        rule: for messages.
        old: ``(size,)``, the server's vector.
        terms: the clients'; read again for each block.
        each: bytes that the caller takes per number of a client.

    Yields:
        Which coordinates, and ``(n, width) float32`` of all clients with a weight above 0; nothing
        at all where there is none.
    """
    width = max(_BLOCK_BYTES // (len(terms) * each + _OLD_BYTES), 1)
    for start in range(0, max(old.size, 1), width):
        part = slice(start, start + width)
        values = np.empty((len(terms), old[part].size), np.float32)
        clients = 0
        for vector, _ in positive(rule, old.size, terms):
            values[clients] = vector[part]
            clients += 1
        if not clients:
            return
        yield part, values[:clients]


def by_coordinates(
    name: str, reduce: Callable[[Rows], NDArray[np.float64]], each: int = _MIXED_BYTES
) -> Aggregator:
    """A rule that makes each number of the clients' numbers alone.

    Args:
        name: of the rule.
        reduce: ``(n, width) float32``, which it may write, to ``(width,)``.
        each: bytes that it takes per number of a client.
    """

    def combine(old: Vector, terms: Terms) -> Vector | None:
        combined: Vector | None = None
        for part, values in blocks(name, old, terms, each=each):
            combined = np.empty(old.size, np.float32) if combined is None else combined
            combined[part] = reduce(values)
        return combined

    return Aggregator(name=name, incremental=False, combine=combine)


def by_distances(name: str, weigh: Weigh) -> Aggregator:
    """A rule whose coefficients follow from the distances."""
    return Aggregator(
        name=name, incremental=False, combine=partial(_combine, name, weigh), weigh=weigh
    )


def _combine(name: str, weigh: Weigh, old: Vector, terms: Terms) -> Vector | None:
    squares = squared_distances(name, old, terms)
    return None if squares is None else combination(name, old, terms, weigh(squares))


def squared_distances(name: str, old: Vector, terms: Terms) -> Squares | None:
    """Of the server's vector and all clients' that count; None where there is none."""
    found: SquaredDistances | None = None
    for part, values in blocks(name, old, terms, each=2 * old.itemsize):
        origin = old[part]
        found = SquaredDistances(len(values) + 1) if found is None else found
        found.add(np.concatenate((origin[None], values)), origin)
    return None if found is None else found.result()


def combination(name: str, old: Vector, terms: Terms, coefficients: NDArray[np.float64]) -> Vector:
    """The server's vector and the clients' that count, times their coefficients, ``(n + 1,)``."""

    def read() -> Iterator[tuple[Vector, float]]:
        yield old, coefficients[0]
        for (vector, _), coefficient in zip(
            positive(name, old.size, terms), coefficients[1:], strict=True
        ):
            yield vector, float(coefficient)

    mean = WeightedMean(old.size)
    mean.add_all(TermsReader(read, len(coefficients)))
    return mean.result()
