"""The engine without a broker: the same two halves, one process per core, blobs in between.

Payloads, updates and states are encoded and checked as on the wire, so a run gives the scores of
the same run over MQTT.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Self

import msgspec
import numpy as np

from protofleet.coordinator import rounds
from protofleet.coordinator.admission import Expected, admit, expect_updates
from protofleet.coordinator.config import count_of
from protofleet.coordinator.evaluation import Scorer, make_scorer
from protofleet.coordinator.outbox import Sent, encode_payload
from protofleet.coordinator.plan import Plan, policy_of
from protofleet.coordinator.results import round_scores
from protofleet.coordinator.server_tools import make_server_tools
from protofleet.durable import write_whole
from protofleet.errors import InputError, ProtofleetError, RefusedError
from protofleet.experiments import _worker
from protofleet.experiments._worker import Kept, Outcome, Task, WorkerSpec
from protofleet.experiments.run import Job, Watch
from protofleet.experiments.store import Round, RunResult, load_run, save_result
from protofleet.strategies.types import ServerState, ServerTools, Update
from protofleet.strategies.updates import (
    UpdateRecord,
    initial_tensors,
    references_of,
    to_evaluation,
    unpack_update,
)
from protofleet.tensors import Tensors, blobs
from protofleet.threads import thread_variables
from protofleet.wire.codecs import RAW, to_raw

_CHECKPOINT = "checkpoint.safetensors"
_CHECKPOINT_S = 60.0


@dataclass(frozen=True, slots=True)
class _Run:
    """Where a run stands: the server's state, the clients' states, the rounds so far."""

    server: ServerState
    clients: Mapping[str, Kept]
    rounds: tuple[Round, ...]


def run_local(job: Job, *, workers: int, watch: Watch) -> RunResult:
    """Run, or go on with, one method with one seed.

    Args:
        job: what to run.
        workers: processes that train clients.
        watch: told of every round.

    Raises:
        InputError: the strategy, its settings, the model and the data do not fit.
    """
    plan = job.plan("mqtt://127.0.0.1")
    run = _restored(job, plan)
    for one in run.rounds:
        watch(one)
    extra = 1 if plan.strategy.description.final_fit else 0
    federation = _Federation.of(job, plan)
    with _pool(job, plan, min(workers, len(job.clients))) as pool, _Saving(job, plan) as saving:
        for round_id in range(len(run.rounds) + 1, job.rounds + extra + 1):
            run = federation.round(run, round_id, pool, final=round_id > job.rounds)
            saving.reached(run)
            watch(run.rounds[-1])
    result = job.result(plan, "local", run.rounds, finished=True)
    save_result(job.folder, result)
    (job.folder / _CHECKPOINT).unlink(missing_ok=True)
    return result


@contextmanager
def _pool(job: Job, plan: Plan, workers: int) -> Iterator[ProcessPoolExecutor]:
    spec = WorkerSpec(
        bundle=job.bundle,
        strategy=plan.strategy.description.name,
        settings=plan.settings,
        seed=job.seed,
        codec=plan.config.codec.updates,
        clients=job.clients,
        pooled=job.data.pooled,
    )
    before = dict(os.environ)
    os.environ.update(thread_variables(1))  # read by the children's libraries when they load
    pool = ProcessPoolExecutor(
        workers,
        multiprocessing.get_context("spawn"),
        initializer=_worker.start,
        initargs=(spec, os.getpid()),
    )
    try:
        yield pool
    except BrokenProcessPool as error:
        raise ProtofleetError(
            f"a worker of '{job.method.label}' died, perhaps of lack of memory: use fewer --workers"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for name in thread_variables(1):
            os.environ.pop(name)
        os.environ.update({k: v for k, v in before.items() if k in thread_variables(1)})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Federation:
    """Everything of a run that stays the same."""

    plan: Plan
    expected: Expected
    scorer: Scorer | None
    tools: Callable[[int], ServerTools]
    clients: tuple[str, ...]
    initial: Tensors

    @classmethod
    def of(cls, job: Job, plan: Plan) -> _Federation:
        return cls(
            plan=plan,
            expected=expect_updates(plan),
            scorer=make_scorer(plan.bundle, plan.strategy, plan.config.evaluation),
            tools=make_server_tools(plan.bundle, plan.strategy, seed=plan.config.seed),
            clients=tuple(sorted(job.clients)),
            initial=initial_tensors(plan.model),
        )

    def round(self, run: _Run, round_id: int, pool: ProcessPoolExecutor, *, final: bool) -> _Run:
        """Train the cohort, aggregate, score."""
        started = time.perf_counter()
        sent = self._sent(run, final=final, round_id=round_id)
        tasks = [self._task(run, round_id, name, sent[name], final=final) for name in sent]
        outcomes, bytes_up = {}, 0
        for one in pool.map(_worker.train, tasks):
            bytes_up += len(one.update)
            outcomes[one.client_id] = self._decoded(one, sent[one.client_id])
        records = [self._admit(one, round_id) for one in outcomes.values()]
        clients = {**run.clients, **{name: one.state for name, one in outcomes.items()}}
        server = self._next(run.server, round_id, outcomes, final=final)
        seconds = time.perf_counter() - started
        scored = self.scorer is not None and not final
        done = Round(
            round_id=round_id,
            seconds=round(seconds, 4),
            participants=len(outcomes),
            bytes_up=bytes_up,
            bytes_down=sum(len(task.payload) for task in tasks),
            scores=round_scores(
                [to_evaluation(record.evaluation) for record in records],
                self.scorer(server) if self.scorer and scored else None,
            ),
            final=final,
        )
        return _Run(server, clients, (*run.rounds, done))

    def _sent(self, run: _Run, round_id: int, *, final: bool) -> dict[str, Sent]:
        """Each client's payload, encoded for what it has; a broadcast once for each base."""
        codec, found, broadcast = self.plan.config.codec.payloads, {}, dict[str, Sent]()
        for client_id in self.clients if final else self._cohort(round_id):
            payload = self.plan.strategy.downlink(run.server, client_id).tensors
            kept = run.clients.get(client_id)
            base = kept.base if kept else b""
            name = hashlib.sha256(base).hexdigest() if base else ""
            sent = broadcast.get(name) if payload is run.server.tensors else None
            if sent is None:
                known = blobs.decode(base, max_bytes=len(base))[0] if base else {}
                sent = encode_payload(payload, codec, name, {**self.initial, **known})
            if payload is run.server.tensors:
                broadcast[name] = sent
            found[client_id] = sent
        return found

    @staticmethod
    def _task(run: _Run, round_id: int, client_id: str, sent: Sent, *, final: bool) -> Task:
        return Task(
            client_id=client_id,
            round_id=round_id,
            final=final,
            payload=sent.blob,
            coding=sent.coding,
            state=run.clients.get(client_id),
        )

    def _decoded(self, outcome: Outcome, sent: Sent) -> Outcome:
        """With the update's raw blob, and with what the client's next payload refers to."""
        payload, _ = blobs.decode(sent.decoded, max_bytes=len(sent.decoded))
        references = references_of(self.plan.model, payload)
        limit = self.plan.config.limits.update_bytes
        update = to_raw(outcome.update, references, outcome.coding, max_bytes=limit)
        base = b"" if sent.coding.codec == RAW else sent.decoded
        return replace(outcome, update=update, state=replace(outcome.state, base=base))

    def _cohort(self, round_id: int) -> tuple[str, ...]:
        policy, total = policy_of(self.plan.config), len(self.clients)
        size = total if policy.size == "all" else count_of(policy.size, total)
        return rounds.draw(policy, round_id, 0, self.clients, size)

    def _admit(self, outcome: Outcome, round_id: int) -> UpdateRecord:
        asked = self.plan.strategy.description.class_counts
        return admit(
            outcome.update,
            self.expected,
            client_id=outcome.client_id,
            round_id=round_id,
            class_counts=outcome.class_counts if asked else None,
        )

    def _next(
        self, server: ServerState, round_id: int, outcomes: Mapping[str, Outcome], *, final: bool
    ) -> ServerState:
        if final:
            return replace(server, round_id=round_id)
        updates = [self._update(outcomes[name]) for name in sorted(outcomes)]
        return self.plan.strategy.aggregate(server, updates, self.tools(round_id))

    def _update(self, outcome: Outcome) -> Update:
        update, _ = unpack_update(outcome.update, max_bytes=len(outcome.update))
        if not self.plan.strategy.description.class_counts:
            return update
        return replace(update, class_counts=np.array(outcome.class_counts, np.int64))


