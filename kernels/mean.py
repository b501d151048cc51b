"""Weighted means of whole models."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels.checks import Floats, finite, read_only
from protofleet.kernels.native.pool import spread
from protofleet.kernels.native.switch import backend

_PENDING = 16  # buffers of an iterator that are held: more save little
_PENDING_BYTES = 48 << 20  # and how much memory they may take together
_GRAIN = 1 << 16
_MOST_WEIGHT = 1e269  # times the largest float32, this is still a float64


class _Term(NamedTuple):
    position: int
    name: str
    buffer: Floats
    weight: float


class WeightedMean:
    """Weighted mean of buffers; memory does not grow with their number.

    Every element is summed in float64 in the order in which the buffers came: whether they come
    singly or many at once, and on how many threads, does not change a bit.

    Attributes:
        weight: sum of the weights so far.
    """

    def __init__(self, size: int) -> None:
        self.weight = 0.0
        self._total = np.zeros(size, np.float64)

    def add(self, buffer: NDArray[Any], weight: float) -> None:
        """Add one buffer, as ``add_all`` does, which for many is several times faster.

        Raises:
            InputError: as there; the mean is then as before.
        """
        for batch in self._batches([(buffer, weight)], []):
            finite(batch[0].name, batch[0].buffer)
            _accumulate(self._total, batch)
            self.weight += weight

    def add_all(self, terms: Iterable[tuple[NDArray[Any], float]]) -> None:
        """Add all or, if one is refused, none: the mean is then as it was before the call.

        New sums take the place of the old ones only when all are known to be good. A number that
        is not finite makes its sum so too, for good: looking at the sums while they are in the
        cache spares looking at every buffer.

        Args:
            terms: ``(size,) float32`` buffers and their weights. A list is summed in one pass;
                of an iterator up to 16 buffers or 48 MiB are held at a time, which must not be
                written meanwhile. A buffer of weight zero is not even looked at.

        Raises:
            InputError: wrong shape or dtype, a number that is not finite, a negative weight, or
                weights with a sum above 1e269.
        """
        self._add_all(terms, None, [])

    def add_all_measured(
        self, terms: Iterable[tuple[NDArray[Any], float]], origin: Floats
    ) -> NDArray[np.float64]:
        """``add_all``, and how far each buffer is from ``origin``, found as it is added.

        Args:
            terms: as there.
            origin: ``(size,) float32``.

        Returns:
            ``(terms,) float64``, Euclidean distances with a relative error below 1e-6, since their
            squares are summed in any order; NaN for a buffer of weight zero.

        Raises:
            InputError: as there.
        """
        if origin.size != self._total.size:
            raise InputError(
                f"weighted mean: expected an origin of {self._total.size} values, got {origin.size}"
            )
        squares: list[float] = []
        self._add_all(terms, read_only("weighted mean: origin", origin, 1), squares)
        return np.sqrt(np.array(squares, np.float64))

    def _add_all(
        self,
        terms: Iterable[tuple[NDArray[Any], float]],
        origin: Floats | None,
        squares: list[float],
    ) -> None:
        """Add all or none; ``squares`` gets those of the distances to ``origin``, if there is one.

        For that it gets a NaN for each term that is looked at.
        """
        weight = self.weight
        # Not `zeros_like`, which writes them all: these pages come as zeros when they are needed.
        total = self._total.copy() if weight else np.zeros(self._total.size, np.float64)
        for batch in self._batches(terms, squares):
            found = _accumulate(total, batch, origin)
            for term, square in zip(batch, found, strict=True):
                weight += term.weight
                squares[term.position] = square
        self._total, self.weight = total, weight

    def result(self) -> Floats:
        """The mean so far, ``(size,) float32``.

        Raises:
            InputError: nothing with a positive weight was added.
        """
        if self.weight == 0:
            raise InputError("weighted mean: expected a positive weight, got none")
        total, weight, divide = self._total, self.weight, backend("mean").divide
        mean = np.empty(total.size, np.float32)
        spread(lambda a, b: divide(total[a:b], weight, mean[a:b]), total.size, _GRAIN)
        return mean

    def _batches(
        self, terms: Iterable[tuple[NDArray[Any], float]], squares: list[float]
    ) -> Iterator[list[_Term]]:
        """Checked terms of positive weight, as many at a time as may be held; one list, reused.

        ``squares`` gets a NaN for each term, whatever its weight.
        """
        held = _PENDING_BYTES // max(4 * self._total.size, 1)
        most = len(terms) if isinstance(terms, Sequence) else min(_PENDING, max(held, 1))
        batch: list[_Term] = []
        sum_of_weights = self.weight
        for position, (buffer, weight) in enumerate(terms):
            name = f"weighted mean, buffer {position}"
            sum_of_weights += weight
            squares.append(math.nan)
            if not (weight >= 0 and sum_of_weights <= _MOST_WEIGHT):
                raise InputError(
                    f"{name}: expected a weight of at least 0 and a sum of at most "
                    f"{_MOST_WEIGHT:g}, got {weight} and {sum_of_weights}"
                )
            if weight == 0:
                continue
            if buffer.size != self._total.size:
                raise InputError(f"{name}: expected {self._total.size} values, got {buffer.size}")
            batch.append(_Term(position, name, read_only(name, buffer, 1), float(weight)))
            if len(batch) == most:
                yield batch
                batch.clear()
        if batch:
            yield batch


def _accumulate(
    total: NDArray[np.float64], batch: Sequence[_Term], origin: Floats | None = None
) -> list[float]:
    """Add to ``total``; InputError if the sums are not finite any more.

    Returns:
        The squares of the buffers' distances to ``origin``; NaN without one.
    """
    buffers, weights = [term.buffer for term in batch], np.array([term.weight for term in batch])
    bad = np.zeros(1, np.int64)
    loops, squares = backend("mean"), np.zeros(len(batch))
    several = threading.Lock()

    def part(start: int, stop: int) -> None:
        parts = [buffer[start:stop] for buffer in buffers]
        if origin is None:
            loops.accumulate(total[start:stop], parts, weights, bad)
            return
        found = loops.accumulate_measured(
            total[start:stop], parts, weights, origin[start:stop], bad
        )
        with several:
            np.add(squares, found, out=squares)

    spread(part, total.size, _GRAIN)
    if bad[0]:
        for term in batch:
            finite(term.name, term.buffer)
    return [math.nan] * len(batch) if origin is None else squares.tolist()
