"""What the stored runs say of each claim, how far its experiment is, and running the rest."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from protofleet.datasets.federate import Natural, Random, Stratified
from protofleet.errors import InputError, MissingDataError
from protofleet.experiments.claim_curves import Curve, curves_of
from protofleet.experiments.claim_registry import RegisteredClaim, experiments_of
from protofleet.experiments.comparisons import Compared, compare, measured
from protofleet.experiments.config import Experiment, Method, digest
from protofleet.experiments.runner import RunOptions, check_no_overwrite, run_experiment
from protofleet.experiments.store import MethodResult, load_results
from protofleet.experiments.table import group, trained
from protofleet.strategies.scores import MetricName

_DIGITS = 16
DIVISION = "who has which examples"
TEST_PARTS = "which of them test"


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """How far an experiment is.

    Attributes:
        experiment: its name.
        done: label → seeds that are finished, as the file is now.
        diverged: label → seeds whose runs cannot go on.
        asked: seeds that there should be.
        other: runs of other settings than the file's, or finished ones of another number of rounds,
            which do not count.
        rounds_left: of all methods and seeds; a final fit is none.
        seconds_left: they will take, from the rounds that have been measured; None: none has.
        seconds: that all of it takes, from the same rounds.
    """

    experiment: str
    done: dict[str, tuple[int, ...]]
    diverged: dict[str, tuple[int, ...]]
    asked: tuple[int, ...]
    other: int
    rounds_left: int
    seconds_left: float | None
    seconds: float | None

    @property
    def finished(self) -> bool:
        """Whether nothing is left to run, not even a final fit."""
        asked = set(self.asked)
        return all({*seeds, *self.diverged[label]} == asked for label, seeds in self.done.items())


class ClaimResult(msgspec.Struct, frozen=True, kw_only=True):
    """A claim with what was measured: all that ``docs/claims.md`` says of it.

    Attributes:
        id, claim, printed, setting, remarks, changed: as in the registry.
        paper, reference: of the file.
        experiment: name of what measures it.
        metric: of the scores.
        seeds_done, seeds_asked: that every main comparison has, and that there should be.
        digests: label → of the lines that its figures belong to (``config.digest``, its beginning).
        rounds: label → of a whole run.
        outcomes: of its comparisons.
        varies: what differs from seed to seed (``varied``).
        curves: label → scores by round, of the methods that have any.
    """

    id: str
    paper: str
    reference: str
    claim: str
    printed: str
    experiment: str
    setting: str
    remarks: str
    metric: MetricName
    seeds_done: int
    seeds_asked: int
    digests: dict[str, str]
    rounds: dict[str, int]
    outcomes: tuple[Compared, ...]
    varies: tuple[str, ...] = ()
    curves: dict[str, Curve] = {}
    changed: str = ""


def result_of(one: RegisteredClaim, folder: Path) -> ClaimResult:
    """Compare what a claim's experiment has finished.

    Args:
        one: the claim.
        folder: of all experiments' runs, ``<folder>/<experiment>``.

    Raises:
        InputError: a stored result cannot be read, or lacks the metric.
    """
    claim, experiment = one.claim, one.experiment
    runs = current_runs(experiment, folder / one.name)
    asked = len(experiment.seeds)
    diverged = diverged_seeds(experiment, folder / one.name)
    outcomes = tuple(
        msgspec.structs.replace(outcome, diverged=_of_both(diverged, outcome))
        for comparison in claim.comparisons
        for outcome in compare(comparison, runs, experiment.score, asked, experiment.dynamic)
    )
    return ClaimResult(
        id=claim.id,
        paper=one.paper.paper,
        reference=one.paper.reference,
        claim=claim.claim,
        printed=claim.printed,
        experiment=one.name,
        setting=claim.setting,
        remarks=" ".join(claim.remarks.split()),
        metric=experiment.score.metric,
        seeds_done=_seeds_of_all(outcomes),
        seeds_asked=asked,
        digests=digests_of(experiment),
        rounds={one.label: experiment.rounds_of(one) for one in experiment.methods},
        outcomes=outcomes,
        varies=varied(experiment),
        curves=curves_of(outcomes, runs, experiment.score.metric),
        changed=claim.changed,
    )


def varied(experiment: Experiment) -> tuple[str, ...]:
    """What differs from seed to seed, for people; the rest is the same in all runs."""
    split, drawn = experiment.split, experiment.partition_seed is None
    cut = isinstance(split, Random) or (isinstance(split, Stratified) and split.shuffled)
    found = {
        DIVISION: drawn and not isinstance(experiment.partition, Natural),
        TEST_PARTS: drawn and cut,
        "which classes come back to whom": drawn and experiment.dynamic is not None,
        "who is in a round": any(experiment.cohort_of(one) != "all" for one in experiment.methods),
        "the initial values": True,
        "the order of the examples": True,
    }
    return tuple(what for what, varies in found.items() if varies)


def load_claim_results(path: Path) -> dict[str, ClaimResult]:
    """What ``experiment claims --json`` wrote earlier, by claim.

    Raises:
        InputError: it cannot be read, or is something else.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=list[ClaimResult])
    except OSError as error:
        raise InputError(f"'{path}': {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(
            f"'{path}': expected what 'protofleet experiment claims --json' writes: {error}"
        ) from error
    return {one.id: one for one in found}


