"""One process of the local engine: trains what it is sent, the outcome goes to shared memory."""

from __future__ import annotations

import signal
import sys
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from protofleet.experiments._worker import ClientTrainer, WorkerSpec, WorkerTask, decoded
from protofleet.experiments.shared_memory import SharedMemory, Span
from protofleet.federation.client import ClientMemory, RoundConfig, TrainedRound
from protofleet.federation.records import ClientCosts
from protofleet.firmware_sim.die_with_parent import die_with_parent
from protofleet.kernels import set_threads
from protofleet.strategies.types import ClientState
from protofleet.tensors import blobs
from protofleet.wire.codecs import Coding

_WORTH_SHARING = 1 << 16
"""Bytes of tensors in both state and update: below, a second copy costs less than their names."""


class KeptSpans(NamedTuple):
    """Where a client's round lies: what it keeps, and its update.

    Attributes:
        round_id: of its state.
        state: blob of its state's tensors, but for the shared ones.
        residual: blob of what coding its update has left.
        update: blob of its update; None: not needed any more.
        shared: names of its state's tensors that the update holds, where they are the very same.
    """

    round_id: int
    state: Span
    residual: Span
    update: Span | None = None
    shared: tuple[str, ...] = ()


class SharedTask(NamedTuple):
    """A ``WorkerTask`` whose bytes are in shared memory.

    Attributes:
        client_id, coding: as there.
        payload, baseline: where they lie.
        kept: what the client trains from; None: nothing.
        place: where this round may be written.
    """

    client_id: str
    coding: Coding
    payload: Span
    baseline: Span
    kept: KeptSpans | None
    place: KeptSpans | None


class SharedTasks(NamedTuple):
    """Some of a round's tasks; of all of them the same is asked."""

    order: RoundConfig
    tasks: tuple[SharedTask, ...]


class SharedResult(NamedTuple):
    """A ``WorkerResult`` whose bytes are in shared memory, with what the client keeps."""

    client_id: str
    coding: Coding
    class_counts: tuple[int, ...]
    costs: ClientCosts
    kept: KeptSpans


class Failed(NamedTuple):
    """What a task raised."""

    error: Exception


class Worker:
    """What this process does for its parent.

    Args:
        memory: shared.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._spec: WorkerSpec | None = None
        self._trainer: ClientTrainer | None = None
        self._order: RoundConfig | None = None
        self._seen: dict[Span, memoryview] = {}

    def begin(self, spec: WorkerSpec) -> None:
        """Another run: nothing of the one before is needed any more."""
        self._memory.end = 0
        self._spec, self._trainer, self._order = spec, None, None

    def train(self, asked: SharedTasks) -> list[SharedResult]:
        """Train one client after the other."""
        if self._trainer is None:
            assert self._spec is not None  # noqa: S101 - begin was called before
            self._trainer = ClientTrainer(self._spec)
        if asked.order != self._order:  # in a round payloads are written once each
            self._order, self._seen = asked.order, {}
        return [self._train(self._trainer, one, asked.order) for one in asked.tasks]

    def _train(self, trainer: ClientTrainer, task: SharedTask, order: RoundConfig) -> SharedResult:
        for span in (task.payload, task.baseline):
            if span not in self._seen:
                self._seen[span] = self._memory.read(span)
        whole = WorkerTask(
            client_id=task.client_id,
            order=order,
            payload=self._seen[task.payload],
            coding=task.coding,
            baseline=self._seen[task.baseline],
            before=0 if task.kept is None else task.kept.round_id,
        )
        trained = trainer.trained(whole, self._kept(task.kept))
        kept = self._written(trained.round, task.place)
        kept_bytes = blobs.encoded_size(trained.round.state.tensors) + kept.residual.size
        result = trained.result(task.client_id, b"", kept_bytes)
        return SharedResult(
            result.client_id, result.coding, result.class_counts, result.costs, kept
        )

    def _kept(self, kept: KeptSpans | None) -> ClientMemory:
        if kept is None:
            return ClientMemory()
        return ClientMemory(
            state=ClientState(round_id=kept.round_id, tensors=kept_state(self._memory, kept)),
            residual=decoded(self._memory.read(kept.residual)),
        )

    def _written(self, done: TrainedRound, place: KeptSpans | None) -> KeptSpans:
        """Write the round, a tensor that is both kept and sent once."""
        shared = _shared(done)
        own = {name: v for name, v in done.state.tensors.items() if name not in shared}
        write = self._memory.write
        return KeptSpans(
            round_id=done.state.round_id,
            state=write(blobs.encoded_parts(own), place and place.state),
            residual=write(blobs.encoded_parts(done.residual), place and place.residual),
            update=write(done.parts, place and place.update),
            shared=shared,
        )


def _shared(done: TrainedRound) -> tuple[str, ...]:
    """Names of the tensors that a round keeps just as it sends them."""
    if not done.coding.is_raw:
        return ()
    sent, kept = done.update.tensors, done.state.tensors
    same = tuple(name for name, value in sent.items() if kept.get(name) is value)
    return same if sum(sent[name].nbytes for name in same) >= _WORTH_SHARING else ()


def kept_state(memory: SharedMemory, kept: KeptSpans) -> dict[str, Any]:
    """The state's tensors, as views into shared memory, in the order of a blob of them all."""
    state = decoded(memory.read(kept.state))
    if kept.update is not None and kept.shared:
        sent = decoded(memory.read(kept.update))
        state |= {name: sent[name] for name in kept.shared}
    return {name: state[name] for name in blobs.in_order(state)}


def main() -> None:
    """Answer the parent until it goes; Ctrl-C is its business.

    Arguments of the command line: the parent's process id, the descriptor of the connection to it,
    the number of this process's file in shared memory, the descriptors of all files.
    """
    parent, connection, own, *files = map(int, sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if die_with_parent(parent):
        set_threads(1)
        _serve(Connection(connection), Worker(SharedMemory(files, own)))


def _serve(connection: Connection, worker: Worker) -> None:
    while True:
        try:
            asked = connection.recv()
        except EOFError:
            return
        if isinstance(asked, WorkerSpec):
            worker.begin(asked)
        else:
            connection.send(_answer(worker, asked))


def _answer(worker: Worker, asked: SharedTasks) -> list[SharedResult] | Failed:
    try:
        return worker.train(asked)
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent raises it
        return Failed(error)
