"""All methods on several data sets: scores at equal rounds and at equal bytes, and what they cost.

FedAvg sets the measure of a data set: so many rounds as the file gives it, and the bytes that one
of its clients moves in them, up and down. A method's score at equal rounds is that after as many
rounds; at equal bytes that after the last whole round within the bytes (``comparisons``).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from protofleet.experiments.claim_results import current_runs, diverged_seeds
from protofleet.experiments.comparisons import (
    SLACK,
    moved,
    rounds_within,
    scores_after,
)
from protofleet.experiments.config import Experiment, Method, Section
from protofleet.experiments.own_settings import (
    makes_more_steps,
    other_optimisers,
    own_settings,
)
from protofleet.experiments.standings import as_good, ranked
from protofleet.experiments.store import MethodResult
from protofleet.experiments.table import LOSS, percent, score_of, train_seconds, trained
from protofleet.federation.records import Spread
from protofleet.strategies.scores import MetricName

BASELINE, ALONE = "fedavg", "local"
AFTER_FIT: Section = "after_fit"
Measure = Literal["rounds", "bytes", "tenth"]
"""Scores at equal rounds, at equal bytes, or at a tenth of these bytes."""
_TENTH = 0.1
MOST_FREQUENT = "Always the most frequent class"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One method's score of one kind on one data set.

    Attributes:
        by_seed: over the clients, in per cent.
        mean, std: over the seeds; std None: one seed.
        rounds: after how many, the median over the seeds.
        unfitted: it ends with a final fit, which comes later.
        behind: points behind the best; None: a bound, which is not ranked.
        as_good: as the best, within the noise; None: noise unknown, or not ranked.
    """

    by_seed: dict[int, Spread]
    mean: float
    std: float | None
    rounds: float
    unfitted: bool
    behind: float | None = None
    as_good: bool | None = None


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What a method costs a client, the mean over the seeds; None: not measured.

    Attributes:
        mb: up and down in a round, 10^6 bytes.
        train_ms: processor time of a round's training (``table.train_seconds``).
        kept_mb: between rounds, 10^6 bytes.
        peak_mb: largest resident memory, 10^6 bytes.
    """

    mb: float | None = None
    train_ms: float | None = None
    kept_mb: float | None = None
    peak_mb: float | None = None


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One method on one data set.

    Attributes:
        label, strategy: of the experiment.
        bound: central training, which no federation reaches.
        floor: no training at all, but always a device's most frequent class.
        alone: training without a federation.
        own_model: its model is not the data set's.
        early: its own models are scored as they arrive, before the device's training in the round;
            such a strategy has the scores after it as ``after_fit``.
        fitted: it ends with a final fit.
        more_steps: by its settings it makes more steps in a round than FedAvg.
        other_optimiser: not the data set's moves its model, or a part of it.
        own_settings: of its row and beside ``[training]``, and optimisers that its strategy adds.
        places: its score by measure and section.
        costs: of it.
        ratios: the same divided by FedAvg's, by the fields' names.
    """

    label: str
    strategy: str
    bound: bool = False
    floor: bool = False
    alone: bool = False
    own_model: bool = False
    early: bool = False
    fitted: bool = False
    more_steps: bool = False
    other_optimiser: bool = False
    own_settings: dict[str, Any] = {}
    places: dict[Measure, dict[Section, Place]] = {}
    costs: Costs = Costs()
    ratios: dict[str, float] = {}

    @property
    def ranked(self) -> bool:
        """Whether it is a method for devices."""
        return not (self.bound or self.floor)


class DataSet(msgspec.Struct, frozen=True, kw_only=True):
    """All methods on one data set.

    Attributes:
        name: of the experiment.
        title, table, note, training: as in its file.
        partition: kind of division.
        model: of all methods without one of their own.
        metric: what is scored.
        clients: how many.
        pooled: test examples of all clients that generalisation and global scores use, by seed;
            empty: not told.
        rounds: FedAvg's.
        mb: that one of its clients moves in them, up and down, 10^6 bytes.
        seeds: that all measured methods have finished; the figures are theirs alone.
        asked: how many seeds there should be.
        missing: methods without a finished run, and those that diverged with a seed.
        diverged: with which seeds a method did, of which FedAvg alone has figures all the same.
        entries: by score of the first section at equal rounds, best first.
    """

    name: str
    title: str
    table: str
    note: str
    training: dict[str, Any]
    partition: str
    model: str
    metric: MetricName
    sections: tuple[Section, ...]
    clients: int
    pooled: tuple[int, ...]
    rounds: int
    mb: float
    seeds: tuple[int, ...]
    asked: int
    missing: tuple[str, ...]
    diverged: dict[str, tuple[int, ...]]
    entries: tuple[Entry, ...]


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """Several experiments together.

    Attributes:
        data_sets: those with results, in order.
        missing: names of the others.
        runs: what the figures come from, by experiment and method.
    """

    data_sets: tuple[DataSet, ...]
    missing: tuple[str, ...]
    runs: dict[str, dict[str, list[MethodResult]]]


