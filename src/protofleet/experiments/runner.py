"""Runs an experiment's methods and seeds one by one; interrupted, the same call goes on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from protofleet.durable import lock
from protofleet.errors import InputError, ProtofleetError, RefusedError
from protofleet.experiments.config import Experiment, Method
from protofleet.experiments.evaluation_data import evaluation_data
from protofleet.experiments.local import run_local
from protofleet.experiments.memory import measure_memory
from protofleet.experiments.mqtt import run_mqtt
from protofleet.experiments.prepare import Preparation
from protofleet.experiments.processes import processes
from protofleet.experiments.ray_workers import ray_cluster
from protofleet.experiments.run import Job, Watch
from protofleet.experiments.store import (
    Engine,
    MethodResult,
    claim,
    load_results,
    load_run,
    run_folder,
    save_result,
)
from protofleet.experiments.table import trained
from protofleet.federation.records import RoundRecord
from protofleet.printable import shell_word
from protofleet.strategies.scores import MetricName
from protofleet.strategies.tasks import METRICS
from protofleet.strategies.training import DivergedError
from protofleet.wire.mqtt.broker_access import BrokerAccess

_LINES = 10
"""Of progress per run where no terminal shows a bar."""


RunJob = Callable[[Job, Watch], MethodResult]
"""Runs a job on an engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How to run an experiment.

    Attributes:
        data_root: folder of the published data sets.
        engine: ``local`` trains in processes of this machine, ``mqtt`` over a broker, ``ray`` in
            actors of a Ray cluster.
        seeds: in place of the file's.
        labels: methods to run; None: all.
        workers: processes of the local engine, actors of Ray; None: one per core.
        rounds: in place of the file's and the methods', for a quick look.
        broker: for the engine ``mqtt``: which, and the credentials for it; None starts one.
        memory: whether to measure, for each run that lacks it, how much a device needs; ``local``.
    """

    data_root: Path
    engine: Engine = "local"
    seeds: Sequence[int] | None = None
    labels: Sequence[str] | None = None
    workers: int | None = None
    rounds: int | None = None
    broker: BrokerAccess | None = None
    memory: bool = False


def run_experiment(
    name: str, experiment: Experiment, folder: Path, options: RunOptions, console: Console
) -> list[MethodResult]:
    """Run what has no finished result yet.

    Args:
        name: of the experiment, for the results.
        experiment: its file's content.
        folder: where data, bundles and results are kept.
        options: how.
        console: progress goes here.

    Returns:
        The results of the chosen methods and seeds, in the file's order.

    Raises:
        InputError: unknown method, strategy, setting, model or data set.
        MissingDataError: a data set is absent; the message says what to put where.
        ProtofleetError: runs stopped because a method diverged, on a client or in an update that
            broke a rule; all others are done.
    """
    results, stopped = run_all(name, experiment, folder, options, console)
    if stopped:
        raise ProtofleetError(
            f"{len(stopped)} of {len(stopped) + len(results)} runs stopped, the first with "
            f"{stopped[0]}; a lower learning rate may help; 'protofleet experiment table "
            f"{shell_word(name)}' shows the others"
        )
    return results


def run_all(
    name: str, experiment: Experiment, folder: Path, options: RunOptions, console: Console
) -> tuple[list[MethodResult], list[str]]:
    """As ``run_experiment``, whatever stops.

    Returns:
        The results, and for each run that stopped a line that says why.

    Raises:
        InputError, MissingDataError: as ``run_experiment``.
    """
    folder = folder.resolve()
    methods = _chosen(experiment, options.labels)
    folder.mkdir(parents=True, exist_ok=True)
    taken = f"folder {folder}: another run is writing into it; wait, or choose another --out"
    with lock(folder / "lock", taken=taken), _ENGINES[options.engine](options) as run:
        preparation = Preparation(experiment=experiment, folder=folder, data_root=options.data_root)
        results, stopped = [], []
        for seed in options.seeds or experiment.seeds:
            jobs = _jobs(preparation, methods, seed, name=name, options=options, console=console)
            for job in jobs:
                try:
                    result = run_job(job, options.engine, run, console)
                except (RefusedError, DivergedError) as error:
                    stopped.append(f"seed {seed}, {job.method.label}: {error}")
                    console.print(f"{stopped[-1]}; the others go on", style="yellow", markup=False)
                    _keep_stopped(job, options.engine, error)
                    continue
                results.append(_completed(job, result, options))
    return results, stopped


def _jobs(  # noqa: PLR0913 - what jobs are made of, each named at the call
    preparation: Preparation,
    methods: Sequence[Method],
    seed: int,
    *,
    name: str,
    options: RunOptions,
    console: Console,
) -> list[Job]:
    """A seed's; all of them first: what is wrong shows before hours of training."""
    experiment = preparation.experiment
    console.print(f"seed {seed}: dividing the data", style="dim")
    data = preparation.data(seed)
    jobs = []
    for method in methods:
        console.print(f"seed {seed}, {method.label}: compiling the model", style="dim")
        jobs.append(
            Job(
                experiment=experiment,
                method=method,
                seed=seed,
                rounds=options.rounds or experiment.rounds_of(method),
                bundle=preparation.bundle(method, seed, data),
                data=data,
                folder=run_folder(preparation.folder, method, seed),
                name=name,
                finds_rate=experiment.finds_rate,
            )
        )
    _check_settings(experiment, jobs)
    return jobs


def _check_settings(experiment: Experiment, jobs: Sequence[Job]) -> None:
    """Raise InputError for a setting that a method, or in ``[training]`` every method, lacks."""
    known: set[str] = set()
    for job in jobs:
        settings = job.plan().strategy.settings
        known |= set(settings.__struct_fields__)
    unknown = experiment.training.keys() - known
    if unknown and len(jobs) == len(experiment.methods):
        raise InputError(
            f"[training]: no method's strategy knows '{min(unknown)}'; known are "
            f"{', '.join(sorted(known))}"
        )


