"""One method against another over the same seeds: differences, ratios, intervals, verdicts.

Methods that share a seed share the division of the data, and, where the models agree, their first
values; so every figure here is taken seed by seed before anything is averaged.

| measure | figure of a seed | interval at 95 % |
|---|---|---|
| ``last``, ``best``, ``recovery``, ``equal_bytes`` | score - score | Student's t over the seeds |
| the same, ``relative`` | 100 (score ÷ score - 1) | Student's t over the seeds |
| ``uplink``, ``bytes``, ``rounds_to`` | value ÷ value | Student's t of its logarithm |
| ``rounds_to``, where a run never arrives | bounds of the ratio | order statistics of the median |

The last holds without a distribution: a run that never arrives in its R rounds needs more than R,
so its ratio has one bound. Of n seeds the smallest and the largest bound enclose the median with
probability 1 - 2^(1 - n), which reaches 95 % from six seeds on.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.experiments.claim_registry import SCORES, Comparison, MeasureName
from protofleet.experiments.config import Dynamic, ScoreSettings, Section, Select
from protofleet.experiments.store import MethodResult
from protofleet.experiments.table import quoted_scores, score_of, trained
from protofleet.federation.outcomes.intervals import half_interval
from protofleet.federation.outcomes.scores import last_scores
from protofleet.federation.records import RoundRecord, Scores, Spread

Verdict = Literal["reproduced", "refuted", "not decided", "too few seeds", "not measured"]
CONFIDENCE = 0.95
SLACK = 1.001
"""Bytes of a round vary by some per thousand with the lengths of numbers in its records."""


class Pair(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Both methods' figures of one seed.

    Attributes:
        seed: of both runs.
        value, other: of the method, and of the one that it is compared with; a score in per cent, a
            loss, rounds, or bytes per client; None: the target was never reached, or not even one
            round is within equal bytes.
        rounds: of both, after which they were measured.
    """

    seed: int
    value: float | None
    other: float | None
    rounds: tuple[int, int]


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A difference or ratio over the seeds.

    Attributes:
        value: mean of the differences, geometric mean of the ratios, or median of the ratios, where
            a target that was never reached counts as reached in the round after the last.
        low, high: ends of its interval; no ``high``: no bound.
        kind: how the interval was made (this module's table).
        confidence: its probability; 0.95, or less where there are too few seeds for it.
    """

    value: float
    low: float
    high: float | None
    kind: Literal["t", "log t", "order"]
    confidence: float = CONFIDENCE

    def holds(self, value: float) -> bool:
        """Whether a value lies in the interval."""
        return self.low <= value and (self.high is None or value <= self.high)


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison by one measure in one section.

    Attributes:
        method, against, measure, section, expect, relative, target, paper, elsewhere, detail: as
            in the registry.
        threshold: what the interval has to be beyond.
        pairs: of the seeds that both methods have finished.
        asked: how many seeds there should be.
        averages: of the method and the other, over the pairs: means, of rounds medians; None: not
            measured, of rounds: mostly never reached.
        estimate: None: fewer than two pairs, or one in which a method had no round.
        verdict: ``reproduced`` if the whole interval is on the expected side, ``refuted`` if
            it is on the other, else ``not decided``.
        diverged: which of the two methods with which seeds, so that there is no pair.
    """

    method: str
    against: str
    measure: MeasureName
    section: Section | None
    expect: Literal["greater", "less"]
    threshold: float
    target: float | None
    paper: float | None
    elsewhere: dict[str, float]
    detail: bool
    pairs: tuple[Pair, ...]
    asked: int
    averages: tuple[float | None, float | None]
    estimate: Estimate | None
    verdict: Verdict
    relative: bool = False
    diverged: dict[str, tuple[int, ...]] = {}

    @property
    def is_ratio(self) -> bool:
        """Whether figures are divided, not subtracted."""
        return self.measure not in SCORES

    @property
    def paper_inside(self) -> bool | None:
        """Whether the printed figure lies in the interval; None: one of them is not there."""
        return None if self.paper is None else self.holds(self.paper)

    def holds(self, printed: float) -> bool | None:
        """Whether a printed figure lies in the interval; None: there is none."""
        return None if self.estimate is None else self.estimate.holds(printed)


def compare(
    comparison: Comparison,
    results: Mapping[str, Sequence[MethodResult]],
    settings: ScoreSettings,
    asked: int,
    dynamic: Dynamic | None = None,
) -> Iterator[Compared]:
    """Compare two methods in all ways that a comparison asks for.

    Args:
        comparison: of the registry.
        results: finished runs by label.
        settings: of the experiment.
        asked: number of its seeds.
        dynamic: its classes that go and come back, for ``recovery``.

    Raises:
        InputError: a result lacks the experiment's metric.
    """
    others = {run.seed: run for run in results.get(comparison.against, ())}
    runs = [
        (run, others[run.seed]) for run in results.get(comparison.method, ()) if run.seed in others
    ]
    for measure, section in comparison.rows():
        target = (comparison.target or settings.target) if measure == "rounds_to" else None
        what = _Wanted(section, settings, target, dynamic)
        pairs = tuple(filter(None, (_MEASURES[measure](*both, what) for both in runs)))
        yield measured(_unmeasured(comparison, measure, what, asked), pairs)


def measured(one: Compared, pairs: tuple[Pair, ...]) -> Compared:
    """The outcome with the figures, estimate and verdict of these pairs in the place of its own."""
    scored = [pair for pair in pairs if all(pair.rounds) and (pair.other or not one.relative)]
    estimate = _estimate(one, pairs) if len(scored) == len(pairs) > 1 else None
    verdict: Verdict = "too few seeds" if len(scored) == len(pairs) == 1 else "not measured"
    if estimate is not None:
        verdict = verdict_of(estimate, one.expect, one.threshold)
    return msgspec.structs.replace(
        one,
        pairs=pairs,
        averages=(
            _average(one.measure, [pair.value for pair in pairs]),
            _average(one.measure, [pair.other for pair in pairs]),
        ),
        estimate=estimate,
        verdict=verdict,
    )


def of_seed(one: Compared, pair: Pair) -> float:
    """A seed's difference or ratio, with "never" as the round after the last."""
    if one.is_ratio:
        return counted_ratio(pair)
    value, other = pair.value or 0.0, pair.other or 0.0
    return 100 * (value / other - 1) if one.relative else value - other


def mean_of(differences: Sequence[float]) -> Estimate:
    """Mean of the seeds' differences, with Student's interval.

    Raises:
        InputError: fewer than two.
    """
    mean, half = _student(np.array(differences))
    return Estimate(value=mean, low=mean - half, high=mean + half, kind="t")


def geometric_mean(ratios: Sequence[float]) -> Estimate:
    """Geometric mean of the seeds' ratios, all positive, with Student's interval of its logarithm.

    Raises:
        InputError: fewer than two.
    """
    mean, half = _student(np.log(ratios))
    low, high = math.exp(mean - half), math.exp(mean + half)
    return Estimate(value=math.exp(mean), low=low, high=high, kind="log t")


def median_of_bounded(values: Sequence[float], bounds: Sequence[tuple[float, float]]) -> Estimate:
    """Median of values that are known by bounds alone; its interval assumes no distribution.

    Args:
        values: one within each pair of bounds.
        bounds: lower and upper, perhaps infinite.
    """
    n = len(bounds)
    place, confidence = _order(n)
    low = sorted(low for low, _ in bounds)[place]
    high = sorted(high for _, high in bounds)[n - 1 - place]
    return Estimate(
        value=statistics.median(values),
        low=low,
        high=high if math.isfinite(high) else None,
        kind="order",
        confidence=confidence,
    )


def verdict_of(estimate: Estimate, expect: Literal["greater", "less"], threshold: float) -> Verdict:
    """What an interval says about a claim; one that touches the threshold decides nothing."""
    high = math.inf if estimate.high is None else estimate.high
    if estimate.confidence < CONFIDENCE or estimate.low <= threshold <= high:
        return "not decided"
    return "reproduced" if (estimate.low > threshold) == (expect == "greater") else "refuted"


class _Wanted(msgspec.Struct, frozen=True):
    """Of which figure."""

    section: Section | None
    settings: ScoreSettings
    target: float | None
    dynamic: Dynamic | None

    def score(self, run: MethodResult, scores: Scores) -> float | None:
        if self.section is None:
            return None
        found = score_of(run, scores, self.section, self.settings.metric)
        return None if found is None else found.mean


def _unmeasured(
    comparison: Comparison, measure: MeasureName, what: _Wanted, asked: int
) -> Compared:
    threshold = comparison.threshold
    if threshold is None:
        threshold = 0.0 if measure in SCORES else 1.0
    return Compared(
        method=comparison.method,
        against=comparison.against,
        measure=measure,
        section=what.section,
        expect=comparison.expect,
        threshold=threshold,
        relative=comparison.relative,
        target=what.target,
        paper=comparison.printed(what.section),
        elsewhere=comparison.elsewhere,
        detail=comparison.detail,
        pairs=(),
        asked=asked,
        averages=(None, None),
        estimate=None,
        verdict="not measured",
    )


def _estimate(one: Compared, pairs: Sequence[Pair]) -> Estimate:
    known = [(p.value, p.other) for p in pairs if p.value is not None and p.other is not None]
    figures = [of_seed(one, pair) for pair in pairs]
    if len(known) < len(pairs):
        return median_of_bounded(figures, [_bounds(pair) for pair in pairs])
    return geometric_mean(figures) if one.is_ratio else mean_of(figures)


def _student(values: NDArray[np.float64]) -> tuple[float, float]:
    found = Spread(mean=float(np.mean(values)), std=float(np.std(values)), n=len(values))
    return found.mean, half_interval(found.std, found.n)


def _order(n: int) -> tuple[int, float]:
    """From which end's how-manieth value on the median is enclosed at 95 %, and how surely."""
    outside = list(accumulate(math.comb(n, k) / 2 ** (n - 1) for k in range((n + 1) // 2)))
    place = max(sum(each <= 1 - CONFIDENCE for each in outside) - 1, 0)
    return place, 1 - outside[place]


def counted_ratio(pair: Pair) -> float:
    """A pair's ratio, with "never" as the round after the last."""
    value, other = (
        rounds + 1 if reached is None else reached
        for reached, rounds in zip((pair.value, pair.other), pair.rounds, strict=True)
    )
    return value / other


def _bounds(pair: Pair) -> tuple[float, float]:
    """What is known of a ratio of rounds."""
    counted = counted_ratio(pair)
    low = 0.0 if pair.other is None else counted
    high = math.inf if pair.value is None else counted
    return low, high


def _average(measure: MeasureName, values: Sequence[float | None]) -> float | None:
    if not values:
        return None
    if measure == "rounds_to":
        median = statistics.median(math.inf if value is None else value for value in values)
        return median if math.isfinite(median) else None
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def _at(select: Select, run: MethodResult, other: MethodResult, what: _Wanted) -> Pair | None:
    """Scores of the last or of the best round."""
    both = quoted_scores(run, select), quoted_scores(other, select)
    return _scored(run, other, what, both, (len(trained(run)), len(trained(other))))


def _recovery(run: MethodResult, other: MethodResult, what: _Wanted) -> Pair | None:
    """Mean scores of the rounds from the first in which a class is back."""
    value, against = _mean_since_return(run, what), _mean_since_return(other, what)
    if value is None or against is None:
        return None
    rounds = len(trained(run)), len(trained(other))
    return Pair(seed=run.seed, value=value, other=against, rounds=rounds)


def _mean_since_return(run: MethodResult, what: _Wanted) -> float | None:
    """None if there is no such round."""
    if what.dynamic is None:
        return None
    later = [one for one in trained(run) if one.round_id > what.dynamic.every]
    scores = [what.score(run, one.scores) for one in later]
    known = [score for score in scores if score is not None]
    return statistics.fmean(known) if known else None


def _at_equal_bytes(run: MethodResult, other: MethodResult, what: _Wanted) -> Pair | None:
    """Scores where both have moved at most what the cheaper moves in its whole run.

    A method's final fit counts where its whole run is within the bytes.
    """
    budget = SLACK * min(moved(run)[-1], moved(other)[-1])
    rounds = rounds_within(run, budget), rounds_within(other, budget)
    both = scores_after(run, rounds[0]), scores_after(other, rounds[1])
    if not all(rounds):
        value, against = what.score(run, both[0]), what.score(other, both[1])
        return Pair(seed=run.seed, value=value, other=against, rounds=rounds)
    return _scored(run, other, what, both, rounds)


def _rounds_to(run: MethodResult, other: MethodResult, what: _Wanted) -> Pair:
    return Pair(
        seed=run.seed,
        value=_first_reaching(run, what),
        other=_first_reaching(other, what),
        rounds=(len(trained(run)), len(trained(other))),
    )


def _bytes(
    count: Callable[[RoundRecord], int], run: MethodResult, other: MethodResult, _: _Wanted
) -> Pair | None:
    """Bytes of the whole run per client."""
    value, per = (sum(map(count, trained(one))) / max(one.clients, 1) for one in (run, other))
    if not value or not per:
        return None
    rounds = len(trained(run)), len(trained(other))
    return Pair(seed=run.seed, value=value, other=per, rounds=rounds)


_MEASURES: dict[MeasureName, Callable[[MethodResult, MethodResult, _Wanted], Pair | None]] = {
    "last": partial(_at, "last"),
    "best": partial(_at, "best"),
    "recovery": _recovery,
    "equal_bytes": _at_equal_bytes,
    "rounds_to": _rounds_to,
    "uplink": partial(_bytes, lambda one: one.bytes_up),
    "bytes": partial(_bytes, lambda one: one.bytes_up + one.bytes_down),
}


def _scored(
    run: MethodResult,
    other: MethodResult,
    what: _Wanted,
    scores: tuple[Scores, Scores],
    rounds: tuple[int, int],
) -> Pair | None:
    """None if one of them has no such score."""
    value, against = what.score(run, scores[0]), what.score(other, scores[1])
    if value is None or against is None:
        return None
    return Pair(seed=run.seed, value=value, other=against, rounds=rounds)


def moved(run: MethodResult) -> list[float]:
    """Bytes up and down per client after each round, beginning with none."""
    counts = (one.bytes_up + one.bytes_down for one in trained(run))
    return [total / max(run.clients, 1) for total in accumulate(counts, initial=0)]


def rounds_within(run: MethodResult, budget: float) -> int:
    """How many whole rounds a client has moved at most so many bytes after."""
    return sum(total <= budget for total in moved(run)[1:])


def scores_after(run: MethodResult, rounds: int) -> Scores:
    """As each section was scored last by then; a final fit counts where the run ends by then."""
    done = trained(run)
    if rounds == len(done):
        return quoted_scores(run, "last")
    return last_scores(one.scores for one in done[:rounds])


def _first_reaching(run: MethodResult, what: _Wanted) -> float | None:
    for one in trained(run):
        score = what.score(run, one.scores)
        if score is not None and what.target is not None and score >= 100 * what.target:
            return float(one.round_id)
    return None
