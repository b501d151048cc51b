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

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels import squared_distances
from protofleet.strategies.aggregation.aggregator import (
    Aggregator,
    Rows,
    RowsTerm,
    Term,
    Terms,
    TermsReader,
    Vector,
)


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
        counted = (vector if weight else None for vector, weight in terms)
        norms = np.sqrt(squared_distances(counted, old))
        threshold = _threshold(norms, multiple)
        if not (norms > threshold).any():
            return terms
        for position in np.flatnonzero(norms > threshold).tolist():
            tell(Clipped(position, float(norms[position]), threshold))

        def read() -> Iterator[Term]:
            for (vector, weight), norm in zip(terms, norms, strict=True):
                yield (
                    (shortened(vector, old, threshold / norm) if norm > threshold else vector),
                    weight,
                )

        return TermsReader(read, len(terms))

    def combine_rows(old: Rows, terms: Iterable[RowsTerm]) -> Rows:
        # Copies: views would keep whole updates in memory.
        held = [(rows.copy(), weights) for rows, weights in terms]
        for index in range(len(old)):
            column = [(rows[index], float(weights[index])) for rows, weights in held]
            limited = limit(old[index], column)
            if limited is not column:
                for (rows, _), (vector, _) in zip(held, list(limited), strict=True):
                    rows[index] = vector
        return rule.by_row(old, held)

    return replace(
        rule,
        combine=lambda old, terms: rule.combine(old, limit(old, terms)),
        combine_rows=combine_rows,
        limit=limit,
    )


def _threshold(norms: NDArray[np.float64], multiple: float) -> float:
    known = norms[~np.isnan(norms)]
    middle = float(np.median(known)) if known.size else 0.0
    return multiple * middle if middle > 0 else np.inf


def shortened(vector: Vector, old: Vector, factor: float) -> Vector:
    """``old + factor (vector - old)``, rounded once."""
    apart = np.subtract(vector, old, dtype=np.float64)
    apart *= factor
    apart += old
    return apart.astype(np.float32)
