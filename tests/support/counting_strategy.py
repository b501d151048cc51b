"""A strategy whose personal state tells how often and in which rounds it was trained.

Round r turns the state c into 10 c + r, so 123 means rounds 1, 2 and 3, once each.
"""

from __future__ import annotations

import numpy as np

from protofleet.strategies.common import downlink
from protofleet.strategies.types import (
    ClientState,
    ClientTools,
    Description,
    Payload,
    ServerState,
    Strategy,
    TensorForm,
    TensorForms,
    Travels,
    Update,
)
from protofleet.tensors import Model, Network


def counting(_settings: object, model: Model | None) -> Strategy:
    """Factory; the coordinator's half needs no model."""

    def client_update(
        state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        chain = {"chain": state.tensors["chain"] * 10 + payload.round_id}
        update = Update(
            client_id=tools.client_id,
            round_id=payload.round_id,
            num_examples=len(tools.training.y),
            tensors=chain,
        )
        return ClientState(round_id=payload.round_id, tensors=chain), update

    def client_model(_state: ClientState) -> Network:
        return model.network

    return Strategy(
        description=Description(
            name="counting",
            paper="",
            programs=(),
            travels=Travels(down=(), up=(), personal=()),
        ),
        settings=None,
        payload=TensorForms(required={"r": TensorForm((1,), "float64")}),
        uplink=TensorForms(required={"chain": TensorForm((1,), "float64")}),
        server_init=lambda _model, _rng: ServerState(round_id=0, tensors={"r": np.zeros(1)}),
        downlink=downlink,
        client_init=lambda _: ClientState(round_id=0, tensors={"chain": np.zeros(1)}),
        client_update=client_update,
        client_model=client_model,
        aggregate=lambda s, _updates, _tools: ServerState(
            round_id=s.round_id + 1, tensors=s.tensors
        ),
        server_model=lambda _: None,
    )
