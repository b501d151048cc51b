"""What a strategy is: a frozen record of pure functions, one file for both halves.

Shared tensors travel in payloads and updates; a client's personal tensors stay in its
``ClientState`` on the device. Nothing is ever written into an input array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from protofleet.wire.tensors import Model, TensorMap, Tensors

Batch = Mapping[str, NDArray[Any]]
"""Inputs of a training program by key: ``x``, ``y`` and whatever its objective needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """What the coordinator keeps between rounds; ``round_id`` counts aggregated rounds."""

    round_id: int
    tensors: Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientState:
    """What a device keeps between rounds; ``round_id`` is the last round it trained (0: none)."""

    round_id: int
    tensors: Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """Server → client content of round ``round_id`` (from 1)."""

    round_id: int
    tensors: Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Confusion counts, ``(C, C) int64``, rows true and columns predicted class.

    Attributes:
        own: of the client's model on its own test part; None where it has none.
        pooled: of the client's model on the union of all test parts; None if not rehearsed.
    """

    own: NDArray[np.int64] | None = None
    pooled: NDArray[np.int64] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Client → server content of one round.

    Attributes:
        num_examples: number of training samples, the aggregation weight.
        tensors: what travels.
        evaluation: scores of the client's model at the moment the strategy names.
        loss: mean training loss of the last local epoch; NaN if nothing was trained.
    """

    client_id: str
    round_id: int
    num_examples: int
    tensors: Tensors
    evaluation: Evaluation = field(default_factory=Evaluation)
    loss: float = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Result of one call of a training program.

    Attributes:
        loss: mean loss of the batch.
        grads: gradient of every parameter, in the layout of the parameters. The buffer belongs to
            the runtime and is overwritten by the next call.
        state: the model's state after the call; same ownership, but it may be the input of the
            next call.
    """

    loss: float
    grads: TensorMap
    state: TensorMap


class GradFn(Protocol):
    """A training program: forward and backward over one batch, noise drawn from ``rng``."""

    def __call__(
        self, params: TensorMap, state: TensorMap, batch: Batch, rng: np.random.Generator
    ) -> Step:
        """Loss, gradients and new state of one batch."""
        ...


class EvaluateFn(Protocol):
    """Evaluates a model on the client's own test part and, in a rehearsal, on the pooled one."""

    def __call__(self, params: TensorMap, state: TensorMap) -> Evaluation:
        """Confusion counts of the model."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTools:
    """What a device injects into ``client_update``.

    Attributes:
        client_id: the durable identity.
        x, y: the local training part, ``(n, …) float32`` and ``(n,) int64``.
        grad_fns: training programs by objective name, e.g. ``cross_entropy``.
        evaluate: scores a model on the client's test data.
        rng: seeded by federation seed, client and round, so that a rerun gives the same bits.
    """

    client_id: str
    x: NDArray[np.float32]
    y: NDArray[np.int64]
    grad_fns: Mapping[str, GradFn]
    evaluate: EvaluateFn
    rng: np.random.Generator


class Updates(Protocol):
    """Accepted updates of one round, sorted by client_id; items are read when asked for."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Update]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Travels:
    """What crosses the wire and what never does, in words, for ``protofleet strategies``."""

    down: tuple[str, ...]
    up: tuple[str, ...]
    personal: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What can be said of a strategy without a model.

    Attributes:
        name: key in ``protofleet.strategies.STRATEGIES``.
        paper: citation.
        programs: objectives whose training programs it needs.
        travels: what goes down, up, and stays.
    """

    name: str
    paper: str
    programs: tuple[str, ...]
    travels: Travels


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy(Description):
    """A personalised federated-learning algorithm, both halves.

    Attributes:
        settings: the validated settings it was built from.
        server_init: the coordinator's state before round 1.
        downlink: what one client gets in the next round, ``server_state.round_id + 1``.
        client_init: a device's state when it joins.
        client_update: one local round; the update and the state to keep if it is delivered.
        client_model: parameters and state with which the device infers now.
        aggregate: the server's state after a round. Permuting updates changes no bit.
        server_model: the global model, or None where the strategy has none.
    """

    settings: Any
    server_init: Callable[[Model], ServerState]
    downlink: Callable[[ServerState, str], Payload]
    client_init: Callable[[Model], ClientState]
    client_update: Callable[[ClientState, Payload, ClientTools], tuple[ClientState, Update]]
    client_model: Callable[[ClientState], tuple[TensorMap, TensorMap]]
    aggregate: Callable[[ServerState, Updates], ServerState]
    server_model: Callable[[ServerState], tuple[TensorMap, TensorMap] | None]


Factory = Callable[[Mapping[str, Any], Model], Strategy]
"""Builds a strategy from settings (defaults where absent; unknown keys refused) and the model."""
