"""FedFomo: a client tries other clients' models and moves towards those that suit its examples.

Source: Zhang, Sapra, Fidler, Yeung and Alvarez, "Personalized Federated Learning with First Order
Model Optimization" (ICLR 2021, arXiv:2012.08565).

| symbol | name | shape | dtype |
|---|---|---|---|
| θ_n of others | ``others`` of a payload | (m, Σ), m ≤ M | float32 |
| θ_i | ``own/<name>`` of an update, ``params/<name>`` on the device | the model's | float32 |
| w_n | ``weights`` of an update, in the payload's order, then zeros | (M,) | float32 |
| all last θ_n | ``client/<id>`` of the server's state | (Σ,) | float32 |
| P | ``preference`` of the server's state | (n, n) | float64 |
| M, ε | ``models``, ``epsilon`` | () | int, float |

A round: the server sends client i the last models of M others. On a part of its examples that it
never trains on, the client measures the loss of its own model and of each of these:
w_n ∝ max(0, (L(θ_i) - L(θ_n)) / ‖θ_n - θ_i‖), with a sum of 1 if any is positive. It goes to
θ_i + Σ w_n (θ_n - θ_i), trains on its other examples, and sends θ_i and the w_n up. The server adds
w_n to P_in. It sends those of the largest P_in, but for each place, with probability ε, a client
that is drawn instead.

Rows and columns of P are the clients by ascending id. What is sent follows from the state, the
round and the client, so that the server knows for whom the weights are.

Deviations:
    - All start from the bundle's model; equal preferences, as before the first round, are put into
      an order that is drawn.
    - ε stays the same over the rounds.
    - Where there are too few examples to keep some apart, the loss is that on all of them.
    - A model at distance 0, or with a loss that is no finite number, has no weight.
    - Others' parameters are tried with the client's own buffers, which do not travel.
    - Default optimiser as in ``fedavg.py``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import RefusedError
from protofleet.kernels import WeightedMean
from protofleet.strategies.bounds import Bounds, Share
from protofleet.strategies.client_models import (
    OTHERS,
    OWN,
    SEED,
    kept_models,
    models_of,
    no_models,
    shuffled_others,
    stacked,
    with_delivered,
)
from protofleet.strategies.common import (
    network_names,
    network_tensors,
    prefixed,
    prefixed_layout,
    scored,
)
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.tasks import TASKS, Loss
from protofleet.strategies.training import ExampleRows, Training, train
from protofleet.strategies.types import (
    ALL_TASKS,
    TASK_LOSS,
    ClientState,
    ClientTools,
    Description,
    Payload,
    ServerState,
    ServerTools,
    TensorSchema,
    TensorSchemas,
    Update,
    Updates,
    WireContents,
    float32_schemas,
)
from protofleet.tensors import Model, Network, TensorMap

_WEIGHTS = "weights"
_PREFERENCE = "preference"
_MOST_MODELS = 1000


class FedFomoSettings(Training, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training, what the server sends, and what a client tries it on.

    Attributes:
        models: M: most models of others that a client gets in a round.
        epsilon: ε: probability that a model is drawn instead of preferred.
        validation: part of a client's examples that models are tried on and never trained on.
        split_seed: draws that part.
        score_at: scored is what training starts from (``start``) or ends with.
    """

    models: Annotated[int, Bounds(1, _MOST_MODELS)] = 5
    epsilon: Share = 0.3
    validation: Annotated[float, Bounds(0.01, 0.99)] = 0.2
    split_seed: Annotated[int, Bounds(0)] = 0
    score_at: Literal["start", "end"] = "end"


