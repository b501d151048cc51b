"""Scores by round of the methods that a claim compares: means over the seeds, to be drawn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from protofleet.experiments.comparisons import Compared, moved
from protofleet.experiments.config import Section
from protofleet.experiments.store import MethodResult
from protofleet.experiments.table import score_of, trained
from protofleet.strategies.scores import MetricName

_BYTES = frozenset({"equal_bytes", "bytes"})
_DECIMALS = 5


class Point(NamedTuple):
    """A scored round.

    Attributes:
        place: its number, or 10^6 bytes up and down per client until then, the mean of the seeds.
        mean, std: over the seeds, in per cent, a loss as it is.
    """

    place: float
    mean: float
    std: float


class Curve(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One method's rounds.

    Attributes:
        seeds: how many runs these are means of.
        points: by round, the final fit left out.
    """

    seeds: int
    points: tuple[Point, ...]


def curve_section(outcomes: Sequence[Compared]) -> Section | None:
    """Which section a claim's curves are of: its first comparison's; None: it compares bytes."""
    return next((one.section for one in outcomes if one.section and not one.detail), None)


def by_bytes(outcomes: Sequence[Compared]) -> bool:
    """Whether a claim is about bytes, so that its curves are drawn over them."""
    return any(one.measure in _BYTES and not one.detail for one in outcomes)


def compared(outcomes: Sequence[Compared]) -> tuple[str, ...]:
    """Labels of the methods, in the order of the comparisons."""
    labels = (label for one in outcomes for label in (one.method, one.against))
    return tuple(dict.fromkeys(labels))


def curves_of(
    outcomes: Sequence[Compared],
    runs: Mapping[str, Sequence[MethodResult]],
    metric: MetricName,
) -> dict[str, Curve]:
    """The curves of all compared methods that have runs.

    Args:
        outcomes: a claim's.
        runs: finished ones by label.
        metric: of the scores.

    Raises:
        InputError: a result lacks the metric.
    """
    section = curve_section(outcomes)
    if section is None:
        return {}
    over_bytes = by_bytes(outcomes)
    found = {
        label: Curve(
            seeds=len(runs.get(label, ())),
            points=tuple(_points(runs.get(label, ()), section, metric, over_bytes=over_bytes)),
        )
        for label in compared(outcomes)
    }
    return {label: curve for label, curve in found.items() if curve.points}


def _points(
    runs: Sequence[MethodResult], section: Section, metric: MetricName, *, over_bytes: bool
) -> Iterator[Point]:
    found: dict[int, list[tuple[float, float]]] = {}
    for run in runs:
        for one, total in zip(trained(run), moved(run)[1:], strict=True):
            score = score_of(run, one.scores, section, metric)
            if score is not None:
                place = total / 1e6 if over_bytes else one.round_id
                found.setdefault(one.round_id, []).append((place, score.mean))
    for _, values in sorted(found.items()):
        places, scores = zip(*values, strict=True)
        figures = np.mean(places), np.mean(scores), np.std(scores)
        yield Point(*(round(float(value), _DECIMALS) for value in figures))
