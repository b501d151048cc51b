"""The client's half of a round: from a coded payload to a coded update; no sockets, no disks.

A device and every engine that stands in for one run the same three steps: ``receive_payload``,
``train_round``, and keep what came out if the round counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from protofleet.federation.coding import (
    decode_payload,
    encode_update,
    reference_of,
    update_baseline,
)
from protofleet.federation.outcomes.alone import ALONE, AloneLearner, split, train_alone
from protofleet.federation.outcomes.calibration import RATIOS, RateTester, try_rates
from protofleet.federation.outcomes.gate import GateEvidence
from protofleet.federation.records import Costs, HeldOutGain, Sends
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.training import DivergedError
from protofleet.strategies.types import ClientState, Evaluation, Payload, TensorSchemas, Update
from protofleet.tensors import Model, Tensors, blobs
from protofleet.wire.codecs import Codec, Coding

MOST_ROUNDS, MOST_SEED = 2**31 - 1, 2**63 - 1
"""What a federation may have, and a client believes; a final fit has the round behind the last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundConfig:
    """What the server asks of a client in a round.

    Attributes:
        round_id: from 1 to ``MOST_ROUNDS``, and one more for a final fit.
        seed: of the federation, from 0 to ``MOST_SEED``.
        final: whether it is the fit after the last round.
        codec: of the update.
        sends: what the client is to tell beside its tensors.
        work: share of the local training that is asked for, above 0 up to 1.
        rates: of a calibration: what it is to try in the place of training; empty: it is to train.
        alone: whether it trains without the others as well (``outcomes.alone``).
    """

    round_id: int
    seed: int
    final: bool = False
    codec: Codec = field(default_factory=Codec)
    sends: Sends = field(default_factory=Sends)
    work: float = 1.0
    rates: tuple[float, ...] = ()
    alone: bool = False

    def work_with(self, strategy: Strategy) -> float:
        """The share that is done: all of it where the strategy allows no less."""
        return self.work if self.work < 1 and strategy.description.partial_work else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMemory:
    """What a client keeps from the last round that counted.

    Attributes:
        state: the strategy's; None before the first round.
        residual: what coding that round's update has left.
        held_out: what examples that were held out have shown; None: none were.
    """

    state: ClientState | None = None
    residual: Tensors = field(default_factory=dict)
    held_out: HeldOutGain | None = None


