"""FedAli: clients align their embeddings with prototypes that the server clusters.

Source: Ek et al., "FedAli: Personalized Federated Learning Alignment with Prototype Layers for
Generalized Mobile Services" (arXiv:2411.10595), and the authors' published TensorFlow code. The
layer itself is a part of the model (``export/models/alp.py``); its plan and the update of its local
prototypes run inside the training program, which was compiled with their settings (variant,
gamma, epsilon). Here stands what happens between rounds.

| symbol | name | shape | dtype |
|---|---|---|---|
| w | ``params/<name>`` | the model's | float32 |
| P_local | ``state/<layer>.local_prototypes`` | (G, d) | float32 |
| P_global | ``state/<layer>.global_prototypes`` | (G, d) | float32 |
| β | ``state/beta``, or ``state/<layer>.beta`` of each | () | float32 |
| n_c | ``num_examples`` | () | int |

A round: w and P_global go down; P_local becomes P_global; the client trains with a fresh optimiser;
w and P_local come up. The server averages both by examples and clusters, layer by layer, all
clients' local prototypes by k-means from that average; the means of the final clusters, in the
order of the average's rows, are the next P_global. Under another aggregation rule than the mean it
takes the place of both averages, and in k-means that of each cluster's mean, over the clients.

In round 1 β is 0, because the prototypes mean nothing yet: the layer only normalises. The scores
of the clients in round 1 are taken with 0 too.

The round's record tells of each layer (``figures``): ``<layer>.relabelled``, the share of the
clients' prototypes that k-means put into another cluster than that of their index;
``<layer>.relocated``, how many clusters it moved because they had lost all points;
``<layer>.moved``, ‖P_global after - before‖ / ‖before‖.

Deviations:
    - P_local equals P_global on arrival and is not sent down a second time. In round 1 it is the
      bundle's own, drawn independently of P_global, as in the authors' code.
    - A cluster that loses all its points stands at its row of the average; scikit-learn, which the
      authors use, moves it to a far point (``kmeans_empty = "relocate"``). One that is empty in the
      end, for which the authors' code has no mean, keeps its row in either case.
    - ``keep_local_prototypes`` (an ablation) lets P_local persist on the device; a device that has
      not trained yet starts from P_global.
    - Buffers that are no prototypes stay on the device.
    - With differential privacy the clusters are of one set of prototypes, the noised mean of all
      clients' row by row, and so they are that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.kernels import EmptyClusters, cluster_means, kmeans
from protofleet.strategies.aggregation import Aggregator
from protofleet.strategies.bounds import Passes, Share, Weight
from protofleet.strategies.common import (
    BUFFERS,
    PARAMS,
    combine_updates,
    listed,
    prefixed,
    prefixed_layout,
    unpack,
)
from protofleet.strategies.shared_model import (
    ReceivedModel,
    SharedTraining,
    finish_round,
    initialise,
)
from protofleet.strategies.strategy import PrivacySupport, Strategy
from protofleet.strategies.training import refuse_rewritten, train
from protofleet.strategies.types import (
    ALL_TASKS,
    TASK_LOSS,
    ClientState,
    ClientTools,
    Description,
    Payload,
    ServerState,
    ServerTools,
    TensorSchemas,
    UnsuitableModelError,
    Update,
    Updates,
    WireContents,
    float32_schemas,
)
from protofleet.tensors import Layout, Model, Network, TensorMap, Tensors

_LOCAL = ".local_prototypes"
_GLOBAL = ".global_prototypes"
_BETA = "beta"


class FedAliSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What FedAli decides at run time, besides local training.

    How prototypes move (``alp_update``, gamma, epsilon) is compiled into the bundle's programs and
    cannot be set here.

    Attributes:
        beta: share of the aligned embedding in a layer's output from round 2 on.
        keep_local_prototypes: local prototypes persist on the device instead of being replaced by
            the global ones at the start of each round.
        kmeans_max_iter: most iterations of the server's k-means.
        kmeans_tol: its tolerance, relative to the mean variance.
        kmeans_empty: a cluster that loses all its points ``keep``s its first row, or is
            ``relocate``d to the point that is farthest from its own centre; for the mean alone,
            other aggregation rules keep the row.
    """

    beta: Share = 0.2
    keep_local_prototypes: bool = False
    kmeans_max_iter: Passes = 300
    kmeans_tol: Weight = 1e-4
    kmeans_empty: EmptyClusters = "keep"


