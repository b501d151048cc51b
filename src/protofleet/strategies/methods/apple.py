"""APPLE: a client's model is a sum of all clients' core models, whose weights it learns.

Source: Luo and Wu, "Adapt to Adaptation: Learning Personalization for Cross-Silo Federated
Learning" (IJCAI 2022, arXiv:2110.08394), algorithm 1.

| symbol | name | shape | dtype |
|---|---|---|---|
| w_j^c of others | ``others`` of a payload | (m, Σ), m ≤ M | float32 |
| who they are | ``keys`` of a payload | (m,) | int64 |
| n_j of others | ``examples`` of a payload | (m,) | int64 |
| w_i^c | ``own/<name>`` of an update, ``core/<name>`` on the device | the model's | float32 |
| w_i^p | ``params/<name>`` of the client's state | the model's | float32 |
| p_i | ``relations`` of the client's state: others by key, then its own | (k + 1,) | float64 |
| all last w_j^c | ``client/<id>`` of the server's state | (Σ,) | float32 |
| all n_j | ``examples`` of the server's state, by ascending id | (n,) | int64 |
| M, L | ``models``, ``penalty_rounds`` | () | int |
| μ, η_2 | ``mu``, ``relation_lr`` | () | float |

A round: the server sends client i the last core models of M others, or of all. The client's model
is w_i^p = Σ_j p_ij w_j^c. In each step, with the gradient ∇L there, its own core model moves by
p_ii ∇L and p_ij by ⟨∇L, w_j^c⟩ + λ(r) μ (p_ij - p_0j), where p_0j = n_j / n and
λ(r) = (1 + cos(r π / L)) / 2 in the rounds r < L, then 0. w_i^c comes up, p_i stays.

With ``models`` above 0 the device keeps the core models that it has received, so that the sum goes
over all that it has ever met; who is sent is drawn anew each round.

Deviations:
    - Nobody knows of others before round 1 has told who there is: it trains nothing and collects
      the core models, which are all the bundle's.
    - When a client gets to know others later, their p_ij starts at n_j / n of those known then, and
      what it had learnt keeps its proportions.
    - Rounds r are the federation's, from 0.
    - Which M are sent is drawn alike: p_i stays on the device, so that the server knows no better.
    - ``clip_norm`` shortens ∇L before both use it.
    - The server keeps a core model that is longer than ``norm_clip`` times the median one shortened
      to that: others' models stand in every client's sum, so that a single one could spoil all.
    - Buffers of the model do not travel. Default optimiser as in ``fedavg.py``; p_i moves by plain
      gradient steps. In a regression they are those of the loss divided by the largest of itself,
      the mean square of the client's targets and 1: ⟨∇L, w_j^c⟩ grows with the square of the
      target's unit, so that no η_2 would fit both degrees and radians per second.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels import blend, inner_products
from protofleet.strategies.ala import Probe
from protofleet.strategies.bounds import Bounds, LearningRate, Weight, check_range
from protofleet.strategies.client_models import (
    OTHERS,
    OWN,
    SEED,
    Vector,
    kept_models,
    models_of,
    no_models,
    shuffled_others,
    stacked,
    with_delivered,
)
from protofleet.strategies.common import (
    client_key,
    network_tensors,
    prefixed,
    prefixed_layout,
    scored,
    unpack,
)
from protofleet.strategies.optimisers import Group, Optimiser
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.training import (
    ExampleRows,
    LocalObjective,
    Training,
    passes,
    refuse_rewritten,
)
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
from protofleet.tensors import Model, TensorMap

_KEYS, _EXAMPLES, _RELATIONS = "keys", "examples", "relations"
_CORE = "core/"
_MET = "met/"
"""Prefix of what a client knows of others, by the names of payloads."""
_MOST_MODELS = 4000


class AppleSettings(Training, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training of the core model and of the weights, and what the server sends.

    Attributes:
        models: M: most core models of others that a client gets in a round; 0: all.
        relation_lr: η_2: learning rate of p_i.
        mu: μ: weight of half the squared distance of p_i to p_0.
        penalty_rounds: L: rounds in which that weight falls to 0.
        norm_clip: longest core model that others get, as a multiple of the median Euclidean norm of
            all clients' last ones; 0: any.
        score_at: scored is what training starts from (``start``) or ends with.
    """

    models: Annotated[int, Bounds(0, _MOST_MODELS)] = 0
    relation_lr: LearningRate = 0.001
    mu: Weight = 0.1
    penalty_rounds: Annotated[int, Bounds(0)] = 20
    norm_clip: Weight = 3.0
    score_at: Literal["start", "end"] = "end"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.norm_clip:
            check_range("norm_clip", self.norm_clip, low=1)