def overview(experiments: Mapping[str, Experiment], folder: Path) -> Overview:
    """What is stored of several experiments.

    Args:
        experiments: by name.
        folder: their results are in folders of it by these names.

    Raises:
        InputError: a result is none, or lacks its experiment's metric.
    """
    runs = {name: current_runs(one, folder / name) for name, one in experiments.items()}
    every = {
        name: data_set(name, one, runs[name], diverged_seeds(one, folder / name))
        for name, one in experiments.items()
    }
    return Overview(
        data_sets=tuple(one for one in every.values() if one is not None),
        missing=tuple(name for name, one in every.items() if one is None),
        runs=runs,
    )


def data_set(
    name: str,
    experiment: Experiment,
    found: Mapping[str, Sequence[MethodResult]],
    diverged: Mapping[str, tuple[int, ...]],
) -> DataSet | None:
    """An experiment's results as a data set of the overview.

    Args:
        name: of the experiment.
        experiment: its file.
        found: finished runs by label.
        diverged: with which seeds each method did. It is left out, because figures of the seeds
            with which it happened not to flatter it, and would cut the others'; only FedAvg
            stays, as the measure.

    Returns:
        None: FedAvg has no finished run with a seed of all methods.

    Raises:
        InputError: a result lacks the experiment's metric.
    """
    base = next((m for m in experiment.methods if m.strategy == BASELINE and not m.model), None)
    if base is None or not found.get(base.label):
        return None
    gone = {label: seeds for label, seeds in diverged.items() if seeds}
    by_seed = {
        label: {run.seed: run for run in runs}
        for label, runs in found.items()
        if runs and (label not in gone or label == base.label)
    }
    seeds = tuple(sorted(set.intersection(*(set(runs) for runs in by_seed.values()))))
    if not seeds:
        return None
    methods = [method for method in experiment.methods if method.label in by_seed]
    runs = {m.label: [by_seed[m.label][seed] for seed in seeds] for m in methods}
    entries = _entries(experiment, methods, runs, base)
    return DataSet(
        name=name,
        title=experiment.title,
        table=experiment.table,
        note=experiment.note,
        training=experiment.training,
        partition=str(experiment.partition.__struct_config__.tag),
        model=experiment.model.name,
        metric=experiment.score.metric,
        sections=_sections(experiment),
        clients=runs[base.label][0].clients,
        pooled=tuple(r.evaluation_data.pooled for r in runs[base.label] if r.evaluation_data),
        rounds=experiment.rounds_of(base),
        mb=statistics.fmean(moved(run)[-1] for run in runs[base.label]) / 1e6,
        seeds=seeds,
        asked=len(experiment.seeds),
        missing=tuple(m.label for m in experiment.methods if m.label not in by_seed),
        diverged=gone,
        entries=tuple(entries),
    )


def _sections(experiment: Experiment) -> tuple[Section, ...]:
    return tuple(section for section in experiment.score.sections if section != LOSS)


def _entries(
    experiment: Experiment,
    methods: Sequence[Method],
    runs: Mapping[str, Sequence[MethodResult]],
    base: Method,
) -> list[Entry]:
    budgets = {run.seed: SLACK * moved(run)[-1] for run in runs[base.label]}
    rounds = experiment.rounds_of(base)
    limits: dict[Measure, Callable[[MethodResult], int]] = {
        "rounds": lambda run: min(rounds, len(trained(run))),
        "bytes": lambda run: rounds_within(run, budgets[run.seed]),
        "tenth": lambda run: rounds_within(run, _TENTH * budgets[run.seed]),
    }
    places: dict[str, dict[Measure, dict[Section, Place]]] = {m.label: {} for m in methods}
    bounds = {method.label for method in methods if method.merged}
    for measure, limit in limits.items():
        for section in _sections(experiment):
            # At equal rounds a longer run of the same method would be listed twice.
            compared = {
                m.label: runs[m.label]
                for m in methods
                if not (m.merged and measure != "rounds")
                and not (measure == "rounds" and experiment.rounds_of(m) > rounds)
            }
            for label, place in _places(experiment, compared, section, limit, bounds).items():
                places[label].setdefault(measure, {})[section] = place
    entries = [_entry(experiment, m, runs, base, places[m.label]) for m in methods]
    entries += _floor(experiment, runs[base.label], places)
    return sorted(entries, key=lambda one: by_score(one, _sections(experiment)[0]))


def _entry(
    experiment: Experiment,
    method: Method,
    every: Mapping[str, Sequence[MethodResult]],
    base: Method,
    places: dict[Measure, dict[Section, Place]],
) -> Entry:
    runs = every[method.label]
    costs = _costs(runs)
    optimisers = other_optimisers(experiment, runs)
    return Entry(
        label=method.label,
        strategy=method.strategy,
        bound=method.merged,
        alone=method.strategy == ALONE and not method.merged,
        own_model=experiment.model_of(method) != experiment.model,
        early=any(_is_scored_early(run) for run in runs),
        fitted=any(one.final for run in runs for one in run.rounds),
        more_steps=makes_more_steps(runs, every[base.label]),
        other_optimiser=bool(optimisers),
        own_settings=own_settings(experiment, method) | optimisers,
        places=places,
        costs=costs,
        ratios={} if method.merged else _ratios(costs, _costs(every[base.label])),
    )


