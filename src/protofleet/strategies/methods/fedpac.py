"""FedPAC: features are drawn to common class means; each client gets a head made of those alike.

Source: Xu, Tong and Huang, "Personalized Federated Learning with Feature Alignment and Classifier
Collaboration" (ICLR 2023, arXiv:2306.11867), algorithm 1, and the authors' published code
(github.com/JianXu95/FedPAC).

| symbol | name | shape | dtype |
|---|---|---|---|
| θ | ``params/<name>`` without the head | the model's | float32 |
| φ_i | ``params/<head…>`` | the model's | float32 |
| c | ``prototypes`` | (C, d) | float32 |
| classes with c | ``present`` | (C,) | uint8 |
| h_i, row k: p_i(k) · mean of class k | ``statistics/weighted_means`` | (C, d) | float32 |
| √V_i | ``statistics/deviation`` | () | float32 |
| n_i(k); p_i(k) = n_i(k) / n_i | ``class_counts`` | (C,) | int64 |
| combined heads; whose | ``heads``; ``clients``, on the server | (K, size); (K,) | float32; int64 |
| λ | ``prototype_weight`` | () | float |

A round: θ, c and the client's own combined head go down, the head from its second round on. With
that model, before any training, the client takes h_i and V_i, the mean of |f(x)|² less |h_i|²: the
variance of features that stand in the row of their class, whose mean is h_i. Then its head moves
alone on cross-entropy, then θ alone on cross-entropy plus λ |f(x) - c_y|², from round 2 on. θ, φ_i,
the class means of the trained model's features and both statistics come up. The server averages θ
by examples, class means by examples of the class, and gives each client of the round the head
Σ_j a_ij φ_j, whose a_i makes Σ_j a_ij² V_j / n_j + |h_i - Σ_j a_ij h_j|² least, of all a_ij ≥ 0
with Σ_j a_ij = 1.

Deviations:
    - A quadratic programme is solved by pivoting (``kernels.simplex_minimum``), not by a general
      solver; the code first drops small eigenvalues if rounding has made one negative.
    - Weights below ``smallest_weight`` count as zero, and the others are scaled to the sum 1, as
      the paper's constraint says and the code does where it combines heads (``rescale = false``:
      left as they are).
    - λ weighs the mean of the squared distance over the features, as in the code
      (``prototype_distance = "sum"``: their sum, as printed).
    - The body's training is by default the other strategies'; the paper has batches of 50 and SGD
      at 0.01 with momentum 0.5 and weight decay 0.0005.
    - A client's class without a global mean is drawn to its own mean at the received model, as in
      the code.
    - The norm clip in front of aggregation rules limits the lengths of heads too, and
      ``least_deviation`` what a client gains by telling of little variance.
    - A client that has not taken part keeps the bundle's head; √V_i and h_i are float32.
    - Buffers of the model stay on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.errors import RefusedError
from protofleet.kernels import gram, simplex_minimum
from protofleet.strategies.aggregation import Aggregator
from protofleet.strategies.bounds import Passes, Share, Weight
from protofleet.strategies.common import (
    PARAMS,
    client_key,
    combine_updates,
    network_tensors,
    prefixed,
    prefixed_layout,
    shared_layout,
    unpack_network,
)
from protofleet.strategies.optimisers import Adam, Group, Sgd
from protofleet.strategies.prototypes import (
    CollectedRows,
    class_counts_of,
    class_means,
    feature_width,
)
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.training import LocalObjective, Trained, Training, train
from protofleet.strategies.types import (
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
from protofleet.tensors import Layout, Model, Network, TensorMap

_PROTOTYPES = "prototypes"
_PRESENT = "present"
_WEIGHTED = "statistics/weighted_means"
_DEVIATION = "statistics/deviation"
_HEADS = "heads"
_CLIENTS = "clients"
_OBJECTIVE = "prototype_mse"


class FedPacSettings(Training, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training in two phases, and how heads are combined.

    Attributes:
        head: parameters whose names start so are the client's own; None: those that the bundle
            calls its head.
        head_epochs: passes that move the head alone, before ``epochs`` passes that move the body.
        head_optimiser: of the head; ``optimiser`` is the body's.
        prototype_weight: λ.
        prototype_distance: ``sum`` over the features of the squared differences, or their ``mean``.
        smallest_weight: smaller weights of heads count as zero.
        rescale: the others are scaled to the sum 1.
        least_deviation: smaller √V_i count as this share of the round's median one.
    """

    head: str | None = None
    head_epochs: Passes = 1
    head_optimiser: Adam | Sgd = Sgd(lr=0.1, momentum=0.5, weight_decay=5e-4)
    prototype_weight: Weight = 1.0
    prototype_distance: Literal["sum", "mean"] = "mean"
    smallest_weight: Share = 1e-3
    rescale: bool = True
    least_deviation: Share = 0.0


