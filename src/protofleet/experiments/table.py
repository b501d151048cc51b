"""The table of an experiment, from stored results: our figures beside what the paper prints."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import msgspec
import numpy as np

from protofleet.errors import InputError
from protofleet.experiments.config import (
    Experiment,
    Method,
    Printed,
    ScoreSettings,
    Section,
    Select,
)
from protofleet.experiments.store import MethodResult
from protofleet.federation.outcomes.intervals import half_interval
from protofleet.federation.outcomes.scores import last_scores, run_scores
from protofleet.federation.records import RoundRecord, Scores, Spread
from protofleet.strategies.scores import MetricName
from protofleet.strategies.tasks import METRICS

_BASELINE = "fedavg"
LOSS: Section = "loss"
"""The section that is no per cent."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A score of several seeds; a loss as it is, all else in per cent.

    Attributes:
        mean: over the seeds; None: not measured.
        std: population standard deviation; None: there is nothing to take it over.
        over: what ``std`` is taken over: the seeds, or the clients where one seed is done.
        ci95: half the width of the clients' 95 % interval (Student's t), its mean over the seeds;
            None: one model, or fewer than two clients.
    """

    mean: float | None = None
    std: float | None = None
    over: Literal["seeds", "clients"] | None = None
    ci95: float | None = None


class SectionScore(Figure, frozen=True, kw_only=True):
    """One method's score in one section, from the round that ``ScoreSettings.select`` names.

    Attributes:
        other: the same from the round of the other ``select``.
        paper: what the paper prints.
        difference: ``mean`` minus the paper's, in percentage points.
        lost: how far ``mean`` is below that of the same method with raw tensors, in percentage
            points; None: it is raw itself, or no such method has the same seeds.
    """

    other: Figure = Figure()
    paper: Printed | None = None
    difference: float | None = None
    lost: float | None = None


class MethodRow(msgspec.Struct, frozen=True, kw_only=True):
    """One method.

    Attributes:
        cells: section → score.
        rounds_to_target: median over the seeds; None: not asked for, or never reached.
        seconds_per_round: median over all rounds.
        train_ms: processor time of a client's training in a round (``train_seconds``).
        train_ratio: times that of FedAvg's row.
        mb_up, mb_down: per client and round, 10^6 bytes.
        codec: of updates and of payloads, e.g. ``topk 0.1 / int4``.
        bytes_ratio, up_ratio, down_ratio: of both together, up and down, times those of FedAvg's
            first row with raw tensors.
        beside: label of the row that all these ratios are to, in the place of FedAvg's first.
        seeds_done, seeds_asked: finished runs, and how many there should be.
        notes: what is unusual about its runs.
    """

    label: str
    strategy: str
    cells: dict[Section, SectionScore]
    rounds_to_target: float | None = None
    seconds_per_round: float | None = None
    train_ms: float | None = None
    train_ratio: float | None = None
    mb_up: float | None = None
    mb_down: float | None = None
    codec: str = "raw / raw"
    bytes_ratio: float | None = None
    up_ratio: float | None = None
    down_ratio: float | None = None
    beside: str | None = None
    seeds_done: int
    seeds_asked: int
    notes: tuple[str, ...] = ()


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A whole table; ``engines`` says where its bytes were counted (``records.RoundRecord``)."""

    title: str
    source: str
    note: str
    score: ScoreSettings
    engines: tuple[str, ...]
    rows: tuple[MethodRow, ...]


def tabulate(experiment: Experiment, results: Sequence[MethodResult]) -> Table:
    """Compute a table; a method's figures are those of its finished runs, else of what there is.

    Raises:
        InputError: a result lacks the experiment's metric.
    """
    by_label = group(experiment, results)
    rows = [_row(experiment, method, by_label[method.label]) for method in experiment.methods]
    baselines = [
        (row, method)
        for row, method in zip(rows, experiment.methods, strict=True)
        if method.strategy == _BASELINE and not method.merged
    ]
    timed = next((row for row, _ in baselines), None)
    raw = next((row for row, method in baselines if experiment.codec_of(method).is_raw), None)
    twins, named = _twins(experiment, rows), {row.label: row for row in rows}
    return Table(
        title=experiment.title,
        source=f"{experiment.paper}, {experiment.table}",
        note=" ".join(experiment.note.split()),
        score=experiment.score,
        engines=tuple(sorted({result.engine for result in results})),
        rows=tuple(
            _compared(
                row,
                timed if row.beside is None else named.get(row.beside),
                raw if row.beside is None else named.get(row.beside),
                twins.get(row.label),
            )
            for row in rows
        ),
    )


