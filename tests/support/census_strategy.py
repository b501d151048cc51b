"""A strategy that trains nothing and uses all that the contract offers besides.

Its server keeps, for every round r, ``seen/r`` (the sum of the clients' class counts) and
``senders/r`` (how many updates had tensors). Nothing goes down in round 1 and nobody sends tensors
in it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from protofleet.strategies.common import client_init, client_model
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
    Updates,
)
from protofleet.tensors import Model

DESCRIPTION = Description(
    name="census",
    paper="",
    programs=(),
    travels=Travels(down=(), up=(), personal=()),
    class_counts=True,
    final_fit=True,
)


def build(_settings: object, model: Model) -> Strategy:
    def client_update(
        state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        abstains = len(tools.training.y) and payload.round_id == 1
        evaluation = tools.evaluate(model.network)
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

    return Strategy(
        description=DESCRIPTION,
        settings=None,
        payload=TensorForms(
            optional={
                "seen": TensorForm((None, model.num_classes), "int64", _MOST_ROUNDS),
                "senders": TensorForm((None,), "int64", _MOST_ROUNDS),
            }
        ),
        uplink=TensorForms(optional={"mark": TensorForm((2,))}),
        server_init=lambda _model, _rng: ServerState(round_id=0, tensors={}),
        downlink=_downlink,
        client_init=client_init,
        client_update=client_update,
        client_model=lambda state: client_model(model, state),
        aggregate=_aggregate,
        server_model=lambda _: None,
    )


_MOST_ROUNDS = 9


def _downlink(state: ServerState, _client_id: str) -> Payload:
    found: dict[str, np.ndarray] = {}
    for name in ("seen", "senders"):
        rounds = [state.tensors[f"{name}/{r}"] for r in range(1, state.round_id + 1)]
        if rounds:
            found[name] = np.stack(rounds)
    return Payload(round_id=state.round_id + 1, tensors=found)


def _aggregate(state: ServerState, updates: Updates, _tools: object) -> ServerState:
    round_id = state.round_id + 1
    seen = [(update.class_counts, len(update.tensors)) for update in updates]
    new = {
        f"seen/{round_id}": sum(counts for counts, _ in seen),
        f"senders/{round_id}": np.array(sum(tensors for _, tensors in seen)),
    }
    return ServerState(round_id=round_id, tensors={**state.tensors, **new})