class FedPac(Strategy):
    """A shared body, and heads that the server combines for each client."""

    description = Description(
        name="fedpac",
        paper="Xu et al., Personalized Federated Learning with Feature Alignment and Classifier "
        "Collaboration, arXiv:2306.11867",
        objectives=(TASK_LOSS, _OBJECTIVE),
        travels=WireContents(
            down=(
                "body",
                "class means of features",
                "from a client's second round on: its own head",
            ),
            up=(
                "body",
                "head",
                "class means of features, before and after training",
                "deviation of features",
                "number of examples",
                "registered once: number of examples of each class",
            ),
            personal=("head", "buffers of the model"),
        ),
        class_counts=True,
        combines="rule",
        reads_features=True,
    )
    settings: FedPacSettings

    def __init__(self, settings: FedPacSettings, model: Model) -> None:
        super().__init__(settings, model)
        self.body, self.width = shared_layout(model, settings.head), feature_width(model)
        every = prefixed_layout(PARAMS, model.params.layout).shapes
        self.head = Layout.of({n: shape for n, shape in every.items() if n not in self.body.shapes})
        rows = TensorSchema((model.num_classes, self.width))
        body, head = float32_schemas(self.body), float32_schemas(self.head)
        shared = {**body, _PROTOTYPES: rows, _PRESENT: TensorSchema((model.num_classes,), "uint8")}
        statistics = {_PROTOTYPES: rows, _WEIGHTED: rows, _DEVIATION: TensorSchema(())}
        self.payload = TensorSchemas(required=shared, optional=head)
        self.uplink = TensorSchemas(required={**body, **head, **statistics})
        self.carried = frozenset(self.head.shapes)

    def server_init(self, model: Model, _rng: np.random.Generator) -> ServerState:
        every, classes = prefixed(PARAMS, model.params), model.num_classes
        tensors: dict[str, NDArray[Any]] = {
            **{name: every[name] for name in self.body.shapes},
            _PROTOTYPES: np.zeros((classes, self.width), np.float32),
            _PRESENT: np.zeros(classes, np.uint8),
            _HEADS: np.zeros((0, self.head.size), np.float32),
            _CLIENTS: np.zeros(0, np.int64),
        }
        return ServerState(round_id=0, tensors=tensors)

    def downlink(self, state: ServerState, client_id: str) -> Payload:
        names = (*self.body.shapes, _PROTOTYPES, _PRESENT)
        tensors = {name: state.tensors[name] for name in names}
        for row in np.flatnonzero(state.tensors[_CLIENTS] == client_key(client_id)):
            tensors |= TensorMap(self.head, state.tensors[_HEADS][row])
        return Payload(round_id=state.round_id + 1, tensors=tensors)

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        network = unpack_network({**state.tensors, **payload.tensors}, self.model)
        before = self._local_means(network, tools)
        trained = self._two_phases(network, payload, before, tools)
        after = self._local_means(trained.network, tools)
        kept = network_tensors(trained.network)
        own = (*self.body.shapes, *self.head.shapes)
        update = Update(
            client_id=tools.client_id,
            round_id=payload.round_id,
            num_examples=len(tools.training.y),
            tensors={
                **{name: kept[name] for name in own},
                _PROTOTYPES: after.means,
                _WEIGHTED: before.weighted.astype(np.float32),
                _DEVIATION: np.array(before.deviation, np.float32),
            },
            evaluation=tools.evaluate(trained.network),
            loss=trained.loss,
        )
        return ClientState(round_id=payload.round_id, tensors=kept), update

    def _local_means(self, network: Network, tools: ClientTools) -> _LocalMeans:
        classes, y = self.model.num_classes, tools.training.y
        features = np.zeros((0, self.width), np.float32)
        if len(y):
            features = tools.features(network, tools.training.x)
        means, counts = class_means(features, y, classes)
        total = float(np.square(features, dtype=np.float64).sum())
        return _LocalMeans(means=means, counts=counts, square=total / max(len(y), 1))

    def _two_phases(
        self, network: Network, payload: Payload, own: _LocalMeans, tools: ClientTools
    ) -> Trained:
        """The network with the head fitted, and then with the body fitted too: in one memory."""
        settings = self.settings
        head, body = (
            {name.removeprefix(PARAMS) for name in part.shapes} for part in (self.head, self.body)
        )
        fitted = train(
            network,
            tools.training,
            msgspec.structs.replace(settings, epochs=settings.head_epochs),
            LocalObjective(groups=[Group(names=head, optimiser=settings.head_optimiser)]),
        )
        groups = [Group(names=body, optimiser=settings.optimiser)]
        inputs = self._pull(payload, own)
        objective = LocalObjective(loss=_OBJECTIVE, inputs=lambda _rows: inputs, groups=groups)
        return train(fitted.network, tools.training, settings, objective)

    def _pull(self, payload: Payload, own: _LocalMeans) -> dict[str, Any]:
        """Where each class's features are drawn to, and how strongly."""
        settings = self.settings
        there = payload.tensors[_PRESENT] > 0
        weight = settings.prototype_weight * (payload.round_id > 1)
        if settings.prototype_distance == "sum":
            weight *= self.width  # the objective has the mean
        return {
            "prototypes": np.where(there[:, None], payload.tensors[_PROTOTYPES], own.means),
            "present": (there | (own.counts > 0)).astype(np.float32),
            "weight": np.float32(weight),
        }

    def check(self, update: Update) -> None:
        deviation = float(update.tensors[_DEVIATION])
        if deviation < 0:
            raise RefusedError(
                "content", f"tensor '{_DEVIATION}': expected at least 0, got {deviation:g}"
            )

    def aggregate(self, state: ServerState, updates: Updates, tools: ServerTools) -> ServerState:
        classes = self.model.num_classes
        rows = CollectedRows(
            old={_PROTOTYPES: state.tensors[_PROTOTYPES]},
            weigh=lambda update: np.maximum(class_counts_of(update, classes), 0),
        )
        heads = _Collaboration(head=self.head)

        def visit(position: int, update: Update) -> None:
            rows.collect(position, update)
            heads.collect(position, update)

        body = combine_updates(updates, self.body, tools.aggregator, state.tensors, visit=visit)
        if body is None:
            return ServerState(round_id=state.round_id + 1, tensors=state.tensors)
        heads.limit(tools.aggregator, len(updates))
        tensors: dict[str, NDArray[Any]] = {
            **body,
            **rows.merged(tools.aggregator, len(updates)),
            _PRESENT: rows.present(state.tensors[_PRESENT]),
            **_remembered(state, heads.clients, heads.combined(self.settings)),
        }
        return ServerState(round_id=state.round_id + 1, tensors=tensors)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalMeans:
    """What a model makes of a client's examples, class by class.

    Attributes:
        means: ``(C, d) float32``; zeros for absent classes.
        counts: ``(C,) int64``.
        square: mean of |f|² over the examples.
    """

    means: NDArray[np.float32]
    counts: NDArray[np.int64]
    square: float

    @property
    def weighted(self) -> NDArray[np.float64]:
        """h_i: means times the classes' shares, ``(C, d)``."""
        shares = self.counts / max(int(self.counts.sum()), 1)
        weighted: NDArray[np.float64] = self.means * shares[:, None]
        return weighted

    @property
    def deviation(self) -> float:
        """√V_i: beside h_i it makes the features' length, so that both grow alike in training."""
        return math.sqrt(max(self.square - float(np.square(self.weighted).sum()), 0.0))


