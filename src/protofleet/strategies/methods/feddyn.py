"""FedDyn: each client's own linear term makes the federation's optimum stationary for all of them.

Source: Acar, Zhao, Matas Navarro, Mattina, Whatmough and Saligrama, "Federated Learning Based on
Dynamic Regularization" (ICLR 2021, arXiv:2111.04263), algorithm 1.

| symbol | name | shape | dtype |
|---|---|---|---|
| θ, θ_i | ``params/<name>`` | the model's | float32 |
| -g_i / α | ``moved/<name>`` of the client's state | the model's | float32 |
| -h / α | ``moved/<name>`` of the server's state | the model's | float32 |
| α, N | ``alpha``, ``server.population`` | () | float, int |
| clients known, Σ n_i | ``population``, down, with ``weighted_alpha`` alone | (2,) | int64 |

A client minimises L_i(θ) - <g_i, θ> + α/2 |θ - θ^{t-1}|², where g_i is its gradient at its last
optimum: to the gradient of its loss come α (θ - θ^{t-1}) - g_i, which is a pull to a point. From 0
on g_i ← g_i - α (θ_i - θ^{t-1}), so -g_i/α is how far the client has moved in all its rounds
together; h is the mean of all g_i, so -h/α is the mean of that over all N clients. The server sees
from what a client sends up anyhow how far it has moved: nothing else travels. What a lossy codec
loses of a payload counts there as the client's move.

Deviations:
    - N is the number of clients that have ever taken part, unless ``server.population`` is more.
    - The minimum is approached by a fixed number of epochs, with any optimiser.
    - ``weighted_alpha`` and ``max_norm`` are the authors' code: α_i = α / (N n_i / n), from those
      n_i that the server has seen (of round 1 none: α); and the norm of the gradient without the
      part α_i θ of the pull is limited before that and the weight decay are added.
    - An aggregation rule other than the mean makes the move of all clients together, too: their
      number times what it makes of one. A client does not learn of what a rule or a clip takes away
      from its own.
    - With ``local_init`` training starts from the mixture, and θ^{t-1} stays what was received.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from protofleet.strategies.bounds import MOST, Bounded, Bounds
from protofleet.strategies.common import PARAMS, client_key, combine_updates, prefixed, unpack
from protofleet.strategies.methods.fedavg import FedAvg
from protofleet.strategies.optimisers import Adam, Sgd
from protofleet.strategies.shared_model import (
    SharedModel,
    SharedTraining,
    finish_round,
    initialise,
)
from protofleet.strategies.training import LocalObjective, refuse_rewritten, train
from protofleet.strategies.types import (
    ClientState,
    ClientTools,
    Payload,
    ServerState,
    ServerTools,
    TensorSchema,
    TensorSchemas,
    Update,
    Updates,
    WireContents,
)
from protofleet.tensors import Model, TensorMap

_MOVED = "moved/"
_POPULATION = "population"
_CLIENTS, _EXAMPLES = "clients", "examples"  # keys of those that took part, and their n_i
_MOST_EXAMPLES = 1 << 40  # of a client; the sum over all of them stays an int64


class FedDynServer(Bounded, frozen=True, kw_only=True):
    """What the server has to know of the federation.

    Attributes:
        population: N; 0, or fewer than have ever taken part: those. Experiments say how many
            clients they have; a fleet does not know how many devices are still to come.
    """

    place: ClassVar[str] = "server."

    population: Annotated[int, Bounds(0)] = 0


class FedDynSettings(SharedTraining, frozen=True, kw_only=True):
    """Local training and its dynamic regulariser.

    Attributes:
        alpha: of the regulariser; at least 1e-6.
        weighted_alpha: clients with many examples have a smaller one, as in the authors' code.
        max_norm: largest norm of a gradient with the linear terms in it, which in the authors' code
            is 10; absent: no limit.
        server: N.
    """

    optimiser: Adam | Sgd = Sgd(lr=0.1)
    alpha: Annotated[float, Bounds(1e-6)] = 0.01
    weighted_alpha: bool = False
    max_norm: Annotated[float, Bounds(1e-12)] | None = None
    server: FedDynServer = FedDynServer()


class FedDyn(SharedModel):
    """A penalty that makes the clients' optima those of all."""

    description = replace(
        FedAvg.description,
        name="feddyn",
        paper="Acar et al., Federated Learning Based on Dynamic Regularization, arXiv:2111.04263",
        travels=WireContents(
            down=("parameters", "with weighted_alpha: number of clients and of their examples"),
            up=("parameters", "number of examples"),
            personal=("what it has moved in all its rounds", "buffers of the model"),
        ),
        partial_work=False,
        combines="rule",
    )
    settings: FedDynSettings

    def __init__(self, settings: FedDynSettings, model: Model) -> None:
        refuse_rewritten(self.description.name, model)
        super().__init__(settings, model)
        if settings.weighted_alpha:
            known = {**self.payload.required, _POPULATION: TensorSchema((2,), "int64")}
            self.payload = TensorSchemas(required=known)
        # The mean of all clients' moves changes by the number of those that took part.
        self.private = self.mean = None

    def server_init(self, model: Model, _rng: np.random.Generator) -> ServerState:
        moved = prefixed(_MOVED, TensorMap.zeros(model.params.layout))
        tensors = {**prefixed(PARAMS, model.params), **moved}
        names = (_CLIENTS, _EXAMPLES) if self.settings.weighted_alpha else (_CLIENTS,)
        return ServerState(
            round_id=0, tensors={**tensors, **{name: np.zeros(0, np.int64) for name in names}}
        )

    def downlink(self, state: ServerState, _client_id: str) -> Payload:
        tensors = {name: state.tensors[name] for name in self.down.shapes}
        if self.settings.weighted_alpha:
            examples = state.tensors[_EXAMPLES]
            tensors[_POPULATION] = np.array([examples.size, examples.sum()], np.int64)
        return Payload(round_id=state.round_id + 1, tensors=tensors)

    def client_init(self, model: Model) -> ClientState:
        fresh = super().client_init(model)
        moved = prefixed(_MOVED, TensorMap.zeros(model.params.layout))
        return replace(fresh, tensors={**fresh.tensors, **moved})

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        settings, layout = self.settings, self.model.params.layout
        params = {name: payload.tensors[name] for name in self.down.shapes}
        received = self.receive(state, replace(payload, tensors=params))
        start = initialise(settings, received, tools)
        moved = unpack(state.tensors, _MOVED, layout)
        theta = received.network.params.buffer
        objective = _objective(
            settings, _alpha(settings, payload, tools), TensorMap(layout, theta - moved.buffer)
        )
        trained = train(start.network.copy(), tools.training, settings, objective)
        moved.buffer[...] += trained.network.params.buffer - theta  # g_i ← g_i - α (θ_i - θ^{t-1})
        return finish_round(start, trained, tools, self.shared, keep=prefixed(_MOVED, moved))

    def aggregate(self, state: ServerState, updates: Updates, tools: ServerTools) -> ServerState:
        layout, old = self.model.params.layout, state.tensors
        came: dict[int, int] = {}

        def note(_position: int, update: Update) -> None:
            came[client_key(update.client_id)] = update.num_examples

        combined = combine_updates(
            updates, self.shared, tools.aggregator, old, by_examples=False, visit=note
        )
        if combined is None:
            return ServerState(round_id=state.round_id + 1, tensors=old)
        before, moved = (unpack(old, prefix, layout).buffer for prefix in (PARAMS, _MOVED))
        known = _known(self.settings, old, came)
        least = self.settings.server.population
        then, now = (max(least, tensors[_CLIENTS].size) for tensors in (old, known))
        total = then * moved.astype(np.float64)
        total += len(came) * (combined.buffer.astype(np.float64) - before)
        mean = total / now  # h ← h - α/N Σ(θ_i - θ^{t-1})
        params = (combined.buffer + mean).astype(np.float32)  # θ = mean_S θ_i - h/α
        tensors = {
            **prefixed(PARAMS, TensorMap(layout, params)),
            **prefixed(_MOVED, TensorMap(layout, mean.astype(np.float32))),
            **known,
        }
        return ServerState(round_id=state.round_id + 1, tensors=tensors)


