"""A strategy whose personal state tells how often and in which rounds it was trained.

Round r turns the state c into 10 c + r, so 123 means rounds 1, 2 and 3, once each.
"""

from __future__ import annotations

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
    WireContents,
)
from protofleet.tensors import Model, Network


class Counting(Strategy):
    """The coordinator's half needs no model."""

    description = Description(
        name="counting",
        paper="",
        objectives=(),
        travels=WireContents(down=(), up=(), personal=()),
    )
    payload = TensorSchemas(required={"r": TensorSchema((1,), "float64")})
    uplink = TensorSchemas(required={"chain": TensorSchema((1,), "float64")})

    @classmethod
    def build(cls, _settings: object, model: Model | None) -> Strategy:
        return cls(None, model)

    def server_init(self, _model: Model | None, _rng: object) -> ServerState:
        return ServerState(round_id=0, tensors={"r": np.zeros(1)})

    def client_init(self, _model: Model | None) -> ClientState:
        return ClientState(round_id=0, tensors={"chain": np.zeros(1)})

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        chain = {"chain": state.tensors["chain"] * 10 + payload.round_id}
        update = Update(
            client_id=tools.client_id,
            round_id=payload.round_id,
            num_examples=len(tools.training.y),
            tensors=chain,
        )
        return ClientState(round_id=payload.round_id, tensors=chain), update

    def client_model(self, _state: ClientState) -> Network:
        return self.model.network

    def aggregate(self, state: ServerState, _updates: object, _tools: object) -> ServerState:
        return ServerState(round_id=state.round_id + 1, tensors=state.tensors)
