"""Workers that are processes of this machine, one thread each.

Tasks and answers are small and go through pipes; payloads, updates and what clients keep lie in
shared memory (``shared_memory``), each written once by the process that made it. So any process
can take any client, if possible one that it has had before, and a process that dies takes nothing
with it but what it was training.
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


class _Left:
    """Tasks of a round that no process has got yet, dealt out in chunks that become smaller.

    A process gets clients that it has trained before, as long as there are any: it has read their
    data, and their memory is mapped. Then it takes over from the one with the most left.

    Args:
        tasks: of the round.
        homes: the process that trained a client last.
        processes: how many there are.
    """

    def __init__(
        self, tasks: Sequence[WorkerTask], homes: Mapping[str, int], processes: int
    ) -> None:
        self._count, self._processes = len(tasks), processes
        self._new: deque[WorkerTask] = deque()
        self._of = [deque[WorkerTask]() for _ in range(processes)]
        for one in tasks:
            home = homes.get(one.client_id)
            (self._new if home is None else self._of[home]).append(one)

    def chunk(self, process: int) -> list[WorkerTask]:
        """The next tasks of a process; empty: none is left."""
        size = max(1, self._count // (_SHARE * self._processes))
        return [self._take(process) for _ in range(min(size, self._count))]

    def _take(self, process: int) -> WorkerTask:
        self._count -= 1
        for queue in (self._of[process], self._new):
            if queue:
                return queue.popleft()
        return max(self._of, key=len).pop()


class _Processes:
    """``Workers`` of one run."""

    def __init__(self, pool: _Pool, spec: WorkerSpec, restored: Mapping[str, StoredClient]) -> None:
        self._memory, self._label = pool.memory, spec.label
        self._connections = pool.connections(len(spec.clients))
        self._memory.end = 0
        self._clients = {client_id: _Client() for client_id in spec.clients}
        self._homes: dict[str, int] = {}
        for client_id, one in restored.items():
            state, residual = (self._memory.write([part]) for part in (one.state, one.residual))
            self._clients[client_id].put(0, KeptSpans(one.round_id, state, residual))
        self._kept_end = self._memory.end
        for connection in self._connections:
            self._send(connection, spec)

    def train(self, tasks: Sequence[WorkerTask]) -> Iterator[WorkerResult]:
        """As ``Workers`` says."""
        before = {one.client_id: one.before for one in tasks}
        self._memory.end = self._kept_end  # the payloads of the round before are needed no more
        left = _Left(tasks, self._homes, len(self._connections))
        written: dict[int, Span] = {}
        waiting = dict.fromkeys(range(len(self._connections)), 0)
        for process in list(waiting) * _IN_FLIGHT:
            waiting[process] += self._send_next(process, left, written)
        while busy := {self._connections[one]: one for one, chunks in waiting.items() if chunks}:
            for connection in cast("list[Connection]", wait(list(busy))):
                process = busy[connection]
                found = self._receive(connection)
                waiting[process] += self._send_next(process, left, written) - 1
                for one in found:
                    self._clients[one.client_id].put(before[one.client_id], one.kept)
                    self._homes[one.client_id] = process
                    yield self._result(one)

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

    def _send_next(self, process: int, left: _Left, written: dict[int, Span]) -> int:
        """Send a process its next chunk; how many there were left to send: 1 or 0."""
        chunk = left.chunk(process)
        if not chunk:
            return 0
        shared = tuple(self._shared(one, written) for one in chunk)
        self._send(self._connections[process], SharedTasks(chunk[0].order, shared))
        return 1

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