def _alpha(settings: FedDynSettings, payload: Payload, tools: ClientTools) -> float:
    """The client's own α_i."""
    own = len(tools.training.y)
    if not (settings.weighted_alpha and own):
        return settings.alpha
    clients, examples = payload.tensors[_POPULATION].tolist()
    # One example each is what the server takes where clients do not tell their numbers.
    if not examples > clients > 0:
        return settings.alpha
    return float(min(settings.alpha * examples / (clients * own), MOST))


def _objective(settings: FedDynSettings, alpha: float, anchor: TensorMap) -> LocalObjective:
    """Eq. 1: α (θ - anchor) is added to the gradient of the loss."""
    if settings.max_norm is None:
        return LocalObjective(proximal=(alpha, anchor))
    linear = TensorMap(anchor.layout, np.float32(-alpha) * anchor.buffer)
    zeros = TensorMap.zeros(anchor.layout)
    return LocalObjective(correction=linear, max_norm=settings.max_norm, proximal=(alpha, zeros))


def _known(
    settings: FedDynSettings, old: Mapping[str, NDArray[Any]], came: Mapping[int, int]
) -> dict[str, NDArray[np.int64]]:
    """Who has ever taken part, in order, and how many examples each had the last time."""
    clients = np.union1d(old[_CLIENTS], np.array([*came], np.int64))
    if not settings.weighted_alpha:
        return {_CLIENTS: clients}
    counts = dict(zip(old[_CLIENTS].tolist(), old[_EXAMPLES].tolist(), strict=True)) | dict(came)
    examples = [min(counts[client], _MOST_EXAMPLES) for client in clients.tolist()]
    return {_CLIENTS: clients, _EXAMPLES: np.array(examples, np.int64)}
