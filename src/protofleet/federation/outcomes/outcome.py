"""What a run has done for the owners of its devices: each one's model before and after."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Literal

import msgspec
import numpy as np

from protofleet.federation.outcomes.alone import ALONE
from protofleet.federation.outcomes.intervals import half_interval
from protofleet.strategies.scores import MetricName, Statistics
from protofleet.strategies.tasks import METRICS, TASKS, LearningTask
from protofleet.strategies.types import Evaluation
from protofleet.tensors import TaskName

MARGIN = 0.02
"""What an owner notices: two points of a share, or two per cent of an error. A smaller change of a
score on some dozens of examples is mostly chance."""

Verdict = Literal["helped", "unchanged", "harmed"]


class OwnerOutcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One owner; all on the same test examples of their own.

    Attributes:
        id: of the device.
        examples: of the test part.
        start: score of the bundle's model.
        end: of the device's model after its last round that counted.
        gain: by how much that is the better one; negative: the worse.
        chance: of always naming one class; None: of a task without classes.
        alone: of a model that it has trained without the others, for as many steps; None: nobody
            has tried.
    """

    id: str
    examples: int
    start: float
    end: float
    gain: float
    chance: float | None = None
    alone: float | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What owners have now beside what they had otherwise.

    Attributes:
        helped, unchanged, harmed: how many of them gained more than ``MARGIN``, neither, or lost
            more.
        gain: mean over the owners, positive where they have the better model.
        low, high: 95 % interval of that mean over owners like these (Student's t on the paired
            differences); None: of fewer than two.
    """

    helped: int
    unchanged: int
    harmed: int
    gain: float
    low: float | None = None
    high: float | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Of those owners who let their scores be sent, and have test examples.

    Attributes:
        metric: of the scores (``LearningTask.owners``).
        told: of how many owners.
        start, end: mean scores over them.
        since_start: now beside the bundle's model.
        chance: mean score of always naming one class; None: of a task without classes.
        alone: mean score of training alone, over those who have tried; None: nobody has.
        beside_alone: now beside that.
        owners: by id; of a summary none.
    """

    metric: MetricName
    told: int
    start: float
    end: float
    since_start: Change
    chance: float | None = None
    alone: float | None = None
    beside_alone: Change | None = None
    owners: tuple[OwnerOutcome, ...] = ()

    def __str__(self) -> str:
        """Some lines for a terminal or a notebook."""
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """What an owner would ask first, and each answer in a line."""
        owners = "1 owner" if self.told == 1 else f"{self.told} owners"
        first, last = self.text(self.start), self.text(self.end)
        found = [
            f"{owners}: {METRICS[self.metric].label} {first} at the start, {last} now",
            _told(self.metric, self.since_start, "than at the start"),
        ]
        if self.alone is not None and self.beside_alone is not None:
            than = f"than alone ({self.text(self.alone)})"
            found.append(_told(self.metric, self.beside_alone, than))
        return found

    @property
    def line(self) -> str:
        """All in one line, without the interval."""
        change = self.since_start
        return f"{self.lines()[0]}; {change.helped} better than at the start, {change.harmed} worse"

    @property
    def summary(self) -> Outcome:
        """Without the single owners."""
        return msgspec.structs.replace(self, owners=())

    def text(self, score: float) -> str:
        """A score as people read it."""
        metric = METRICS[self.metric]
        return metric.page_text(score) + (" %" if metric.is_share else "")

    def gain_text(self, gain: float) -> str:
        """``+7.1``: points of a share, or a difference."""
        metric = METRICS[self.metric]
        return f"{metric.scaled(gain):+{'.1f' if metric.is_share else '.3g'}}"

    def verdict(self, one: OwnerOutcome) -> Verdict:
        """What the run has done for an owner."""
        return _verdict(one.gain, _margin(self.metric, one.start))


def owner_outcome(
    name: str,
    task: TaskName,
    start: Statistics | None,
    end: Statistics | None,
    alone: Statistics | None = None,
) -> OwnerOutcome | None:
    """Of one device; None where a score is not defined, or was not told.

    Args:
        name: of the device.
        task: what form the statistics have.
        start: of the bundle's model on the device's test part.
        end: of its own model on the same.
        alone: of a model that it has trained without the others, on the same.
    """
    if start is None or end is None:
        return None
    learning = TASKS[task]
    before, now = (round(learning.owner_score(one), 6) for one in (start, end))
    chance = learning.owner_chance(end)
    if not math.isfinite(before) or not math.isfinite(now):
        return None
    return OwnerOutcome(
        id=name,
        examples=int(learning.size(end)),
        start=before,
        end=now,
        gain=round(_gain(learning.owners, before, now), 6),
        chance=None if math.isnan(chance) else round(chance, 6),
        alone=_alone(learning, alone),
    )