def group(experiment: Experiment, results: Iterable[MethodResult]) -> dict[str, list[MethodResult]]:
    """Each method's runs by its label, in the file's order; without runs an empty list."""
    found: dict[str, list[MethodResult]] = {method.label: [] for method in experiment.methods}
    for result in results:
        if result.label in found:
            found[result.label].append(result)
    return found


def quoted(runs: Sequence[MethodResult]) -> list[MethodResult]:
    """The runs that a method's figures come from: the finished ones, or all if none is."""
    return [run for run in runs if run.finished] or list(runs)


def trained(run: MethodResult) -> list[RoundRecord]:
    """A run's rounds without the final fit."""
    return [one for one in run.rounds if not one.final]


def train_seconds(runs: Iterable[MethodResult]) -> float | None:
    """Processor time of a client's training in a round, the mean over all rounds but the first.

    That one opens programs and compiles kernels. None: nobody told of it.
    """
    rounds = [one for run in runs for one in trained(run) if one.round_id > 1]
    told = [one.costs.train_s for one in rounds if one.costs is not None]
    return statistics.fmean(told) if told else None


def score_of(
    run: MethodResult, scores: Scores, section: Section, metric: MetricName
) -> Spread | None:
    """Over clients, a share in per cent, all else as it is; None if the section was not scored.

    Raises:
        InputError: the section lacks the metric.
    """
    if section == LOSS:
        return scores.own_loss
    metrics = scores.sections.get(section)
    if metrics is None:
        return None
    if metric == "sample_accuracy" and section == "global":
        metric = "accuracy"  # one model on one test set: all samples count alike
    found = metrics.get(metric)
    if found is None:
        raise InputError(
            f"result of '{run.label}', seed {run.seed}: expected the metric '{metric}' in its "
            f"{section} scores; remove its folder to run it again"
        )
    return percent(found) if METRICS[metric].is_share else found


def percent(share: Spread) -> Spread:
    """A share in per cent."""
    return Spread(mean=100 * share.mean, std=100 * share.std, n=share.n)


def quoted_scores(run: MethodResult, select: Select) -> Scores:
    """The scores that stand for a run.

    ``best`` chooses among all rounds as ``federation.outcomes.scores.run_scores``, the final fit
    being one of them, so that methods with and without one are treated alike; ``last`` is
    ``federation.outcomes.scores.last_scores``.
    """
    if select == "best":
        return run_scores(one.scores for one in run.rounds)
    final = next((one.scores for one in run.rounds if one.final), None)
    return last_scores((one.scores for one in trained(run)), final)


def _row(experiment: Experiment, method: Method, runs: Sequence[MethodResult]) -> MethodRow:
    used = quoted(runs)
    rounds = [one for run in used for one in trained(run)]
    train_s = train_seconds(used)
    return MethodRow(
        label=method.label,
        strategy=method.strategy,
        cells={
            section: _cell(used, section, experiment.score, method.paper.get(section))
            for section in experiment.score.sections
        },
        rounds_to_target=_rounds_to_target(used, experiment.score),
        seconds_per_round=statistics.median(one.seconds for one in rounds) if rounds else None,
        train_ms=None if train_s is None else 1e3 * train_s,
        mb_up=_mb_per_client(rounds, [one.bytes_up for one in rounds]),
        mb_down=_mb_per_client(rounds, [one.bytes_down for one in rounds]),
        codec=experiment.codec_of(method).text,
        beside=method.beside,
        seeds_done=sum(run.finished for run in runs),
        seeds_asked=len(experiment.seeds),
        notes=tuple(_notes(runs, experiment.rounds_of(method))),
    )


def _cell(
    runs: Sequence[MethodResult], section: Section, settings: ScoreSettings, paper: Printed | None
) -> SectionScore:
    figures = {select: _figure(runs, section, settings, select) for select in get_args(Select)}
    quoted = figures.pop(settings.select)
    (other,) = figures.values()
    gap = None if paper is None or quoted.mean is None else quoted.mean - paper.mean
    return SectionScore(**msgspec.structs.asdict(quoted), other=other, paper=paper, difference=gap)


def _figure(
    runs: Sequence[MethodResult], section: Section, settings: ScoreSettings, select: Select
) -> Figure:
    scored = (score_of(run, quoted_scores(run, select), section, settings.metric) for run in runs)
    values = [value for value in scored if value is not None]
    if not values:
        return Figure()
    # The server's model, that of central training, or all clients' examples taken together.
    together = all(one.n == 1 for one in values)
    one_figure = section == "global" or runs[0].clients == 1 or together
    widths = [] if one_figure else [half_interval(one.std, one.n) for one in values if one.n > 1]
    return Figure(
        mean=float(np.mean([one.mean for one in values])),
        **_spread(values, one_figure=one_figure),
        ci95=float(np.mean(widths)) if widths else None,
    )