class _Saving:
    """Checkpoints now and then, and when the run ends before its last round, however it does."""

    def __init__(self, job: Job, plan: Plan) -> None:
        self._job, self._plan = job, plan
        self._unsaved: _Run | None = None
        self._saved_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._unsaved is not None:
            _save(self._job, self._plan, self._unsaved)

    def reached(self, run: _Run) -> None:
        """One more round is done."""
        self._unsaved = run
        if time.monotonic() - self._saved_s > _CHECKPOINT_S:
            _save(self._job, self._plan, run)
            self._unsaved, self._saved_s = None, time.monotonic()


def _save(job: Job, plan: Plan, run: _Run) -> None:
    """Results first: a checkpoint is of no use without the rounds that led to it."""
    save_result(job.folder, job.result(plan, "local", run.rounds, finished=False))
    tensors = {"server": np.frombuffer(blobs.encode(run.server.tensors), np.uint8)}
    clients = {}
    for name, kept in run.clients.items():
        base = hashlib.sha256(kept.base).hexdigest()
        clients[name] = kept.round_id, base
        parts = {"state": kept.blob, "residual": kept.residual}
        packed = blobs.encode({part: np.frombuffer(of, np.uint8) for part, of in parts.items()})
        tensors[f"client/{name}"] = np.frombuffer(packed, np.uint8)
        tensors[f"base/{base}"] = np.frombuffer(kept.base, np.uint8)
    about = {
        "round_id": run.server.round_id,
        "clients": clients,
        "identity": job.identity(plan, "local"),
    }
    data = blobs.encode(tensors, {"checkpoint": msgspec.json.encode(about).decode()})
    write_whole(job.folder / _CHECKPOINT, data)


