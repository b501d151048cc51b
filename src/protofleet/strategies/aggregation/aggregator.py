"""What an aggregation rule is, and what rules share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError

Vector = NDArray[np.float32]
"""``(size,)``, all numbers of a client that are combined at once, such as its parameters."""

Term = tuple[Vector, float]
"""A client's vector and its weight, at least 0."""

Rows = NDArray[np.float32]
"""``(k, size)``, vectors that are combined one by one, such as a prototype per class."""

RowsTerm = tuple[Rows, NDArray[Any]]
"""A client's rows and the weight of each, ``(k,)``, at least 0."""


class Terms(Protocol):
    """The clients' terms by ascending client_id; a rule may iterate over them again.

    Their length is that of the round's updates: as many terms at most.
    """

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Term]: ...


@dataclass(frozen=True, slots=True)
class TermsReader:
    """Terms that are read again at each iteration, so that no more than one is in memory.

    Attributes:
        read: begins from the first client.
        most: number of terms at most.
    """

    read: Callable[[], Iterator[Term]]
    most: int

    def __len__(self) -> int:
        return self.most

    def __iter__(self) -> Iterator[Term]:
        return self.read()


Limiter = Callable[[Vector, Terms], Terms]
"""What the terms become before they are combined, given the vector that the clients started from;
the very same terms where nothing has to be limited."""


CombineMeasured = Callable[[Vector, Terms], tuple[Vector | None, NDArray[np.float64]]]


def _as_they_are(_old: Vector, terms: Terms) -> Terms:
    return terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregator:
    """An aggregation rule: how the clients' weighted vectors become one.

    Attributes:
        name: key in ``AGGREGATORS``.
        incremental: it is a mean: it reads its terms once, in memory that does not grow with their
            number. A rule that needs all of them at a time reads them as often as it likes.
        combine: the server's vector ``(size,) float32`` that the clients started from, and the
            terms → ``(size,) float32``, a new array; None if no term has a weight above 0. The
            same terms give the same bits, and a term of weight 0 has no effect. Raises InputError
            for a vector of another size, a number that is not finite or a negative weight.
        combine_rows: what ``by_row`` does, in one pass; None: with ``combine``.
        limit: what ``combine`` does to its terms first, for strategies that do more with them.
        combine_measured: of a mean: ``combine``, and how far each term is from the server's vector,
            NaN for a term of weight 0, in one reading. The distances may be wrong by 1e-6 of
            themselves. None: there is no such way.
        weigh: coefficients of the clients' vectors from their distances, of a rule that is such a
            combination (``robust.Weigh``).
    """

    name: str
    incremental: bool
    combine: Callable[[Vector, Terms], Vector | None]
    combine_rows: Callable[[Rows, Iterable[RowsTerm]], Rows] | None = None
    limit: Limiter = _as_they_are
    combine_measured: CombineMeasured | None = None
    weigh: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None

    def by_row(self, old: Rows, terms: Iterable[RowsTerm]) -> Rows:
        """Each row combined over the clients that have a weight for it; a new array.

        Args:
            old: ``(k, size)``, what the clients started from, and what a row stays that nobody has
                a weight for.
            terms: read once, in order of client_id.
        """
        if self.combine_rows is not None:
            return self.combine_rows(old, terms)
        held: list[list[Term]] = [[] for _ in old]
        for rows, weights in terms:
            for index in np.flatnonzero(weights).tolist():
                # A copy: a view would keep the whole update in memory.
                held[index].append((rows[index].copy(), float(weights[index])))
        merged = old.copy()
        for index, of_row in enumerate(held):
            combined = self.combine(old[index], of_row)
            if combined is not None:
                merged[index] = combined
        return merged


def positive(rule: str, size: int, terms: Terms) -> Iterator[Term]:
    """The terms of a weight above 0, checked.

    Raises:
        InputError: a vector of another size or dtype, a number that is not finite, or a weight
            that is negative or not finite.
    """
    for position, (vector, weight) in enumerate(terms):
        if not (np.isfinite(weight) and weight >= 0):
            raise InputError(f"{rule}, term {position}: expected a weight from 0, got {weight}")
        if weight == 0:
            continue
        if vector.shape != (size,) or vector.dtype != np.float32:
            raise InputError(
                f"{rule}, term {position}: expected ({size},) float32, got {vector.shape} "
                f"{vector.dtype}"
            )
        if not np.isfinite(vector).all():
            raise InputError(f"{rule}, term {position}: expected finite numbers, got others")
        yield vector, float(weight)
