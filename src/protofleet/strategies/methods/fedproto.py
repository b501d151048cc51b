"""FedProto: models stay on the devices; only the mean features of each class travel.

Source: Tan, Long, Liu, Zhou, Lu, Jiang and Zhang, "FedProto: Federated Prototype Learning across
Heterogeneous Clients" (AAAI 2022, arXiv:2105.00243), algorithm 1.

| symbol | name | shape | dtype |
|---|---|---|---|
| C̄, C_i | ``prototypes`` | (C, d) | float32 |
| classes with C̄ | ``present`` | (C,) | uint8 |
| ω_i | ``params/<name>``, ``state/<name>`` | the model's | float32 |
| D_i,j | ``class_counts`` | (C,) | int64 |
| λ | ``prototype_weight`` | () | float |

In the comparison of FedAli (arXiv:2411.10595) its authors' code differs in three points, which are
settings here: ``first_prototypes = "normal"``, ``means = "last_epoch"`` and ``predict = "head"``.
There the features of the last epoch have dropout, here they have none.

A round: C̄ and ``present`` go down; the client trains its own model on cross-entropy plus λ times
the mean squared difference of its features to their class's C̄; C_i, the means of the trained
model's features over the client's examples, come up; the next C̄ is their mean, weighted by the
clients' numbers of examples of the class. A client predicts the class of the nearest C̄ that it
received, by squared distance, and with its model's own head before there is any. The authors' code
compares with the C̄ of the classes that the client has examples of: ``predict = "nearest_own"``.

Deviations:
    - Weights of the mean are normalised; printed, eq. 6 divides by the number of clients too.
    - A class that no participant has keeps its prototype; a class that nobody ever had takes no
      part in the loss and is never predicted.
    - After the last round every client gets the last C̄, trains once more and is scored, as in the
      comparison of FedHP; the paper scores without that training.
    - The default is Adam for 5 epochs; the paper has SGD with a rate of 0.01 and momentum 0.5 for 1
      epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.strategies.bounds import Weight
from protofleet.strategies.common import network_names, network_tensors, ordered
from protofleet.strategies.prototypes import (
    ClassRows,
    NearestPrototype,
    class_counts_of,
    class_means,
    feature_width,
    merge_prototypes,
)
from protofleet.strategies.strategy import PrivacySupport, Strategy
from protofleet.strategies.training import (
    ExampleRows,
    LocalObjective,
    Trained,
    Trainer,
    Training,
    passes,
    train,
)
from protofleet.strategies.types import (
    ClientState,
    ClientTools,
    Description,
    Payload,
    Score,
    ServerState,
    ServerTools,
    TensorSchema,
    TensorSchemas,
    Update,
    Updates,
    WireContents,
)
from protofleet.tensors import Model, Network, Tensors

_PROTOTYPES = "prototypes"
_PRESENT = "present"
_OBJECTIVE = "prototype_mse"


class FedProtoSettings(Training, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training and its pull towards the prototypes.

    Attributes:
        prototype_weight: lambda, the weight of the squared difference to the prototypes.
        first_prototypes: before round 1 there are ``none``, or all classes have one that is drawn
            from the standard ``normal`` distribution.
        means: a client's prototypes are means of the features that the ``trained`` model has, or of
            those of the ``last_epoch``, each before its batch's step; of a class without examples
            in that epoch (``drop_last``) the trained model's.
        predict: the class of the ``nearest`` global prototype, that of the nearest of those whose
            class the client has training examples of (``nearest_own``), or that of the model's own
            ``head``.
    """

    prototype_weight: Weight = 1.0
    first_prototypes: Literal["none", "normal"] = "none"
    means: Literal["trained", "last_epoch"] = "trained"
    predict: Literal["nearest", "nearest_own", "head"] = "nearest"