def _restored(job: Job, plan: Plan) -> _Run:
    fresh = _Run(plan.server_init(), {}, ())
    file, result = job.folder / _CHECKPOINT, load_run(job.folder)
    if result is None or not file.is_file():
        return fresh
    data = file.read_bytes()
    try:
        tensors, metadata = blobs.decode(data, max_bytes=len(data))
        about = msgspec.json.decode(metadata["checkpoint"])
        if about["identity"] != job.identity(plan, "local"):
            return fresh
        server, _ = blobs.decode(tensors["server"].tobytes(), max_bytes=len(data))
        bases = {name: tensors[f"base/{name}"].tobytes() for _, name in about["clients"].values()}
        clients = {}
        for name, (round_id, base) in about["clients"].items():
            parts, _ = blobs.decode(tensors[f"client/{name}"].tobytes(), max_bytes=len(data))
            state, residual = (parts[part].tobytes() for part in ("state", "residual"))
            clients[name] = Kept(round_id=round_id, blob=state, residual=residual, base=bases[base])
    except (KeyError, msgspec.DecodeError, RefusedError) as error:
        raise InputError(f"checkpoint '{file}': {error}; remove it to run again") from error
    standing = ServerState(round_id=about["round_id"], tensors=server)
    return _Run(standing, clients, result.rounds[: standing.round_id])
