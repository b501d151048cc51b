"""FedAMP: every client gets a model of its own, to which similar clients have added more.

Source: Huang, Chu, Zhou, Wang, Liu, Pei and Zhang, "Personalized Cross-Silo Federated Learning on
Non-IID Data" (AAAI 2021, arXiv:2007.03797), algorithm 1; ``attention = "cosine"`` is its
HeurFedAMP, section "FedAMP for deep neural networks".

| symbol | name | shape | dtype |
|---|---|---|---|
| u_i, w_i | ``params/<name>`` of payload and update | the model's | float32 |
| all last w_i | ``client/<id>`` of the server's state | (Σ,) | float32 |
| ξ | ``attention`` of the server's state | (n + 1, n + 1) | float64 |
| alpha_k, λ, sigma | ``alpha``, ``lam``, ``sigma`` | () | float |
| ξ_ii of HeurFedAMP, least ξ_ii of FedAMP | ``self_weight`` | () | float |

A round: the server sends client i its u_i = Σ_j ξ_ij w_j, where ξ_ij = alpha_k A'(‖w_i - w_j‖²) for
j ≠ i, A(x) = 1 - exp(-x / sigma), and ξ_ii is what is left to 1. The client minimises
F_i(w) + λ / (2 alpha_k) ‖w - u_i‖² and sends w_i, which is its personal model, up. HeurFedAMP has
ξ_ij = (1 - ξ_ii) exp(sigma cos(w_i, w_j)) / Σ_h≠i exp(sigma cos(w_i, w_h)).

The server keeps the last model of every client that ever delivered one: u_i counts those that are
not of the round too. Rows and columns of ξ are the clients by ascending id; the last ones are the
bundle's model, which stands for w_i of a client that has not delivered yet, and for nobody else's.

The paper asks for an alpha_k so small that u_i is a convex combination. Unless ``alpha`` is set,
alpha_k = sigma (1 - s) / n with s = ``self_weight`` and n clients whose models the server keeps: as
A' is at most 1 / sigma, ξ_ii is at least s wherever the models are. The pull λ / alpha_k would grow
with n; λ is then ``lam`` times alpha_k, so that the pull is ``lam`` in federations of any size.

The round's record (``figures``) has ``own_weight``, the mean of ξ_ii over the clients, and
``scaled``, the share of them whose others' weights had to be scaled.

Deviations:
    - The others' weights are scaled to a sum of 1 where a set ``alpha`` makes it more: ξ_ii is then
      0. PFLlib, whose alpha_k, λ and sigma are 1, takes 1 less their sum, which may be negative.
    - A set ``alpha`` is alpha_k in all rounds.
    - The subproblem is solved by ``epochs`` passes that start from u_i; the paper leaves both open.
      With ``local_init`` they start from the mixture with w_i, and the term still pulls to u_i.
    - Default optimiser and buffers as in ``fedavg.py``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels import SquaredDistances, WeightedMean
from protofleet.strategies.bounds import Bounds, Share, Weight
from protofleet.strategies.client_models import Vector, kept_models, models_of, with_delivered
from protofleet.strategies.common import PARAMS, prefixed
from protofleet.strategies.shared_model import SharedModel, SharedTraining, finish_round, initialise
from protofleet.strategies.training import LocalObjective, train
from protofleet.strategies.types import (
    ALL_TASKS,
    TASK_LOSS,
    ClientState,
    ClientTools,
    Description,
    Payload,
    ServerState,
    ServerTools,
    Update,
    Updates,
    WireContents,
)
from protofleet.tensors import Model, TensorMap

_ATTENTION = "attention"
_ROUNDING = 1e-9
"""By so much a sum of weights may be above 1."""
_BLOCK = 1 << 22
"""Numbers of all clients that are put side by side at a time."""


class FedAmpSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training, its pull to u_i, and how much clients count for each other.

    Attributes:
        alpha: alpha_k: what another client's weight grows with, and the pull shrinks with; absent:
            sigma (1 - ``self_weight``) ÷ the number of clients.
        lam: the pull is λ / (2 alpha_k) times the squared distance to u_i; λ, or without ``alpha``
            λ / alpha_k.
        sigma: with ``distance`` the squared distance at which a weight has fallen to 1 / e of its
            largest, alpha_k / sigma; with ``cosine`` the factor of the cosines.
        attention: ``distance``: FedAMP; ``cosine``: HeurFedAMP.
        self_weight: weight of the client's own model; with ``distance`` the least, without
            ``alpha``.
    """

    alpha: Annotated[float, Bounds(1e-9)] | None = None
    lam: Weight = 1.0
    sigma: Annotated[float, Bounds(1e-9)] = 1.0
    attention: Literal["distance", "cosine"] = "distance"
    self_weight: Share = 0.5


