"""A strategy that trains nothing and uses all that the contract offers besides.

Its server keeps, for every round r, ``seen/r`` (the sum of the clients' class counts) and
``senders/r`` (how many updates had tensors). Nothing goes down in round 1 and nobody sends tensors
in it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from protofleet.strategies.strategy import Strategy
from protofleet.strategies.types import (
    ClientState,
    ClientTools,
    Description,
    Payload,
    ServerState,
    TensorSchema,
    TensorSchemas,
    Update,
    Updates,
    WireContents,
)
from protofleet.tensors import Model

_MOST_ROUNDS = 9


class Census(Strategy):
    description = Description(
        name="census",
        paper="",
        objectives=(),
        travels=WireContents(down=(), up=(), personal=()),
        class_counts=True,
        final_fit=True,
    )

    @classmethod
    def build(cls, _settings: object, model: Model) -> Strategy:
        return cls(None, model)

    def __init__(self, settings: None, model: Model) -> None:
        super().__init__(settings, model)
        self.payload = TensorSchemas(
            optional={
                "seen": TensorSchema((None, model.num_classes), "int64", _MOST_ROUNDS),
                "senders": TensorSchema((None,), "int64", _MOST_ROUNDS),
            }
        )
        self.uplink = TensorSchemas(optional={"mark": TensorSchema((2,))})

    def server_init(self, _model: Model, _rng: np.random.Generator) -> ServerState:
        return ServerState(round_id=0, tensors={})

    def downlink(self, state: ServerState, _client_id: str) -> Payload:
        found: dict[str, np.ndarray] = {}
        for name in ("seen", "senders"):
            rounds = [state.tensors[f"{name}/{r}"] for r in range(1, state.round_id + 1)]
            if rounds:
                found[name] = np.stack(rounds)
        return Payload(round_id=state.round_id + 1, tensors=found)

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        abstains = len(tools.training.y) and payload.round_id == 1
        evaluation = tools.evaluate(self.model.network)
        if payload.final and evaluation.own is not None:
            evaluation = replace(evaluation, more={"final": evaluation.own})
        update = Update(
            client_id=tools.client_id,
            round_id=payload.round_id,
            num_examples=len(tools.training.y),
            tensors={} if abstains else {"mark": np.ones(2, np.float32)},
            evaluation=evaluation,
        )
        return replace(state, round_id=payload.round_id), update

    def aggregate(self, state: ServerState, updates: Updates, _tools: object) -> ServerState:
        round_id = state.round_id + 1
        seen = [(update.class_counts, len(update.tensors)) for update in updates]
        new = {
            f"seen/{round_id}": sum(counts for counts, _ in seen),
            f"senders/{round_id}": np.array(sum(tensors for _, tensors in seen)),
        }
        return ServerState(round_id=round_id, tensors={**state.tensors, **new})
