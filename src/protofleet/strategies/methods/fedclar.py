"""FedCLAR: FedAvg for some rounds, then within clusters of clients whose last layers are alike.

Source: Presotto, Civitarese and Bettini, "FedCLAR: Federated Clustering for Personalized
Sensor-Based Human Activity Recognition" (IEEE PerCom 2022).

| symbol | name | shape | dtype |
|---|---|---|---|
| w, w_i | ``params/<name>`` | the model's | float32 |
| w of each cluster | ``clusters/params/<name>`` | (K, the model's) | float32 |
| the cluster of each client | ``clients``, its key; ``labels`` | (M,) | int64 |
| last layers, as unit vectors | ``profiles``, their sum in each cluster | (K, h) | float64 |
| r_c; distance threshold | ``cluster_round``; ``threshold`` | () | int; float |

Rounds before r_c are FedAvg's. In round r_c the server compares the last layers of what its clients
send by the cosine, merges the clients bottom up as long as two clusters are nearer than the
threshold, and from then on averages, and sends, a model for each cluster. After the last round
every client trains the last layers alone, the others frozen, and is scored with the outcome, which
stays on the device: what came is sent back.

Who takes part for the first time later gets the model that round r_c began with, so that the last
layers of its update can be compared with those of the others in that round: it joins the nearest
cluster, or begins one where none is nearer than the threshold. Its update counts from then on. The
server's model is that one, too.

Deviations:
    - The distance of two clusters is the mean one of their members (average linkage), which needs
      no more of a cluster than the sum of its members' unit vectors.
    - Weights and biases of the last layers are one vector for the cosine.
    - Cluster round and threshold depend on the data: the default of the latter is that of the
      comparison in FedSub (arXiv:2411.08699).
    - Default optimiser and buffers as in ``fedavg.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Annotated, Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.kernels import SquaredDistances
from protofleet.strategies.bounds import Bounds, Count, Passes
from protofleet.strategies.common import PARAMS, client_key, combine_updates, ordered, shared_layout
from protofleet.strategies.methods.fedavg import FedAvg
from protofleet.strategies.optimisers import Group
from protofleet.strategies.shared_model import SharedModel, SharedTraining, finish_round, initialise
from protofleet.strategies.training import LocalObjective, train
from protofleet.strategies.types import (
    ClientState,
    ClientTools,
    Payload,
    ServerState,
    ServerTools,
    Update,
    Updates,
    WireContents,
)
from protofleet.tensors import Layout, Model, TensorMap, Tensors

_CLUSTERS = "clusters/"
_CLIENTS, _LABELS, _PROFILES = "clients", "labels", "profiles"
_HELD = 1 << 27
"""Bytes of updates of small clusters that are held at a time."""


class FedClarSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training, when and how clients are clustered, and the fit after the last round.

    Attributes:
        cluster_round: the round whose updates are clustered.
        threshold: clusters whose mean distance (1 - cosine) is below it are merged.
        head: parameters whose names start so are the last layers; None: those that the bundle
            calls its head.
        fine_tune_epochs: passes over the examples that train the last layers after the last round.
    """

    cluster_round: Count = 10
    threshold: Annotated[float, Bounds(0, 2)] = 1e-4
    head: str | None = None
    fine_tune_epochs: Passes = 1