def _alone(learning: LearningTask, scored: Statistics | None) -> float | None:
    score = math.nan if scored is None else learning.owner_score(scored)
    return round(score, 6) if math.isfinite(score) else None


def followed(
    before: OwnerOutcome | None, name: str, task: TaskName, told: Evaluation
) -> OwnerOutcome | None:
    """An owner's outcome after one more round that counted.

    Args:
        before: after the rounds before; None: nothing was known.
        name: of the device.
        task: what form the statistics have.
        told: what its update tells.
    """
    alone = told.more.get(ALONE)
    if told.start is not None or before is None:
        return owner_outcome(name, task, told.start, told.kept, alone)
    now = owner_outcome(name, task, told.kept, told.kept, alone)
    if now is None:
        return before
    gain = round(_gain(TASKS[task].owners, before.start, now.end), 6)
    alone_now = before.alone if now.alone is None else now.alone
    return msgspec.structs.replace(now, start=before.start, gain=gain, alone=alone_now)


def outcome_of(task: TaskName, owners: Iterable[OwnerOutcome | None]) -> Outcome | None:
    """Over all owners; None where nothing is known of any."""
    known = tuple(sorted((one for one in owners if one is not None), key=lambda one: one.id))
    return _over(TASKS[task].owners, known) if known else None


def beside_alone(found: Outcome, alone: Outcome) -> Outcome:
    """The same with what each owner's model would be without the others.

    Args:
        found: of a run.
        alone: of the same owners, training by themselves.
    """
    scores = {one.id: one.end for one in alone.owners}
    owners = (msgspec.structs.replace(one, alone=scores.get(one.id)) for one in found.owners)
    return _over(found.metric, tuple(owners))


def _over(metric: MetricName, owners: tuple[OwnerOutcome, ...]) -> Outcome:
    compared = [(one.alone, one.end) for one in owners if one.alone is not None]
    chances = [one.chance for one in owners if one.chance is not None]
    return Outcome(
        metric=metric,
        told=len(owners),
        start=_mean(one.start for one in owners),
        end=_mean(one.end for one in owners),
        since_start=_change(metric, [(one.start, one.end) for one in owners]),
        chance=_mean(chances) if chances else None,
        alone=_mean(alone for alone, _ in compared) if compared else None,
        beside_alone=_change(metric, compared) if compared else None,
        owners=owners,
    )


def _gain(metric: MetricName, before: float, after: float) -> float:
    """By how much the second score is better."""
    return before - after if METRICS[metric].lower_is_better else after - before


def _margin(metric: MetricName, before: float) -> float:
    return MARGIN * abs(before) if METRICS[metric].lower_is_better else MARGIN


def _verdict(gained: float, margin: float) -> Verdict:
    # Scores are rounded to six digits: a change of exactly the margin is not beyond it.
    if abs(gained) <= margin + 1e-9:
        return "unchanged"
    return "helped" if gained > 0 else "harmed"


def _change(metric: MetricName, pairs: list[tuple[float, float]]) -> Change:
    gains = [_gain(metric, before, after) for before, after in pairs]
    verdicts = [
        _verdict(one, _margin(metric, before))
        for one, (before, _) in zip(gains, pairs, strict=True)
    ]
    mean = float(np.mean(gains))
    half = None
    if len(gains) > 1:
        half = half_interval(float(np.std(gains)), len(gains))
    return Change(
        helped=verdicts.count("helped"),
        unchanged=verdicts.count("unchanged"),
        harmed=verdicts.count("harmed"),
        gain=round(mean, 6),
        low=None if half is None else round(mean - half, 6),
        high=None if half is None else round(mean + half, 6),
    )


def _mean(values: Iterable[float]) -> float:
    return round(statistics.fmean(values), 6)


def _told(metric: MetricName, change: Change, than: str) -> str:
    counts = f"{change.helped} better {than}, {change.harmed} worse, {change.unchanged} alike"
    if change.low is None or change.high is None:
        return counts
    scale = METRICS[metric].scaled
    unit = " points" if METRICS[metric].is_share else ""
    low, high = scale(change.low), scale(change.high)
    digits = ".1f" if METRICS[metric].is_share else ".3g"
    return (
        f"{counts} (on average {scale(change.gain):+{digits}}{unit}, "
        f"95 % interval {low:+{digits}} to {high:+{digits}})"
    )