class FedAli(Strategy):
    """A shared model whose alignment layers have prototypes of their own."""

    description = Description(
        name="fedali",
        paper="Ek et al., FedAli: Personalized Federated Learning Alignment with Prototype Layers "
        "for Generalized Mobile Services, arXiv:2411.10595",
        objectives=(TASK_LOSS,),
        travels=WireContents(
            down=("parameters", "global prototypes"),
            up=("parameters", "local prototypes", "number of examples"),
            personal=("buffers of the model", "local prototypes if keep_local_prototypes"),
        ),
        tasks=ALL_TASKS,
        combines="rule",
        alignment=True,
        partial_work=True,
        published={"kind": "adam", "lr": 1e-4},
    )
    settings: FedAliSettings

    def __init__(self, settings: FedAliSettings, model: Model) -> None:
        super().__init__(settings, model)
        self.layers, self.betas = _alignment(model)
        if settings.local_init is not None:
            refuse_rewritten(self.description.name, model)
        params = prefixed_layout(PARAMS, model.params.layout).shapes
        shapes = {name: model.buffers.layout.shapes[name + _LOCAL] for name in self.layers}
        down = {BUFFERS + layer + _GLOBAL: shape for layer, shape in shapes.items()}
        up = {BUFFERS + layer + _LOCAL: shape for layer, shape in shapes.items()}
        self.shared = Layout.of(params | up)
        self.payload = TensorSchemas(required=float32_schemas(Layout.of(params | down)))
        self.uplink = TensorSchemas(required=float32_schemas(self.shared))
        self.private = PrivacySupport(baseline=self._baseline)

    def server_init(self, model: Model, _rng: np.random.Generator) -> ServerState:
        tensors = prefixed(PARAMS, model.params)
        for layer in self.layers:
            tensors[BUFFERS + layer + _GLOBAL] = model.buffers[layer + _GLOBAL]
        return ServerState(round_id=0, tensors=tensors)

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        start = initialise(self.settings, self._arrived(state, payload), tools)
        trained = train(start.network, tools.training, self.settings)
        return finish_round(start, trained, tools, self.shared)

    def _arrived(self, state: ClientState, payload: Payload) -> ReceivedModel:
        """The client's model with the received tensors in the place of its own."""
        network = Network(
            params=self._params(payload.tensors), buffers=self._buffers(state, payload)
        )
        head = self.model.head
        return ReceivedModel(state=state, payload=payload, network=network, head=head)

    def _buffers(self, state: ClientState, payload: Payload) -> TensorMap:
        """The model's buffers with which local training starts."""
        first = payload.round_id == 1
        settings = self.settings
        buffers = unpack(state.tensors, BUFFERS, self.model.buffers.layout)
        for name in self.betas:
            buffers[name][...] = 0.0 if first else settings.beta
        keep = settings.keep_local_prototypes and state.round_id > 0
        for layer in self.layers:
            received = payload.tensors[BUFFERS + layer + _GLOBAL]
            buffers[layer + _GLOBAL][...] = received
            if not keep:
                initial = self.model.buffers[layer + _LOCAL]
                buffers[layer + _LOCAL][...] = initial if first else received
        return buffers

    def aggregate(self, state: ServerState, updates: Updates, tools: ServerTools) -> ServerState:
        """Combine everything, cluster prototypes; without examples the state stays as it is."""
        shapes = self.shared.shapes
        names = [BUFFERS + layer + _LOCAL for layer in self.layers]
        collected = {name: np.zeros((len(updates), *shapes[name]), np.float32) for name in names}
        weights = [0] * len(updates)

        def collect(position: int, update: Update) -> None:
            for name in names:
                collected[name][position] = update.tensors[name]
            weights[position] = update.num_examples

        params = prefixed_layout(PARAMS, self.model.params.layout)
        combined = combine_updates(updates, params, tools.aggregator, state.tensors, visit=collect)
        if combined is None:
            return ServerState(round_id=state.round_id + 1, tensors=state.tensors)
        merged: dict[str, NDArray[Any]] = {**combined}
        figures: dict[str, float] = {}
        for layer, name in zip(self.layers, names, strict=True):
            old = state.tensors[BUFFERS + layer + _GLOBAL]
            clients = collected.pop(name), weights
            clusters = _clustered(self.settings, tools.aggregator, old, clients)
            merged[BUFFERS + layer + _GLOBAL] = clusters.means
            figures |= {f"{layer}.{key}": value for key, value in _figures(old, clusters).items()}
        return ServerState(round_id=state.round_id + 1, tensors=merged, figures=figures)

    def _baseline(self, state: ServerState) -> Tensors:
        """What the clients' updates start from: local prototypes are the global ones on arrival."""
        tensors = {name: value for name, value in state.tensors.items() if name.startswith(PARAMS)}
        for layer in self.layers:
            arrived = state.tensors[BUFFERS + layer + _GLOBAL]
            local = arrived if state.round_id else self.model.buffers[layer + _LOCAL]
            tensors[BUFFERS + layer + _LOCAL] = local
        return tensors

    def server_model(self, state: ServerState) -> Network:
        buffers = self.model.buffers.copy()
        for name in self.betas:
            buffers[name][...] = self.settings.beta
        for layer in self.layers:
            clustered = state.tensors[BUFFERS + layer + _GLOBAL]
            buffers[layer + _GLOBAL][...] = clustered
            if state.round_id:
                buffers[layer + _LOCAL][...] = clustered
        return Network(params=self._params(state.tensors), buffers=buffers)

    def _params(self, tensors: Tensors) -> TensorMap:
        return unpack(tensors, PARAMS, self.model.params.layout)