def _floor(
    experiment: Experiment,
    runs: Sequence[MethodResult],
    places: Mapping[str, Mapping[Measure, Mapping[Section, Place]]],
) -> list[Entry]:
    """What needs no training, beside the best of each measure; none where it is not told."""
    section: Section = "personalisation"
    metric = experiment.score.metric
    by_seed = {
        run.seed: percent(run.evaluation_data.most_frequent[metric])
        for run in runs
        if run.evaluation_data and metric in run.evaluation_data.most_frequent
    }
    if len(by_seed) < len(runs):
        return []
    means = [one.mean for one in by_seed.values()]
    found: dict[Measure, dict[Section, Place]] = {}
    for measure in get_args(Measure):
        every = (one.get(measure, {}).get(section) for one in places.values())
        best = next((place for place in every if place and place.behind == 0), None)
        if best is None:
            continue
        found[measure] = {
            section: Place(
                by_seed=by_seed,
                mean=statistics.fmean(means),
                std=statistics.pstdev(means) if len(means) > 1 else None,
                rounds=0,
                unfitted=False,
                behind=best.mean - statistics.fmean(means),
                as_good=as_good(best.by_seed, by_seed),
            )
        }
    return [Entry(label=MOST_FREQUENT, strategy="", floor=True, places=found)]


def by_score(
    entry: Entry, section: Section, measures: Sequence[Measure] = get_args(Measure)
) -> tuple[float, str]:
    """What sorts entries: best first by the first of the measures that each has; then the rest."""
    for measure in measures:
        place = entry.places.get(measure, {}).get(section)
        if place is not None:
            return -place.mean, entry.label
    return math.inf, entry.label


def scores_of(
    experiment: Experiment,
    runs: Sequence[MethodResult],
    section: Section,
    limit: Callable[[MethodResult], int],
) -> dict[int, Spread] | None:
    """A section's score by seed, each after so many rounds; None: a run has none by then."""
    found: dict[int, Spread] = {}
    for run in runs:
        done = limit(run)
        score = done and score_of(run, scores_after(run, done), section, experiment.score.metric)
        if not score:
            return None
        found[run.seed] = _over_examples(run, done, score) if section == "global" else score
    return found


def _over_examples(run: MethodResult, rounds: int, score: Spread) -> Spread:
    """A single model's score with the spread of its accuracy over the pooled examples."""
    right = score_of(run, scores_after(run, rounds), "global", "accuracy")
    if right is None or run.evaluation_data is None:
        return score
    std = math.sqrt(max(right.mean * (100 - right.mean), 0))
    return Spread(mean=score.mean, std=std, n=run.evaluation_data.pooled)


def _places(
    experiment: Experiment,
    runs: Mapping[str, Sequence[MethodResult]],
    section: Section,
    limit: Callable[[MethodResult], int],
    bounds: set[str],
) -> dict[str, Place]:
    every = {label: scores_of(experiment, of, section, limit) for label, of in runs.items()}
    scores = {label: by_seed for label, by_seed in every.items() if by_seed}
    standings = ranked({label: one for label, one in scores.items() if label not in bounds})
    found = {}
    for label, by_seed in scores.items():
        behind, good = standings.get(label, (None, None))
        means = [one.mean for one in by_seed.values()]
        found[label] = Place(
            by_seed=by_seed,
            mean=statistics.fmean(means),
            std=statistics.pstdev(means) if len(means) > 1 else None,
            rounds=statistics.median(map(limit, runs[label])),
            unfitted=any(_is_before_fit(run, limit(run)) for run in runs[label]),
            behind=behind,
            as_good=good,
        )
    return found


def _is_scored_early(run: MethodResult) -> bool:
    return any(AFTER_FIT in one.scores.more for one in run.rounds)


def _is_before_fit(run: MethodResult, rounds: int) -> bool:
    return rounds < len(trained(run)) and any(one.final for one in run.rounds)


def _costs(runs: Sequence[MethodResult]) -> Costs:
    rounds = [one for run in runs for one in trained(run)]
    takers = sum(one.participants for one in rounds)
    train_s = train_seconds(runs)
    last = [one.costs for run in runs for one in trained(run)[-1:] if one.costs]
    kept = [one.kept_bytes for one in last if one.kept_bytes is not None]
    peaks = [run.peak_bytes for run in runs if run.peak_bytes is not None]
    return Costs(
        mb=sum(one.bytes_up + one.bytes_down for one in rounds) / takers / 1e6 if takers else None,
        train_ms=None if train_s is None else 1e3 * train_s,
        kept_mb=statistics.fmean(kept) / 1e6 if kept else None,
        peak_mb=statistics.fmean(peaks) / 1e6 if peaks else None,
    )


def _ratios(costs: Costs, base: Costs) -> dict[str, float]:
    found = {}
    for name in costs.__struct_fields__:
        value, per = getattr(costs, name), getattr(base, name)
        if value is not None and per:
            found[name] = value / per
    return found
