"""What the strategies share whose clients train a shared model that the server aggregates.

A client's round is ``receive`` (the received tensors in the place of its own), ``initialise``
(adaptive local aggregation if ``local_init`` asks for it, an early score if ``score_at`` does),
training, ``finish_round`` (the update and the state to keep). ``averaging`` is the strategy around
it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from protofleet.strategies.ala import Ala, Probe, local_aggregation
from protofleet.strategies.common import (
    PARAMS,
    client_init,
    client_model,
    combine_updates,
    downlink,
    network_tensors,
    prefixed,
    prefixed_layout,
    unpack,
    unpack_network,
)
from protofleet.strategies.training import Fit, Trained, Training
from protofleet.strategies.types import (
    ClientState,
    ClientTools,
    Description,
    Evaluation,
    Payload,
    ServerState,
    ServerTools,
    Strategy,
    Update,
    Updates,
    Uplink,
    float32_forms,
)
from protofleet.tensors import Layout, Model, Network, check_names

ALA_WEIGHTS = "ala/"
"""Prefix of the mixing weights in a client's state."""


class SharedTraining(Training, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training of a shared model.

    Attributes:
        local_init: ``{kind = "ala", …}``: training starts from a mixture of the client's own shared
            tensors and the received ones; absent: from the received ones.
        score_at: the client's model is scored at the ``end`` of its local training, or at the
            ``start``, with what it received (and mixed). The fit after the last round is scored at
            its end in any case.
    """

    local_init: Ala | None = None
    score_at: Literal["start", "end"] = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialModel:
    """A client's model at the start of its local training, with what it received in place.

    Attributes:
        state: what the device kept.
        payload: what it received.
        network: the model; training takes it over.
        ala_weights: of adaptive local aggregation, to keep beside the model.
        evaluation: the early score, if one is asked for.
    """

    state: ClientState
    payload: Payload
    network: Network
    ala_weights: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    evaluation: Evaluation | None = None


def receive(model: Model, shared: Layout, state: ClientState, payload: Payload) -> InitialModel:
    """The client's model with the received tensors in the place of its own.

    Args:
        model: the bundle's initial values.
        shared: prefixed layout of what the payload must hold.
        state: what the device kept.
        payload: what it received.

    Raises:
        InputError: a tensor is absent, surplus, or of another shape.
    """
    check_names(payload.tensors, shared)
    network = unpack_network({**state.tensors, **payload.tensors}, model)
    return InitialModel(state=state, payload=payload, network=network)


def local_init(
    settings: SharedTraining, start: InitialModel, tools: ClientTools, fit: Fit | None = None
) -> InitialModel:
    """Mix the received parameters with the client's own, if the settings ask for it.

    In round 1, without examples, or where both are the same in every tensor, there is nothing to
    mix; weights of earlier rounds are kept.

    Args:
        settings: with ``local_init``.
        start: from ``receive``.
        tools: the client's.
        fit: objective and inputs with which the weights are learnt; None: cross-entropy.

    Raises:
        InputError: kept weights of other tensors, or a loss that is not finite.
    """
    ala = settings.local_init
    if ala is None:
        return start
    earlier = {name: v for name, v in start.state.tensors.items() if name.startswith(ALA_WEIGHTS)}
    own = {
        name.removeprefix(PARAMS): start.state.tensors[name]
        for name in start.payload.tensors
        if name.startswith(PARAMS)
    }
    same = all(np.array_equal(value, start.network.params[name]) for name, value in own.items())
    if same or start.payload.round_id == 1 or not len(tools.training.y):
        return replace(start, ala_weights=earlier)
    merged = local_aggregation(
        ala,
        own,
        start.network,
        {name.removeprefix(ALA_WEIGHTS): value for name, value in earlier.items()},
        Probe(tools=tools.training, batch_size=settings.batch_size, fit=fit or Fit()),
    )
    weights = prefixed(ALA_WEIGHTS, merged.weights)
    return replace(start, network=merged.network, ala_weights=weights)


def initialise(
    settings: SharedTraining, start: InitialModel, tools: ClientTools, fit: Fit | None = None
) -> InitialModel:
    """``local_init``, and the early score of the outcome if the settings ask for one."""
    start = local_init(settings, start, tools, fit)
    if not scored_early(settings, start.payload):
        return start
    return replace(start, evaluation=tools.evaluate(start.network))


def scored_early(settings: SharedTraining, payload: Payload) -> bool:
    """Whether the client's model is scored before it trains."""
    return settings.score_at == "start" and not payload.final


def finish_round(
    start: InitialModel, trained: Trained, tools: ClientTools, shared: Layout
) -> tuple[ClientState, Update]:
    """What the device keeps, and the update with the tensors of ``shared``.

    Args:
        start: how training began.
        trained: how it ended; scored here if it was not scored early.
        tools: the client's.
        shared: prefixed layout of what travels, of parameters and buffers.
    """
    kept = network_tensors(trained.network)
    round_id = start.payload.round_id
    update = Update(
        client_id=tools.client_id,
        round_id=round_id,
        num_examples=len(tools.training.y),
        tensors={name: kept[name] for name in shared.shapes},
        evaluation=start.evaluation or tools.evaluate(trained.network),
        loss=trained.loss,
    )
    return ClientState(round_id=round_id, tensors={**kept, **start.ala_weights}), update


_Settings = TypeVar("_Settings", bound=SharedTraining)


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragingContext(Generic[_Settings]):
    """What both halves of such a strategy know.

    Attributes:
        description: of the strategy.
        settings: its validated settings.
        model: the bundle's initial values.
        shared: prefixed layout of the parameters that travel.
    """

    description: Description
    settings: _Settings
    model: Model
    shared: Layout


ClientUpdateFn = Callable[
    [AveragingContext[_Settings], ClientState, Payload, ClientTools], tuple[ClientState, Update]
]
"""A client's half of such a strategy."""


def whole(model: Model) -> Layout:
    """Prefixed layout of all parameters."""
    return prefixed_layout(PARAMS, model.params.layout)


def averaging(context: AveragingContext[_Settings], update: ClientUpdateFn[_Settings]) -> Strategy:
    """The strategy whose server sends what its aggregator makes of the clients' shared tensors.

    The server has a model if all parameters are shared.
    """
    model, shared = context.model, context.shared
    return Strategy(
        description=context.description,
        settings=context.settings,
        uplink=Uplink(required=float32_forms(shared)),
        server_init=partial(_server_init, shared),
        downlink=downlink,
        client_init=client_init,
        client_update=partial(update, context),
        client_model=partial(client_model, model),
        aggregate=partial(_aggregate, shared),
        server_model=partial(_server_model, model) if shared == whole(model) else _no_model,
    )


def _server_init(shared: Layout, model: Model, _rng: np.random.Generator) -> ServerState:
    every = prefixed(PARAMS, model.params)
    return ServerState(round_id=0, tensors={name: every[name] for name in shared.shapes})


def _aggregate(
    shared: Layout, state: ServerState, updates: Updates, tools: ServerTools
) -> ServerState:
    tensors = combine_updates(updates, shared, tools.aggregator)
    return ServerState(
        round_id=state.round_id + 1, tensors=state.tensors if tensors is None else tensors
    )


def _server_model(model: Model, state: ServerState) -> Network:
    params = unpack(state.tensors, PARAMS, model.params.layout)
    return Network(params=params, buffers=model.buffers)


def _no_model(_state: ServerState) -> None:
    return None