def _chosen(experiment: Experiment, labels: Sequence[str] | None) -> list[Method]:
    known = {method.label: method for method in experiment.methods}
    if unknown := set(labels or ()) - known.keys():
        raise InputError(
            f"method '{min(unknown)}': not in the experiment; it has {', '.join(known)}"
        )
    return [method for label, method in known.items() if labels is None or label in labels]


@contextmanager
def _local(options: RunOptions) -> Iterator[RunJob]:
    with processes(options.workers or os.cpu_count() or 1) as opened:
        yield lambda job, watch: run_local(job, opened=opened, watch=watch)


@contextmanager
def _mqtt(options: RunOptions) -> Iterator[RunJob]:
    yield lambda job, watch: run_mqtt(job, broker=options.broker, watch=watch)


@contextmanager
def _ray(options: RunOptions) -> Iterator[RunJob]:
    with ray_cluster(options.workers) as opened:
        yield lambda job, watch: run_local(job, opened=opened, watch=watch, engine="ray")


_ENGINES: dict[Engine, Callable[[RunOptions], AbstractContextManager[RunJob]]] = {
    "local": _local,
    "mqtt": _mqtt,
    "ray": _ray,
}


def run_job(job: Job, engine: Engine, run: RunJob, console: Console) -> MethodResult:
    """Run one method with one seed, go on with it, or take what it has left when it finished.

    Args:
        job: what to run.
        engine: what ``run`` is, for the result.
        run: does it, and tells of every round.
        console: progress goes here.

    Raises:
        InputError: the strategy, its settings, the model and the data do not fit.
    """
    done = load_run(job.folder)
    plan = job.plan()
    identity = job.identity(plan, engine)
    if done and done.finished and done.identity == identity:
        console.print(f"seed {job.seed}, {job.method.label}: finished before", style="dim")
        return done
    if not claim(job.folder, identity):
        _put_aside(job.folder)
        claim(job.folder, identity)
    title = f"seed {job.seed}, {job.method.label}"
    last_round = plan.schedule(plan.server_init).last_round
    with _Shown(console, title, last_round, job.experiment.score.metric) as shown:
        return run(job, shown.round)


def _keep_stopped(job: Job, engine: Engine, error: Exception) -> None:
    """Leave beside the rounds that were done why there are no more."""
    plan, done = job.plan(), load_run(job.folder)
    if done is None or done.identity != job.identity(plan, engine):
        done = job.result(plan, engine, (), finished=False)
    save_result(job.folder, msgspec.structs.replace(done, stopped=str(error)))


def _completed(job: Job, result: MethodResult, options: RunOptions) -> MethodResult:
    """The result with what training does not tell, looked up unless it was before."""
    found: dict[str, Any] = {}
    if not result.settings:
        plan, chosen = job.plan(), result.calibration
        plan = plan if chosen is None else plan.calibrated(chosen.lr)
        found["settings"] = msgspec.to_builtins(plan.strategy.settings)
    if result.evaluation_data is None:
        found["evaluation_data"] = evaluation_data(job.data)
    if options.memory and result.peak_bytes is None:
        with processes(options.workers or os.cpu_count() or 1) as opened:
            found["peak_bytes"] = measure_memory(job, opened)
    if not found:
        return result
    completed = msgspec.structs.replace(result, **found)
    save_result(job.folder, completed)
    return completed


def _put_aside(folder: Path) -> None:
    """What a run of other settings has left there."""
    aside = folder.with_name(f"{folder.name}.old")
    shutil.rmtree(aside, ignore_errors=True)
    folder.rename(aside)


class _Shown:
    """A bar on a terminal, some lines elsewhere."""

    def __init__(self, console: Console, title: str, rounds: int, metric: MetricName) -> None:
        self._console, self._title, self._rounds = console, title, rounds
        self._metric = metric
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} rounds"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        self._task = self._progress.add_task(self._title, total=self._rounds)
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def round(self, done: RoundRecord) -> None:
        """One more round is finished."""
        text = f"{self._title}: {_scores(done, self._metric)}"
        self._progress.update(self._task, completed=done.round_id, description=text)
        step = max(1, self._rounds // _LINES)
        if not self._console.is_terminal and (done.round_id % step == 0 or done.final):
            self._console.print(f"{text}, round {done.round_id}/{self._rounds}", soft_wrap=True)


def _scores(done: RoundRecord, metric: MetricName) -> str:
    shown = [
        f"{name} {METRICS[metric].page_text(found.mean)}"
        for name, metrics in done.scores.sections.items()
        if name not in done.scores.more and (found := metrics.get(metric))
    ]
    return f"{METRICS[metric].label} " + ", ".join(shown) if shown else "no scores"


def check_no_overwrite(folder: Path, asked: Experiment, engine: str, rounds: int | None) -> None:
    """Raise InputError if less, or with another engine, would be trained over finished results.

    Args:
        folder: of the experiment's runs.
        asked: the experiment with the methods and seeds that are to run.
        engine: that is to run them.
        rounds: instead of the experiment's; None: those.
    """
    planned = {method.label: rounds or asked.rounds_of(method) for method in asked.methods}
    for result in load_results(folder, asked):
        done = len(trained(result))
        if result.finished and (result.engine != engine or planned[result.label] < done):
            raise InputError(
                f"folder '{folder}': it holds '{result.label}' with seed {result.seed}, {done} "
                f"rounds by the engine {result.engine}, which would be lost; choose another --out"
            )
