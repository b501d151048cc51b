"""The engine without a broker: the same two halves, workers for the clients', blobs in between.

Payloads, updates and states are encoded and checked as on the wire, and the schedule is the
coordinator's, so a run gives the scores of the same run over MQTT.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError, ProtofleetError, RefusedError
from protofleet.experiments._worker import StoredClient, WorkerResult, WorkerSpec, WorkerTask
from protofleet.experiments.attacks import Hostile, Sent, lied
from protofleet.experiments.calibrating import calibrate
from protofleet.experiments.diagnostics import diagnosis
from protofleet.experiments.progress import (
    ClientProgress,
    RunProgress,
    has_checkpoint,
    load_checkpoint,
    remove_checkpoint,
    save_checkpoint,
)
from protofleet.experiments.run import Job, Watch
from protofleet.experiments.store import Engine, MethodResult, load_run, save_result
from protofleet.experiments.workers import OpenWorkers, Workers
from protofleet.federation.client import RoundConfig
from protofleet.federation.client_limits import Norms, learned_bounds, relaxed_bounds
from protofleet.federation.coding import (
    CodedPayload,
    DecodedUpdate,
    PayloadEncoder,
    to_evaluation,
    update_baseline,
)
from protofleet.federation.outcomes.calibration import Calibration, with_rate
from protofleet.federation.outcomes.outcome import Outcome, OwnerOutcome, followed, outcome_of
from protofleet.federation.plan import Plan
from protofleet.federation.records import ClientCosts, RoundRecord
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
from protofleet.federation.server import Server
from protofleet.strategies.types import ServerState
from protofleet.tensors import Tensors, blobs

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
    found = calibrate(job, declared, _spec(job, declared), opened, job.folder / _STATES)
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
        self._server = Server.of(plan)
        self._server_state = plan.server_init()
        self._set_rounds(plan.config.rounds)
        self._early = EarlyStopping(plan.config.stop, plan.bundle.manifest.task)
        self.early_end: EarlyEnd | None = None
        self._references: Mapping[str, bytes] = {}
        self._baselines: dict[int, Tensors] = {}
        self._encoder = PayloadEncoder(plan.model, self._earlier, lambda coded: coded)
        self._state = RoundState()
        self._hostile, self._liars = job.method.hostile, job.liars
        self._diagnosis = diagnosis(job, plan)

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
        started, round_id, final = time.perf_counter(), self._state.round_id, self._state.final
        self._references = run.references
        sent = {
            client_id: self._encoder.encode(
                self._plan.strategy.downlink(run.server, client_id).tensors,
                self._plan.config.codec.payloads,
                run.clients[client_id].reference if client_id in run.clients else "",
            )
            for client_id in self._state.cohort
        }
        self._encoder.clear()
        self._baselines.clear()
        results, admitted = self._trained(run, workers, sent)
        self._close(one.record.client_id for one in admitted)
        outcome = self._server.aggregate(
            run.server, round_id, [one.update for one in admitted], admitted, final=final
        )
        server = _owned(outcome.state)
        seconds = round(time.perf_counter() - started, 4)
        scores = self._server.score(server, [one.record for one in admitted], final=final)
        done = RoundRecord(
            round_id=round_id,
            final=final,
            seconds=seconds,
            participants=len(admitted),
            trained=sum(one.record.num_examples > 0 for one in admitted),
            bytes_up=sum(len(one.update) for one in results.values()),
            bytes_down=sum(len(coded.blob) for coded in sent.values()),
            scores=scores,
            # Of a client that was in every round, which is the most that one can have.
            privacy=self._server.spent(run.server, lambda: round_id, final=final),
            update_norms=self._server.update_norms(admitted),
            figures=self._server.figures(server) | self._diagnosed(server),
            costs=_mean_costs([one.costs for one in results.values()]),
        )
        owners = self._owners(run, admitted)
        return self._kept(run, server, done, results, sent=sent, owners=owners)

    def _diagnosed(self, server: ServerState) -> dict[str, float]:
        """Figures of the alignment layers of the server's model, if they are asked for."""
        network = self._plan.strategy.server_model(server)
        if self._diagnosis is None or network is None or self._state.final:
            return {}
        return self._diagnosis(network)

    def _trained(
        self, run: RunProgress, workers: Workers, sent: Mapping[str, CodedPayload]
    ) -> tuple[dict[str, WorkerResult], list[DecodedUpdate]]:
        """What everybody sends, and of that what counts; both by ascending client.

        Raises:
            RefusedError: an update breaks a rule, although nobody lies.
        """
        order = self._order()
        tasks = [self._task(run, order, client_id, sent[client_id]) for client_id in sorted(sent)]
        learned = learned_bounds(one.update_norms for one in run.rounds)
        if self._hostile is not None:
            results = {one.client_id: one for one in workers.train(tasks)}
            results = self._with_lies(self._hostile, dict(sorted(results.items())), sent)
            return results, self._majority(results, sent, learned)
        results, admitted = {}, {}
        for one in workers.train(tasks):
            results[one.client_id] = one
            # While others are trained.
            admitted[one.client_id] = self._admitted(one, sent[one.client_id], learned)
        return dict(sorted(results.items())), [one for _, one in sorted(admitted.items())]

    def _order(self) -> RoundConfig:
        config = self._plan.config
        return RoundConfig(
            round_id=self._state.round_id,
            seed=config.seed,
            final=self._state.final,
            codec=config.codec.updates,
            sends=self._plan.sends,
        )

    @staticmethod
    def _task(
        run: RunProgress, order: RoundConfig, client_id: str, coded: CodedPayload
    ) -> WorkerTask:
        stored = run.clients.get(client_id)
        return WorkerTask(
            client_id=client_id,
            order=order,
            payload=coded.blob,
            coding=coded.coding,
            baseline=run.references[coded.coding.reference] if coded.coding.reference else b"",
            before=stored.round_id if stored else 0,
        )

    def _with_lies(
        self,
        hostile: Hostile,
        results: Mapping[str, WorkerResult],
        sent: Mapping[str, CodedPayload],
    ) -> dict[str, WorkerResult]:
        """The results with what liars send in the place of their own."""
        honest = {
            client_id: Sent(one.update, self._baseline(sent[client_id]))
            for client_id, one in results.items()
        }
        lies = lied(hostile, self._liars, honest)
        return {
            client_id: replace(one, update=lies.get(client_id, one.update))
            for client_id, one in results.items()
        }

    def _baseline(self, sent: CodedPayload) -> Tensors:
        """What the updates of all are compared with who got this payload."""
        if id(sent) not in self._baselines:
            payload, _ = blobs.decode(sent.raw, max_bytes=len(sent.raw))
            self._baselines[id(sent)] = update_baseline(self._plan.model, payload)
        return self._baselines[id(sent)]

    def _majority(
        self,
        results: Mapping[str, WorkerResult],
        sent: Mapping[str, CodedPayload],
        learned: Norms,
    ) -> list[DecodedUpdate]:
        """The updates that count; the round goes on as often as it takes to have a majority."""
        for attempt in range(_ATTEMPTS):
            bounds, admitted = relaxed_bounds(learned, attempt), []
            for client_id, one in results.items():
                with suppress(RefusedError):
                    admitted.append(self._admitted(one, sent[client_id], bounds))
            if 2 * len(admitted) > len(results):
                break
        return admitted

    def _admitted(self, result: WorkerResult, sent: CodedPayload, bounds: Norms) -> DecodedUpdate:
        return self._server.admit(
            result.update,
            result.coding,
            baseline=self._baseline(sent),
            client_id=result.client_id,
            round_id=self._state.round_id,
            class_counts=result.class_counts,
            num_examples=None,
            bounds=bounds,
        )

    def _close(self, delivered: Iterable[str]) -> None:
        """Everybody has delivered or been refused, so the round closes."""
        actions = [action for one in delivered for action in self._step(UpdateStored(one))]
        for one in self._state.outstanding:
            actions += self._step(UpdateRefused(one))
        actions += self._step(Tick())  # nobody was drawn
        if not any(isinstance(action, CloseRound) for action in actions):
            raise ProtofleetError(f"round {self._state.round_id}: all updates are in, still open")

    def _owners(
        self, run: RunProgress, admitted: Iterable[DecodedUpdate]
    ) -> dict[str, OwnerOutcome | None]:
        """What the run has done for each client's owner, by what counts in this round."""
        owners = {client_id: one.owner for client_id, one in run.clients.items()}
        for told in admitted:
            name = told.record.client_id
            evaluation = to_evaluation(told.record.evaluation)
            task = self._plan.bundle.manifest.task
            owners[name] = followed(owners.get(name), name, task, evaluation)
        return owners

    @staticmethod
    def _kept(  # noqa: PLR0913 - all that a round leaves
        run: RunProgress,
        server: ServerState,
        done: RoundRecord,
        results: Mapping[str, WorkerResult],
        *,
        sent: Mapping[str, CodedPayload],
        owners: Mapping[str, OwnerOutcome | None],
    ) -> RunProgress:
        """After the round: new states, and the payloads that are still referred to."""
        clients, references = dict(run.clients), dict(run.references)
        for client_id, one in results.items():
            coded = sent[client_id]
            clients[client_id] = ClientProgress(one.round_id, coded.held, owners.get(client_id))
            references[coded.held] = coded.raw
        held = {one.reference for one in clients.values()} - {""}
        return RunProgress(
            server, clients, {name: references[name] for name in held}, (*run.rounds, done)
        )

    def _earlier(self, reference: str) -> Tensors:
        raw = self._references[reference]
        return blobs.decode(raw, max_bytes=len(raw))[0]


def _owned(state: ServerState) -> ServerState:
    """The state without views into an update, whose memory the next round writes."""
    tensors = {
        name: value if _owner(value).base is None else value.copy()
        for name, value in state.tensors.items()
    }
    return replace(state, tensors=tensors)


def _owner(value: NDArray[Any]) -> NDArray[Any]:
    """The array whose memory this one is a view of."""
    while isinstance(value.base, np.ndarray):
        value = value.base
    return value


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


def _mean_costs(of_clients: Sequence[ClientCosts]) -> ClientCosts | None:
    if not of_clients:
        return None
    kept = [one.kept_bytes for one in of_clients if one.kept_bytes is not None]
    return ClientCosts(
        train_s=round(fmean(one.train_s for one in of_clients), 6),
        kept_bytes=round(fmean(kept), 1) if kept else None,
    )


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
