"""The gate: an owner is served a personal model only where the evidence is that it helps.

Evidence are examples of the owner's own, on which the personal model and the bundle's are compared
one by one: the test part, and folds of the training part, in turn over the rounds, each by a model
that was trained without it. To that comes what personal models do for the other owners of the
fleet: the own gain is shrunk towards theirs, as in a random-effects model (DerSimonian and Laird,
"Meta-analysis in clinical trials", Controlled Clinical Trials 7, 1986). Few examples of one's own
then suffice where nearly everybody gains, and many are needed where nearly nobody does.
``docs/gate.md`` has what that does to owners.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import NormalDist
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.federation.records import HeldOutGain
from protofleet.strategies.scores import Statistics
from protofleet.strategies.tasks import TASKS, LearningTask
from protofleet.tensors import TaskName
from protofleet.wire.messages import FleetGain

ENOUGH = 0.8
"""Least probability that the personal model is the better one."""
_FEWEST_OWNERS = 3
"""Of fewer a fleet says nothing."""
_ALONE = FleetGain(owners=0, mean=0.0, sd=0.2)
"""Without a fleet: what training changes is as likely to do harm as good, by twenty points."""
_LEAST_SD = 0.02
"""Owners differ by that much in any fleet."""
_MOST_EXAMPLES = 200
"""Of an owner; one that claims more weighs no more."""
_MOST = 1.0
"""Of a gain: a share of the examples, or of the error that there was."""


FOLDS = 4
"""Of an owner's training part, that are held out in turn."""
FOLD_EVERY = 3
"""Rounds of a device; so the gate takes a quarter of the training time at most."""


class ComparedExamples(msgspec.Struct, frozen=True, kw_only=True):
    """What two models do on the same examples, as sums over them.

    Attributes:
        examples: how many.
        before, now: worth (``LearningTask.worth``) of the bundle's model, and of the other.
        gain: differences, of an error as shares of what it was.
        squares: of those.
    """

    examples: int = 0
    before: float = 0.0
    now: float = 0.0
    gain: float = 0.0
    squares: float = 0.0

    def __add__(self, other: ComparedExamples) -> ComparedExamples:
        return ComparedExamples(
            examples=self.examples + other.examples,
            before=self.before + other.before,
            now=self.now + other.now,
            gain=self.gain + other.gain,
            squares=self.squares + other.squares,
        )


class GateEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """How a personal model compares with the bundle's on examples of the owner's own.

    Attributes:
        task: what the model predicts.
        examples: how many; 0: there are none, so that nothing can be known.
        before, now: mean worth (``LearningTask.worth``) of the bundle's model and the personal one.
        gain: mean difference, of an error as a share of what it was.
        variance: of that mean.
        fleet: what personal models do for other owners; None: not told.
        kind: a head trained alone on the bundle's features, or a federation's personal model.
        tests: those of the test part among the examples.
        folds: those of the training part, by fold, each from the newest round that has held it out.
        held_out: how many rounds have held one out.
        rounds: how many have been trained since the last of those, this one among them.
        one_class: all of the owner's examples are of the same, so that nothing can be known.
    """

    task: TaskName
    examples: int
    before: float = 0.0
    now: float = 0.0
    gain: float = 0.0
    variance: float = 1.0
    fleet: FleetGain | None = None
    kind: Literal["personal", "head"] = "personal"
    tests: ComparedExamples = ComparedExamples()
    folds: tuple[ComparedExamples, ...] = ()
    held_out: int = 0
    rounds: int = FOLD_EVERY
    one_class: bool = False

    @property
    def next_fold(self) -> int | None:
        """Which fold is to be held out after this round; None: none."""
        due = self.rounds >= FOLD_EVERY and not self.one_class
        return self.held_out % FOLDS if due else None

    @property
    def held_out_gain(self) -> HeldOutGain | None:
        """What the folds show, for the other owners' gates; None: none were held out."""
        every = sum(self.folds, ComparedExamples())
        if not every.examples:
            return None
        return HeldOutGain(examples=every.examples, gain=every.gain / every.examples)

    def following(self, former: GateEvidence | None) -> GateEvidence:
        """With the folds of the device's round before."""
        if former is None:
            return self
        gathered = pooled(self.task, self.tests, former.folds)
        return msgspec.structs.replace(
            gathered,
            fleet=self.fleet,
            kind=self.kind,
            held_out=former.held_out,
            rounds=former.rounds + 1,
            one_class=self.one_class,
        )

    def with_fold(self, fold: ComparedExamples) -> GateEvidence:
        """With the next fold, in the place of what an earlier round has made of it."""
        place = self.held_out % FOLDS
        folds = (*self.folds[:place], fold, *self.folds[place + 1 :])
        gathered = pooled(self.task, self.tests, folds)
        return msgspec.structs.replace(
            gathered, fleet=self.fleet, kind=self.kind, held_out=self.held_out + 1, rounds=0
        )

    @property
    def expected(self) -> float:
        """The gain that is to be expected."""
        mean, _ = self._posterior
        return mean

    @property
    def _posterior(self) -> tuple[float, float]:
        """Mean and precision of the gain."""
        prior = self.fleet or _ALONE
        spread = max(prior.sd, _LEAST_SD) ** 2
        precision = 1 / spread + 1 / self.variance
        return (prior.mean / spread + self.gain / self.variance) / precision, precision

    @property
    def probability(self) -> float:
        """That the personal model is better for this owner than the bundle's."""
        if not self.examples or self.one_class:
            return 0.0
        mean, precision = self._posterior
        return NormalDist().cdf(mean * math.sqrt(precision))

    @property
    def helps(self) -> bool:
        """Whether it is served."""
        return self.probability >= ENOUGH

    @property
    def served(self) -> Literal["personal", "head", "bundle"]:
        """Which model is in use."""
        return self.kind if self.helps else "bundle"

    @property
    def text(self) -> str:
        """For people: which model is in use and why."""
        if not self.examples:
            return "the bundle's model: there are no examples to compare it with another on"
        if self.one_class:
            return "the bundle's model: all examples are of one class, so another cannot be judged"
        which = self.kind if self.helps else "the bundle's model"
        what = "the personal one" if self.kind == "personal" else "a head trained alone"
        score = TASKS[self.task].worth_text
        compared = f"{score(self.now)} against {score(self.before)}"
        fleet = self.fleet
        others = "" if fleet is None else f" and {fleet.owners} owners' gains"
        return (
            f"{which}: {what} has {compared} on {self.examples} examples that it "
            f"has not seen; by these{others} it is better with probability "
            f"{min(self.probability, 0.99):.2f}"
        )


def compare(
    task: LearningTask,
    before: NDArray[np.float32],
    now: NDArray[np.float32],
    y: NDArray[np.int64] | NDArray[np.float32],
) -> ComparedExamples:
    """What two models do on the same examples.

    Args:
        task: of the model.
        before: ``(n, outputs)`` of the bundle's model.
        now: ``(n, outputs)`` of the personal one.
        y: ``(n,)`` class indices or ``(n, outputs)`` targets.
    """
    if not len(y):
        return ComparedExamples()
    ours, theirs = task.worths(now, y), task.worths(before, y)
    scale = -float(theirs.mean()) if task.relative else 1.0
    differences = np.clip((ours - theirs) / (scale or 1.0), -_MOST, _MOST)
    return ComparedExamples(
        examples=len(y),
        before=float(theirs.sum()),
        now=float(ours.sum()),
        gain=float(differences.sum()),
        squares=float(np.square(differences).sum()),
    )


