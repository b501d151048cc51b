"""One core's share of a local run: trains one client at a time with the device's own code."""

from __future__ import annotations

import hashlib
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protofleet.bundle import Bundle
from protofleet.datasets import load_device_data, load_pooled
from protofleet.edge.meter import Meter
from protofleet.edge.training import Learner, LocalData
from protofleet.experiments.prepare import ClientFiles
from protofleet.firmware_sim.die_with_parent import die_with_parent
from protofleet.kernels import set_threads
from protofleet.runtime import open_programs
from protofleet.strategies.types import ClientState, Payload
from protofleet.strategies.updates import Costs, encode_update, initial_tensors, references_of
from protofleet.tensors import blobs
from protofleet.wire.codecs import Codec, Coding, to_raw

_NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSpec:
    """What every client of a run has in common.

    Attributes:
        bundle: verified by each worker.
        strategy, settings, seed: of the run.
        codec: of updates.
        clients: files by client.
        pooled: all clients' test parts; None: not scored.
    """

    bundle: Path
    strategy: str
    settings: dict[str, Any]
    seed: int
    codec: Codec
    clients: dict[str, ClientFiles]
    pooled: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a client keeps between rounds.

    Attributes:
        round_id: of its state.
        blob: of its state.
        residual: blob of what coding its last update has left.
        base: raw blob of the last payload, if the next one refers to it; else empty. The engine
            adds it, so that one copy serves all clients.
    """

    round_id: int
    blob: bytes
    residual: bytes
    base: bytes = b""

    def opened(self) -> ClientState:
        """The state itself."""
        return ClientState(round_id=self.round_id, tensors=_decoded(self.blob))


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One client's round; ``payload`` is the blob that would travel, coded as ``coding`` says."""

    client_id: str
    round_id: int
    final: bool
    payload: bytes
    coding: Coding
    state: Kept | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What the round made; ``update`` is the blob that would travel."""

    client_id: str
    update: bytes
    coding: Coding
    state: Kept
    class_counts: tuple[int, ...]


class _Worker:
    """This process's programs, and the clients that it has met."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._bundle = Bundle.open(spec.bundle)
        self._programs = open_programs(self._bundle, threads=1)
        self._pooled = None if spec.pooled is None else load_pooled(spec.pooled)
        self._learners: dict[str, Learner] = {}
        self._initial = initial_tensors(self._bundle.model())

    def train(self, task: Task) -> Outcome:
        """One local round, from blobs to blobs."""
        learner = self._learner(task.client_id)
        strategy = learner.strategy(self._spec.strategy, self._spec.settings)
        raw = self._raw(task)
        payload = Payload(round_id=task.round_id, tensors=_decoded(raw), final=task.final)
        state = None if task.state is None else task.state.opened()
        new_state, update = learner.train(
            strategy, state, payload, seed=self._spec.seed, cancelled=threading.Event()
        )
        learner.meter.take()
        encoded = encode_update(
            update,
            Costs(),
            references_of(learner.model, payload.tensors),
            self._spec.codec,
            {} if task.state is None else _decoded(task.state.residual),
        )
        kept = Kept(
            round_id=new_state.round_id,
            blob=blobs.encode(new_state.tensors),
            residual=blobs.encode(encoded.residual),
        )
        return Outcome(
            client_id=task.client_id,
            update=encoded.blob,
            coding=encoded.coding(hashlib.sha256(raw).hexdigest()),
            state=kept,
            class_counts=learner.class_counts(task.round_id),
        )

    def _raw(self, task: Task) -> bytes:
        """The payload's raw blob."""
        base = _decoded(task.state.base) if task.state and task.state.base else {}
        return to_raw(task.payload, {**self._initial, **base}, task.coding, max_bytes=_NO_LIMIT)

    def _learner(self, client_id: str) -> Learner:
        if client_id not in self._learners:
            files = self._spec.clients[client_id]
            data = LocalData(
                own=load_device_data(files.own),
                pooled=self._pooled,
                later=tuple((start, load_device_data(path)) for start, path in files.later),
            )
            self._learners[client_id] = Learner(
                self._bundle, self._programs, data, Meter(), client_id
            )
        return self._learners[client_id]


def _decoded(blob: bytes) -> dict[str, Any]:
    tensors, _ = blobs.decode(blob, max_bytes=len(blob))
    return dict(tensors)


_workers: list[_Worker] = []


def start(spec: WorkerSpec, parent: int) -> None:
    """Prepare this process; Ctrl-C is its parent's business, and so is its life."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    die_with_parent(parent)
    set_threads(1)
    _workers.append(_Worker(spec))


def train(task: Task) -> Outcome:
    """One client's round in this process."""
    return _workers[0].train(task)