class FedClar(SharedModel):
    """FedAvg within clusters that are found in the middle."""

    description = replace(
        FedAvg.description,
        name="fedclar",
        paper="Presotto et al., FedCLAR: Federated Clustering for Personalized Sensor-Based Human "
        "Activity Recognition, PerCom 2022",
        travels=WireContents(
            down=("parameters of the client's cluster",),
            up=("parameters", "number of examples"),
            personal=("after the last round: fine-tuned head", "buffers of the model"),
        ),
        final_fit=True,
        partial_work=False,
        combines="rule",
    )
    settings: FedClarSettings

    def __init__(self, settings: FedClarSettings, model: Model) -> None:
        super().__init__(settings, model)
        body, every = shared_layout(model, settings.head).shapes, self.shared.shapes
        self.head = Layout.of({name: shape for name, shape in every.items() if name not in body})
        self.private = self.mean = None

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        if not payload.final:
            return super().client_update(state, payload, tools)
        settings = self.settings
        start = initialise(settings, self.receive(state, payload), tools)
        training = msgspec.structs.replace(settings, epochs=settings.fine_tune_epochs)
        names = {name.removeprefix(PARAMS) for name in self.head.shapes}
        last_layers = LocalObjective(groups=[Group(names=names, optimiser=settings.optimiser)])
        trained = train(start.network, tools.training, training, last_layers)
        kept, update = finish_round(start, trained, tools, self.shared)
        return kept, replace(update, tensors=payload.tensors)

    def downlink(self, state: ServerState, client_id: str) -> Payload:
        known = state.tensors.get(_CLIENTS, np.zeros(0, np.int64))
        found = np.flatnonzero(known == client_key(client_id)).tolist()
        cluster = int(state.tensors[_LABELS][found[0]]) if found else None
        return Payload(
            round_id=state.round_id + 1, tensors=_model(self.shared, state.tensors, cluster)
        )

    def aggregate(self, state: ServerState, updates: Updates, tools: ServerTools) -> ServerState:
        round_id = state.round_id + 1
        if round_id < self.settings.cluster_round:
            return super().aggregate(state, updates, tools)
        before = Clusters.of(state.tensors, self.head)
        units = _units(self.head, updates)
        if not units:
            return ServerState(round_id=round_id, tensors=state.tensors)
        fleet = before.joined(units, self.settings.threshold)
        models = _stacks(self.shared, state.tensors, before.count, fleet.count)
        members: dict[int, set[int]] = {}
        for key in units:
            cluster = fleet.labels_of[key]
            if cluster >= before.count or key in before.labels_of:
                members.setdefault(cluster, set()).add(key)
        for cluster, own in _parted(updates, dict(sorted(members.items())), self.shared):
            known = cluster if cluster < before.count else None
            old = _model(self.shared, state.tensors, known)
            combined = combine_updates(own, self.shared, tools.aggregator, old)
            for name, value in (combined or {}).items():
                models[_CLUSTERS + name][cluster] = value
        return ServerState(
            round_id=round_id, tensors={**state.tensors, **models, **fleet.tensors()}
        )


def _model(shared: Layout, tensors: Tensors, cluster: int | None) -> Tensors:
    """A cluster's parameters; None: those that round r_c begins with."""
    if cluster is None:
        return {name: tensors[name] for name in shared.shapes}
    return {name: tensors[_CLUSTERS + name][cluster] for name in shared.shapes}


def _units(head: Layout, updates: Updates) -> dict[int, NDArray[np.float64]]:
    """The last layers of each update with examples as a vector of length 1, by client key."""
    found = {}
    for update in ordered(updates):
        if update.num_examples:
            sent = {name: update.tensors[name] for name in head.shapes}
            vector = TensorMap.pack(sent, head).buffer.astype(np.float64)
            length = np.sqrt(np.square(vector).sum())
            found[client_key(update.client_id)] = vector / length if length else vector
    return found


def _stacks(
    shared: Layout, tensors: Tensors, before: int, after: int
) -> dict[str, NDArray[np.float32]]:
    """Copies of the clusters' parameters, with room for those that are founded."""
    stacks = {}
    for name, shape in shared.shapes.items():
        stacks[_CLUSTERS + name] = stack = np.zeros((after, *shape), np.float32)
        if before:
            stack[:before] = tensors[_CLUSTERS + name]
    return stacks


def _parted(
    updates: Updates, members: Mapping[int, AbstractSet[int]], shared: Layout
) -> Iterator[tuple[int, Updates]]:
    """The updates as each cluster in ``members`` sees them, in that order.

    Those of several small clusters are read once and held together: a round of clients that are all
    alone is not read as often as there are clients.
    """
    room = _HELD // (4 * shared.size)
    batches: list[list[int]] = []
    for cluster in members:
        batch = batches[-1] if batches else []
        if not batch or sum(len(members[one]) for one in (*batch, cluster)) > room:
            batches.append([cluster])
        else:
            batch.append(cluster)
    for batch in batches:
        read = updates
        if len(batch) > 1:
            keys = {key for cluster in batch for key in members[cluster]}
            read = [_emptied_but(update, keys) for update in ordered(updates)]
        for cluster in batch:
            yield cluster, _Only(read, members[cluster])


def _emptied_but(update: Update, keys: AbstractSet[int]) -> Update:
    """The update; of another client than these without its tensors, but in its place among all."""
    mine = client_key(update.client_id) in keys
    return update if mine else replace(update, num_examples=0, tensors={})