class FedProto(Strategy):
    """Prototypes of classes are all that is shared."""

    description = Description(
        name="fedproto",
        paper="Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, "
        "arXiv:2105.00243",
        objectives=(_OBJECTIVE,),
        travels=WireContents(
            down=("global prototypes", "which classes have one"),
            up=("means of features by class", "registered once: number of examples of each class"),
            personal=("parameters", "buffers of the model"),
        ),
        class_counts=True,
        final_fit=True,
        combines="rule",
        reads_features=True,
    )
    settings: FedProtoSettings

    def __init__(self, settings: FedProtoSettings, model: Model) -> None:
        super().__init__(settings, model)
        self.width = feature_width(model)
        prototypes = TensorSchema((model.num_classes, self.width))
        present = TensorSchema((model.num_classes,), "uint8")
        self.payload = TensorSchemas(required={_PROTOTYPES: prototypes, _PRESENT: present})
        self.uplink = TensorSchemas(required={_PROTOTYPES: prototypes})
        self.carried = network_names(model)
        self.private = PrivacySupport(
            baseline=lambda state: {_PROTOTYPES: state.tensors[_PROTOTYPES]},
            by_class=frozenset({_PROTOTYPES}),
        )

    def client_score(self, state: ClientState) -> Score | None:
        return self._score(state.tensors)

    def _no_prototypes(self) -> dict[str, NDArray[Any]]:
        classes = self.model.num_classes
        return {
            _PROTOTYPES: np.zeros((classes, self.width), np.float32),
            _PRESENT: np.zeros(classes, np.uint8),
        }

    def server_init(self, _model: Model, rng: np.random.Generator) -> ServerState:
        tensors = self._no_prototypes()
        if self.settings.first_prototypes == "normal":
            drawn = rng.standard_normal(tensors[_PROTOTYPES].shape, np.float32)
            tensors = {_PROTOTYPES: drawn, _PRESENT: np.ones_like(tensors[_PRESENT])}
        return ServerState(round_id=0, tensors=tensors)

    def client_init(self, model: Model) -> ClientState:
        tensors = {**super().client_init(model).tensors, **self._no_prototypes()}
        return ClientState(round_id=0, tensors=tensors)

    def _score(self, tensors: Tensors) -> Score | None:
        present = tensors[_PRESENT]
        if self.settings.predict == "head":
            return None
        return NearestPrototype(tensors[_PROTOTYPES], present) if present.any() else None

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        network = self.client_model(state)
        trained, means = self._train(network, self._objective(payload), tools)
        scoring = self._scoring(payload, tools)
        update = Update(
            client_id=tools.client_id,
            round_id=payload.round_id,
            num_examples=len(tools.training.y),
            tensors={_PROTOTYPES: means},
            evaluation=tools.evaluate(trained.network, score=self._score(scoring)),
            loss=trained.loss,
        )
        kept = {**network_tensors(trained.network), **scoring}
        return ClientState(round_id=payload.round_id, tensors=kept), update

    def next_alone(self, payload: Payload, update: Update) -> Payload | None:
        """Its own prototypes: none pull in round 1, and none predict."""
        own, before = update.tensors[_PROTOTYPES], payload.tensors
        has: NDArray[np.bool_] = np.any(own != 0, axis=1)
        tensors = {
            _PROTOTYPES: np.where(has[:, None], own, before[_PROTOTYPES]),
            _PRESENT: before[_PRESENT] | has.astype(np.uint8),
        }
        return Payload(round_id=payload.round_id + 1, tensors=tensors)

    def _scoring(self, payload: Payload, tools: ClientTools) -> Tensors:
        """The prototypes, and as present those whose class may be predicted."""
        if self.settings.predict != "nearest_own":
            return payload.tensors
        own = np.bincount(tools.training.y, minlength=self.model.num_classes) > 0
        return {**payload.tensors, _PRESENT: payload.tensors[_PRESENT] * own.astype(np.uint8)}

    def _objective(self, payload: Payload) -> LocalObjective:
        inputs = {
            "prototypes": payload.tensors[_PROTOTYPES],
            "present": payload.tensors[_PRESENT].astype(np.float32),
            "weight": np.float32(self.settings.prototype_weight),
        }
        return LocalObjective(loss=_OBJECTIVE, inputs=lambda _rows: inputs)

    def _train(
        self, network: Network, objective: LocalObjective, tools: ClientTools
    ) -> tuple[Trained, ClassRows]:
        """Local training and the client's prototypes (eq. 3)."""
        settings, training = self.settings, tools.training
        if settings.means == "trained":
            trained = train(network, training, settings, objective)
            return trained, self._means(trained.network, slice(None), tools)
        trainer, seen = Trainer(network, training, settings, objective), _Seen()

        def step(rows: ExampleRows) -> float:
            seen.rows.append(rows)
            seen.features.append(tools.features(trainer.network, training.x[rows]))
            return trainer.step(rows)

        if settings.epochs > 1:
            early = msgspec.structs.replace(settings, epochs=settings.epochs - 1)
            passes(trainer.step, training, early)
        loss = passes(step, training, msgspec.structs.replace(settings, epochs=1))
        trained = trainer.trained(loss)
        return trained, self._means_seen(trained.network, seen, tools)

    def _means_seen(self, network: Network, seen: _Seen, tools: ClientTools) -> ClassRows:
        """Class means of what was seen; of other classes, of the trained model's features."""
        y, classes = tools.training.y, self.model.num_classes
        if not seen.rows:
            return self._means(network, slice(None), tools)
        rows = np.concatenate(seen.rows)
        means, counts = class_means(np.concatenate(seen.features), y[rows], classes)
        missed = np.flatnonzero(counts[y] == 0)
        return means + self._means(network, missed, tools)

    def _means(self, network: Network, rows: ExampleRows | slice, tools: ClientTools) -> ClassRows:
        """Class means of the network's features of some examples, zeros for absent classes."""
        x, y = tools.training.x[rows], tools.training.y[rows]
        if not len(y):
            return self._no_prototypes()[_PROTOTYPES]
        means, _ = class_means(tools.features(network, x), y, self.model.num_classes)
        return means

    def aggregate(self, state: ServerState, updates: Updates, tools: ServerTools) -> ServerState:
        """Eq. 6 with normalised weights."""
        present = state.tensors[_PRESENT].astype(bool)

        def terms() -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
            nonlocal present
            for update in ordered(updates):
                counts = np.zeros(self.model.num_classes, np.int64)
                if update.num_examples:
                    counts = class_counts_of(update, self.model.num_classes)
                    present = present | (counts > 0)
                yield update.tensors[_PROTOTYPES], counts

        merged = merge_prototypes(tools.aggregator, terms(), state.tensors[_PROTOTYPES])
        tensors: dict[str, NDArray[Any]] = {_PROTOTYPES: merged, _PRESENT: present.astype(np.uint8)}
        return ServerState(round_id=state.round_id + 1, tensors=tensors)


@dataclass(frozen=True, slots=True)
class _Seen:
    """Batches of an epoch: numbers of examples, and their features ``(b, d)`` before the step."""

    rows: list[ExampleRows] = field(default_factory=list)
    features: list[NDArray[np.float32]] = field(default_factory=list)
