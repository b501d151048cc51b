"""How much memory a method's round needs on a device, measured in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from protofleet.edge.learning.meter import peak_rss_bytes
from protofleet.errors import ProtofleetError
from protofleet.experiments._worker import (
    ClientTrainer,
    StoredClient,
    WorkerResult,
    WorkerSpec,
    WorkerTask,
)
from protofleet.experiments.local import run_local
from protofleet.experiments.run import Job
from protofleet.experiments.workers import OpenWorkers, Workers
from protofleet.kernels import set_threads
from protofleet.threads import thread_variables

_ROUNDS = 2
"""The second one is the first that starts from what a client keeps."""


def measure_memory(job: Job, opened: OpenWorkers) -> int:
    """Train a job's first rounds again, and the last of them once more where nothing else has run.

    Args:
        job: of a run; a folder in its own is used and removed.
        opened: opens the workers for the rounds.

    Returns:
        Largest resident memory of the process that trained the client with the most data, in
        bytes: Python, the runtime and its programs included, as of a device that trains its first
        round since it started.
    """
    folder = job.folder / "memory"
    probe = _Probe(_ROUNDS)
    short = replace(job, rounds=_ROUNDS, folder=folder)
    try:
        run_local(short, opened=probe.beside(opened), watch=lambda _: None)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if probe.peak_bytes is None:
        raise ProtofleetError(f"memory of '{job.method.label}': round {_ROUNDS} had no client")
    return probe.peak_bytes


class _Probe:
    """Repeats one client's round in a fresh process, and keeps what that needed: ``peak_bytes``."""

    def __init__(self, round_id: int) -> None:
        self._round_id = round_id
        self.peak_bytes: int | None = None

    def beside(self, opened: OpenWorkers) -> OpenWorkers:
        """The same workers, that the probe looks at."""

        @contextmanager
        def watched(
            spec: WorkerSpec, restored: Mapping[str, StoredClient], folder: Path
        ) -> Iterator[Workers]:
            with opened(spec, restored, folder) as workers:
                yield _Watched(workers, spec, self)

        return watched

    def asked(self, tasks: Sequence[WorkerTask]) -> Sequence[WorkerTask]:
        """Those of the round that is measured; empty in others."""
        return [one for one in tasks if one.order.round_id == self._round_id]

    def measure(self, spec: WorkerSpec, task: WorkerTask, stored: StoredClient | None) -> None:
        """Train the task where nothing else has been trained."""
        # As on a device: without the test parts of all clients together.
        alone = replace(spec, pooled=None)
        whole = replace(task, payload=bytes(task.payload), baseline=bytes(task.baseline))
        before = dict(os.environ)
        os.environ.update(thread_variables(1))  # read by the child's libraries when they load
        try:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                self.peak_bytes = pool.submit(_peak_bytes, alone, whole, stored).result()
        finally:
            for name in thread_variables(1):
                os.environ.pop(name)
            os.environ.update({k: v for k, v in before.items() if k in thread_variables(1)})


class _Watched:
    """Workers, and the probe before the round that it measures."""

    def __init__(self, workers: Workers, spec: WorkerSpec, probe: _Probe) -> None:
        self._workers, self._spec, self._probe = workers, spec, probe

    def train(self, tasks: Sequence[WorkerTask]) -> Iterable[WorkerResult]:
        if asked := self._probe.asked(tasks):
            files = self._spec.clients
            largest = max(asked, key=lambda one: files[one.client_id].own.stat().st_size)
            stored = self._workers.stored({largest.client_id: largest.before})
            self._probe.measure(self._spec, largest, stored.get(largest.client_id))
        return self._workers.train(tasks)

    def stored(self, rounds: Mapping[str, int]) -> dict[str, StoredClient]:
        return self._workers.stored(rounds)


def _peak_bytes(spec: WorkerSpec, task: WorkerTask, stored: StoredClient | None) -> int:
    set_threads(1)
    ClientTrainer(spec).train(task, stored)
    return peak_rss_bytes()
