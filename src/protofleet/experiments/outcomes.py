"""What every strategy does for owners at its defaults, over several tasks, from stored runs.

A task is an experiment whose clients find the learning rate (``Experiment.finds_rate``). Beside its
own rows there may be runs of the same methods with each rate of the ladder: what the best of them
would have given tells what the choice has cost (regret).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from protofleet.experiments.claim_results import current_runs, diverged_runs, diverged_seeds
from protofleet.experiments.config import Experiment, Method
from protofleet.experiments.store import MethodResult
from protofleet.federation.outcomes.outcome import Outcome, beside_alone
from protofleet.strategies.scores import MetricName
from protofleet.strategies.tasks import METRICS

ALONE = "local"
"""The strategy that trains without the others."""


class StrategyOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy on one task; scores are means over the owners, then over the seeds.

    Attributes:
        label: of the row.
        own_model: it trains another model than the task's.
        seeds: finished runs.
        start, end: scores of the bundle's model, and of each owner's after the last round.
        ends: ``end`` of each seed.
        helped, unchanged, harmed: owners of all seeds, beside the start.
        better, worse: owners of all seeds, beside training alone.
        rates: learning rates that were found, each once, ascending.
        regret: what the best rate of the ladder gives more; in the unit of a share, or of an error
            the part by which it is the smaller; None: not tried.
        regret_seeds: with how many all rates were tried.
        learns: it ends better than the start, and than always naming one class would be.
    """

    label: str
    own_model: bool
    seeds: int
    start: float
    end: float
    ends: tuple[float, ...]
    helped: int
    unchanged: int
    harmed: int
    better: int
    worse: int
    rates: tuple[float, ...]
    regret: float | None
    regret_seeds: int = 0
    learns: bool

    @property
    def owners(self) -> int:
        """Of all seeds."""
        return self.helped + self.unchanged + self.harmed


class TaskOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """One task.

    Attributes:
        name, title, note: of the experiment.
        metric: that tells an owner how well a model serves them.
        rounds: of every strategy.
        seeds: that were asked for.
        chance: mean score of always naming one class; None: of a task without classes.
        alone: mean score of training alone; None: not run.
        rows: by label, those with a finished run.
        diverged: by label, with how many seeds a strategy could not go on.
        without: strategies that are left out, and why.
    """

    name: str
    title: str
    note: str
    metric: MetricName
    rounds: int
    seeds: int
    chance: float | None
    alone: float | None
    rows: dict[str, StrategyOutcome]
    diverged: dict[str, int]
    without: dict[str, str]


def rows_of_rates(experiment: Experiment, runs: Iterable[MethodResult]) -> tuple[Method, ...]:
    """The rows of methods that found a rate, with each of the ladder's others in its place.

    Args:
        experiment: a task.
        runs: of its rows; the rates that they found are left out.
    """
    methods = {method.label: method for method in experiment.methods}
    found: dict[str, Method] = {}
    for run in runs:
        method, chosen = methods.get(run.label), run.calibration
        if method is None or chosen is None:
            continue
        for rate in chosen.rates:
            if rate != chosen.lr:
                label = _label(run.label, rate)
                optimiser = {**run.settings["optimiser"], "lr": rate}
                settings = {**method.settings, "optimiser": optimiser}
                found[label] = msgspec.structs.replace(method, label=label, settings=settings)
    return tuple(found.values())


def _label(label: str, rate: float) -> str:
    return f"{label} at {rate:g}"


def task_outcome(name: str, experiment: Experiment, folder: Path) -> TaskOutcome | None:
    """Read what the runs in a folder say; None where no row has a finished one.

    Raises:
        InputError: a result cannot be read.
    """
    runs = current_runs(experiment, folder)
    told = {label: [one for one in of if one.outcome is not None] for label, of in runs.items()}
    known = {label: of for label, of in told.items() if of}
    if not known:
        return None
    alone = _alone(experiment, known)
    others = _others(experiment, known, folder)
    rows = {
        method.label: _row(method, known[method.label], alone=alone, others=others)
        for method in experiment.methods
        if method.label in known
    }
    first = _outcome(next(iter(known.values()))[0])
    every = experiment.every_strategy
    return TaskOutcome(
        name=name,
        title=experiment.title,
        note=" ".join(experiment.note.split()),
        metric=first.metric,
        rounds=experiment.rounds,
        seeds=len(experiment.seeds),
        chance=first.chance,
        alone=statistics.fmean(one.end for one in alone.values()) if alone else None,
        rows=rows,
        diverged={
            label: len(stopped)
            for label, stopped in diverged_seeds(experiment, folder).items()
            if stopped
        },
        without=dict(every.without) if every else {},
    )


