"""FedHome: a shared autoencoder with a classifier, which each client refines on balanced features.

Source: Wu, Chen, Zhou and Zhang, "FedHome: Cloud-Edge based Personalized Federated Learning for
In-Home Health Monitoring" (IEEE Transactions on Mobile Computing 2020). Oversampling: Chawla,
Bowyer, Hall and Kegelmeyer, "SMOTE" (JAIR 16, 2002).

| symbol | name | shape | dtype |
|---|---|---|---|
| encoder and decoder; classifier | ``params/<name>``; the head's | the model's | float32 |
| weight of the reconstruction | ``reconstruction_weight`` | () | float |
| k | ``neighbours`` | () | int |

A round: the whole model goes down, is trained on cross-entropy plus the weight times the mean
squared error of the decoded features to the examples, and comes up; the server averages. After the
last round, and with ``refine_from`` in every round from that one on, a client encodes its examples
with the received model, adds features to each class that has fewer than its largest one, until all
have as many, and trains the classifier alone on them. The received model with that classifier is
what the client keeps, infers with and is scored with; it never leaves the device: after the last
round what came is sent back.

A synthetic feature lies at a random place on the line from a random feature of its class to one of
that one's k nearest in the class.

The bundle's model has methods ``features``, ``head`` and ``decode`` (``autoencoder``), and the
training programs ``reconstruction`` and ``head_cross_entropy``.

Deviations:
    - A class of n features has at most n - 1 neighbours; of a single one copies are added. A class
      that the client lacks gets none.
    - Weights of the two terms, epochs and the sizes of the network are this project's choice.
    - With ``local_init`` a client's own model that is mixed is the refined one, if there is one.
    - Default optimiser and buffers as in ``fedavg.py``; the refinement uses the same optimiser.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.strategies.bounds import Count, Passes, Weight
from protofleet.strategies.common import PARAMS, prefixed, shared_layout
from protofleet.strategies.methods.fedavg import FedAvg
from protofleet.strategies.optimisers import Group
from protofleet.strategies.prototypes import feature_width
from protofleet.strategies.shared_model import (
    SharedModel,
    SharedTraining,
    finish_round,
    initialise,
    local_init,
)
from protofleet.strategies.training import LocalObjective, Trained, train
from protofleet.strategies.types import ClientState, ClientTools, Payload, Update, WireContents
from protofleet.tensors import Model, Network

_OBJECTIVE, _HEAD_OBJECTIVE = "reconstruction", "head_cross_entropy"
_BLOCK = 256
"""Features whose neighbours are looked for at once."""


class FedHomeSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training of the whole model, and the refinement of its head.

    Attributes:
        reconstruction_weight: of the reconstruction beside the cross-entropy.
        neighbours: of a feature in its class, one of which a synthetic one is drawn towards.
        refine_epochs: passes over the balanced features that train the head.
        refine_from: the first round whose clients refine; None: after the last round alone.
    """

    reconstruction_weight: Weight = 1.0
    neighbours: Count = 5
    refine_epochs: Passes = 5
    refine_from: Count | None = None

    def refines(self, payload: Payload) -> bool:
        """Whether clients refine in the round of a payload."""
        in_time = self.refine_from is not None and payload.round_id >= self.refine_from
        return payload.final or in_time


