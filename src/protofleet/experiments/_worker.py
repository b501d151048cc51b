"""One core's share of a local run: trains one client at a time with the device's own code."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from protofleet.bundle import Bundle
from protofleet.datasets import DeviceData, load_device_data, load_pooled
from protofleet.edge.learning.meter import Meter
from protofleet.edge.learning.training import Learner, LocalData
from protofleet.experiments.attacks import flipped_labels
from protofleet.experiments.prepare import ClientFiles
from protofleet.federation.client import (
    ClientMemory,
    ReceivedPayload,
    RoundConfig,
    TrainedRound,
    receive_payload,
    train_round,
)
from protofleet.federation.records import ClientCosts, Costs
from protofleet.runtime import open_programs
from protofleet.strategies.strategy import Strategy
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
        state = ClientState(round_id=self.round_id, tensors=decoded(self.state))
        return ClientMemory(state=state, residual=decoded(self.residual))

    def packed(self) -> bytes:
        """One blob of both."""
        return b"".join(self.packed_parts())

    def packed_parts(self) -> list[bytes | memoryview]:
        """``packed`` in parts, none of them a copy."""
        return blobs.nested_parts({"state": [self.state], "residual": [self.residual]})

    @classmethod
    def unpacked(cls, round_id: int, data: bytes) -> Self:
        """What ``packed`` has made one blob of.

        Raises:
            RefusedError: it is no blob.
            KeyError: it is one of something else.
        """
        parts = decoded(data)
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
    payload: bytes | memoryview
    coding: Coding
    baseline: bytes | memoryview
    before: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerResult:
    """What the round made for the server; ``update`` is the blob that would travel.

    It may lie in memory that the next round writes.

    ``costs`` are told beside it: within, they would change its bytes from run to run.
    """

    client_id: str
    round_id: int
    update: bytes | memoryview
    coding: Coding
    class_counts: tuple[int, ...]
    costs: ClientCosts


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedClient:
    """A client's round before its state is written anywhere.

    Attributes:
        round: what it made.
        class_counts: as in ``WorkerResult``.
        train_s: as in ``ClientCosts``.
    """

    round: TrainedRound
    class_counts: tuple[int, ...]
    train_s: float

    def result(self, client_id: str, update: bytes | memoryview, kept_bytes: int) -> WorkerResult:
        """For the server, with the update where it lies."""
        return WorkerResult(
            client_id=client_id,
            round_id=self.round.state.round_id,
            update=update,
            coding=self.round.coding,
            class_counts=self.class_counts,
            costs=ClientCosts(train_s=self.train_s, kept_bytes=kept_bytes),
        )


class ClientTrainer:
    """This process's programs, and the clients that it has met."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._bundle = Bundle.open(spec.bundle, any_signer=True)
        self._model = self._bundle.model()
        self._programs = open_programs(self._bundle, threads=1)
        self._pooled = None if spec.pooled is None else load_pooled(spec.pooled)
        self._learners: dict[str, Learner] = {}
        self._received: tuple[WorkerTask, ReceivedPayload] | None = None

    def train(
        self, task: WorkerTask, stored: StoredClient | None
    ) -> tuple[WorkerResult, StoredClient]:
        """One local round, from blobs to blobs; ``stored`` is None before a client's first."""
        trained = self.trained(task, ClientMemory() if stored is None else stored.memory())
        kept = StoredClient(
            round_id=trained.round.state.round_id,
            state=blobs.encode(trained.round.state.tensors),
            residual=blobs.encode(trained.round.residual),
        )
        kept_bytes = len(kept.state) + len(kept.residual)
        return trained.result(task.client_id, trained.round.blob, kept_bytes), kept

    def trained(self, task: WorkerTask, memory: ClientMemory) -> TrainedClient:
        """One local round; what it made may lie in memory that the next one writes."""
        learner = self._learner(task.client_id)
        trained = train_round(
            learner, self._strategy, memory, self._receive(task), costs=lambda _: Costs()
        )
        spent = learner.meter.take_cpu()
        return TrainedClient(
            round=trained,
            class_counts=learner.class_counts(task.order.round_id),
            train_s=spent.get("train", 0.0) + spent.get("encode", 0.0),
        )

    @cached_property
    def _strategy(self) -> Strategy:
        (first, *_) = self._learners.values()
        return first.strategy(self._spec.strategy, self._spec.settings)

    def _receive(self, task: WorkerTask) -> ReceivedPayload:
        """The task's payload; what was sent to the client before as well is not decoded twice."""
        if self._received is not None and _same_payload(task, self._received[0]):
            return self._received[1]
        received = receive_payload(
            task.payload,
            task.coding,
            task.order,
            model=self._model,
            earlier=lambda _: decoded(task.baseline),
            forms=self._strategy.payload,
        )
        self._received = task, received
        return received

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


def _same_payload(one: WorkerTask, other: WorkerTask) -> bool:
    """Whether both have the very same blobs, and order."""
    return (
        one.payload is other.payload
        and one.baseline is other.baseline
        and one.coding == other.coding
        and one.order == other.order
    )


def decoded(blob: bytes | memoryview) -> dict[str, Any]:
    """The tensors of one of our own blobs, as views into it."""
    tensors, _ = blobs.decode(blob, max_bytes=len(blob))
    return dict(tensors)
