"""What the strategies share whose clients train a shared model that the server aggregates.

A client's round is ``arrive`` (the received tensors in the place of its own), ``begin`` (adaptive
local aggregation if ``local_init`` asks for it, and an early score if ``score_at`` does), training,
``finish`` (the update and the state to keep). ``averaging`` is the strategy around it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, Literal, Self, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.kernels import WeightedMean, apply_delta, delta
from protofleet.strategies.ala import Ala, Probe, local_aggregation
from protofleet.strategies.common import (
    PARAMS,
    STATE,
    client_init,
    client_key,
    client_model,
    combine_updates,
    downlink,
    prefixed,
    prefixed_layout,
    unpack,
)
from protofleet.strategies.optimisers import check_range
from protofleet.strategies.training import Fit, Trained, Training, train
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
)
from protofleet.tensors import Layout, Model, TensorMap, Tensors, check_names

WEIGHTS = "ala/"
"""Prefix of the mixing weights in a client's state."""
_NOTHING: Tensors = MappingProxyType({})
_KNOWN = "clients"  # keys of those that have taken part, in a server's state


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
class Start:
    """A client's model before it trains.

    Attributes:
        state: what the device kept.
        payload: what it received.
        params, buffers: the model.
        kept: what to keep beside the model, such as weights of adaptive local aggregation.
        evaluation: the early score, if one is asked for.
    """

    state: ClientState
    payload: Payload
    params: TensorMap
    buffers: TensorMap
    kept: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    evaluation: Evaluation | None = None


def arrive(model: Model, shared: Layout, state: ClientState, payload: Payload) -> Start:
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
    both = ClientState(round_id=payload.round_id, tensors={**state.tensors, **payload.tensors})
    params, buffers = client_model(model, both)
    return Start(state=state, payload=payload, params=params, buffers=buffers)


def local_init(
    settings: SharedTraining, start: Start, tools: ClientTools, fit: Fit | None = None
) -> Start:
    """Mix the received parameters with the client's own, if the settings ask for it.

    In round 1, without examples, or where both are the same in every tensor, there is nothing to
    mix; weights of earlier rounds are kept.

    Args:
        settings: with ``local_init``.
        start: from ``arrive``.
        tools: the client's.
        fit: objective and inputs with which the weights are learnt; None: cross-entropy.

    Raises:
        InputError: kept weights of other tensors, or a loss that is not finite.
    """
    ala = settings.local_init
    if ala is None:
        return start
    kept = {name: v for name, v in start.state.tensors.items() if name.startswith(WEIGHTS)}
    own = {
        name.removeprefix(PARAMS): start.state.tensors[name]
        for name in start.payload.tensors
        if name.startswith(PARAMS)
    }
    same = all(np.array_equal(value, start.params[name]) for name, value in own.items())
    if same or start.payload.round_id == 1 or not len(tools.y):
        return replace(start, kept=kept)
    merged = local_aggregation(
        ala,
        own,
        start.params,
        {name.removeprefix(WEIGHTS): value for name, value in kept.items()},
        Probe(tools=tools, buffers=start.buffers, batch_size=settings.batch_size, fit=fit or Fit()),
    )
    return replace(start, params=merged.params, kept=prefixed(WEIGHTS, merged.weights))


def begin(
    settings: SharedTraining, start: Start, tools: ClientTools, fit: Fit | None = None
) -> Start:
    """``local_init``, and the early score of the outcome if the settings ask for one."""
    start = local_init(settings, start, tools, fit)
    if not scored_early(settings, start.payload):
        return start
    return replace(start, evaluation=tools.evaluate(start.params, start.buffers))


