"""What the strategies share whose clients train a shared model that the server aggregates.

A client's round is ``receive`` (the received tensors in the place of its own), ``initialise``
(adaptive local aggregation if ``local_init`` asks for it, an early score if ``score_at`` does),
training, ``finish_round`` (the update and the state to keep). ``SharedModel`` is the strategy
around it: it knows which parameters are shared, how the server moves them, and what travels beside
them (``PopulationMean``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from protofleet.strategies.aggregation import Aggregator, Terms, TermsReader
from protofleet.strategies.ala import Ala, Probe, local_aggregation
from protofleet.strategies.bounds import Bounded, LearningRate
from protofleet.strategies.common import (
    CHANGE,
    PARAMS,
    client_key,
    combine_updates,
    network_tensors,
    ordered,
    prefixed,
    prefixed_layout,
    scored,
    unpack,
    unpack_network,
)
from protofleet.strategies.strategy import PrivacySupport, Strategy, SumSupport
from protofleet.strategies.training import (
    LocalObjective,
    Trained,
    Training,
    refuse_rewritten,
    train,
)
from protofleet.strategies.types import (
    ClientState,
    ClientTools,
    Evaluation,
    Payload,
    ServerState,
    ServerTools,
    TensorSchemas,
    Update,
    Updates,
    float32_schemas,
)
from protofleet.tensors import Layout, Model, Network, TensorMap, Tensors, check_names

ALA_WEIGHTS = "ala/"
"""Prefix of the mixing weights in a client's state."""
_SHARED = "shared/"
"""Prefix of the shared model in the state of a client that has a personal one too."""
_NOTHING: Tensors = MappingProxyType({})
_NO_CHANGE = np.zeros(0, np.float32)
_CLIENTS = "clients"  # keys of those that have taken part, in a server's state


