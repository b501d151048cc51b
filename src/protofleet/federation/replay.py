"""The states of a run made again from the order in which its updates were admitted.

Everything that a run computes follows from its settings and that order: what each device was sent,
what it trained (its randomness follows from seed, round and device), and what the server made of
the updates. ``coordinator.ledger.Ledger.admissions`` gives the order of a run that was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from protofleet.federation.client import RoundConfig
from protofleet.federation.coding import (
    CodedPayload,
    DecodedUpdate,
    PayloadEncoder,
    update_baseline,
)
from protofleet.federation.outcomes.alone import LOCAL
from protofleet.federation.schedules.staleness import late_name
from protofleet.federation.server import Server
from protofleet.strategies.types import ServerState
from protofleet.tensors import Tensors, blobs
from protofleet.wire.codecs import Coding


class Admission(NamedTuple):
    """An accepted update's place in a run.

    Attributes:
        counted_in: the round in whose aggregation it counts.
        client_id: whose.
        round_id: of the task that it answers.
        work: the share of the local training that was done.
    """

    counted_in: int
    client_id: str
    round_id: int
    work: float = 1.0


Answer = Callable[[str, RoundConfig, CodedPayload], tuple[bytes, Coding]]
"""Trains a client: from its id, what is asked of it and its payload, the update's blob and coding.
A client's updates are asked for in the order in which they were admitted."""


@dataclass(slots=True)
class Replay:
    """The server's half of a run, one admitted update after the other.

    Attributes:
        server: of the run's plan; its strategy needs no class counts and no noise.
        states: by the number of rounds that made them, as far as tasks may still be of them.
    """

    server: Server
    states: dict[int, ServerState] = field(default_factory=dict)
    _held: dict[str, str] = field(default_factory=dict)
    _raw: dict[str, bytes] = field(default_factory=dict)
    _kept: dict[str, DecodedUpdate] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.states[0] = self.server.plan.server_init()

    def payload(self, client_id: str, round_id: int) -> CodedPayload:
        """What a client gets for its task of a round; the state before that round is there."""
        plan = self.server.plan
        tensors = plan.strategy.downlink(self.states[round_id - 1], client_id).tensors
        encoder = PayloadEncoder(plan.model, self._earlier, lambda coded: coded)
        reference = self._held.get(client_id, "")
        return encoder.encode(tensors, plan.config.codec.payloads, reference)

    def order(self, round_id: int, work: float = 1.0) -> RoundConfig:
        """What is asked of a client in a task of a round."""
        plan = self.server.plan
        return RoundConfig(
            round_id=round_id,
            seed=plan.config.seed,
            codec=plan.config.codec.updates,
            sends=plan.sends,
            work=work,
            alone=plan.config.evaluation.baseline == LOCAL,
        )

    def admit(
        self, admission: Admission, sent: CodedPayload, blob: bytes, coding: Coding
    ) -> DecodedUpdate:
        """Take a client's update of the payload that it was sent.

        Raises:
            RefusedError: it breaks a rule.
        """
        counted_in, client_id, round_id, _ = admission
        payload, _ = blobs.decode(sent.raw, max_bytes=len(sent.raw))
        baseline = update_baseline(self.server.plan.model, payload)
        decoded = self.server.admit(
            blob,
            coding,
            baseline=baseline,
            client_id=client_id,
            round_id=round_id,
            class_counts=None,
            num_examples=None,
            bounds={},
        )
        name = client_id if round_id == counted_in else late_name(client_id, round_id)
        self._kept[name] = self.server.to_keep(decoded, baseline, counted_in)
        self._held[client_id] = sent.held
        self._raw[sent.held] = sent.raw
        return decoded

    def close(self, round_id: int) -> ServerState:
        """The state of the updates that were admitted since the last close."""
        kept = [self._kept[name] for name in sorted(self._kept)]
        self._kept.clear()
        outcome = self.server.aggregate(
            self.states[round_id - 1], round_id, [one.update for one in kept], kept, final=False
        )
        self.states[round_id] = outcome.state
        oldest = round_id - self.server.plan.config.schedule.patience
        self.states = {done: state for done, state in self.states.items() if done >= oldest}
        return outcome.state

    def _earlier(self, reference: str) -> Tensors:
        raw = self._raw[reference]
        return blobs.decode(raw, max_bytes=len(raw))[0]


def replay(
    server: Server, admissions: Iterable[Admission], answer: Answer
) -> Iterator[ServerState]:
    """The state after each round of a run.

    Args:
        server: of the run's plan.
        admissions: of whole rounds, in order.
        answer: trains the clients.

    Raises:
        RefusedError: an update breaks a rule.
    """
    run = Replay(server)
    for round_id, admitted in groupby(admissions, key=lambda one: one.counted_in):
        for one in admitted:
            sent = run.payload(one.client_id, one.round_id)
            blob, coding = answer(one.client_id, run.order(one.round_id, one.work), sent)
            run.admit(one, sent, blob, coding)
        yield run.close(round_id)