def _alignment(model: Model) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the alignment layers, and of the buffers that hold β.

    Raises:
        UnsuitableModelError: the model has no such layers.
    """
    shapes = model.buffers.layout.shapes
    layers = tuple(name.removesuffix(_LOCAL) for name in shapes if name.endswith(_LOCAL))
    fits = all(shapes.get(layer + _GLOBAL) == shapes[layer + _LOCAL] for layer in layers)
    own = [f"{layer}.{_BETA}" for layer in layers]
    betas = (_BETA,) if _BETA in shapes else tuple(own)
    if not layers or not fits or any(shapes.get(name) != () for name in betas):
        raise UnsuitableModelError(
            f"strategy 'fedali': expected a model with ALP layers (buffers '<layer>{_LOCAL}' and "
            f"'<layer>{_GLOBAL}' of one shape, scalar '{_BETA}'), got buffers "
            f"{listed(tuple(shapes))}; export with --strategy fedali, which adds them, and "
            "--align 'MODULE=PROTOTYPES' to choose where"
        )
    return layers, betas


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clusters:
    """The next global prototypes of a layer, and how they were found.

    Attributes:
        means: ``(G, d)``.
        labels: ``(n, G)``, the cluster of every client's prototypes; None: nobody had any.
        relocated: clusters that k-means moved because they had lost all points.
    """

    means: NDArray[np.float32]
    labels: NDArray[np.int64] | None = None
    relocated: int = 0


def _figures(old: NDArray[np.float32], clusters: _Clusters) -> dict[str, float]:
    """What the round's record tells of a layer."""
    before = old.astype(np.float64)
    length = float(np.linalg.norm(before))
    found = {
        "relocated": float(clusters.relocated),
        "moved": float(np.linalg.norm(clusters.means - before)) / length if length else math.nan,
    }
    if clusters.labels is not None:
        stayed = clusters.labels == np.arange(len(old))
        found["relabelled"] = 1.0 - float(stayed.mean())
    return found


def _clustered(
    settings: FedAliSettings,
    aggregator: Aggregator,
    old: NDArray[np.float32],
    clients: tuple[NDArray[np.float32], list[int]],
) -> _Clusters:
    """The next global prototypes ``(G, d)`` of a layer.

    Args:
        settings: of k-means.
        aggregator: the rule.
        old: ``(G, d)``, those that the clients started from.
        clients: their own, ``(n, G, d)``, and how many examples each has; one without has none.
    """
    locals_, weights = clients
    flat = old.reshape(-1)
    terms = [(one.reshape(-1), weight) for one, weight in zip(locals_, weights, strict=True)]
    combined = aggregator.combine(flat, terms)
    if combined is None:
        return _Clusters(means=old)
    init = combined.reshape(old.shape)
    limited = [vector for vector, weight in aggregator.limit(flat, terms) if weight]
    locals_ = np.stack(limited).reshape(-1, *old.shape)
    if aggregator.incremental:
        return _cluster(settings, locals_, init)
    return _cluster_by_rule(settings, aggregator, locals_, init)


def _cluster(
    settings: FedAliSettings, locals_: NDArray[np.float32], init: NDArray[np.float32]
) -> _Clusters:
    """K-means over all clients' prototypes ``(n, G, d)`` from ``init (G, d)``."""
    points = locals_.reshape(-1, init.shape[1])
    result = kmeans(
        points,
        init,
        max_iter=settings.kmeans_max_iter,
        tol=settings.kmeans_tol,
        # A client's prototype g started from the same row as everyone's: most likely cluster g.
        guess=np.tile(np.arange(len(init)), len(locals_)),
        empty=settings.kmeans_empty,
    )
    return _Clusters(
        means=cluster_means(points, result.labels, init),
        labels=result.labels.reshape(len(locals_), -1),
        relocated=result.relocated,
    )


def _cluster_by_rule(
    settings: FedAliSettings,
    aggregator: Aggregator,
    locals_: NDArray[np.float32],
    init: NDArray[np.float32],
) -> _Clusters:
    """The same with the rule, over clients, in the place of each cluster's mean.

    A client's term of a cluster is the mean of its prototypes in it. Where less than half of the
    clients have one, liars might be the majority of those: the row of ``init`` stays.
    """
    centres, labels = init, np.full(locals_.shape[:2], -1)
    for _ in range(settings.kmeans_max_iter):
        before, labels = labels, np.stack([_nearest(one, centres) for one in locals_])
        if np.array_equal(labels, before):
            break
        held = np.stack([np.bincount(one, minlength=len(init)) for one in labels])
        known = 2 * (held > 0).sum(axis=0) >= len(locals_)
        terms = [
            (cluster_means(one, where, init), np.where(known, counts, 0))
            for one, where, counts in zip(locals_, labels, held, strict=True)
        ]
        centres = aggregator.by_row(init, terms)
    return _Clusters(means=centres, labels=labels)


def _nearest(points: NDArray[np.float32], centres: NDArray[np.float32]) -> NDArray[np.int64]:
    """Of each of the points ``(G, d)`` the nearest centre; of equal ones the first."""
    products = points.astype(np.float64) @ centres.T.astype(np.float64)
    squares = np.square(centres, dtype=np.float64).sum(axis=1)
    nearest: NDArray[np.int64] = (squares - 2 * products).argmin(axis=1)
    return nearest
