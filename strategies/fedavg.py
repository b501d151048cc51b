"""FedAvg: every client trains the same model, the server averages by number of examples.

Source: McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-Efficient Learning of Deep
Networks from Decentralized Data" (arXiv:1602.05629), algorithm 1.

| symbol | name | shape | dtype |
|---|---|---|---|
| w_t, w^k | ``params/<name>`` | the model's | float32 |
| n_k | ``num_examples`` | () | int |
| E, B, η | ``epochs``, ``batch_size``, ``optimiser.lr`` | () | int, int, float |

Deviations:
    - The default optimiser is Adam with a rate of 1e-4, as in the comparison of FedAli
      (arXiv:2411.10595); ``optimiser = {kind = "sgd"}`` is the original.
    - Buffers of the model (batch-norm statistics, prototypes) do not travel: each device keeps
      its own, and the server's model has those of the bundle.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from protofleet.strategies.common import (
    PARAMS,
    STATE,
    average,
    client_init,
    client_model,
    downlink,
    parse_settings,
    prefixed,
    prefixed_layout,
    unpack,
)
from protofleet.strategies.training import Training, train
from protofleet.strategies.types import (
    ClientState,
    ClientTools,
    Description,
    Payload,
    ServerState,
    ServerTools,
    Strategy,
    Travels,
    Update,
    Updates,
)
from protofleet.wire.tensors import Model, TensorMap

DESCRIPTION = Description(
    name="fedavg",
    paper="McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized "
    "Data, arXiv:1602.05629",
    programs=("cross_entropy",),
    travels=Travels(
        down=("parameters",),
        up=("parameters", "number of examples"),
        personal=("buffers of the model",),
    ),
)


class FedAvgSettings(Training, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training is all that FedAvg can be told."""


def build(settings: Mapping[str, Any], model: Model) -> Strategy:
    """FedAvg for one model.

    Raises:
        InputError: unknown setting, wrong type or a value outside its range.
    """
    training = parse_settings(DESCRIPTION.name, settings, FedAvgSettings)
    return Strategy(
        description=DESCRIPTION,
        settings=training,
        server_init=_server_init,
        downlink=downlink,
        client_init=client_init,
        client_update=partial(_client_update, model, training),
        client_model=partial(client_model, model),
        aggregate=partial(_aggregate, model),
        server_model=partial(_server_model, model),
    )


def _server_init(model: Model, _rng: np.random.Generator) -> ServerState:
    return ServerState(round_id=0, tensors=prefixed(PARAMS, model.params))


def _client_update(
    model: Model, training: Training, state: ClientState, payload: Payload, tools: ClientTools
) -> tuple[ClientState, Update]:
    buffers = unpack(state.tensors, STATE, model.state.layout)
    # Not named here: the received parameters are freed as soon as training has its copy.
    trained = train(unpack(payload.tensors, PARAMS, model.params.layout), buffers, tools, training)
    shared = prefixed(PARAMS, trained.params)
    update = Update(
        client_id=tools.client_id,
        round_id=payload.round_id,
        num_examples=len(tools.y),
        tensors=shared,
        evaluation=tools.evaluate(trained.params, trained.state),
        loss=trained.loss,
    )
    kept = {**shared, **prefixed(STATE, trained.state)}
    return ClientState(round_id=payload.round_id, tensors=kept), update


def _aggregate(
    model: Model, state: ServerState, updates: Updates, _tools: ServerTools
) -> ServerState:
    mean = average(updates, prefixed_layout(PARAMS, model.params.layout))
    return ServerState(round_id=state.round_id + 1, tensors=state.tensors if mean is None else mean)


def _server_model(model: Model, state: ServerState) -> tuple[TensorMap, TensorMap]:
    return unpack(state.tensors, PARAMS, model.params.layout), model.state