def pooled(
    task: TaskName, tests: ComparedExamples, folds: tuple[ComparedExamples, ...] = ()
) -> GateEvidence:
    """The evidence of an owner's test part and of folds of the training part."""
    every = sum(folds, tests)
    count = every.examples
    if not count:
        return GateEvidence(task=task, examples=0, tests=tests, folds=folds)
    gain = every.gain / count
    # As of two examples more, one better and one worse: a few that are alike prove nothing.
    squares = (every.squares + 2.0) / (count + 2)
    smoothed = every.gain / (count + 2)
    return GateEvidence(
        task=task,
        examples=count,
        before=every.before / count,
        now=every.now / count,
        gain=gain,
        variance=(squares - smoothed * smoothed) / count,
        tests=tests,
        folds=folds,
    )


def is_one_class(*labels: NDArray[Any]) -> bool:
    """Whether an owner's examples are all of one class; targets have none."""
    known = np.concatenate(labels)
    return known.ndim == 1 and len(np.unique(known)) == 1


def folds_of(y: NDArray[Any], count: int) -> NDArray[np.int64]:
    """A fold for each example, of which every one has of each class where there are enough.

    Neighbours of a class share one, as neighbouring windows of a stream overlap.

    Args:
        y: ``(n,)`` class indices, or ``(n, T)`` targets.
        count: of the folds.

    Returns:
        ``(n,)`` numbers from 0 to below ``count``.
    """
    folds = np.zeros(len(y), np.int64)
    labels = y if y.ndim == 1 else np.zeros(len(y), np.int64)
    before = 0
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        blocks = np.arange(len(rows)) * min(count, len(rows)) // len(rows)
        # Each class begins where the one before has ended, so that folds are of one size.
        folds[rows] = (before + blocks) % count
        before += len(rows)
    return folds


def gain_of(
    task: LearningTask, start: Statistics | None, own: Statistics | None
) -> tuple[float, int] | None:
    """What an owner's statistics tell: the gain, and the number of examples; None: nothing.

    Args:
        task: of the model.
        start: of the bundle's model on the owner's test part.
        own: of the personal one on the same.
    """
    if start is None or own is None or not task.size(own):
        return None
    before, now = task.worth(start), task.worth(own)
    scale = -before if task.relative else 1.0
    if not math.isfinite(now - before) or not scale:
        return None
    return min(max((now - before) / scale, -_MOST), _MOST), int(task.size(own))


def owner_gain(
    tested: tuple[float, int] | None, held_out: HeldOutGain | None
) -> tuple[float, int] | None:
    """An owner's gain on test and on held-out examples, and their number; None: nothing is told."""
    told = [] if tested is None else [tested]
    if held_out is not None:
        told.append((held_out.gain, held_out.examples))
    examples = sum(count for _, count in told)
    return (sum(gain * count for gain, count in told) / examples, examples) if told else None


def fleet_gain(told: Iterable[tuple[float, int]]) -> FleetGain | None:
    """What personal models do for owners like these; None: too few have told.

    Args:
        told: of each owner the gain and the number of examples (``owner_gain``).

    Returns:
        Mean, and the standard deviation of another owner's gain about it.
    """
    known = np.array([(gain, count) for gain, count in told if count > 0], np.float64)
    if len(known) < _FEWEST_OWNERS:
        return None
    gains, counts = known[:, 0], np.minimum(known[:, 1], _MOST_EXAMPLES)
    # Statistics tell no pairs: as few examples differ as can. By the gain of all, since that of an
    # owner whose few examples happen to agree would have no noise, and all the weight.
    common = abs(float((gains * counts).sum() / counts.sum()))
    noise = (common * (1 - common) + 1 / (counts + 2)) / counts
    weights = 1 / noise
    mean = float((weights * gains).sum() / weights.sum())
    excess = float((weights * np.square(gains - mean)).sum()) - (len(gains) - 1)
    between = max(excess, 0.0) / float(weights.sum() - np.square(weights).sum() / weights.sum())
    weights = 1 / (noise + between)
    mean = float((weights * gains).sum() / weights.sum())
    return FleetGain(
        owners=len(gains),
        mean=round(mean, 6),
        sd=round(math.sqrt(between + 1 / float(weights.sum())), 6),
    )