@dataclass(frozen=True, slots=True)
class _Only:
    """Updates of which those of other clients do not count."""

    updates: Updates
    keys: AbstractSet[int]

    def __len__(self) -> int:
        return len(self.updates)

    def __iter__(self) -> Iterator[Update]:
        for update in ordered(self.updates):
            counts = client_key(update.client_id) in self.keys
            yield update if counts else replace(update, num_examples=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clusters:
    """Clients, their clusters, and what a newcomer is compared with.

    The mean distance of a unit vector to a cluster's members is 1 minus its product with the sum of
    theirs, divided by their number.

    Attributes:
        labels_of: each client's cluster by its key.
        profiles: sum of the members' unit vectors, ``(K, h) float64``.
    """

    labels_of: Mapping[int, int]
    profiles: NDArray[np.float64]

    @classmethod
    def of(cls, tensors: Tensors, head: Layout) -> Self:
        """From a server's state; without clusters before round r_c."""
        if _LABELS not in tensors:
            return cls(labels_of={}, profiles=np.zeros((0, head.size)))
        pairs = zip(tensors[_CLIENTS].tolist(), tensors[_LABELS].tolist(), strict=True)
        return cls(labels_of=dict(pairs), profiles=tensors[_PROFILES])

    @property
    def count(self) -> int:
        """Number of clusters, K."""
        return len(self.profiles)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """For a server's state."""
        return {
            _CLIENTS: np.array(list(self.labels_of), np.int64),
            _LABELS: np.array(list(self.labels_of.values()), np.int64),
            _PROFILES: self.profiles,
        }

    def joined(self, units: Mapping[int, NDArray[np.float64]], threshold: float) -> Clusters:
        """With the clients that are new; all of them cluster where there was none.

        Args:
            units: last layers by client key.
            threshold: of the distance.
        """
        new = {key: unit for key, unit in units.items() if key not in self.labels_of}
        if not self.count:
            found = average_linkage(_distances(list(new.values())), threshold).tolist()
            return self._with(dict(zip(new, found, strict=True)), new)
        fleet = self
        for key, unit in new.items():
            fleet = fleet._with({key: fleet._nearest(unit, threshold)}, {key: unit})
        return fleet

    def _nearest(self, unit: NDArray[np.float64], threshold: float) -> int:
        """The nearest cluster, the lowest of equals; a new one if none is below the threshold."""
        sizes = np.bincount(list(self.labels_of.values()), minlength=self.count)
        apart = 1 - np.einsum("kh,h->k", self.profiles, unit) / sizes
        nearest = int(apart.argmin())
        return nearest if apart[nearest] < threshold else self.count

    def _with(
        self, labels: Mapping[int, int], units: Mapping[int, NDArray[np.float64]]
    ) -> Clusters:
        count = max(self.count, 1 + max(labels.values()))
        profiles = np.zeros((count, self.profiles.shape[1]))
        profiles[: self.count] = self.profiles
        for key, cluster in labels.items():
            profiles[cluster] += units[key]
        return Clusters(labels_of={**self.labels_of, **labels}, profiles=profiles)


def _distances(units: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """1 - cosine of each pair, ``(n, n)``: half the squared distance of unit vectors."""
    rows = np.array(units, np.float32)
    squares = SquaredDistances(len(rows))
    squares.add(rows, rows.mean(axis=0, dtype=np.float64).astype(np.float32))
    return squares.result() / 2


def average_linkage(distances: NDArray[np.float64], threshold: float) -> NDArray[np.int64]:
    """Agglomerative clustering: merge the two nearest clusters while they are below the threshold.

    The distance of two clusters is the mean over the pairs of their members; of equal ones the
    pair of the lowest members is merged. n³ steps at most.

    Args:
        distances: ``(n, n) float64``, symmetric.
        threshold: clusters at or above it stay apart.

    Returns:
        ``(n,) int64``, clusters by ascending first member, from 0.
    """
    apart = distances.copy()
    np.fill_diagonal(apart, np.inf)
    labels, sizes = np.arange(len(apart)), np.ones(len(apart))
    while apart.size:
        one, other = sorted(np.unravel_index(apart.argmin(), apart.shape))
        if not apart[one, other] < threshold:
            break
        both = sizes[one] + sizes[other]
        merged = (sizes[one] * apart[one] + sizes[other] * apart[other]) / both
        apart[one], apart[:, one] = merged, merged
        apart[other], apart[:, other] = np.inf, np.inf
        sizes[one], labels[labels == labels[other]] = both, labels[one]
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)
