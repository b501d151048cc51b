"""FedSub: the server fuses the parts of clients' networks that serve alike classes.

Source: Campana, Delmastro, "FedSub: Introducing Class-aware Subnetworks Fusion to Enhance
Personalized Federated Learning" (arXiv:2411.08699v2). Its code is not published.

| symbol | name | shape | dtype |
|---|---|---|---|
| W_u | ``params/<layer>.weight``, ``.bias`` | (units, inputs), (units,) | float32 |
| P_y | ``prototypes`` | (C, d_in), zero where a class is absent | float32 |
| A^l_y | ``masks/<layer>`` | (C, ceil(units / 8)), bits of the units | uint8 |
| acc_y | ``accuracy``, only for leadership | (C,) | float32 |
| abs(D_y) | ``class_counts`` | (C,) | int64 |
| n | ``neighbours`` | () | int |

A round: a client gets its own new weights of the fused layers, trains all layers, and sends the
fused ones with the class means of its raw examples and, for each class, which units of the hidden
layers are active on average. The server predicts the prototypes of classes that a client lacks,
clusters the clients class by class, and fuses weights inside the clusters that a client is in.

Fused are the dense layers and convolutions that the bundle tells of; a channel of a convolution is
a unit, its activation the mean over positions. Where a layer's inputs are not the units of an
earlier one, all are active.

Scores are of the client's model after distribution, before local training; those after it are
``after_fit``. The fused weights of the last round are scored in one more fit.

What the paper leaves open, and what holds here:
    - A weight is active if the units at both its ends are (``mask = "inout"``), a unit if its
      average activation over the class's examples exceeds ``threshold``.
    - "Where the own model is active" (eq. 7): where any class that the client owns is.
    - p is normalised inside the cluster (``literal_shares`` for "across all clients").
    - Entries without overlap keep their value. Eq. 7 as printed (``untouched = "zero"``) gives 0
      where the own model is not active; without overlap its sum is the own value there, too.
    - "Normalisation": the mean of own and cluster weight where they are added
      (``normalise = "halve"``). ``norm`` and ``unit`` scale each tensor, for all fusions.
    - In average and leadership, an entry that is active nowhere becomes 0.
    - A cluster is fused if somebody in it has the class; others are not counted in the means.

Deviations:
    - The number of clusters is at most half that of the clients: without a bound the
      Davies-Bouldin index favours clusters of one client.
    - Masks are bits of units beside one copy of the weights, instead of a subnetwork per class.
    - Clusters are computed again only when prototypes, owned classes or participants change: raw
      examples do not depend on the round.
    - A client that takes no part in a round keeps what it was sent before.
    - The paper gives no rate, batch size or number of epochs: by default those of the others.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError, RefusedError
from protofleet.strategies.bounds import Count, Passes, Weight
from protofleet.strategies.common import (
    PARAMS,
    network_names,
    network_tensors,
    ordered,
    prefixed_layout,
    scored,
    unpack_network,
)
from protofleet.strategies.methods.fedsub.clusters import cluster_by_class
from protofleet.strategies.methods.fedsub.fusion import (
    Fusion,
    Normalise,
    Population,
    Rules,
    Subnetworks,
    Untouched,
    clusters_of,
    fuse,
)
from protofleet.strategies.methods.fedsub.layers import (
    MASKS,
    fused_layers,
    pack_masks,
    reach,
)
from protofleet.strategies.prototypes import class_counts_of, class_means
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.training import Training, train
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
)
from protofleet.tensors import Model, Network

_PROTOTYPES = "prototypes"
_ACCURACY = "accuracy"
_LABELS = "clusters/labels"
_KEY = "clusters/key"


class FedSubSettings(Training, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What FedSub decides, besides local training.

    Attributes:
        variant: ``partial`` fuses the hidden layers, ``full`` also the output layer.
        threshold: a unit is active if its average activation exceeds it.
        mask: ``inout``: a weight is active if the units at both ends are; ``out``: if the unit it
            leads to is.
        neighbours: clients from which a missing prototype is predicted.
        restarts: runs of k-means for each number of clusters.
        fusion: ``overlap``: the mean of clusters' weights, where all their owners are active, is
            added to the own ones; ``average``: the mean of the clusters' means; ``leadership``:
            the mean of the clusters' best subnetworks.
        subnetworks: in average and leadership, inactive weights count as zero (``masked``) or as
            they are (``whole``).
        literal_shares: a client's weight in a cluster is its share of the class's examples among
            all clients, as printed, not among those of the cluster.
        untouched: in overlap, entries where the client's own model is not active keep their value
            or become zero, as printed; other entries without overlap keep it in any case.
        normalise: ``halve`` the sums of overlap; scale a tensor to its former ``norm`` or to a
            ``unit`` one; ``none``.
    """

    clip_norm: float | None = 100.0
    variant: Literal["partial", "full"] = "partial"
    threshold: Weight = 0.0
    mask: Literal["inout", "out"] = "inout"
    neighbours: Count = 5
    restarts: Passes = 10
    fusion: Fusion = "overlap"
    subnetworks: Subnetworks = "masked"
    literal_shares: bool = False
    untouched: Untouched = "keep"
    normalise: Normalise = "halve"