class SharedTraining(Training, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training of a shared model.

    Attributes:
        local_init: ``{kind = "ala", …}``: training starts from a mixture of the client's own shared
            tensors and the received ones; absent: from the received ones.
        score_at: the client's model is scored at the ``end`` of its local training, or at the
            ``start``, with what it received (and mixed); the scores of its end are then told
            beside it, as ``after_fit``. The fit after the last round is scored at its end in any
            case.
    """

    local_init: Ala | None = None
    score_at: Literal["start", "end"] = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedModel:
    """A client's model at the start of its local training, with what it received in place.

    Attributes:
        state: what the device kept.
        payload: what it received.
        network: the model; training takes it over.
        head: names of the parameters that the bundle calls its head.
        ala_weights: of adaptive local aggregation, to keep beside the model.
        early: the score before training, if one is asked for.
        evaluation: of another model than the one that is trained here; None: of that one.
    """

    state: ClientState
    payload: Payload
    network: Network
    head: tuple[str, ...]
    ala_weights: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    early: Evaluation | None = None
    evaluation: Evaluation | None = None


def local_init(
    settings: SharedTraining,
    start: ReceivedModel,
    tools: ClientTools,
    objective: LocalObjective | None = None,
) -> ReceivedModel:
    """Mix the received parameters with the client's own, if the settings ask for it.

    In round 1, without examples enough for a step, or where both are the same in every tensor,
    there is nothing to mix; weights of earlier rounds are kept.

    Args:
        settings: with ``local_init``.
        start: from ``receive``.
        tools: the client's.
        objective: with which the weights are learnt; None: the task's loss.

    Raises:
        InputError: kept weights of other tensors, or a loss that is not finite.
    """
    ala = settings.local_init
    if ala is None:
        return start
    earlier = {name: v for name, v in start.state.tensors.items() if name.startswith(ALA_WEIGHTS)}
    shared = [name for name in start.network.params if PARAMS + name in start.payload.tensors]
    own = {
        name: start.state.tensors[PARAMS + name]
        for name in sorted(shared, key=lambda name: name in start.head)
    }
    same = all(np.array_equal(value, start.network.params[name]) for name, value in own.items())
    if same or start.payload.round_id == 1 or not tools.training.can_train:
        return replace(start, ala_weights=earlier)
    merged = local_aggregation(
        ala,
        own,
        start.network,
        {name.removeprefix(ALA_WEIGHTS): value for name, value in earlier.items()},
        Probe(
            tools=tools.training,
            batch_size=settings.batch_size,
            objective=objective or LocalObjective(),
        ),
    )
    weights = prefixed(ALA_WEIGHTS, merged.weights)
    return replace(start, network=merged.network, ala_weights=weights)


def initialise(
    settings: SharedTraining,
    start: ReceivedModel,
    tools: ClientTools,
    objective: LocalObjective | None = None,
) -> ReceivedModel:
    """``local_init``, and the early score of the outcome if the settings ask for one."""
    start = local_init(settings, start, tools, objective)
    if not scored_early(settings, start.payload):
        return start
    return replace(start, early=tools.evaluate(start.network))


def scored_early(settings: SharedTraining, payload: Payload) -> bool:
    """Whether the client's model is scored before it trains."""
    return settings.score_at == "start" and not payload.final


def finish_round(  # noqa: PLR0913 - how training went, and what else the method has
    start: ReceivedModel,
    trained: Trained,
    tools: ClientTools,
    shared: Layout,
    *,
    keep: Tensors = _NOTHING,
    send: Tensors = _NOTHING,
) -> tuple[ClientState, Update]:
    """What the device keeps, and the update with the tensors of ``shared``.

    Args:
        start: how training began.
        trained: how it ended.
        tools: the client's.
        shared: prefixed layout of what travels, of parameters and buffers.
        keep: tensors for the device to keep beside the model.
        send: tensors for the update beside those of ``shared``.
    """
    kept = network_tensors(trained.network)
    round_id = start.payload.round_id
    update = Update(
        client_id=tools.client_id,
        round_id=round_id,
        num_examples=len(tools.training.y),
        tensors={**{name: kept[name] for name in shared.shapes}, **send},
        evaluation=start.evaluation or scored(start.early, trained.network, tools),
        loss=trained.loss,
    )
    return ClientState(round_id=round_id, tensors={**kept, **start.ala_weights, **keep}), update


def shared_state(state: ClientState) -> ClientState:
    """The shared model's half of a state of ``keep_both``; before the first round it has one model.

    The personal one stands in it under the plain names.
    """
    shared = {
        name.removeprefix(_SHARED): value
        for name, value in state.tensors.items()
        if name.startswith(_SHARED)
    }
    return ClientState(round_id=state.round_id, tensors={**state.tensors, **shared})


def keep_both(settings: SharedTraining, personal: Network, shared: ClientState) -> ClientState:
    """The state of a client that has a personal model beside the shared one.

    Args:
        settings: say whether the next round mixes the shared parameters.
        personal: what the device infers with; under the plain names.
        shared: from ``finish_round``; kept is what the next round needs of it.
    """
    needed = {
        name: value
        for name, value in shared.tensors.items()
        if settings.local_init is not None or not name.startswith(PARAMS)
    }
    tensors = {**network_tensors(personal), **prefixed(_SHARED, needed)}
    return ClientState(round_id=shared.round_id, tensors=tensors)


def changed(prefix: str, old: TensorMap, new: TensorMap) -> tuple[Tensors, Tensors]:
    """What a client keeps of its part in a ``PopulationMean``, and the change that it sends."""
    change = TensorMap(old.layout, new.buffer - old.buffer)
    return prefixed(prefix, new), prefixed(CHANGE + prefix, change)


class ServerStep(Bounded, frozen=True, kw_only=True):
    """What the server makes of its clients' updates, beside its aggregator.

    Attributes:
        lr: share of the way that it goes from its own shared tensors to the clients' combined.
        by_examples: clients count by their number of examples; otherwise alike.
    """

    place: ClassVar[str] = "server."

    lr: LearningRate = 1.0
    by_examples: bool = False


_BY_EXAMPLES = ServerStep(by_examples=True)
_NO_TENSORS = Layout.of({})


@dataclass(frozen=True, slots=True, kw_only=True)
class PopulationMean:
    """Extra tensors that travel beside the shared ones: the mean of what every client keeps.

    A client keeps tensors of its own, zeros until it takes part, and sends by how much it has
    changed them. The server keeps their mean over all clients, also those that are not of the
    round, and sends that down. Clients count alike. The mean moves by the sum of their changes; of
    another aggregator's outcome, by that times the number of clients in the round. A codec sends
    with the next change what it lost of this one, so that the mean does not drift away from what
    the clients keep.

    Attributes:
        down: prefixed layout of the mean and of what a client keeps.
        population: number of all clients; 0, or fewer than have ever taken part: of those.
    """

    down: Layout = _NO_TENSORS
    population: int = 0

    @classmethod
    def of_params(cls, model: Model, prefix: str, population: int = 0) -> Self:
        """A number for each parameter, under its name with a prefix."""
        return cls(down=prefixed_layout(prefix, model.params.layout), population=population)

    @property
    def up(self) -> Layout:
        """Prefixed layout of a client's change: the names of ``down`` behind ``change/``."""
        return prefixed_layout(CHANGE, self.down)


_NO_EXTRA = PopulationMean()


class SharedModel(Strategy):
    """A strategy whose server sends what its aggregator makes of the clients' shared tensors.

    The server has a model if all parameters are shared. A client carries the others, without
    buffers: those belong to what the server sends. Its round is FedAvg's, but for ``objective``.

    Args:
        settings, model: as of ``Strategy``.
        shared: prefixed layout of the parameters that travel; None: all do.
        extra: what else travels.
        server: what the server makes of the clients' updates.

    Attributes:
        down: prefixed layout of a payload.

    Raises:
        UnsuitableModelError: ``local_init`` for a model whose training calls set parameters.
    """

    settings: SharedTraining

    def __init__(
        self,
        settings: SharedTraining,
        model: Model,
        *,
        shared: Layout | None = None,
        extra: PopulationMean = _NO_EXTRA,
        server: ServerStep = _BY_EXAMPLES,
    ) -> None:
        super().__init__(settings, model)
        if settings.local_init is not None:
            refuse_rewritten(self.description.name, model)
        whole = prefixed_layout(PARAMS, model.params.layout)
        self.shared = whole if shared is None else shared
        self.extra, self.server = extra, server
        self.down = Layout.of({**self.shared.shapes, **self.extra.down.shapes})
        self.payload = TensorSchemas(required=float32_schemas(self.down))
        self.uplink = TensorSchemas(
            required=float32_schemas(self.shared) | float32_schemas(self.extra.up)
        )
        self.carried = frozenset(whole.shapes.keys() - self.shared.shapes.keys())
        # What changes beside the mean has no bound, and says who has taken part.
        if not self.extra.down.shapes:
            self.private = PrivacySupport(baseline=self._baseline)
            self.mean = SumSupport(by_examples=self.server.by_examples)

    def server_init(self, model: Model, _rng: np.random.Generator) -> ServerState:
        """The shared parameters, and a mean of zeros."""
        every = prefixed(PARAMS, model.params)
        shared = {name: every[name] for name in self.shared.shapes}
        zeros = TensorMap.zeros(self.extra.down)
        return ServerState(round_id=0, tensors={**shared, **zeros})

    def downlink(self, state: ServerState, _client_id: str) -> Payload:
        """The same for all clients."""
        tensors = {name: state.tensors[name] for name in self.down.shapes}
        return Payload(round_id=state.round_id + 1, tensors=tensors)

    def client_init(self, model: Model) -> ClientState:
        """The bundle's values, and zeros as the client's part in the mean."""
        own = TensorMap.zeros(self.extra.down)
        return ClientState(round_id=0, tensors={**network_tensors(model.network), **own})

    def objective(self, _received: ReceivedModel, _tools: ClientTools) -> LocalObjective:
        """How a client's steps differ from FedAvg's."""
        return LocalObjective()

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        """Train what was received."""
        received = self.receive(state, payload)
        objective = self.objective(received, tools)
        start = initialise(self.settings, received, tools, objective)
        trained = train(start.network, tools.training, self.settings, objective)
        return finish_round(start, trained, tools, self.shared)

    def receive(self, state: ClientState, payload: Payload) -> ReceivedModel:
        """The client's model with the received tensors in the place of its own.

        Raises:
            InputError: a tensor is absent, surplus, or of another shape.
        """
        check_names(payload.tensors, self.down)
        network = unpack_network({**state.tensors, **payload.tensors}, self.model)
        head = self.model.head
        return ReceivedModel(state=state, payload=payload, network=network, head=head)

    def aggregate(self, state: ServerState, updates: Updates, tools: ServerTools) -> ServerState:
        """The clients' shared tensors combined; without examples the state stays as it is."""
        server = self.server
        combined = combine_updates(
            updates, self.shared, tools.aggregator, state.tensors, by_examples=server.by_examples
        )
        if combined is None:
            return ServerState(round_id=state.round_id + 1, tensors=state.tensors)
        if server.lr != 1:
            for name, value in combined.items():
                old = state.tensors[name]
                value[...] = old + server.lr * (value - old)
        tensors: dict[str, NDArray[Any]] = {**combined}
        if self.extra.down.shapes:
            tensors |= _moved_mean(self.extra, state.tensors, updates, tools.aggregator)
        return ServerState(round_id=state.round_id + 1, tensors=tensors)

    def server_model(self, state: ServerState) -> Network | None:
        """The parameters, if all are shared, with the bundle's buffers."""
        layout = self.model.params.layout
        if self.shared != prefixed_layout(PARAMS, layout):
            return None
        params = unpack(state.tensors, PARAMS, layout)
        return Network(params=params, buffers=self.model.buffers)

    def _baseline(self, state: ServerState) -> Tensors:
        return {name: state.tensors[name] for name in self.shared.shapes}


def _moved_mean(
    extra: PopulationMean, tensors: Tensors, updates: Updates, aggregator: Aggregator
) -> dict[str, NDArray[Any]]:
    """The new mean of what all clients keep, and who has ever taken part."""
    down, up = extra.down, extra.up
    clients: list[int] = []

    def read() -> Iterator[tuple[NDArray[np.float32], int]]:
        clients.clear()
        for update in ordered(updates):
            if not update.num_examples:
                yield _NO_CHANGE, 0
                continue
            clients.append(client_key(update.client_id))
            sent = {name: update.tensors[name] for name in up.shapes}
            yield TensorMap.pack(sent, up).buffer, 1

    moved = _sum(aggregator, up.size, TermsReader(read, len(updates)))
    earlier = tensors.get(_CLIENTS, np.zeros(0, np.int64))
    known = np.union1d(earlier, np.array(clients, np.int64))
    before, after = (max(extra.population, len(some)) for some in (earlier, known))
    old = TensorMap.pack({name: tensors[name] for name in down.shapes}, down)
    mean = (old.buffer.astype(np.float64) * before + moved) / after
    return {**TensorMap(down, mean.astype(np.float32)), _CLIENTS: known}


def _sum(aggregator: Aggregator, size: int, terms: Terms) -> NDArray[np.float64]:
    """The clients' changes in all: as many as there are times what another rule makes of them."""
    zeros = np.zeros(size, np.float32)
    total = np.zeros(size, np.float64)
    if aggregator.incremental:
        for change, weight in aggregator.limit(zeros, terms):
            if weight:
                total += change
        return total
    combined = aggregator.combine(zeros, terms)
    if combined is not None:
        total += combined
        total *= sum(weight > 0 for _, weight in terms)
    return total