class _Others(NamedTuple):
    """What a client knows of others: keys ascending, examples, and core models ``(k, Σ)``."""

    keys: NDArray[np.int64]
    examples: NDArray[np.int64]
    models: NDArray[np.float32]


class Apple(Strategy):
    """A sum of all clients' core models, whose weights each client learns."""

    description = Description(
        name="apple",
        paper="Luo and Wu, Adapt to Adaptation: Learning Personalization for Cross-Silo Federated "
        "Learning, arXiv:2110.08394",
        objectives=(TASK_LOSS,),
        travels=WireContents(
            down=("core parameters of other clients", "their numbers of examples"),
            up=("core parameters", "number of examples"),
            personal=(
                "weights of all clients' core parameters",
                "their sum",
                "buffers of the model",
            ),
        ),
        tasks=ALL_TASKS,
    )
    settings: AppleSettings

    def __init__(self, settings: AppleSettings, model: Model) -> None:
        refuse_rewritten(self.description.name, model)
        super().__init__(settings, model)
        self.sent = prefixed_layout(OWN, model.params.layout)
        most = settings.models or _MOST_MODELS
        counts = TensorSchema((None,), "int64", most)
        others = TensorSchema((None, model.params.layout.size), most=most)
        self.payload = TensorSchemas(required={OTHERS: others, _KEYS: counts, _EXAMPLES: counts})
        self.uplink = TensorSchemas(required=float32_schemas(self.sent))
        self.carried = frozenset(prefixed(_CORE, model.params))

    def server_init(self, model: Model, rng: np.random.Generator) -> ServerState:
        return no_models(model, rng)

    def downlink(self, state: ServerState, client_id: str) -> Payload:
        models = models_of(state.tensors)
        drawn, _ = shuffled_others(state, client_id)
        chosen = sorted(drawn[: self.settings.models or _MOST_MODELS], key=client_key)
        counts = dict(zip(models, state.tensors.get(_EXAMPLES, ()), strict=True))
        tensors: dict[str, NDArray[Any]] = {
            OTHERS: stacked(models, chosen, self.model.params.layout.size),
            _KEYS: np.array([client_key(name) for name in chosen], np.int64),
            _EXAMPLES: np.array([counts[name] for name in chosen], np.int64),
        }
        return Payload(round_id=state.round_id + 1, tensors=tensors)

    def client_init(self, model: Model) -> ClientState:
        fresh = super().client_init(model)
        return replace(fresh, tensors={**fresh.tensors, **prefixed(_CORE, model.params)})

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        settings, count = self.settings, len(tools.training.y)
        others = _met(state, payload)
        shares = _shares(others, count)
        mixture = _Mixture(self, state, others, shares, tools)
        mixture.penalty = settings.mu * _fading(payload.round_id - 1, settings.penalty_rounds)
        early = tools.evaluate(mixture.network) if settings.score_at == "start" else None
        loss = math.nan
        if payload.round_id > 1:
            loss = passes(mixture.step, tools.training, settings)
        personal = mixture.network.copy()
        update = Update(
            client_id=tools.client_id,
            round_id=payload.round_id,
            num_examples=count,
            tensors=prefixed(OWN, mixture.core),
            evaluation=scored(early, personal, tools),
            loss=loss,
        )
        kept: dict[str, NDArray[Any]] = {
            **network_tensors(personal),
            **prefixed(_CORE, mixture.core),
            _RELATIONS: mixture.relations,
            _MET + _KEYS: others.keys,
            _MET + _EXAMPLES: others.examples,
        }
        if settings.models:
            kept[_MET + OTHERS] = others.models
        return ClientState(round_id=payload.round_id, tensors=kept), update

    def aggregate(self, state: ServerState, updates: Updates, _tools: ServerTools) -> ServerState:
        before = models_of(state.tensors)
        counts = dict(zip(before, state.tensors.get(_EXAMPLES, ()), strict=True))

        def note(update: Update) -> None:
            counts[update.client_id] = update.num_examples

        models = with_delivered(before, updates, self.sent, note)
        if models is before:
            return ServerState(round_id=state.round_id + 1, tensors=state.tensors)
        limited = _shortened(models, self.settings.norm_clip)
        tensors: dict[str, NDArray[Any]] = {**kept_models(limited), SEED: state.tensors[SEED]}
        tensors[_EXAMPLES] = np.array([counts[name] for name in models], np.int64)
        return ServerState(round_id=state.round_id + 1, tensors=tensors)


