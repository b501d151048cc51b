"""Coordinate-wise median: every number is the median of what the clients sent for it.

Source: Yin, Chen, Ramchandran and Bartlett, "Byzantine-Robust Distributed Learning: Towards Optimal
Statistical Rates" (arXiv:1803.01498), definition 1. While less than half of the clients lie, each
number stays within what the others sent.

Of an even number of values it is the mean of the two in the middle. Clients count alike, as in the
paper: ``num_examples`` only decides whether one counts at all (not with 0), because a client states
it itself and could outvote all others by it. ``weighted = true`` believes it: the median is then
where the values up to it have half of the weight, and the mean of two where they have exactly half.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.strategies.aggregation.aggregator import Aggregator, Rows, Terms, Vector, positive
from protofleet.strategies.aggregation.mixing import mixed
from protofleet.strategies.aggregation.robust import RobustSettings
from protofleet.strategies.settings import parse_record

_BLOCK_BYTES = 128 << 20  # memory of a block of coordinates: more clients, more passes over them
_PLAIN_BYTES, _WEIGHTED_BYTES = 4, 32  # of a client's number in it, what is made of it included
_MEDIAN_BYTES = 32  # of a coordinate, beside its clients' numbers


class MedianSettings(RobustSettings, frozen=True, forbid_unknown_fields=True):
    """Settings of the median; ``liars`` matters to mixing alone.

    Attributes:
        weighted: clients count by their weights instead of alike; not after mixing.
    """

    weighted: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weighted and self.mixing:
            raise InputError("setting 'weighted': mixed clients count alike; leave one of them out")


def build(settings: Mapping[str, Any]) -> Aggregator:
    """The coordinate-wise median.

    Raises:
        InputError: unknown setting or wrong type.
    """
    chosen = parse_record("aggregation 'median'", settings, MedianSettings)
    combine = partial(_combine, weighted=chosen.weighted)
    return mixed(Aggregator(name="median", incremental=False, combine=combine), chosen)


def _combine(old: Vector, terms: Terms, *, weighted: bool) -> Vector | None:
    size = old.size
    combined = np.empty(size, np.float32)
    each = len(terms) * (_WEIGHTED_BYTES if weighted else _PLAIN_BYTES) + _MEDIAN_BYTES
    width = max(_BLOCK_BYTES // each, 1)
    for start in range(0, max(size, 1), width):
        part = combined[start : start + width]
        values = np.empty((part.size, len(terms)), np.float32)
        weights: list[float] = []
        for vector, weight in positive("median", size, terms):
            values[:, len(weights)] = vector[start : start + width]
            weights.append(weight)
        if not weights:
            return None
        values = values[:, : len(weights)]
        part[...] = _weighted(values, np.array(weights)) if weighted else _plain(values)
    return combined


def _plain(values: Rows) -> NDArray[np.float64]:
    """Medians of ``(width, n)`` along the last axis; ``values`` are moved about."""
    below, above = (values.shape[1] - 1) // 2, values.shape[1] // 2
    values.sort(axis=1)  # several times as fast as a partition of so short rows
    return _between(values[:, below], values[:, above])


def _weighted(values: Rows, weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same for clients with ``weights``, ``(n,)``, all above 0."""
    order = np.argsort(values, axis=1, kind="stable")
    reached = np.cumsum(weights[order], axis=1)
    half = reached[:, -1:] / 2
    middle = [(reached < half).sum(axis=1), (reached <= half).sum(axis=1)]
    lines = np.arange(len(values))
    below, above = (values[lines, order[lines, place]] for place in middle)
    return _between(below, above)


def _between(below: Vector, above: Vector) -> NDArray[np.float64]:
    return np.add(below, above, dtype=np.float64) / 2
