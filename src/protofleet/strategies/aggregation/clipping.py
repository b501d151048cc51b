"""Norm clip before any rule: a client's difference to what it started from is shortened.

Source: Sun, Kairouz, Suresh and McMahan, "Can You Really Backdoor Federated Learning?"
(arXiv:1911.07963), norm thresholding of updates.

Deviation: the threshold is a multiple of the median norm of the round's differences, so that it
follows the training and needs no tuning. Where no difference is longer, the terms go to the rule
as they are, and not a bit changes. Where most clients have changed nothing there is no threshold.
Rows, such as prototypes, are clipped one by one over the clients that hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels import squared_distances, threads
from protofleet.strategies.aggregation.aggregator import (
    Aggregator,
    Rows,
    RowsTerm,
    Term,
    Terms,
    TermsReader,
    Vector,
)

_ROUGHLY = 1e-6
"""Relative error of the distances of ``Aggregator.combine_measured``."""


@dataclass(frozen=True, slots=True)
class Clipped:
    """A term that was shortened.

    Attributes:
        position: of it among the terms.
        norm: of its difference.
        limit: what the norm became.
    """

    position: int
    norm: float
    limit: float


def _tell_nobody(_clipped: Clipped) -> None:
    return None


def clipped(
    rule: Aggregator, multiple: float, tell: Callable[[Clipped], None] = _tell_nobody
) -> Aggregator:
    """The rule behind a norm clip.

    Args:
        rule: gets the clipped terms.
        multiple: of the median norm; above 0.
        tell: called for each term that is shortened.
    """

    def limit(old: Vector, terms: Terms) -> Terms:
        norms = _norms(old, terms)
        threshold = _threshold(norms, multiple)
        long = np.flatnonzero(norms > threshold).tolist()
        for position in long:
            tell(Clipped(position, float(norms[position]), threshold))
        return _shortened(old, terms, norms, threshold) if long else terms

    def combine(old: Vector, terms: Terms) -> Vector | None:
        if not rule.incremental:
            return rule.combine(old, limit(old, terms))
        # Mostly nothing is longer: the terms, which may lie on a disk, are then read once.
        combined, norms = _measured(rule, old, terms)
        if _none_is_longer(norms, multiple):
            return combined
        others = limit(old, terms)
        return combined if others is terms else rule.combine(old, others)

    def combine_rows(old: Rows, terms: Iterable[RowsTerm]) -> Rows:
        # Copies: views would keep whole updates in memory.
        held = [(rows.copy(), weights) for rows, weights in terms]
        for index in range(len(old)):
            column = [(rows[index], float(weights[index])) for rows, weights in held]
            others = limit(old[index], column)
            if others is not column:
                for (rows, _), (vector, _) in zip(held, list(others), strict=True):
                    rows[index] = vector
        return rule.by_row(old, held)

    return replace(
        rule,
        combine=combine,
        combine_rows=combine_rows,
        limit=limit,
        combine_measured=None,
    )


def _measured(
    rule: Aggregator, old: Vector, terms: Terms
) -> tuple[Vector | None, NDArray[np.float64]]:
    """A mean of the terms as they are, and roughly the norms of their differences."""
    if rule.combine_measured is not None:
        return rule.combine_measured(old, terms)
    measured = _Measured(old, terms)
    combined = rule.combine(old, measured)
    return combined, np.array(measured.norms)


def _norms(old: Vector, terms: Iterable[Term]) -> NDArray[np.float64]:
    """Of the differences; NaN for a term of weight 0."""
    return np.sqrt(squared_distances((vector if weight else None for vector, weight in terms), old))


class _Measured:
    """Terms whose differences are measured as they are read, a few at a time, each on a thread.

    Attributes:
        norms: of the terms that were read.
    """

    def __init__(self, old: Vector, terms: Terms) -> None:
        self._old, self._terms = old, terms
        self.norms: list[float] = []

    def __len__(self) -> int:
        return len(self._terms)

    def __iter__(self) -> Iterator[Term]:
        self.norms.clear()
        left = iter(self._terms)
        while some := list(islice(left, threads())):
            self.norms += _norms(self._old, some).tolist()
            yield from some


def _shortened(old: Vector, terms: Terms, norms: NDArray[np.float64], most: float) -> Terms:
    """The terms with no difference longer than ``most``."""

    def read() -> Iterator[Term]:
        for (vector, weight), norm in zip(terms, norms, strict=True):
            yield (shortened(vector, old, most / norm) if norm > most else vector), weight

    return TermsReader(read, len(terms))


def _threshold(norms: NDArray[np.float64], multiple: float) -> float:
    known = norms[~np.isnan(norms)]
    middle = float(np.median(known)) if known.size else 0.0
    return multiple * middle if middle > 0 else np.inf


def _none_is_longer(roughly: NDArray[np.float64], multiple: float) -> bool:
    """Whether that is certain, although the norms are known but for ``_ROUGHLY`` of themselves.

    A median of such norms is as near to the exact one.
    """
    known = roughly[~np.isnan(roughly)]
    return bool((known * (1 + 4 * _ROUGHLY) <= _threshold(roughly, multiple)).all())


def shortened(vector: Vector, old: Vector, factor: float) -> Vector:
    """``old + factor (vector - old)``, rounded once."""
    apart = np.subtract(vector, old, dtype=np.float64)
    apart *= factor
    apart += old
    return apart.astype(np.float32)