def _met(state: ClientState, payload: Payload) -> _Others:
    """The others of a payload, and those of earlier ones whose core models were kept.

    Raises:
        InputError: the payload has not as many core models as keys and numbers of examples.
    """
    counts = [len(payload.tensors[name]) for name in (OTHERS, _KEYS, _EXAMPLES)]
    if len(set(counts)) > 1:
        raise InputError(
            "payload: expected as many core models as keys and numbers of examples, got "
            f"{counts[0]}, {counts[1]} and {counts[2]}"
        )
    sources = [payload.tensors]
    if _MET + OTHERS in state.tensors:
        sources.insert(0, {n: state.tensors[_MET + n] for n in (_KEYS, _EXAMPLES, OTHERS)})
    keys = np.unique(np.concatenate([source[_KEYS] for source in sources]))
    examples = np.zeros(len(keys), np.int64)
    models = np.zeros((len(keys), payload.tensors[OTHERS].shape[1]), np.float32)
    for source in sources:
        places = np.searchsorted(keys, source[_KEYS])
        examples[places] = np.maximum(source[_EXAMPLES], 0)
        models[places] = source[OTHERS]
    return _Others(keys, examples, models)


def _shares(others: _Others, count: int) -> NDArray[np.float64]:
    """p_0 ``(k + 1,)``: of the others by their examples, of the client itself in the last place."""
    counts = np.append(others.examples, count).astype(np.float64)
    if not counts.any():
        counts[-1] = 1
    return np.asarray(counts / counts.sum())


def _relations(
    state: ClientState, others: _Others, shares: NDArray[np.float64]
) -> NDArray[np.float64]:
    """p_i at the start of a round: as learnt, scaled to leave newcomers their share."""
    if _RELATIONS not in state.tensors:
        return shares.copy()
    old, known = state.tensors[_RELATIONS], state.tensors[_MET + _KEYS]
    is_new = np.append(~np.isin(others.keys, known), False)
    learnt = np.append(old[np.searchsorted(known, others.keys[~is_new[:-1]])], old[-1])
    relations = shares.copy()
    relations[~is_new] = (1 - shares[is_new].sum()) * learnt
    return relations


def _mean_square(model: Model, y: NDArray[Any]) -> float | None:
    """Of a regression's targets; None for other tasks, whose losses have no unit."""
    if model.task != "regression":
        return None
    return float(np.mean(np.square(y, dtype=np.float64))) if y.size else 0.0


def _fading(round_id: int, rounds: int) -> float:
    """λ(r), for r from 0."""
    return (1 + math.cos(math.pi * round_id / rounds)) / 2 if round_id < rounds else 0.0


class _Mixture:
    """A client's core model and p_i in training; the program sees their sum alone.

    Attributes:
        core: w_i^c.
        relations: p_i.
        penalty: λ(r) μ.
    """

    def __init__(
        self,
        method: Apple,
        state: ClientState,
        others: _Others,
        shares: NDArray[np.float64],
        tools: ClientTools,
    ) -> None:
        layout = method.model.params.layout
        own = unpack(state.tensors, _CORE, layout)
        self._rows = np.concatenate([others.models, own.buffer[None]])
        self.core = TensorMap(layout, self._rows[-1])
        self.relations, self._shares = _relations(state, others, shares), shares
        self._mean_square = _mean_square(method.model, tools.training.y)
        self.penalty = 0.0
        self._lr, self._clip_norm = method.settings.relation_lr, method.settings.clip_norm
        self._optimiser = Optimiser(layout, (Group(optimiser=method.settings.optimiser),))
        self._probe = Probe(
            tools=tools.training, batch_size=method.settings.batch_size, objective=LocalObjective()
        )
        self.network = method.client_model(state)
        self._mix()

    def step(self, rows: ExampleRows) -> float:
        """Move both by the gradient at the sum; the mean loss before the step.

        Raises:
            DivergedError: the loss became NaN or infinite.
        """
        step = self._probe(self.network, rows)
        if self._clip_norm is not None:
            self._optimiser.clip(step.grads, self._clip_norm)
        slopes = inner_products(self._rows, step.grads.buffer)
        if self._mean_square is not None:
            slopes /= max(step.loss, self._mean_square, 1)
        slopes += self.penalty * (self.relations - self._shares)
        step.grads.buffer[...] *= np.float32(self.relations[-1])
        self._optimiser.step(self.core, step.grads)
        self.relations -= self._lr * slopes
        self.network = replace(self.network, buffers=step.buffers)
        self._mix()
        return step.loss

    def _mix(self) -> None:
        blend(self._rows, self.relations, self.network.params.buffer)


def _shortened(models: dict[str, Vector], multiple: float) -> dict[str, Vector]:
    """The models, none longer than a multiple of the median; the very arrays that were not."""
    norms = [math.sqrt(inner_products(one[None], one)[0]) for one in models.values()]
    limit = multiple * float(np.median(norms))
    if not limit:
        return models
    return {
        name: one if norm <= limit else one * np.float32(limit / norm)
        for (name, one), norm in zip(models.items(), norms, strict=True)
    }
