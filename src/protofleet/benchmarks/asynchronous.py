"""Wall time to the same score, synchronous and buffered, with one client in four ten times slower.

Runs the committed experiment ``asynchronous/ucihar-small`` over a real broker.
The score is the server's model's on all test examples: every round has it, whoever takes part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from protofleet.errors import InputError
from protofleet.experiments.config import find, load_experiment
from protofleet.experiments.runner import RunOptions, run_experiment
from protofleet.experiments.store import MethodResult
from protofleet.federation.records import RoundRecord
from protofleet.strategies.scores import MetricName

NAME = "asynchronous/ucihar-small"
SHARE = 0.98
"""Of the synchronous run's best score: what both have to reach. The last steps to a best score are
chance."""
_QUICK = 4


class AsynchronousRow(msgspec.Struct, frozen=True, kw_only=True):
    """One method with one seed.

    Attributes:
        method, seed: what was run.
        target: the score that was to be reached.
        seconds: of wall time from the first round's opening to the commit of the one that reached
            it; None: none did.
        rounds: how many that took.
        updates: how many were aggregated by then.
        staleness: by how many rounds those were late, on average.
        best: largest score of the run.
        run_seconds: of all its rounds.
    """

    method: str
    seed: int
    target: float
    seconds: float | None
    rounds: int | None
    updates: int
    staleness: float
    best: float
    run_seconds: float


def run(
    folder: Path, data_root: Path, seeds: Sequence[int] | None, console: Console, *, quick: bool
) -> list[AsynchronousRow]:
    """Both methods with each seed; runs that finished in the folder before are taken as they are.

    Args:
        folder: where data, bundles and results are kept.
        data_root: folder of the published data sets.
        seeds: in place of the experiment's.
        console: progress goes here.
        quick: one seed and few rounds, to see that it runs; no score of that means anything.

    Raises:
        InputError: no round was scored.
        MissingDataError: UCI-HAR is absent.
        UnavailableError: no broker can be started.
    """
    experiment = load_experiment(find(NAME))
    options = RunOptions(
        data_root=data_root,
        engine="mqtt",
        seeds=seeds or (experiment.seeds[:1] if quick else None),
        rounds=_QUICK if quick else None,
    )
    results = run_experiment(NAME, experiment, folder, options, console)
    first = experiment.methods[0].label
    return list(rows(results, first, experiment.score.metric))


def rows(
    results: Sequence[MethodResult], first: str, metric: MetricName
) -> Iterator[AsynchronousRow]:
    """A row for each result, against the method ``first`` with the same seed."""
    for seed in dict.fromkeys(one.seed for one in results):
        of_seed = [one for one in results if one.seed == seed]
        (reference,) = (one for one in of_seed if one.label == first)
        target = SHARE * max(_scores(reference, metric))
        for one in of_seed:
            yield _row(one, target, metric)


def _row(result: MethodResult, target: float, metric: MetricName) -> AsynchronousRow:
    scores = _scores(result, metric)
    reached = next((n for n, score in enumerate(scores, 1) if score >= target), None)
    taken: Sequence[RoundRecord] = result.rounds[:reached]
    updates = sum(one.participants for one in taken)
    late = sum(one.staleness * one.participants for one in taken)
    return AsynchronousRow(
        method=result.label,
        seed=result.seed,
        target=round(target, 4),
        seconds=None if reached is None else round(sum(one.seconds for one in taken), 2),
        rounds=reached,
        updates=updates,
        staleness=round(late / max(updates, 1), 2),
        best=round(max(scores), 4),
        run_seconds=round(sum(one.seconds for one in result.rounds), 2),
    )


def _scores(result: MethodResult, metric: MetricName) -> list[float]:
    """Of the server's model after each round."""
    found = [one.scores.global_[metric].mean for one in result.rounds if one.scores.global_]
    if len(found) != len(result.rounds) or not found:
        raise InputError(f"method '{result.label}': expected a score of the server in each round")
    return found


def show(rows: Sequence[AsynchronousRow], echo: Callable[[str], object]) -> None:
    """The rows, and how many times faster the others reached the score, seed by seed."""
    for row in rows:
        taken = (
            "not reached" if row.seconds is None else f"{row.seconds:.1f} s, {row.rounds} rounds"
        )
        echo(
            f"seed {row.seed}  {row.method:12s} score {row.target:.3f}: {taken}, {row.updates} "
            f"updates, {row.staleness:.1f} rounds late on average; best {row.best:.3f}"
        )
    for seed in dict.fromkeys(row.seed for row in rows):
        first, *others = (row for row in rows if row.seed == seed)
        for row in others:
            if first.seconds and row.seconds:
                echo(f"seed {seed}: {row.method} {first.seconds / row.seconds:.2f} times as fast")