@dataclass(slots=True, kw_only=True)
class _Collaboration:
    """Heads and statistics of a round's clients, by ascending client.

    Attributes:
        head: prefixed layout of a head.
        positions: of their updates among the round's.
    """

    head: Layout
    clients: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    heads: list[NDArray[np.float32]] = field(default_factory=list)
    weighted: list[NDArray[np.float32]] = field(default_factory=list)
    deviations: list[float] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def collect(self, position: int, update: Update) -> None:
        """Take what an update says, and its place among all."""
        tensors = {name: update.tensors[name] for name in self.head.shapes}
        self.positions.append(position)
        self.clients.append(client_key(update.client_id))
        self.heads.append(TensorMap.pack(tensors, self.head).buffer)
        self.weighted.append(np.array(update.tensors[_WEIGHTED]).reshape(-1))
        self.deviations.append(float(update.tensors[_DEVIATION]))
        self.counts.append(update.num_examples)

    def limit(self, aggregator: Aggregator, count: int) -> None:
        """Shorten heads as the aggregator's norm clip says, of ``count`` updates in all."""
        nothing = np.zeros(self.head.size, np.float32)
        terms: list[tuple[NDArray[np.float32], int]] = [(nothing, 0)] * count
        for position, head in zip(self.positions, self.heads, strict=True):
            terms[position] = head, 1
        self.heads = [head for head, weight in aggregator.limit(nothing, terms) if weight]

    def combined(self, settings: FedPacSettings) -> NDArray[np.float32]:
        """A head for each client, ``(S, size)``."""
        least = settings.least_deviation * float(np.median(self.deviations))
        variances = np.maximum(self.deviations, least) ** 2 / self.counts
        weights = head_weights(np.stack(self.weighted), variances.tolist())
        weights[weights < settings.smallest_weight] = 0
        totals = weights.sum(axis=1, keepdims=True)
        nobody = totals[:, 0] == 0  # all are below the bound: each keeps its own
        weights[nobody], totals[nobody] = np.eye(len(weights))[nobody], 1
        if settings.rescale:
            weights /= totals
        combined = np.zeros((len(weights), self.head.size))
        for column, own in zip(weights.T, self.heads, strict=True):
            combined += column[:, None] * own
        return combined.astype(np.float32)