@dataclass(frozen=True, kw_only=True)
class ReceivedPayload:
    """A payload that has arrived.

    Attributes:
        order: what is to be done with it.
        payload: for the strategy; its tensors are read-only views into ``raw``.
        raw: its raw blob.
    """

    order: RoundConfig
    payload: Payload
    raw: bytes | memoryview

    @cached_property
    def reference(self) -> str:
        """How an update names it."""
        return reference_of(self.raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRound:
    """What a local round made; it counts when the server has the update.

    Attributes:
        state, residual: to keep then (``ClientMemory``).
        update: what the strategy made.
        costs: of the round.
        parts: the update as it travels, some of it in the memory of ``update``.
        coding: for its offer.
        evidence: whether the new model helps the client's owner; None: nobody has looked.
    """

    state: ClientState
    residual: Tensors
    update: Update
    costs: Costs
    parts: Sequence[bytes | memoryview]
    coding: Coding
    evidence: GateEvidence | None = None

    @property
    def blob(self) -> bytes:
        """The parts as one; made anew each time."""
        return b"".join(self.parts)


class LocalLearner(AloneLearner, Protocol):
    """Trains a strategy on a client's own data; ``edge.learning.training.Learner`` does."""

    @property
    def model(self) -> Model:
        """The bundle's initial values."""
        ...

    @property
    def device_id(self) -> str:
        """Of the client."""
        ...

    def num_examples(self, round_id: int) -> int:
        """Training samples in a round's data."""
        ...

    def rate_tester(self, round_id: int) -> RateTester | None:
        """Trains without some of a round's training examples, and scores on those."""
        ...

    def train(
        self,
        strategy: Strategy,
        state: ClientState | None,
        payload: Payload,
        *,
        seed: int,
        work: float,
    ) -> tuple[ClientState, Update]:
        """One local round, or a share of it: the same arguments give the same bits."""
        ...

    def phase(self, name: Literal["encode"]) -> AbstractContextManager[None]:
        """Attributes the time spent in the block."""
        ...


def receive_payload(  # noqa: PLR0913 - what came and what it is read with, named at the call
    blob: bytes | memoryview,
    coding: Coding,
    order: RoundConfig,
    *,
    model: Model,
    earlier: Callable[[str], Tensors],
    forms: TensorSchemas,
) -> ReceivedPayload:
    """Decode and check a payload.

    Args:
        blob: as it arrived.
        coding: what its offer says.
        order: of its round.
        model: the bundle's initial values.
        earlier: the tensors of an earlier payload, by its reference.
        forms: what the strategy's payloads hold.

    Raises:
        RefusedError: it is not what its codec writes, refers to what is not here, or holds other
            tensors, or numbers that are not finite.
    """
    return open_payload(decode_payload(blob, coding, model, earlier, forms=forms), order, forms)


def open_payload(
    raw: bytes | memoryview, order: RoundConfig, forms: TensorSchemas
) -> ReceivedPayload:
    """A payload from its raw blob, as it was received before.

    Raises:
        RefusedError: not a blob, other tensors, or not finite.
    """
    tensors, _ = blobs.decode(raw, max_bytes=len(raw))
    forms.check(tensors)
    blobs.check_finite(tensors)
    payload = Payload(round_id=order.round_id, tensors=tensors, final=order.final)
    return ReceivedPayload(order=order, payload=payload, raw=raw)


def train_round(
    learner: LocalLearner,
    strategy: Strategy,
    memory: ClientMemory,
    received: ReceivedPayload,
    *,
    costs: Callable[[ClientState], Costs],
) -> TrainedRound:
    """Train, and encode the update.

    Args:
        learner: of the client.
        strategy: of the federation.
        memory: of the last round that counted.
        received: the round's payload.
        costs: what the round has cost so far, called after training with the new state.

    Raises:
        DivergedError: a loss or a trained tensor, model buffers included, is not finite; the
            memory is as it was and is to be kept.
    """
    order = received.order
    if order.rates:
        return _calibrated(learner, strategy, memory, received, costs=costs)
    work = order.work_with(strategy)
    before, alone = split(memory.state)

    def train(
        strategy: Strategy, state: ClientState | None, payload: Payload
    ) -> tuple[ClientState, Update]:
        state, update = learner.train(strategy, state, payload, seed=order.seed, work=work)
        check_trained(state.tensors)
        return state, update

    state, update = train(strategy, before, received.payload)
    # Most of an update are the state's very arrays.
    own = {name: v for name, v in update.tensors.items() if state.tensors.get(name) is not v}
    check_trained(own)
    kept: Tensors = {}
    if order.alone and order.sends.scores:
        kept, scored = train_alone(learner, strategy.settings, alone, received.payload, train)
        update = _with_alone(update, scored)
    spent = costs(state)
    with learner.phase("encode"):
        encoded = encode_update(
            update,
            spent,
            update_baseline(learner.model, received.payload.tensors),
            order.codec,
            memory.residual,
            sends=order.sends,
            work=work,
            held_out=memory.held_out,
        )
    check_trained(encoded.residual)
    return TrainedRound(
        state=replace(state, tensors={**state.tensors, **kept}),
        residual=encoded.residual,
        update=update,
        costs=spent,
        parts=encoded.parts,
        # A raw update names nothing, and a hash takes as long as a small model's step.
        coding=encoded.coding("" if order.codec.is_raw else received.reference),
    )


def _with_alone(update: Update, scored: Evaluation | None) -> Update:
    if scored is None or scored.own is None:
        return update
    told = update.evaluation
    return replace(update, evaluation=replace(told, more={**told.more, ALONE: scored.own}))


def _calibrated(
    learner: LocalLearner,
    strategy: Strategy,
    memory: ClientMemory,
    received: ReceivedPayload,
    *,
    costs: Callable[[ClientState], Costs],
) -> TrainedRound:
    """Try learning rates, or abstain; what the client keeps stays as it is."""
    order = received.order
    tester = learner.rate_tester(order.round_id)
    ratios = None
    if tester is not None:
        ratios = try_rates(tester, strategy, received.payload, seed=order.seed, rates=order.rates)
    update = Update(
        client_id=learner.device_id,
        round_id=order.round_id,
        num_examples=learner.num_examples(order.round_id),
        tensors={} if ratios is None else {RATIOS: ratios},
    )
    state = memory.state or strategy.client_init(learner.model)
    spent = costs(state)
    with learner.phase("encode"):
        encoded = encode_update(update, spent, {}, Codec(), {}, sends=order.sends)
    return TrainedRound(
        state=state,
        residual=memory.residual,
        update=update,
        costs=spent,
        parts=encoded.parts,
        coding=encoded.coding(""),
    )


def check_trained(tensors: Tensors) -> None:
    """Raise DivergedError, naming the tensor, unless every number is finite."""
    for name, value in tensors.items():
        if not blobs.is_finite(value):
            bad = int((~np.isfinite(value)).sum())
            raise DivergedError(
                f"tensor '{name}': {bad} of its {value.size} values are NaN or infinite after "
                "local training; lower the learning rate, or look for extreme values in the data"
            )