def or_earlier(result: ClaimResult, earlier: ClaimResult | None) -> ClaimResult:
    """The earlier figures of each comparison of which more seeds are known.

    Args:
        result: from what is stored here; returned as it is where it has the more of everything.
        earlier: of another machine or day. A method's figures do not count if lines of the
            experiment that decide them, or its rounds, have changed since; what is claimed of
            them, and by which threshold, is as in the registry now.
    """
    if earlier is None:
        return result
    same = {
        label
        for label, key in result.digests.items()
        if (earlier.digests.get(label), earlier.rounds.get(label)) == (key, result.rounds[label])
    }
    known = {_place(one): one for one in earlier.outcomes if {one.method, one.against} <= same}
    outcomes = tuple(_or_known(one, known.get(_place(one))) for one in result.outcomes)
    if outcomes == result.outcomes:
        return result
    curves = {label: one for label, one in earlier.curves.items() if label in same}
    for label, one in result.curves.items():
        if label not in curves or one.seeds >= curves[label].seeds:
            curves[label] = one
    done = _seeds_of_all(outcomes)
    return msgspec.structs.replace(result, outcomes=outcomes, seeds_done=done, curves=curves)


def _seeds_of_all(outcomes: Sequence[Compared]) -> int:
    main = (one for one in outcomes if not one.detail)
    return len(set.intersection(*({pair.seed for pair in one.pairs} for one in main)))


def _or_known(one: Compared, known: Compared | None) -> Compared:
    if known is None or len(_settled(known)) <= len(_settled(one)):
        return one
    return measured(msgspec.structs.replace(one, diverged=known.diverged), known.pairs)


def _settled(one: Compared) -> set[int]:
    """Seeds of which there are figures, or known to be none."""
    diverged = {seed for seeds in one.diverged.values() for seed in seeds}
    return diverged | {pair.seed for pair in one.pairs}


def _place(one: Compared) -> tuple[object, ...]:
    """What the figures of a comparison's seeds are."""
    return one.method, one.against, one.measure, one.section, one.target


def _of_both(diverged: Mapping[str, tuple[int, ...]], one: Compared) -> dict[str, tuple[int, ...]]:
    return {label: diverged[label] for label in (one.method, one.against) if diverged[label]}


def digests_of(experiment: Experiment) -> dict[str, str]:
    """What a claim's figures were measured with, by method."""
    return {one.label: digest(experiment, one)[:_DIGITS] for one in experiment.methods}


def current_runs(experiment: Experiment, folder: Path) -> dict[str, list[MethodResult]]:
    """Each method's finished runs of the file as it is now, by label."""
    found = group(experiment, load_results(folder, experiment))
    return {
        method.label: [one for one in found[method.label] if is_current(one, experiment, method)]
        for method in experiment.methods
    }


