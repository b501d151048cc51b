"""One core's share of a local run: trains one client at a time with the device's own code."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from protofleet.bundle import Bundle
from protofleet.datasets import DeviceData, load_device_data, load_pooled
from protofleet.edge.meter import Meter
from protofleet.edge.training import Learner, LocalData
from protofleet.experiments.attacks import flipped_labels
from protofleet.experiments.prepare import ClientFiles
from protofleet.federation.client import (
    ClientMemory,
    RoundConfig,
    receive_payload,
    train_round,
)
from protofleet.federation.records import Costs
from protofleet.firmware_sim.die_with_parent import die_with_parent
from protofleet.kernels import set_threads
from protofleet.runtime import open_programs
from protofleet.strategies.types import ClientState
from protofleet.tensors import blobs
from protofleet.wire.codecs import Coding

_NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What every client of a run has in common.

    Attributes:
        bundle: verified by each worker.
        strategy, settings: of the run.
        clients: files by client.
        pooled: all clients' test parts; None: not scored.
        flipped: clients that train on flipped labels.
    """

    bundle: Path
    strategy: str
    settings: dict[str, Any]
    clients: dict[str, ClientFiles]
    pooled: Path | None
    flipped: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredClient:
    """What a client keeps between rounds.

    Attributes:
        round_id: of its state.
        state: blob of its state.
        residual: blob of what coding its last update has left.
        reference: the last payload, if the next one refers to it; else empty.
    """

    round_id: int
    state: bytes
    residual: bytes
    reference: str = ""

    def memory(self) -> ClientMemory:
        """What the client trains from."""
        state = ClientState(round_id=self.round_id, tensors=_tensors(self.state))
        return ClientMemory(state=state, residual=_tensors(self.residual))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTask:
    """One client's round.

    Attributes:
        client_id: of the client.
        order: what it is asked for.
        payload, coding: the blob that would travel.
        baseline: raw blob of the payload that it refers to; empty: none.
        stored: what the client has kept; None before its first round.
    """

    client_id: str
    order: RoundConfig
    payload: bytes
    coding: Coding
    baseline: bytes
    stored: StoredClient | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResult:
    """What the round made; ``update`` is the blob that would travel."""

    client_id: str
    update: bytes
    coding: Coding
    stored: StoredClient
    class_counts: tuple[int, ...]


class _Worker:
    """This process's programs, and the clients that it has met."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._bundle = Bundle.open(spec.bundle, any_signer=True)
        self._programs = open_programs(self._bundle, threads=1)
        self._pooled = None if spec.pooled is None else load_pooled(spec.pooled)
        self._learners: dict[str, Learner] = {}

    def train(self, task: WorkerTask) -> WorkerResult:
        """One local round, from blobs to blobs."""
        learner = self._learner(task.client_id)
        received = receive_payload(
            task.payload,
            task.coding,
            task.order,
            model=learner.model,
            earlier=lambda _: _tensors(task.baseline),
            max_bytes=_NO_LIMIT,
        )
        trained = train_round(
            learner,
            learner.strategy(self._spec.strategy, self._spec.settings),
            ClientMemory() if task.stored is None else task.stored.memory(),
            received,
            costs=lambda _: Costs(),
        )
        learner.meter.take()
        return WorkerResult(
            client_id=task.client_id,
            update=trained.blob,
            coding=trained.coding,
            stored=StoredClient(
                round_id=trained.state.round_id,
                state=blobs.encode(trained.state.tensors),
                residual=blobs.encode(trained.residual),
            ),
            class_counts=learner.class_counts(task.order.round_id),
        )

    def _learner(self, client_id: str) -> Learner:
        if client_id not in self._learners:
            files = self._spec.clients[client_id]
            data = LocalData(
                own=self._load(client_id, files.own),
                pooled=self._pooled,
                later=tuple((start, self._load(client_id, path)) for start, path in files.later),
            )
            self._learners[client_id] = Learner(
                self._bundle, self._programs, data, Meter(), client_id
            )
        return self._learners[client_id]

    def _load(self, client_id: str, path: Path) -> DeviceData:
        data = load_device_data(path)
        if client_id not in self._spec.flipped:
            return data
        return replace(data, y_train=flipped_labels(data.y_train, len(data.classes)))


def _tensors(blob: bytes) -> dict[str, Any]:
    tensors, _ = blobs.decode(blob, max_bytes=len(blob))
    return dict(tensors)


_workers: list[_Worker] = []


def start(spec: WorkerSpec, parent: int) -> None:
    """Prepare this process; Ctrl-C is its parent's business, and so is its life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent)
    set_threads(1)
    _workers.append(_Worker(spec))


def train(task: WorkerTask) -> WorkerResult:
    """One client's round in this process."""
    return _workers[0].train(task)