class FedHome(SharedModel):
    """FedAvg of an autoencoder; each client's head learns from balanced features."""

    description = replace(
        FedAvg.description,
        name="fedhome",
        paper="Wu et al., FedHome: Cloud-Edge based Personalized Federated Learning for In-Home "
        "Health Monitoring, IEEE TMC 2020",
        objectives=(_OBJECTIVE, _HEAD_OBJECTIVE),
        travels=WireContents(
            down=("parameters, decoder included",),
            up=("parameters, decoder included", "number of examples"),
            personal=("refined head", "buffers of the model"),
        ),
        tasks=("classification",),
        final_fit=True,
        reads_features=True,
        partial_work=False,
    )
    settings: FedHomeSettings

    def __init__(self, settings: FedHomeSettings, model: Model) -> None:
        super().__init__(settings, model)
        feature_width(model)
        body = shared_layout(model, None).shapes
        self.head = frozenset(name for name in model.params if PARAMS + name not in body)

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        settings, received = self.settings, self.receive(state, payload)
        weight = {"weight": np.float32(settings.reconstruction_weight)}
        objective = LocalObjective(loss=_OBJECTIVE, inputs=lambda _rows: weight)
        if not settings.refines(payload):
            start = initialise(settings, received, tools)
            trained = train(start.network, tools.training, settings, objective)
            return finish_round(start, trained, tools, self.shared)
        start = local_init(settings, received, tools)
        refined = _refined(self.head, settings, start.network, tools)
        start = replace(start, evaluation=tools.evaluate(refined.network))
        if payload.final:
            kept, update = finish_round(start, refined, tools, self.shared)
            return kept, replace(update, tensors=payload.tensors)
        trained = train(start.network, tools.training, settings, objective)
        kept, update = finish_round(start, trained, tools, self.shared)
        personal = {**kept.tensors, **prefixed(PARAMS, refined.network.params)}
        return replace(kept, tensors=personal), update


def _refined(
    head: frozenset[str], settings: FedHomeSettings, network: Network, tools: ClientTools
) -> Trained:
    """A copy of the network with a head that is trained on balanced features."""
    training, y = tools.training, tools.training.y
    features = np.zeros((0, 0), np.float32)
    if len(y):
        features, y = oversampled(
            tools.features(network, training.x),
            y,
            neighbours=settings.neighbours,
            rng=training.rng,
        )
    objective = LocalObjective(
        loss=_HEAD_OBJECTIVE,
        inputs=lambda rows: {"features": features[rows]},
        groups=[Group(names=head, optimiser=settings.optimiser)],
    )
    passes = msgspec.structs.replace(settings, epochs=settings.refine_epochs)
    return train(network.copy(), replace(training, x=features, y=y), passes, objective)


def oversampled(
    features: NDArray[np.float32],
    y: NDArray[np.int64],
    *,
    neighbours: int,
    rng: np.random.Generator,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """SMOTE: every class that occurs gets as many rows as the largest has.

    Args:
        features: ``(n, d) float32``.
        y: ``(n,) int64``, their classes.
        neighbours: k, at least 1.
        rng: for each class in ascending order draws rows, then neighbours, then places.

    Returns:
        The rows and behind them the synthetic ones, ``(m, d) float32``, and their classes ``(m,)``.
    """
    classes, counts = np.unique(y, return_counts=True)
    rows, labels = [features], [y]
    for label, count in zip(classes.tolist(), counts.tolist(), strict=True):
        missing = int(counts.max()) - count
        if not missing:
            continue
        own = features[y == label].astype(np.float64)
        start = rng.integers(count, size=missing)
        near = min(neighbours, count - 1)
        towards = start
        if near:
            towards = _nearest(own, start, near)[
                np.arange(missing), rng.integers(near, size=missing)
            ]
        places = rng.random(missing)[:, None]
        rows.append((own[start] + places * (own[towards] - own[start])).astype(np.float32))
        labels.append(np.full(missing, label, np.int64))
    return np.concatenate(rows), np.concatenate(labels)


def _nearest(own: NDArray[np.float64], start: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Numbers of the ``count`` nearest other rows of each of ``start``, the nearest first."""
    centred = own - own.mean(axis=0)
    squares = np.square(centred).sum(axis=1)
    wanted, places = np.unique(start, return_inverse=True)
    found = np.empty((len(wanted), count), np.int64)
    for first in range(0, len(wanted), _BLOCK):
        part = wanted[first : first + _BLOCK]
        # einsum, not a product of matrices, whose bits depend on a number of threads.
        apart = squares - 2 * np.einsum("id,jd->ij", centred[part], centred)
        apart[np.arange(len(part)), part] = np.inf
        found[first : first + _BLOCK] = np.argsort(apart, axis=1, kind="stable")[:, :count]
    return found[places]
