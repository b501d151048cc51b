"""What an engine asks of the processes that train its clients, and those of this machine."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from protofleet.errors import ProtofleetError
from protofleet.experiments import _worker
from protofleet.experiments._worker import StoredClient, WorkerResult, WorkerSpec, WorkerTask
from protofleet.threads import thread_variables


class Workers(Protocol):
    """Train clients, and keep what a client keeps from one round to the next.

    They keep it of two rounds, the client's last that is complete and the one that is open, so that
    an engine can always go back to the end of the last complete round.
    """

    def train(self, tasks: Sequence[WorkerTask]) -> list[WorkerResult]:
        """Do one round's tasks; the results are sorted by client.

        Raises:
            ProtofleetError: a task failed, or workers died and cannot be replaced.
        """
        ...

    def stored(self, rounds: Mapping[str, int]) -> dict[str, StoredClient]:
        """What each client has kept since the round named beside it: its last complete one."""
        ...


OpenWorkers = Callable[
    [WorkerSpec, Mapping[str, StoredClient], Path], AbstractContextManager[Workers]
]
"""Opens workers for a run: by what its clients have in common, what they keep of the rounds that
are done, and a folder that the workers may use."""


class ClientStates:
    """What clients have kept, each of its last two rounds.

    Args:
        restored: of a run that goes on.
    """

    def __init__(self, restored: Mapping[str, StoredClient]) -> None:
        self._kept = {client_id: {one.round_id: one} for client_id, one in restored.items()}
        self._open = 0

    def at(self, client_id: str, round_id: int) -> StoredClient | None:
        """Of one client since the round; None: not kept, or 0, before its first."""
        return self._kept.get(client_id, {}).get(round_id)

    def put(self, client_id: str, before: int, stored: StoredClient) -> None:
        """Keep a client's new state beside the one of round ``before`` that it was made from."""
        states = self._kept.get(client_id, {})
        states = {round_id: one for round_id, one in states.items() if round_id == before}
        self._kept[client_id] = {**states, stored.round_id: stored}

    def begin(self, round_id: int) -> None:
        """A round opens, so those before it are complete: of each client one state is enough."""
        if round_id <= self._open:
            return
        self._open = round_id
        for client_id, states in self._kept.items():
            last = max(states)
            self._kept[client_id] = {last: states[last]}


def processes(count: int) -> OpenWorkers:
    """Workers that are processes of this machine, one thread each.

    Args:
        count: how many at most; never more than clients.
    """

    @contextmanager
    def opened(
        spec: WorkerSpec, restored: Mapping[str, StoredClient], _folder: Path
    ) -> Iterator[Workers]:
        with _pool(spec, min(count, len(spec.clients))) as pool:
            yield _Processes(pool, restored)

    return opened


@contextmanager
def _pool(spec: WorkerSpec, count: int) -> Iterator[ProcessPoolExecutor]:
    before = dict(os.environ)
    os.environ.update(thread_variables(1))  # read by the children's libraries when they load
    pool = ProcessPoolExecutor(
        count,
        multiprocessing.get_context("spawn"),
        initializer=_worker.start,
        initargs=(spec, os.getpid()),
    )
    try:
        yield pool
    except BrokenProcessPool as error:
        raise ProtofleetError(
            f"a worker of '{spec.label}' died, perhaps of lack of memory: use fewer --workers"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        for name in thread_variables(1):
            os.environ.pop(name)
        os.environ.update({k: v for k, v in before.items() if k in thread_variables(1)})


class _Processes:
    """States stay in this process and travel with every task, so any process takes any client."""

    def __init__(self, pool: ProcessPoolExecutor, restored: Mapping[str, StoredClient]) -> None:
        self._pool, self._states = pool, ClientStates(restored)

    def train(self, tasks: Sequence[WorkerTask]) -> list[WorkerResult]:
        ordered = sorted(tasks, key=lambda task: task.client_id)
        for task in ordered[:1]:
            self._states.begin(task.order.round_id)
        stored = [self._states.at(task.client_id, task.before) for task in ordered]
        results = []
        for task, (result, kept) in zip(
            ordered, self._pool.map(_worker.train, ordered, stored), strict=True
        ):
            self._states.put(task.client_id, task.before, kept)
            results.append(result)
        return results

    def stored(self, rounds: Mapping[str, int]) -> dict[str, StoredClient]:
        found = {name: self._states.at(name, round_id) for name, round_id in rounds.items()}
        return {name: one for name, one in found.items() if one is not None}