class FedSub(Strategy):
    """Subnetworks of classes, fused among the clients that have them."""

    description = Description(
        name="fedsub",
        paper="Campana and Delmastro, FedSub: Introducing Class-aware Subnetworks Fusion to "
        "Enhance Personalized Federated Learning, arXiv:2411.08699",
        objectives=(TASK_LOSS,),
        travels=WireContents(
            down=("the client's own fused layers",),
            up=(
                "fused layers",
                "class means of raw examples",
                "masks of active units",
                "class counts",
            ),
            personal=(
                "output layer if variant is partial",
                "other parameters",
                "buffers of the model",
            ),
        ),
        class_counts=True,
        final_fit=True,
        reads_layers=True,
    )
    settings: FedSubSettings

    def __init__(self, settings: FedSubSettings, model: Model) -> None:
        super().__init__(settings, model)
        self.layers = fused_layers(model, output=settings.variant == "full")
        self.shared = tuple(name for layer in self.layers for name in layer.tensors)
        self.payload = TensorSchemas(optional=self._fused_forms())
        self.uplink = self._uplink()
        self.carried = network_names(model)

    def _fused_forms(self) -> dict[str, TensorSchema]:
        shapes = prefixed_layout(PARAMS, self.model.params.layout).shapes
        return {name: TensorSchema(shapes[name]) for name in self.shared}

    def _uplink(self) -> TensorSchemas:
        model, classes = self.model, self.model.num_classes
        forms = self._fused_forms()
        forms[_PROTOTYPES] = TensorSchema((classes, math.prod(model.input_shape)))
        for layer in self.layers:
            if layer.hidden:
                forms[MASKS + layer.name] = TensorSchema((classes, -(-layer.units // 8)), "uint8")
        if self.settings.fusion == "leadership":
            forms[_ACCURACY] = TensorSchema((classes,))
        return TensorSchemas(required=forms)

    def server_init(self, _model: Model, _rng: np.random.Generator) -> ServerState:
        """Nobody has fused weights: every client starts from its own."""
        return ServerState(round_id=0, tensors={})

    def server_model(self, _state: ServerState) -> None:
        """There is no global model."""

    def downlink(self, state: ServerState, client_id: str) -> Payload:
        names = {name: _of_client(client_id, name) for name in self.shared}
        own = {name: state.tensors[key] for name, key in names.items() if key in state.tensors}
        return Payload(round_id=state.round_id + 1, tensors=own)

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        network = unpack_network({**state.tensors, **payload.tensors}, self.model)
        before = tools.evaluate(network)
        trained = train(network, tools.training, self.settings)
        kept = network_tensors(trained.network)
        update = Update(
            client_id=tools.client_id,
            round_id=payload.round_id,
            num_examples=len(tools.training.y),
            tensors={
                **{name: kept[name] for name in self.shared},
                **self._by_class(trained.network, tools),
            },
            evaluation=scored(before, trained.network, tools),
            loss=trained.loss,
        )
        return ClientState(round_id=payload.round_id, tensors=kept), update

    def _by_class(self, network: Network, tools: ClientTools) -> dict[str, NDArray[Any]]:
        """Prototypes, masks and, for leadership, accuracies."""
        classes, settings = self.model.num_classes, self.settings
        x, y = tools.training.x, tools.training.y
        flat = x.reshape(len(x), math.prod(x.shape[1:]))
        found: dict[str, NDArray[Any]] = {_PROTOTYPES: class_means(flat, y, classes)[0]}
        for name, values in self._activations(network, tools).items():
            means, _ = class_means(values, y, classes)
            found[MASKS + name] = pack_masks(means, settings.threshold)
        if settings.fusion == "leadership":
            found[_ACCURACY] = self._accuracy(network, tools)
        return found

    def _activations(self, network: Network, tools: ClientTools) -> dict[str, NDArray[np.float32]]:
        """``(n, units)`` of the hidden layers on the training part."""
        hidden = {layer.name: layer.units for layer in self.layers if layer.hidden}
        if not len(tools.training.y):
            return {name: np.zeros((0, units), np.float32) for name, units in hidden.items()}
        found = tools.layers(network, tools.training.x)
        for name in hidden.keys() - found.keys():
            raise InputError(
                f"strategy 'fedsub': expected activations of layer '{name}', got those of "
                f"{', '.join(found) or 'none'}; export with --strategy fedsub"
            )
        return {name: found[name] for name in hidden}

    def _accuracy(self, network: Network, tools: ClientTools) -> NDArray[np.float32]:
        """Of each class, ``(C,)``, on the training part; 0 for absent ones."""
        classes = self.model.num_classes
        x, y = tools.training.x, tools.training.y
        right = np.zeros((len(y), 1), np.float32)
        if len(y):
            right[:, 0] = tools.predict(network, x).argmax(axis=1) == y
        return class_means(right, y, classes)[0][:, 0]

    def check(self, update: Update) -> None:
        accuracy = update.tensors.get(_ACCURACY)
        if accuracy is not None and not ((accuracy >= 0) & (accuracy <= 1)).all():
            raise RefusedError(
                "content", f"update: expected accuracies from 0 to 1, got {accuracy}"
            )

    def aggregate(self, state: ServerState, updates: Updates, tools: ServerTools) -> ServerState:
        members = [update for update in ordered(updates) if update.num_examples]
        if not members:
            return ServerState(round_id=state.round_id + 1, tensors=state.tensors)
        classes, settings = self.model.num_classes, self.settings
        counts = np.array([class_counts_of(update, classes) for update in members], np.float64)
        counts = np.maximum(counts, 0.0)
        known = _clusters(settings, state, members, counts > 0, tools.rng)
        clusters = clusters_of(
            known[_LABELS], counts, _accuracies(members, classes), literal=settings.literal_shares
        )
        fleet = Population(owned=counts > 0, clusters=clusters)
        merged = {**state.tensors, **known}
        masks = [update.tensors for update in members]
        for name, active in reach(self.layers, masks, settings.mask, classes=classes).items():
            weights = [update.tensors[name] for update in members]
            fused = fuse(weights, active, fleet, _rules(settings))
            for update, value in zip(members, fused, strict=True):
                merged[_of_client(update.client_id, name)] = value
        return ServerState(round_id=state.round_id + 1, tensors=merged)


def _of_client(client_id: str, name: str) -> str:
    """Name in the server's state; an identity holds no slash."""
    return f"client/{client_id}/{name}"


def _rules(settings: FedSubSettings) -> Rules:
    return Rules(
        fusion=settings.fusion,
        subnetworks=settings.subnetworks,
        untouched=settings.untouched,
        normalise=settings.normalise,
    )


def _accuracies(members: Sequence[Update], classes: int) -> NDArray[np.float64]:
    """``(M, C)``; ones where nobody is asked for them."""
    ones = np.ones(classes)
    return np.array([update.tensors.get(_ACCURACY, ones) for update in members], np.float64)


def _clusters(
    settings: FedSubSettings,
    state: ServerState,
    members: Sequence[Update],
    owned: NDArray[np.bool_],
    rng: np.random.Generator,
) -> dict[str, NDArray[Any]]:
    """Clusters for the server's state, taken over from it where nothing has changed."""
    prototypes = np.array([update.tensors[_PROTOTYPES] for update in members], np.float32)
    digest = hashlib.sha256("/".join(update.client_id for update in members).encode())
    digest.update(prototypes.tobytes())
    digest.update(owned.tobytes())
    key = np.frombuffer(digest.digest(), np.uint8)
    if np.array_equal(state.tensors.get(_KEY, ()), key):
        return {_KEY: key, _LABELS: state.tensors[_LABELS]}
    labels = cluster_by_class(
        prototypes, owned, rng, neighbours=settings.neighbours, restarts=settings.restarts
    )
    return {_KEY: key, _LABELS: labels}
