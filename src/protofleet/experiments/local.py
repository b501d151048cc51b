"""The engine without a broker: the same two halves, workers for the clients', blobs in between.

Payloads, updates and states are encoded and checked as on the wire, and the schedule is the
coordinator's, so a run gives the scores of the same run over MQTT.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Self

import msgspec

from protofleet.errors import InputError, ProtofleetError, RefusedError
from protofleet.experiments._worker import StoredClient, WorkerResult, WorkerSpec
from protofleet.experiments.attacks import Hostile, Sent, lied
from protofleet.experiments.calibrating import calibrate
from protofleet.experiments.diagnostics import diagnosis
from protofleet.experiments.progress import (
    RunProgress,
    has_checkpoint,
    load_checkpoint,
    remove_checkpoint,
    save_checkpoint,
)
from protofleet.experiments.run import Job, Watch
from protofleet.experiments.server_side import ServerSide, kept
from protofleet.experiments.store import Engine, MethodResult, load_run, save_result
from protofleet.experiments.workers import OpenWorkers, Workers
from protofleet.federation.client import RoundConfig
from protofleet.federation.client_limits import Norms, learned_bounds, relaxed_bounds
from protofleet.federation.coding import (
    CodedPayload,
    DecodedUpdate,
)
from protofleet.federation.outcomes.calibration import Calibration, with_rate
from protofleet.federation.outcomes.outcome import Outcome, outcome_of
from protofleet.federation.plan import Plan
from protofleet.federation.records import RoundRecord
from protofleet.federation.schedules.early_stopping import EarlyEnd, EarlyStopping
from protofleet.federation.schedules.schedule import (
    CloseRound,
    DeviceAppeared,
    Finish,
    RoundState,
    ScheduleAction,
    ScheduleEvent,
    StateCommitted,
    Tick,
    UpdateRefused,
    UpdateStored,
)

_STATES = "states"
_CHECKPOINT_S = 60.0
_ATTEMPTS = 8
"""How often a round is extended in which most updates were refused."""


def run_local(
    job: Job, *, opened: OpenWorkers, watch: Watch, engine: Engine = "local", keep: bool = False
) -> MethodResult:
    """Run, or go on with, one method with one seed.

    Args:
        job: what to run.
        opened: opens the workers that train clients.
        watch: told of every round.
        engine: what the workers are, for the result.
        keep: whether the last checkpoint stays, with the models (``progress.load_checkpoint``).

    Raises:
        InputError: the strategy, its settings, the model and the data do not fit.
    """
    declared = job.plan()
    if job.method.hostile and not declared.config.codec.is_raw:
        raise InputError(
            f"method '{job.method.label}': liars send raw tensors; leave its codec out"
        )
    run, stored = _restored(job, declared, engine)
    calibration = _calibration(job, declared, engine, opened)
    plan = declared if calibration is None else declared.calibrated(calibration.lr)

    def told(run: RunProgress, *, finished: bool) -> MethodResult:
        result = job.result(declared, engine, run.rounds, finished=finished)
        outcome = _outcome(declared, run)
        return msgspec.structs.replace(result, outcome=outcome, calibration=calibration)

    for one in run.rounds:
        watch(one)
    simulation = _Engine(job, plan)
    with (
        opened(_spec(job, plan), stored, job.folder / _STATES) as workers,
        _Saving(job.folder, told, workers) as saving,
    ):
        for reached in simulation.rounds(run, workers):
            run = reached
            saving.reached(run)
            watch(run.rounds[-1])
        if keep:
            saving.save(run)
    result = msgspec.structs.replace(told(run, finished=True), early_end=simulation.early_end)
    save_result(job.folder, result)
    if not keep:
        remove_checkpoint(job.folder)
    return result


def _outcome(plan: Plan, run: RunProgress) -> Outcome | None:
    return outcome_of(plan.bundle.manifest.task, (one.owner for one in run.clients.values()))


def _calibration(
    job: Job, declared: Plan, engine: Engine, opened: OpenWorkers
) -> Calibration | None:
    """How the rate was chosen, or is chosen now; None: the settings have one."""
    if not declared.rates:
        return None
    before, identity = load_run(job.folder), job.identity(declared, engine)
    if before is not None and before.identity == identity and before.calibration is not None:
        return before.calibration
    found = calibrate(job.clients, declared, _spec(job, declared), opened, job.folder / _STATES)
    result = job.result(declared, engine, (), finished=False)
    save_result(job.folder, msgspec.structs.replace(result, calibration=found))
    return found


def _spec(job: Job, plan: Plan) -> WorkerSpec:
    hostile = job.method.hostile
    return WorkerSpec(
        label=job.method.label,
        bundle=job.bundle,
        strategy=plan.strategy.description.name,
        settings=with_rate(plan.settings, plan.rates[0]) if plan.rates else plan.settings,
        clients=job.clients,
        pooled=job.data.pooled,
        flipped=job.liars if hostile and hostile.attack == "label_flip" else frozenset(),
    )


class _Engine:
    """Plays a schedule with clients that are always there.

    Args:
        job: what to run.
        plan: its federation.

    Attributes:
        early_end: after which round the run ends before its last one; None: it does not.
    """

    def __init__(self, job: Job, plan: Plan) -> None:
        if plan.config.cohort.over_selection > 1:
            raise InputError(
                "cohort.over_selection: in an experiment nobody drops out; leave it out, or use "
                "a federation with devices"
            )
        if plan.mixing is not None:
            raise InputError(
                f"method '{job.method.label}': a schedule that takes late updates needs clients "
                "that take their time; use --engine mqtt"
            )
        self._plan = plan
        self._clients = tuple(sorted(job.clients))
        self._side = ServerSide(plan, diagnosis(job, plan))
        self._server_state = plan.server_init()
        self._set_rounds(plan.config.rounds)
        self._early = EarlyStopping(plan.config.stop, plan.bundle.manifest.task)
        self.early_end: EarlyEnd | None = None
        self._state = RoundState()
        self._hostile, self._liars = job.method.hostile, job.liars

    def rounds(self, run: RunProgress, workers: Workers) -> Iterator[RunProgress]:
        """Where the run stands after each round that is left; ``workers`` train the clients."""
        done = run.rounds
        self._server_state = run.server
        for one in done:
            self._look_at(one)
        reached = RoundState(
            round_id=len(done) + 1,
            final=bool(done) and done[-1].final,
            last_invited={client_id: one.round_id for client_id, one in run.clients.items()},
        )
        self._state, actions = self._schedule.resume(reached, 0.0)
        for client_id in self._clients:
            actions += self._step(DeviceAppeared(client_id))
        while not any(isinstance(action, Finish) for action in actions):
            run = self._round(run, workers)
            self._server_state = run.server
            self._look_at(run.rounds[-1])
            actions = self._step(StateCommitted())
            yield run

    def _look_at(self, done: RoundRecord) -> None:
        """End the run after this round if it brings nothing more."""
        planned = self._plan.config.rounds
        if done.final or done.round_id >= planned:
            return
        scores = done.scores
        end = self._early.add(done.round_id, scores.selecting, scores.loss, planned=planned)
        self.early_end = end
        self._set_rounds(planned if end is None else end.after)

    def _set_rounds(self, rounds: int) -> None:
        plan = self._plan.with_rounds(rounds)
        self._schedule = plan.schedule(lambda: self._server_state)

    def _step(self, event: ScheduleEvent) -> tuple[ScheduleAction, ...]:
        self._state, actions = self._schedule.step(self._state, event, 0.0)
        return actions

    def _round(self, run: RunProgress, workers: Workers) -> RunProgress:
        """Train the cohort of the open round, aggregate, score."""
        started = time.perf_counter()
        order = self._side.order(self._state.round_id, final=self._state.final)
        sent = self._side.payloads(run, self._state.cohort)
        results, admitted = self._trained(run, workers, order, sent)
        self._close(one.record.client_id for one in admitted)
        server = self._side.aggregated(run, admitted, order)
        seconds = round(time.perf_counter() - started, 4)
        done = self._side.record(run, server, admitted, results, sent, order=order, seconds=seconds)
        owners = self._side.owners(run, admitted)
        return kept(run, server, done, results, sent=sent, owners=owners)

    def _trained(
        self,
        run: RunProgress,
        workers: Workers,
        order: RoundConfig,
        sent: Mapping[str, CodedPayload],
    ) -> tuple[dict[str, WorkerResult], list[DecodedUpdate]]:
        """What everybody sends, and of that what counts; both by ascending client.

        Raises:
            RefusedError: an update breaks a rule, although nobody lies.
        """
        tasks = [self._side.task(run, order, one, sent[one]) for one in sorted(sent)]
        learned = learned_bounds(one.update_norms for one in run.rounds)
        if self._hostile is not None:
            results = {one.client_id: one for one in workers.train(tasks)}
            results = self._with_lies(self._hostile, dict(sorted(results.items())), sent)
            return results, self._majority(results, order, sent, learned)
        results, admitted = {}, {}
        for one in workers.train(tasks):
            results[one.client_id] = one
            # While others are trained.
            admitted[one.client_id] = self._side.admitted(one, sent[one.client_id], learned, order)
        return dict(sorted(results.items())), [one for _, one in sorted(admitted.items())]

    def _with_lies(
        self,
        hostile: Hostile,
        results: Mapping[str, WorkerResult],
        sent: Mapping[str, CodedPayload],
    ) -> dict[str, WorkerResult]:
        """The results with what liars send in the place of their own."""
        honest = {
            client_id: Sent(one.update, self._side.baseline(sent[client_id]))
            for client_id, one in results.items()
        }
        lies = lied(hostile, self._liars, honest)
        return {
            client_id: replace(one, update=lies.get(client_id, one.update))
            for client_id, one in results.items()
        }

    def _majority(
        self,
        results: Mapping[str, WorkerResult],
        order: RoundConfig,
        sent: Mapping[str, CodedPayload],
        learned: Norms,
    ) -> list[DecodedUpdate]:
        """The updates that count; the round goes on as often as it takes to have a majority."""
        for attempt in range(_ATTEMPTS):
            bounds, admitted = relaxed_bounds(learned, attempt), []
            for client_id, one in results.items():
                with suppress(RefusedError):
                    admitted.append(self._side.admitted(one, sent[client_id], bounds, order))
            if 2 * len(admitted) > len(results):
                break
        return admitted

    def _close(self, delivered: Iterable[str]) -> None:
        """Everybody has delivered or been refused, so the round closes."""
        actions = [action for one in delivered for action in self._step(UpdateStored(one))]
        for one in self._state.outstanding:
            actions += self._step(UpdateRefused(one))
        actions += self._step(Tick())  # nobody was drawn
        if not any(isinstance(action, CloseRound) for action in actions):
            raise ProtofleetError(f"round {self._state.round_id}: all updates are in, still open")


class _Saving:
    """Checkpoints now and then, and when the run ends before its last round, however it does."""

    def __init__(self, folder: Path, told: Callable[..., MethodResult], workers: Workers) -> None:
        self._folder, self._told, self._workers = folder, told, workers
        self._unsaved: RunProgress | None = None
        self._saved_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._unsaved is not None:
            self.save(self._unsaved)

    def reached(self, run: RunProgress) -> None:
        """One more round is done."""
        self._unsaved = run
        if time.monotonic() - self._saved_s > _CHECKPOINT_S:
            self.save(run)
            self._unsaved, self._saved_s = None, time.monotonic()

    def save(self, run: RunProgress) -> None:
        """Results first: a checkpoint is of no use without the rounds that led to it."""
        stored = self._workers.stored({name: one.round_id for name, one in run.clients.items()})
        done = self._told(run, finished=False)
        save_result(self._folder, done)
        save_checkpoint(self._folder, run, stored, done.identity)


def _restored(job: Job, plan: Plan, engine: Engine) -> tuple[RunProgress, dict[str, StoredClient]]:
    """Where the run stands by its checkpoint, and what its clients keep."""
    result = load_run(job.folder)
    if result is not None and has_checkpoint(job.folder):
        found = load_checkpoint(job.folder)
        if found.identity == job.identity(plan, engine):
            rounds = result.rounds[: found.server.round_id]
            run = RunProgress(found.server, found.clients, found.references, rounds)
            return run, found.kept
    return RunProgress(plan.server_init(), {}, {}, ()), {}
