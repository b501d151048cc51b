"""One core's share of a local run: trains one client at a time with the device's own code."""

from __future__ import annotations

import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

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
from protofleet.federation.records import ClientCosts, Costs
from protofleet.firmware_sim.die_with_parent import die_with_parent
from protofleet.kernels import set_threads
from protofleet.runtime import open_programs
from protofleet.strategies.types import ClientState
from protofleet.tensors import blobs
from protofleet.wire.codecs import Coding


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What every client of a run has in common.

    Attributes:
        label: of the run's method, for people.
        bundle: verified by each worker.
        strategy, settings: of the run.
        clients: files by client.
        pooled: all clients' test parts; None: not scored.
        flipped: clients that train on flipped labels.
    """

    label: str
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
    """

    round_id: int
    state: bytes
    residual: bytes

    def memory(self) -> ClientMemory:
        """What the client trains from."""
        state = ClientState(round_id=self.round_id, tensors=_tensors(self.state))
        return ClientMemory(state=state, residual=_tensors(self.residual))

    def packed(self) -> bytes:
        """One blob of both."""
        parts = {"state": self.state, "residual": self.residual}
        return blobs.encode({part: np.frombuffer(of, np.uint8) for part, of in parts.items()})

    @classmethod
    def unpacked(cls, round_id: int, data: bytes) -> Self:
        """What ``packed`` has made one blob of.

        Raises:
            RefusedError: it is no blob.
            KeyError: it is one of something else.
        """
        parts = _tensors(data)
        state, residual = (parts[part].tobytes() for part in ("state", "residual"))
        return cls(round_id=round_id, state=state, residual=residual)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTask:
    """One client's round.

    Attributes:
        client_id: of the client.
        order: what it is asked for.
        payload, coding: the blob that would travel.
        baseline: raw blob of the payload that it refers to; empty: none.
        before: the client's round before this one, from whose state it trains; 0: none.
    """

    client_id: str
    order: RoundConfig
    payload: bytes
    coding: Coding
    baseline: bytes
    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResult:
    """What the round made for the server; ``update`` is the blob that would travel.

    ``costs`` are told beside it: within, they would change its bytes from run to run.
    """

    client_id: str
    round_id: int
    update: bytes
    coding: Coding
    class_counts: tuple[int, ...]
    costs: ClientCosts


class ClientTrainer:
    """This process's programs, and the clients that it has met."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._bundle = Bundle.open(spec.bundle, any_signer=True)
        self._programs = open_programs(self._bundle, threads=1)
        self._pooled = None if spec.pooled is None else load_pooled(spec.pooled)
        self._learners: dict[str, Learner] = {}

    def train(
        self, task: WorkerTask, stored: StoredClient | None
    ) -> tuple[WorkerResult, StoredClient]:
        """One local round, from blobs to blobs; ``stored`` is None before a client's first."""
        learner = self._learner(task.client_id)
        strategy = learner.strategy(self._spec.strategy, self._spec.settings)
        received = receive_payload(
            task.payload,
            task.coding,
            task.order,
            model=learner.model,
            earlier=lambda _: _tensors(task.baseline),
            forms=strategy.payload,
        )
        trained = train_round(
            learner,
            strategy,
            ClientMemory() if stored is None else stored.memory(),
            received,
            costs=lambda _: Costs(),
        )
        spent = learner.meter.take().cpu_s
        kept = StoredClient(
            round_id=trained.state.round_id,
            state=blobs.encode(trained.state.tensors),
            residual=blobs.encode(trained.residual),
        )
        result = WorkerResult(
            client_id=task.client_id,
            round_id=kept.round_id,
            update=trained.blob,
            coding=trained.coding,
            class_counts=learner.class_counts(task.order.round_id),
            costs=ClientCosts(
                train_s=spent.get("train", 0.0) + spent.get("encode", 0.0),
                kept_bytes=len(kept.state) + len(kept.residual),
            ),
        )
        return result, kept

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


_workers: list[ClientTrainer] = []


def start(spec: WorkerSpec, parent: int) -> None:
    """Prepare this process; Ctrl-C is its parent's business, and so is its life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent)
    set_threads(1)
    _workers.append(ClientTrainer(spec))


def train(task: WorkerTask, stored: StoredClient | None) -> tuple[WorkerResult, StoredClient]:
    """One client's round in this process, and what it keeps."""
    return _workers[0].train(task, stored)