def scored_early(settings: SharedTraining, payload: Payload) -> bool:
    """Whether the client's model is scored before it trains."""
    return settings.score_at == "start" and not payload.final


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What ``finish`` needs of a ``Start``."""

    round_id: int
    kept: Mapping[str, NDArray[Any]]
    evaluation: Evaluation | None

    @classmethod
    def of(cls, start: Start) -> Self:
        """Without the model."""
        return cls(round_id=start.payload.round_id, kept=start.kept, evaluation=start.evaluation)


def train_from(
    start: Start, tools: ClientTools, settings: SharedTraining, shared: Layout
) -> tuple[ClientState, Update]:
    """Train and ``finish``; a ``start`` that nobody else holds is gone during training."""
    begun, network = Begun.of(start), [start.buffers, start.params]
    del start
    trained = train(network.pop(), network.pop(), tools, settings)
    return finish(begun, trained, tools, shared)


def finish(
    start: Start | Begun,
    trained: Trained,
    tools: ClientTools,
    shared: Layout,
    extra: Tensors = _NOTHING,
) -> tuple[ClientState, Update]:
    """What the device keeps, and the update with the tensors of ``shared``.

    Args:
        start: how training began.
        trained: how it ended; scored here if it was not scored early.
        tools: the client's.
        shared: prefixed layout of what travels, of parameters and buffers.
        extra: what else travels.
    """
    start = Begun.of(start) if isinstance(start, Start) else start
    own = {**prefixed(PARAMS, trained.params), **prefixed(STATE, trained.state)}
    round_id = start.round_id
    update = Update(
        client_id=tools.client_id,
        round_id=round_id,
        num_examples=len(tools.y),
        tensors={**{name: own[name] for name in shared.shapes}, **extra},
        evaluation=start.evaluation or tools.evaluate(trained.params, trained.state),
        loss=trained.loss,
    )
    return ClientState(round_id=round_id, tensors={**own, **start.kept}), update


class ServerStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the server makes of its clients' parameters.

    Attributes:
        lr: share of the way from its own to what its aggregator made of theirs.
        by_examples: clients count by their number of examples; otherwise alike.
        population: number of all clients; 0: of those that have ever taken part.
    """

    lr: float = 1.0
    by_examples: bool = False
    population: int = 0

    def __post_init__(self) -> None:
        check_range("server.lr", self.lr, low=0)
        check_range("server.population", self.population, low=0)