def diverged_runs(experiment: Experiment, folder: Path) -> dict[str, list[MethodResult]]:
    """Each method's runs of the file as it is now that cannot go on, by label."""
    found = group(experiment, load_results(folder, experiment))
    return {
        method.label: [
            one
            for one in found[method.label]
            if one.stopped and one.digest == digest(experiment, method)
        ]
        for method in experiment.methods
    }


def diverged_seeds(experiment: Experiment, folder: Path) -> dict[str, tuple[int, ...]]:
    """With which seeds each method's run, as the file is now, cannot go on; by label."""
    runs = diverged_runs(experiment, folder)
    return {label: tuple(one.seed for one in found) for label, found in runs.items()}


def is_current(run: MethodResult, experiment: Experiment, method: Method) -> bool:
    """Whether a run is finished, with the settings and rounds that the file has now."""
    whole = len(trained(run)) == experiment.rounds_of(method)
    return run.finished and whole and run.digest == digest(experiment, method)


def progress_of(name: str, experiment: Experiment, folder: Path) -> Progress:
    """How far an experiment is.

    Raises:
        InputError: a stored result cannot be read.
    """
    stored = group(experiment, load_results(folder, experiment))
    keys = {method.label: digest(experiment, method) for method in experiment.methods}
    ours = {
        label: [run for run in runs if run.digest == keys[label]] for label, runs in stored.items()
    }
    left = {method.label: _rounds_left(experiment, method, ours[method.label])
            for method in experiment.methods}  # fmt: skip
    whole = {one.label: experiment.rounds_of(one) for one in experiment.methods}
    asked = {label: rounds * len(experiment.seeds) for label, rounds in whole.items()}
    current = current_runs(experiment, folder)
    diverged = diverged_seeds(experiment, folder)
    return Progress(
        experiment=name,
        done={label: tuple(run.seed for run in runs) for label, runs in current.items()},
        diverged=diverged,
        asked=experiment.seeds,
        other=sum(
            len(runs) - len(current[label]) - sum(not run.finished for run in ours[label])
            for label, runs in stored.items()
        ),
        rounds_left=sum(left.values()),
        seconds_left=_seconds_of(left, ours),
        seconds=_seconds_of(asked, ours),
    )


def run_missing(
    claims: Iterable[RegisteredClaim], folder: Path, options: RunOptions, console: Console
) -> None:
    """Run what the claims' experiments lack; one without its data is told and left out.

    Args:
        claims: whose experiments.
        folder: of all experiments' runs.
        options: how; seeds and methods are the files'.
        console: progress goes here.

    Raises:
        InputError: a file does not fit the data or the code, or finished runs of another engine
            would be lost.
        ProtofleetError: runs of an experiment stopped; those after it were not begun.
    """
    tested = experiments_of(claims)
    for name, experiment in tested.items():
        check_no_overwrite(folder / name, experiment, options.engine, None)
    for name, experiment in tested.items():
        if progress_of(name, experiment, folder / name).finished:
            continue
        console.print(f"[bold]{name}[/bold]: {experiment.title}")
        try:
            run_experiment(name, experiment, folder / name, options, console)
        except MissingDataError as error:
            console.print(f"{name}: left out: {error}", style="yellow", markup=False)


def _rounds_left(experiment: Experiment, method: Method, runs: Sequence[MethodResult]) -> int:
    whole = experiment.rounds_of(method)
    ended = sum(bool(one.stopped) or is_current(one, experiment, method) for one in runs)
    missing = len(experiment.seeds) - ended
    begun = (len(trained(one)) for one in runs if not one.finished and not one.stopped)
    return missing * whole - sum(min(done, whole) for done in begun)


def _seconds_of(
    rounds: Mapping[str, int], runs: Mapping[str, Sequence[MethodResult]]
) -> float | None:
    """By each method's measured rounds, or by those of all methods where it has none."""
    times = {label: _times(each) for label, each in runs.items()}
    every = [second for each in times.values() for second in each]
    if not every:
        return None if any(rounds.values()) else 0.0
    return sum(count * statistics.fmean(times[label] or every) for label, count in rounds.items())


def _times(runs: Iterable[MethodResult]) -> list[float]:
    return [one.seconds for run in runs for one in trained(run)]