def head_weights(weighted: NDArray[np.float32], variances: Sequence[float]) -> NDArray[np.float64]:
    """Row i makes Σ_j a_j² v_j + |h_i - Σ_j a_j h_j|² least, of all a ≥ 0 with Σ_j a_j = 1.

    Args:
        weighted: h_i of each client, ``(S, C·d) float32``.
        variances: v_i = V_i / n_i, at least 0.

    Returns:
        ``(S, S) float64``.
    """
    products = gram(weighted)
    common = products + np.diag(np.asarray(variances, np.float64))
    rows = [
        # (h_i - h_j) · (h_i - h_k), for all j and k
        simplex_minimum(common - (own + own[:, None]) + own[i])
        for i, own in enumerate(products)
    ]
    return np.stack(rows)


def _remembered(
    state: ServerState, clients: Sequence[int], heads: NDArray[np.float32]
) -> dict[str, NDArray[Any]]:
    """Every client's last combined head: those of this round, and the others' as they were."""
    new = np.array(clients, np.int64)
    others = ~np.isin(state.tensors[_CLIENTS], new)
    keys = np.concatenate([state.tensors[_CLIENTS][others], new])
    order = np.argsort(keys, kind="stable")
    every = np.concatenate([state.tensors[_HEADS][others], heads])
    return {_CLIENTS: keys[order], _HEADS: every[order]}