def _spread(values: Sequence[Spread], *, one_figure: bool) -> dict[str, Any]:
    if len(values) > 1:
        return {"std": float(np.std([one.mean for one in values])), "over": "seeds"}
    return {} if one_figure else {"std": values[0].std, "over": "clients"}


def _rounds_to_target(runs: Sequence[MethodResult], settings: ScoreSettings) -> float | None:
    if settings.target is None or not settings.sections or not runs:
        return None
    reached = [_first_reaching(run, settings, 100 * settings.target) for run in runs]
    # With "never" as infinity, a median is finite only if most seeds reached the target.
    median = statistics.median(reached)
    return median if math.isfinite(median) else None


def _first_reaching(run: MethodResult, settings: ScoreSettings, percent: float) -> float:
    for one in trained(run):
        score = score_of(run, one.scores, settings.sections[0], settings.metric)
        if score is not None and score.mean >= percent:
            return one.round_id
    return math.inf


def _mb_per_client(rounds: Sequence[RoundRecord], counts: Sequence[int]) -> float | None:
    participants = sum(one.participants for one in rounds)
    return sum(counts) / participants / 1e6 if participants else None


def _notes(runs: Sequence[MethodResult], asked: int) -> list[str]:
    """What is unusual, each with the seeds that it is true of."""
    found: dict[str, list[int]] = {}
    some_finished = any(run.finished for run in runs)
    for run in runs:
        done = len(trained(run))
        if run.stopped:
            fate = f"diverged after {done} of {asked} rounds: {run.stopped}"
            found.setdefault(fate, []).append(run.seed)
        elif not run.finished:
            fate = "left out" if some_finished else "figures so far"
            found.setdefault(f"stopped after {done} of {asked} rounds, {fate}", []).append(run.seed)
        elif done != asked:
            found.setdefault(f"{done} rounds instead of {asked}", []).append(run.seed)
    return [
        f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}: {text}"
        for text, seeds in found.items()
    ]


def _twins(experiment: Experiment, rows: Sequence[MethodRow]) -> dict[str, MethodRow]:
    """Label → the row that differs in nothing but its codec, which is raw."""
    raw: dict[bytes, MethodRow] = {}
    found: dict[str, MethodRow] = {}
    pairs = list(zip(rows, experiment.methods, strict=True))
    for row, method in pairs:
        if experiment.codec_of(method).is_raw:
            raw.setdefault(_without_codec(experiment, method), row)
    for row, method in pairs:
        twin = raw.get(_without_codec(experiment, method))
        if twin is not None and not experiment.codec_of(method).is_raw:
            found[row.label] = twin
    return found


def _without_codec(experiment: Experiment, method: Method) -> bytes:
    rounds, model = experiment.rounds_of(method), experiment.model_of(method)
    same = msgspec.structs.replace(
        method, label="", codec=None, beside=None, paper={}, rounds=rounds, model=model
    )
    return msgspec.json.encode(same, order="sorted")


def _compared(
    row: MethodRow, timed: MethodRow | None, raw: MethodRow | None, twin: MethodRow | None
) -> MethodRow:
    """With what it costs and scores beside others."""
    cells = {
        section: cell if twin is None else _with_loss(row, cell, twin, twin.cells[section])
        for section, cell in row.cells.items()
    }
    return msgspec.structs.replace(
        row,
        cells=cells,
        train_ratio=_ratio(row.train_ms, timed.train_ms if timed else None),
        bytes_ratio=_ratio(_bytes(row), _bytes(raw) if raw else None),
        up_ratio=_ratio(row.mb_up, raw.mb_up if raw else None),
        down_ratio=_ratio(row.mb_down, raw.mb_down if raw else None),
    )


def _with_loss(
    row: MethodRow, cell: SectionScore, twin: MethodRow, other: SectionScore
) -> SectionScore:
    if cell.mean is None or other.mean is None or row.seeds_done != twin.seeds_done:
        return cell
    return msgspec.structs.replace(cell, lost=other.mean - cell.mean)


def _bytes(row: MethodRow) -> float | None:
    return None if row.mb_up is None or row.mb_down is None else row.mb_up + row.mb_down


def _ratio(value: float | None, base: float | None) -> float | None:
    return value / base if base and value is not None else None
