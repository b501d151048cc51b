"""Workers that are processes of this machine, one thread each.

Tasks and answers are small and go through pipes; payloads, updates and what clients keep lie in
shared memory (``shared_memory``), each written once by the process that made it. So any process
takes any client, and a process that dies takes nothing with it but what it was training.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import cast

from protofleet.errors import ProtofleetError
from protofleet.experiments import _process
from protofleet.experiments._process import (
    Failed,
    KeptSpans,
    SharedResult,
    SharedTask,
    SharedTasks,
    kept_state,
)
from protofleet.experiments._worker import StoredClient, WorkerResult, WorkerSpec, WorkerTask
from protofleet.experiments.shared_memory import SharedMemory, Span
from protofleet.experiments.workers import OpenWorkers, Workers
from protofleet.tensors import blobs
from protofleet.threads import thread_variables

_IN_FLIGHT = 2
"""Chunks that a process has before it answers: one that it does, one so that it need not wait."""
_SHARE = 3
"""A chunk is this part of what is left for each process: the last ones are small, so that all end
together."""


@contextmanager
def processes(count: int) -> Iterator[OpenWorkers]:
    """Processes that go on from run to run; they start when the first is opened.

    Args:
        count: how many at most; never more than a run has clients.
    """
    pool: list[_Pool] = []

    @contextmanager
    def opened(
        spec: WorkerSpec, restored: Mapping[str, StoredClient], _folder: Path
    ) -> Iterator[Workers]:
        if not pool:
            pool.append(_Pool(count))
        try:
            yield _Processes(pool[0], spec, restored)
            pool[0].memory.clear()
        except BaseException:
            pool.pop().end()  # they may be at work still
            raise

    try:
        yield opened
    finally:
        for one in pool:
            one.end()


class _Pool:
    """The processes, and what they share.

    Args:
        most: of processes.
    """

    def __init__(self, most: int) -> None:
        self.memory = SharedMemory.create(most + 1)
        self._most = most
        self._started: list[subprocess.Popen[bytes]] = []
        self._connections: list[Connection] = []

    def connections(self, most: int) -> list[Connection]:
        """To that many processes, if there may be so many."""
        wanted = min(most, self._most)
        while len(self._connections) < wanted:
            self._connections.append(self._start(1 + len(self._connections)))
        return self._connections[:wanted]

    def _start(self, own: int) -> Connection:
        ours, theirs = socket.socketpair()
        files = self.memory.descriptors
        # Not by -m: what goes through the pipe would be of another module in the child.
        command = [sys.executable, "-c", f"from {_process.__name__} import main; main()"]
        with theirs:
            child = subprocess.Popen(
                [*command, *map(str, (os.getpid(), theirs.fileno(), own, *files))],
                pass_fds=(theirs.fileno(), *files),
                env={**os.environ, **thread_variables(1)},
                process_group=0,  # Ctrl-C on the terminal is for this process alone
            )
        self._started.append(child)
        return Connection(ours.detach())

    def end(self) -> None:
        """End the processes at once, whatever they do."""
        for one in self._started:
            one.kill()
        for one in self._started:
            one.wait()
        for connection in self._connections:
            connection.close()
        self.memory.close()


class _Client:
    """Where the bytes of one client's last two rounds lie."""

    def __init__(self) -> None:
        self._kept: list[KeptSpans | None] = [None, None]

    def at(self, round_id: int) -> KeptSpans | None:
        """What it has kept since the round."""
        return next((one for one in self._kept if one and one.round_id == round_id), None)

    def place(self, before: int) -> KeptSpans | None:
        """Where a round may write that begins with what was kept since ``before``."""
        return self._kept[self._free(before)]

    def put(self, before: int, kept: KeptSpans) -> None:
        """What came out of such a round."""
        self._kept[self._free(before)] = kept

    def _free(self, before: int) -> int:
        first = self._kept[0]
        return int(first is not None and first.round_id == before)


