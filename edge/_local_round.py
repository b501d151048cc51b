"""One local round in a thread of its own, so that the link is served while the device trains."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

from protofleet.edge.store import Store
from protofleet.edge.training import Learner, TrainingCancelledError
from protofleet.strategies.scores import macro_f1
from protofleet.strategies.types import ClientState, Payload, Strategy, Update
from protofleet.strategies.updates import (
    Costs,
    encode_update,
    initial_tensors,
    percentiles,
    references_of,
)
from protofleet.tensors import Model, Tensors, blobs
from protofleet.wire import codecs
from protofleet.wire.codecs import Codec, Coding
from protofleet.wire.messages import Manifest, Task
from protofleet.wire.transfer import Limits, Received


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The round in progress, up to its commit."""

    task: Task
    payload: Manifest
    strategy: Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What a round starts from beside its payload.

    Attributes:
        state: after the last delivered round; None before the first.
        residual: what coding that round's update has left.
        payload: SHA-256 of the payload's raw blob.
    """

    state: ClientState | None
    residual: Tensors
    payload: str

    @classmethod
    def of(cls, store: Store) -> Self:
        """What a store holds."""
        received = store.journal.received
        return cls(
            state=store.load_state(),
            residual=store.load_residual(),
            payload=received.file.sha256 if received else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a local round made."""

    state: ClientState
    update: Update
    costs: Costs
    blob: bytes
    coding: Coding
    residual: Tensors

    def figures(self) -> dict[str, Any]:
        """What a person or a program wants to know of the round."""
        own = self.update.evaluation.own
        return {
            "round_id": self.update.round_id,
            "num_examples": self.update.num_examples,
            "loss": self.update.loss,
            "macro_f1": None if own is None else macro_f1(own),
            "train_s": self.costs.phases_s.get("train", 0.0),
            "train_step_ms": percentiles(self.costs.train_step_ms, 50, 95),
            "infer_ms": percentiles(self.costs.infer_ms, 50, 95, 99),
            "peak_rss_bytes": self.costs.peak_rss_bytes,
        }


class LocalTraining:
    """The worker thread; everything else of it belongs to the agent's thread.

    Args:
        learner: what trains.
        wake: called in the worker's thread when a round is done.
    """

    def __init__(self, learner: Learner, wake: Callable[[], None]) -> None:
        self._learner = learner
        self._wake = wake
        self._worker = ThreadPoolExecutor(1, "training")
        self._cancelled = threading.Event()
        self._warm_up: Future[None] | None = None
        self._running: Future[Trained] | None = None

    def warm_up(self) -> None:
        """Prepare programs and kernels, before the first round if there is time."""
        self._warm_up = self._worker.submit(self._learner.warm_up)

    def start(self, current: Round, stored: Stored, payload: Payload) -> None:
        """Begin to train."""
        self._cancelled.clear()
        self._running = self._worker.submit(self._train, current, stored, payload)
        self._running.add_done_callback(lambda _: self._wake())

    def cancel(self) -> None:
        """Give the running round up at its next step."""
        self._cancelled.set()

    def finished(self) -> bool:
        """Whether a round is done and waits for ``take``; raises what the warm-up raised."""
        if self._warm_up is not None and self._warm_up.done():
            self._warm_up.result()
            self._warm_up = None
        return self._running is not None and self._running.done()

    def take(self) -> Trained | None:
        """The finished round's result, or what it raised; None if it was cancelled."""
        running, self._running = self._running, None
        if running is None:
            return None
        try:
            return running.result()
        except TrainingCancelledError:
            return None

    def close(self) -> None:
        """Cancel and wait for the thread."""
        self._cancelled.set()
        self._worker.shutdown(wait=True, cancel_futures=True)

    def _train(self, current: Round, stored: Stored, payload: Payload) -> Trained:
        meter, task = self._learner.meter, current.task
        new_state, update = self._learner.train(
            current.strategy, stored.state, payload, seed=task.seed, cancelled=self._cancelled
        )
        model = current.strategy.client_model(new_state)
        rule = current.strategy.client_score(new_state)
        self._learner.measure_inference(self._learner.window_scores(model, score=rule))
        costs = meter.take()
        with meter.phase("encode"):
            encoded = encode_update(
                update,
                costs,
                references_of(self._learner.model, payload.tensors),
                Codec.of(task.update_codec, task.update_keep),
                stored.residual,
            )
        return Trained(
            state=new_state,
            update=update,
            costs=costs,
            blob=encoded.blob,
            coding=encoded.coding(stored.payload),
            residual=encoded.residual,
        )


def raw_payload(event: Received, store: Store, model: Model) -> bytes:
    """The raw blob of a payload that has arrived.

    Raises:
        RefusedError: it is not what its codec writes, or refers to what is not here.
    """
    manifest, blob = event.manifest, event.path.read_bytes()
    if manifest.codec == codecs.RAW:
        return blob
    base = store.load_base(manifest.base) if manifest.base else {}
    references = {**initial_tensors(model), **base}
    return codecs.to_raw(blob, references, manifest.coding, max_bytes=Limits().max_blob_bytes)


def open_payload(blob: bytes, task: Task) -> Payload:
    """The payload of ``task`` in a raw blob; its tensors are read-only views into it.

    Raises:
        RefusedError: not a blob, or not finite.
    """
    tensors, _ = blobs.decode(blob, max_bytes=len(blob))
    blobs.check_finite(tensors)
    return Payload(round_id=task.round_id, tensors=tensors, final=task.final)