class FedAmp(SharedModel):
    """Each client's model is pulled to those that are like it."""

    description = Description(
        name="fedamp",
        paper="Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, "
        "arXiv:2007.03797",
        objectives=(TASK_LOSS,),
        travels=WireContents(
            down=("the client's own combination of all clients' parameters",),
            up=("parameters", "number of examples"),
            personal=("buffers of the model",),
        ),
        tasks=ALL_TASKS,
    )
    settings: FedAmpSettings

    def __init__(self, settings: FedAmpSettings, model: Model) -> None:
        super().__init__(settings, model)
        self.private = self.mean = None

    def server_init(self, _model: Model, _rng: np.random.Generator) -> ServerState:
        """Nobody has delivered: every client starts from the bundle's model."""
        return ServerState(round_id=0, tensors={})

    def downlink(self, state: ServerState, client_id: str) -> Payload:
        models, params = models_of(state.tensors), self.model.params
        if not models:
            return Payload(round_id=state.round_id + 1, tensors=prefixed(PARAMS, params))
        row = list(models).index(client_id) if client_id in models else len(models)
        weights = state.tensors[_ATTENTION][row].tolist()
        mean = WeightedMean(params.layout.size)
        # Algorithm 1: u_i; the weights' sum is 1.
        mean.add_all(list(zip([*models.values(), params.buffer], weights, strict=True)))
        u = TensorMap(self.shared, mean.result())
        return Payload(round_id=state.round_id + 1, tensors={**u})

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        settings = self.settings
        received = self.receive(state, payload)
        start = initialise(settings, received, tools)
        # Algorithm 1: ∇F_i(w) + λ / alpha_k (w - u_i)
        pull = settings.lam if settings.alpha is None else settings.lam / settings.alpha
        objective = LocalObjective(proximal=(pull, received.network.params))
        trained = train(start.network.copy(), tools.training, settings, objective)
        return finish_round(start, trained, tools, self.shared)

    def aggregate(self, state: ServerState, updates: Updates, _tools: ServerTools) -> ServerState:
        before = models_of(state.tensors)
        models = with_delivered(before, updates, self.shared)
        if models is before:
            return ServerState(round_id=state.round_id + 1, tensors=state.tensors)
        every = [*models.values(), self.model.params.buffer]
        weights, figures = _attention(self.settings, every)
        tensors: dict[str, NDArray[Any]] = {**kept_models(models), _ATTENTION: weights}
        return ServerState(round_id=state.round_id + 1, tensors=tensors, figures=figures)

    def server_model(self, _state: ServerState) -> None:
        return None


def _attention(
    settings: FedAmpSettings, every: list[Vector]
) -> tuple[NDArray[np.float64], dict[str, float]]:
    """ξ of the clients' models and, in the last place, the bundle's; figures of the round."""
    weights = _RULES[settings.attention](settings, every)
    np.fill_diagonal(weights, 0)
    weights[:, -1] = 0  # nobody but a newcomer counts the bundle's model
    sums = weights.sum(axis=1)
    weights /= np.maximum(sums, 1)[:, None]
    own = np.maximum(1 - weights.sum(axis=1), 0)
    np.fill_diagonal(weights, own)
    scaled = sums > 1 + _ROUNDING
    return weights, {"own_weight": float(own[:-1].mean()), "scaled": float(scaled[:-1].mean())}


def _by_distance(settings: FedAmpSettings, every: list[Vector]) -> NDArray[np.float64]:
    """alpha_k A'(x) = alpha_k / sigma exp(-x / sigma)."""
    largest = (1 - settings.self_weight) / (len(every) - 1)
    if settings.alpha is not None:
        largest = settings.alpha / settings.sigma
    return np.asarray(largest * np.exp(-_squared_distances(every) / settings.sigma))


def _by_cosine(settings: FedAmpSettings, every: list[Vector]) -> NDArray[np.float64]:
    """HeurFedAMP: a softmax over the others, who share 1 - ξ_ii."""
    cosines = _cosines(every)
    others = ~np.eye(len(every), dtype=bool)
    others[:, -1] = False
    # Compared with the highest, so that a large sigma leaves the nearest their weight.
    highest = np.where(others, cosines, -1).max(axis=1, keepdims=True)
    shares = np.where(others, np.exp(settings.sigma * np.minimum(cosines - highest, 0)), 0)
    sums = shares.sum(axis=1, keepdims=True)
    return np.asarray((1 - settings.self_weight) * shares / np.where(sums, sums, 1))


_RULES = {"distance": _by_distance, "cosine": _by_cosine}


def _cosines(every: list[Vector]) -> NDArray[np.float64]:
    """Of all models to each other; 0 to one of length zero."""
    apart = _squared_distances([np.zeros_like(every[0]), *every])
    squares = apart[0, 1:]
    products = (squares[:, None] + squares - apart[1:, 1:]) / 2
    lengths = np.sqrt(squares)
    norms = lengths[:, None] * lengths
    cosines = np.zeros_like(products)
    np.divide(products, norms, where=norms > 0, out=cosines)
    # Beside a model that is much longer, what rounding leaves of a product is no cosine.
    return np.clip(cosines, -1, 1)


def _squared_distances(every: list[Vector]) -> NDArray[np.float64]:
    """From their differences to the bundle's model, the last: no client's length blurs others'."""
    distances = SquaredDistances(len(every))
    width = max(_BLOCK // len(every), 1)
    for start in range(0, every[0].size, width):
        block = np.stack([model[start : start + width] for model in every])
        distances.add(block, block[-1])
    return distances.result()