class _Processes:
    """``Workers`` of one run."""

    def __init__(self, pool: _Pool, spec: WorkerSpec, restored: Mapping[str, StoredClient]) -> None:
        self._memory, self._label = pool.memory, spec.label
        self._connections = pool.connections(len(spec.clients))
        self._memory.end = 0
        self._clients = {client_id: _Client() for client_id in spec.clients}
        for client_id, one in restored.items():
            state, residual = (self._memory.write([part]) for part in (one.state, one.residual))
            self._clients[client_id].put(0, KeptSpans(one.round_id, state, residual))
        self._kept_end = self._memory.end
        for connection in self._connections:
            self._send(connection, spec)

    def train(self, tasks: Sequence[WorkerTask]) -> Iterator[WorkerResult]:
        """As ``Workers`` says."""
        before = {one.client_id: one.before for one in tasks}
        chunks = self._chunks(tasks)
        waiting = dict.fromkeys(self._connections, 0)
        for connection in self._connections * _IN_FLIGHT:
            waiting[connection] += self._send_next(connection, chunks)
        while busy := [one for one, chunks_left in waiting.items() if chunks_left]:
            for connection in cast("list[Connection]", wait(busy)):
                found = self._receive(connection)
                waiting[connection] += self._send_next(connection, chunks) - 1
                for one in found:
                    self._clients[one.client_id].put(before[one.client_id], one.kept)
                    yield self._result(one)

    def _chunks(self, tasks: Sequence[WorkerTask]) -> Iterator[SharedTasks]:
        """The tasks in chunks, each smaller than the one before."""
        self._memory.end = self._kept_end  # the payloads of the round before are needed no more
        written: dict[int, Span] = {}
        left = deque(tasks)
        while left:
            size = max(1, len(left) // (_SHARE * len(self._connections)))
            chunk = tuple(self._shared(left.popleft(), written) for _ in range(size))
            yield SharedTasks(tasks[0].order, chunk)

    def _shared(self, task: WorkerTask, written: dict[int, Span]) -> SharedTask:
        for blob in (task.payload, task.baseline):
            if id(blob) not in written:
                written[id(blob)] = self._memory.write([blob])
        client = self._clients[task.client_id]
        return SharedTask(
            client_id=task.client_id,
            coding=task.coding,
            payload=written[id(task.payload)],
            baseline=written[id(task.baseline)],
            kept=client.at(task.before),
            place=client.place(task.before),
        )

    def _result(self, found: SharedResult) -> WorkerResult:
        assert found.kept.update is not None  # noqa: S101 - the round has just made it
        return WorkerResult(
            client_id=found.client_id,
            round_id=found.kept.round_id,
            update=self._memory.read(found.kept.update),
            coding=found.coding,
            class_counts=found.class_counts,
            costs=found.costs,
        )

    def _send_next(self, connection: Connection, chunks: Iterator[SharedTasks]) -> int:
        """Send a chunk; how many there were left to send: 1 or 0."""
        for chunk in chunks:
            self._send(connection, chunk)
            return 1
        return 0

    def _send(self, connection: Connection, message: WorkerSpec | SharedTasks) -> None:
        try:
            connection.send(message)
        except OSError as error:
            raise self._died() from error

    def _receive(self, connection: Connection) -> list[SharedResult]:
        try:
            answer: list[SharedResult] | Failed = connection.recv()
        except (EOFError, OSError) as error:
            raise self._died() from error
        if isinstance(answer, Failed):
            raise answer.error
        return answer

    def _died(self) -> ProtofleetError:
        return ProtofleetError(
            f"a worker of '{self._label}' died, perhaps of lack of memory: use fewer --workers"
        )

    def stored(self, rounds: Mapping[str, int]) -> dict[str, StoredClient]:
        """As ``Workers`` says."""
        found = {name: self._clients[name].at(round_id) for name, round_id in rounds.items()}
        return {
            name: StoredClient(
                round_id=one.round_id,
                state=blobs.encode(kept_state(self._memory, one)),
                residual=bytes(self._memory.read(one.residual)),
            )
            for name, one in found.items()
            if one is not None
        }