def _alone(
    experiment: Experiment, known: Mapping[str, Sequence[MethodResult]]
) -> dict[int, Outcome]:
    """By seed, what owners reach without the others."""
    for method in experiment.methods:
        if method.strategy == ALONE and method.label in known:
            return {run.seed: _outcome(run) for run in known[method.label]}
    return {}


def _others(
    experiment: Experiment, known: Mapping[str, Sequence[MethodResult]], folder: Path
) -> dict[str, list[MethodResult]]:
    """Runs of the ladder's other rates, by label: finished ones, and those that diverged."""
    runs = [one for found in known.values() for one in found]
    rows = rows_of_rates(experiment, runs)
    if not rows:
        return {}
    wider = msgspec.structs.replace(experiment, methods=rows)
    diverged = diverged_runs(wider, folder)
    return {
        label: [*found, *diverged[label]] for label, found in current_runs(wider, folder).items()
    }


def _row(
    method: Method,
    runs: Sequence[MethodResult],
    *,
    alone: Mapping[int, Outcome],
    others: Mapping[str, Sequence[MethodResult]],
) -> StrategyOutcome:
    outcomes = [_outcome(run) for run in runs]
    changes = [one.since_start for one in outcomes]
    beside = [
        change
        for run, one in zip(runs, outcomes, strict=True)
        if run.seed in alone
        and (change := beside_alone(one, alone[run.seed]).beside_alone) is not None
    ]
    chance = statistics.fmean(one.chance or 0 for one in outcomes)
    start, end = (
        statistics.fmean(getattr(one, name) for one in outcomes) for name in ("start", "end")
    )
    lower = METRICS[outcomes[0].metric].lower_is_better
    regret = _regret(runs, others)
    rates = {run.calibration.lr for run in runs if run.calibration is not None}
    return StrategyOutcome(
        label=method.label,
        own_model=method.model is not None,
        seeds=len(runs),
        start=start,
        end=end,
        ends=tuple(one.end for one in outcomes),
        helped=sum(one.helped for one in changes),
        unchanged=sum(one.unchanged for one in changes),
        harmed=sum(one.harmed for one in changes),
        better=sum(one.helped for one in beside),
        worse=sum(one.harmed for one in beside),
        rates=tuple(sorted(rates)),
        regret=None if regret is None else regret[0],
        regret_seeds=0 if regret is None else regret[1],
        learns=end < start if lower else end > max(start, chance),
    )


def _regret(
    runs: Sequence[MethodResult], others: Mapping[str, Sequence[MethodResult]]
) -> tuple[float, int] | None:
    """What the best rate of the ladder gives more, and with how many seeds all were tried.

    Means over these seeds are compared: the best rate of each seed would be the luckiest one. What
    diverged with one of them is no rate.
    """
    tried = [(run, ends) for run in runs if (ends := _ends_of_rates(run, others)) is not None]
    if not tried:
        return None
    metric = _outcome(runs[0]).metric
    own = statistics.fmean(_outcome(run).end for run, _ in tried)
    rates = set.intersection(*(set(ends) for _, ends in tried))
    means = [statistics.fmean(ends[rate] for _, ends in tried) for rate in rates]
    if METRICS[metric].lower_is_better:
        best = min(own, *means) if means else own
        return ((own - best) / own if own else 0.0), len(tried)
    return max([own, *means]) - own, len(tried)


def _ends_of_rates(
    run: MethodResult, others: Mapping[str, Sequence[MethodResult]]
) -> dict[float, float] | None:
    """By rate of its ladder, where a run would have ended; None: not all were tried."""
    if run.calibration is None:
        return None
    tried = {
        rate: one
        for rate in run.calibration.rates
        for one in others.get(_label(run.label, rate), ())
        if one.seed == run.seed and rate != run.calibration.lr
    }
    ends = {
        rate: one.outcome.end
        for rate, one in tried.items()
        if one.finished and one.outcome is not None
    }
    if len(tried) < len(run.calibration.rates) - 1 or not ends:
        return None
    return {**ends, run.calibration.lr: _outcome(run).end}


def _outcome(run: MethodResult) -> Outcome:
    if run.outcome is None:
        raise AssertionError("expected a run that tells of its owners")
    return run.outcome