_BY_EXAMPLES = ServerStep(by_examples=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Participants:
    """How many clients there are.

    Attributes:
        clients: whose updates of this round have examples.
        before: the population without this round's newcomers.
        population: all.
    """

    clients: int
    before: int
    population: int


def add_over_population(old: TensorMap, change: TensorMap, among: Participants) -> TensorMap:
    """The mean of what all clients hold, where those of the round have changed theirs.

    Args:
        old: that mean before; clients that never took part hold zeros.
        change: mean over the round's clients.
        among: the clients.
    """
    total = old.buffer.astype(np.float64) * among.before
    total += change.buffer.astype(np.float64) * among.clients
    return TensorMap(old.layout, (total / among.population).astype(np.float32))


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """Tensors that travel beside the shared parameters, aggregated by a rule of their own.

    Attributes:
        down: prefixed layout of what the server keeps, zeros before round 1, and sends.
        up: prefixed layout of what clients send. Other names than those of ``down``: a codec
            sends the difference to what went down by the same name.
        merge: what the server keeps next, from what it keeps, the mean over the round's clients,
            in which they count alike, and how many there are.
    """

    down: Layout
    up: Layout
    merge: Callable[[TensorMap, TensorMap, Participants], TensorMap] = add_over_population

    @classmethod
    def beside(cls, model: Model, *, down: str, up: str) -> Self:
        """One number for each parameter; ``down`` and ``up`` are prefixes."""
        layout = model.params.layout
        return cls(down=prefixed_layout(down, layout), up=prefixed_layout(up, layout))

    def pick(self, tensors: Tensors) -> TensorMap:
        """A copy of what ``tensors`` hold by the names of ``down``; zeros where they do not.

        Raises:
            InputError: one is of another shape.
        """
        found = {name: tensors[name] for name in self.down.shapes if name in tensors}
        return TensorMap.pack({**TensorMap.zeros(self.down), **found}, self.down)


_Settings = TypeVar("_Settings", bound=SharedTraining)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing(Generic[_Settings]):
    """What both halves of such a strategy know.

    Attributes:
        description: of the strategy.
        settings: its validated settings.
        model: the bundle's initial values.
        shared: prefixed layout of the parameters that travel.
        extras: what else travels.
        server: what the server makes of the shared parameters.
    """

    description: Description
    settings: _Settings
    model: Model
    shared: Layout
    extras: tuple[Extra, ...] = ()
    server: ServerStep = _BY_EXAMPLES

    @property
    def down(self) -> Layout:
        """Prefixed layout of a payload."""
        shapes = self.shared.shapes
        for extra in self.extras:
            shapes |= extra.down.shapes
        return Layout.of(shapes)


SharedUpdate = Callable[
    [Sharing[_Settings], ClientState, Payload, ClientTools], tuple[ClientState, Update]
]
"""A client's half of such a strategy."""


def whole(model: Model) -> Layout:
    """Prefixed layout of all parameters."""
    return prefixed_layout(PARAMS, model.params.layout)


def share_all(
    description: Description,
    settings: _Settings,
    model: Model,
    extras: tuple[Extra, ...] = (),
    server: ServerStep = _BY_EXAMPLES,
) -> Sharing[_Settings]:
    """All parameters are shared."""
    return Sharing(
        description=description,
        settings=settings,
        model=model,
        shared=whole(model),
        extras=extras,
        server=server,
    )


def averaging(sharing: Sharing[_Settings], update: SharedUpdate[_Settings]) -> Strategy:
    """The strategy whose server sends what its aggregator makes of the clients' shared tensors.

    The server has a model if all parameters are shared.
    """
    model = sharing.model
    all_shared = sharing.shared == whole(model)
    return Strategy(
        description=sharing.description,
        settings=sharing.settings,
        server_init=partial(_server_init, sharing),
        downlink=partial(_downlink, sharing) if sharing.extras else downlink,
        client_init=client_init,
        client_update=partial(update, sharing),
        client_model=partial(client_model, model),
        aggregate=partial(_aggregate, sharing),
        server_model=partial(_server_model, model) if all_shared else _no_model,
    )


def _server_init(sharing: Sharing[Any], model: Model, _rng: np.random.Generator) -> ServerState:
    every = prefixed(PARAMS, model.params)
    tensors = {name: every[name] for name in sharing.shared.shapes}
    for extra in sharing.extras:
        tensors |= TensorMap.zeros(extra.down)
    return ServerState(round_id=0, tensors=tensors)


def _downlink(sharing: Sharing[Any], state: ServerState, _client_id: str) -> Payload:
    tensors = {name: state.tensors[name] for name in sharing.down.shapes}
    return Payload(round_id=state.round_id + 1, tensors=tensors)


def _aggregate(
    sharing: Sharing[Any], state: ServerState, updates: Updates, tools: ServerTools
) -> ServerState:
    means = [WeightedMean(extra.up.size) for extra in sharing.extras]
    keys: list[int] = []

    def visit(update: Update) -> None:
        keys.append(client_key(update.client_id))
        for extra, mean in zip(sharing.extras, means, strict=True):
            sent = {n: update.tensors[n] for n in extra.up.shapes if n in update.tensors}
            mean.add(TensorMap.pack(sent, extra.up).buffer, 1.0)

    combined = combine_updates(
        updates,
        sharing.shared,
        tools.aggregator,
        by_examples=sharing.server.by_examples,
        visit=visit,
    )
    if combined is None:
        return ServerState(round_id=state.round_id + 1, tensors=state.tensors)
    tensors: dict[str, NDArray[Any]] = {**_moved(sharing, state.tensors, combined)}
    if sharing.extras:
        participants, kept = _participants(sharing, state.tensors, keys)
        tensors |= kept
        for extra, mean in zip(sharing.extras, means, strict=True):
            change = TensorMap(extra.up, mean.result())
            tensors |= extra.merge(extra.pick(state.tensors), change, participants)
    return ServerState(round_id=state.round_id + 1, tensors=tensors)


def _moved(sharing: Sharing[Any], tensors: Tensors, combined: TensorMap) -> TensorMap:
    """The server's parameters, as far as it goes towards the clients'."""
    if sharing.server.lr == 1:
        return combined
    moved = TensorMap.pack({name: tensors[name] for name in combined}, combined.layout)
    apply_delta(moved.buffer, delta(combined.buffer, moved.buffer), sharing.server.lr)
    return moved


def _participants(
    sharing: Sharing[Any], tensors: Tensors, keys: Sequence[int]
) -> tuple[Participants, dict[str, NDArray[Any]]]:
    """The round's, and what the server keeps to know its population."""
    clients, stated = len(keys), sharing.server.population
    if stated:
        return Participants(clients=clients, before=stated, population=stated), {}
    known = tensors.get(_KNOWN, np.zeros(0, np.int64))
    now = np.union1d(known, np.array(keys, np.int64))
    return Participants(clients=clients, before=len(known), population=len(now)), {_KNOWN: now}


def _server_model(model: Model, state: ServerState) -> tuple[TensorMap, TensorMap]:
    return unpack(state.tensors, PARAMS, model.params.layout), model.state


def _no_model(_state: ServerState) -> None:
    return None