class FedFomo(Strategy):
    """Each client weighs the models of those that help it."""

    description = Description(
        name="fedfomo",
        paper="Zhang et al., Personalized Federated Learning with First Order Model Optimization, "
        "arXiv:2012.08565",
        objectives=(TASK_LOSS,),
        travels=WireContents(
            down=("parameters of other clients, several models",),
            up=("parameters", "weights of the models received", "number of examples"),
            personal=("examples for validation", "buffers of the model"),
        ),
        tasks=ALL_TASKS,
    )
    settings: FedFomoSettings

    def __init__(self, settings: FedFomoSettings, model: Model) -> None:
        super().__init__(settings, model)
        self.sent = prefixed_layout(OWN, model.params.layout)
        most, size = settings.models, model.params.layout.size
        others = TensorSchema((None, size), most=most)
        self.payload = TensorSchemas(required={OTHERS: others})
        weights = {_WEIGHTS: TensorSchema((most,))}
        self.uplink = TensorSchemas(required=float32_schemas(self.sent) | weights)
        self.carried = network_names(model)

    def server_init(self, model: Model, rng: np.random.Generator) -> ServerState:
        return no_models(model, rng)

    def downlink(self, state: ServerState, client_id: str) -> Payload:
        chosen = _chosen(self.settings, state, client_id)
        others = stacked(models_of(state.tensors), chosen, self.model.params.layout.size)
        return Payload(round_id=state.round_id + 1, tensors={OTHERS: others})

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        settings, training = self.settings, tools.training
        held, rest = _split(settings, len(training.y), training.min_batch)
        own = self.client_model(state)
        weights = np.zeros(settings.models, np.float32)
        if len(held):
            weights[: len(payload.tensors[OTHERS])] = self._weights(own, payload, tools, held)
        start = _moved(own, payload.tensors[OTHERS], weights)
        early = tools.evaluate(start) if settings.score_at == "start" else None
        some = replace(training, x=training.x[rest], y=training.y[rest])
        trained = train(start, some, settings)
        update = Update(
            client_id=tools.client_id,
            round_id=payload.round_id,
            num_examples=len(training.y),
            tensors={**prefixed(OWN, trained.network.params), _WEIGHTS: weights},
            evaluation=scored(early, trained.network, tools),
            loss=trained.loss,
        )
        kept = network_tensors(trained.network)
        return ClientState(round_id=payload.round_id, tensors=kept), update

    def _weights(
        self, own: Network, payload: Payload, tools: ClientTools, held: ExampleRows
    ) -> NDArray[np.float64]:
        """w_n of the models in a payload, ``(m,)``: their sum is 1, or 0."""
        x, y = tools.training.x[held], tools.training.y[held]
        loss = self._loss(tools)
        base = loss(tools.predict(own, x), y)
        gains = np.zeros(len(payload.tensors[OTHERS]))
        for place, row in enumerate(payload.tensors[OTHERS]):
            apart = float(np.linalg.norm(row.astype(np.float64) - own.params.buffer))
            other = replace(own, params=TensorMap(own.params.layout, row))
            with np.errstate(over="ignore", invalid="ignore"):  # of a model that is no good
                gain = base - loss(tools.predict(other, x), y)
            if apart > 0 and np.isfinite(gain):
                gains[place] = max(0.0, gain / apart)
        total = gains.sum()
        return np.asarray(gains / total) if total > 0 else gains

    def _loss(self, tools: ClientTools) -> Loss:
        task = TASKS[self.model.task]
        return task.losses[task.loss_of(tools.training.grad_fns)]

    def check(self, update: Update) -> None:
        weights = update.tensors[_WEIGHTS]
        if not ((weights >= 0) & (weights <= 1)).all():
            raise RefusedError("content", f"update: expected weights from 0 to 1, got {weights}")

    def aggregate(self, state: ServerState, updates: Updates, _tools: ServerTools) -> ServerState:
        before = models_of(state.tensors)
        told: dict[str, NDArray[np.float32]] = {}

        def note(update: Update) -> None:
            told[update.client_id] = np.array(update.tensors[_WEIGHTS])

        models = with_delivered(before, updates, self.sent, note)
        if models is before:
            return ServerState(round_id=state.round_id + 1, tensors=state.tensors)
        places = {name: place for place, name in enumerate(models)}
        preference = np.zeros((len(models), len(models)))
        known = [places[name] for name in before]
        if known:
            preference[np.ix_(known, known)] = state.tensors[_PREFERENCE]
        for client_id, weights in told.items():
            chosen = _chosen(self.settings, state, client_id)
            share = 1 / max(float(weights.sum()), 1.0)
            for other, weight in zip(chosen, weights.tolist(), strict=False):
                preference[places[client_id], places[other]] += share * weight
        tensors: dict[str, NDArray[Any]] = {**kept_models(models), _PREFERENCE: preference}
        tensors[SEED] = state.tensors[SEED]
        return ServerState(round_id=state.round_id + 1, tensors=tensors)


def _chosen(settings: FedFomoSettings, state: ServerState, client_id: str) -> list[str]:
    """Whose models a client gets in the next round: ε-greedy by its row of P."""
    others, rng = shuffled_others(state, client_id)
    ids = list(models_of(state.tensors))
    if client_id in ids:
        row = state.tensors[_PREFERENCE][ids.index(client_id)].tolist()
        liked = dict(zip(ids, row, strict=True))
        others.sort(key=lambda other: -liked[other])
    chosen: list[str] = []
    while others and len(chosen) < settings.models:
        place = int(rng.integers(len(others))) if rng.random() < settings.epsilon else 0
        chosen.append(others.pop(place))
    return chosen


def _split(
    settings: FedFomoSettings, count: int, min_batch: int
) -> tuple[ExampleRows, ExampleRows]:
    """Rows to try models on, and rows to train on; all for both if there are too few."""
    held = min(max(1, round(settings.validation * count)), count - min_batch)
    order = np.random.default_rng(settings.split_seed).permutation(count)
    if held < 1:
        return order, order
    return np.sort(order[:held]), np.sort(order[held:])


def _moved(own: Network, others: NDArray[np.float32], weights: NDArray[np.float32]) -> Network:
    """θ_i + Σ w_n (θ_n - θ_i), in memory of its own."""
    used = weights[: len(others)].astype(np.float64)
    terms = [(row, weight) for row, weight in zip(others, used.tolist(), strict=True) if weight]
    if not terms:
        return own
    mean = WeightedMean(own.params.layout.size)  # whose weights' sum is 1
    mean.add_all(terms)
    return replace(own, params=TensorMap(own.params.layout, mean.result()))
