"""FedHKD: class means of features and of softened predictions teach every client's training.

Source: Chen, Wang and Vikalo, "The Best of Both Worlds: Accurate Global and Personalized Models
through Federated Learning with Data-Free Hyper-Knowledge Distillation" (ICLR 2023,
arXiv:2301.08968), algorithm 1, and the authors' published code
(github.com/CityChan/Federated-Hyper-Knowledge-Distillation).

| symbol | name | shape | dtype |
|---|---|---|---|
| θ, θ_i | ``params/<name>`` | the model's | float32 |
| H, h_i | ``prototypes`` | (C, d) | float32 |
| Q, q_i | ``predictions`` | (C, C) | float32 |
| classes with both | ``present`` | (C,) | uint8 |
| N_i^c | ``class_counts`` | (C,) | int64 |
| λ, gamma, T | ``prediction_weight``, ``feature_weight``, ``temperature`` | () | float |
| sigma | ``noise`` | () | float |

A round: θ, H and Q go down. The client trains θ on cross-entropy, plus λ times the mean over its
classes c of |q(H^c) - Q^c|, where q are the softened predictions (softmax of the logits / T) that
its head makes of H^c, plus gamma times the mean over the batch of |f(x) - H^y|. Then θ_i goes up,
with h_i, the class means of the trained model's features and Gaussian noise, and q_i, those of its
softened predictions. The server averages θ by examples, H and Q by examples of the class.

Deviations:
    - Both terms are norms; the code has a divergence and a mean square in their places, over all
      classes that any client has had, and clips gradients at 1.1 (``clip_norm`` does). The code's
      terms are not offered: they take another training program in every bundle.
    - sigma is the standard deviation of the noise on each number, drawn anew for each class, and 0
      unless it is set (the code's is 2, and one draw for all classes of a client:
      ``noise_draw = "client"``). It comes from the seed of the federation, which the coordinator
      knows: it is part of the method, and no protection from the coordinator.
    - A class that no participant has keeps its rows; a class that nobody ever had takes no part.
    - A client's head is also trained on H of the classes that it has alone.
    - Buffers of the model stay on the device; features and predictions are those of evaluation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import RefusedError
from protofleet.strategies.bounds import Bounds, Weight
from protofleet.strategies.common import PARAMS, combine_updates, prefixed
from protofleet.strategies.optimisers import Adam, Sgd
from protofleet.strategies.prototypes import (
    ClassRows,
    CollectedRows,
    class_counts_of,
    class_means,
    feature_width,
)
from protofleet.strategies.shared_model import SharedModel, SharedTraining, finish_round, initialise
from protofleet.strategies.strategy import PrivacySupport
from protofleet.strategies.training import LocalObjective, train
from protofleet.strategies.types import (
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
from protofleet.tensors import Model, Network, Tensors

_PROTOTYPES = "prototypes"
_PREDICTIONS = "predictions"
_PRESENT = "present"
_KNOWLEDGE = (_PROTOTYPES, _PREDICTIONS)
_OBJECTIVE = "hyper_knowledge"
_WELL_OUT = 0.5  # of a share, that a lossy codec has moved


class FedHKDSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training, what it is taught, and what is told of it.

    Attributes:
        prediction_weight: λ, of the distance between softened predictions of class means.
        feature_weight: gamma, of the distance between features and their class's mean.
        temperature: T, by which logits are divided.
        noise: standard deviation of the noise on class means of features.
        noise_draw: it is drawn for each ``class``, or once for all of a ``client``'s, as in the
            authors' code.
    """

    optimiser: Adam | Sgd = Adam(lr=0.001)
    prediction_weight: Weight = 0.05
    feature_weight: Weight = 0.05
    temperature: Annotated[float, Bounds(1e-6)] = 0.5
    noise: Weight = 0.0
    noise_draw: Literal["class", "client"] = "class"


class FedHkd(SharedModel):
    """FedAvg that is taught class means of features and of predictions."""

    description = Description(
        name="fedhkd",
        paper="Chen et al., The Best of Both Worlds: Accurate Global and Personalized Models "
        "through Federated Learning with Data-Free Hyper-Knowledge Distillation, arXiv:2301.08968",
        objectives=(_OBJECTIVE,),
        travels=WireContents(
            down=("parameters", "class means of features and of predictions", "which classes have"),
            up=(
                "parameters",
                "class means of features and of predictions",
                "number of examples",
                "registered once: number of examples of each class",
            ),
            personal=("buffers of the model",),
        ),
        class_counts=True,
        combines="rule",
        reads_features=True,
    )
    settings: FedHKDSettings

    def __init__(self, settings: FedHKDSettings, model: Model) -> None:
        super().__init__(settings, model)
        classes, self.width = model.num_classes, feature_width(model)
        knowledge = {
            _PROTOTYPES: TensorSchema((classes, self.width)),
            _PREDICTIONS: TensorSchema((classes, classes)),
        }
        forms = {**float32_schemas(self.shared), **knowledge}
        present = TensorSchema((classes,), "uint8")
        self.payload = TensorSchemas(required={**forms, _PRESENT: present})
        self.uplink = TensorSchemas(required=forms)
        self.mean = None
        self.private = PrivacySupport(
            baseline=lambda state: {n: v for n, v in state.tensors.items() if n != _PRESENT},
            by_class=frozenset(_KNOWLEDGE),
        )

    def server_init(self, model: Model, _rng: np.random.Generator) -> ServerState:
        tensors: dict[str, NDArray[Any]] = {
            **prefixed(PARAMS, model.params),
            **self._no_knowledge(),
            _PRESENT: np.zeros(model.num_classes, np.uint8),
        }
        return ServerState(round_id=0, tensors=tensors)

    def downlink(self, state: ServerState, _client_id: str) -> Payload:
        return Payload(round_id=state.round_id + 1, tensors=state.tensors)

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        settings = self.settings
        shared = {name: payload.tensors[name] for name in self.shared.shapes}
        received = self.receive(state, replace(payload, tensors=shared))
        objective = _taught(settings, payload.tensors, tools)
        start = initialise(settings, received, tools, objective)
        trained = train(start.network, tools.training, settings, objective)
        own = self._knowledge(trained.network, tools)
        return finish_round(start, trained, tools, self.shared, send=own)

    def _no_knowledge(self) -> dict[str, ClassRows]:
        classes = self.model.num_classes
        return {
            _PROTOTYPES: np.zeros((classes, self.width), np.float32),
            _PREDICTIONS: np.zeros((classes, classes), np.float32),
        }

    def _knowledge(self, network: Network, tools: ClientTools) -> dict[str, ClassRows]:
        """Class means of features, with noise, and of softened predictions; zeros without any."""
        settings, classes = self.settings, self.model.num_classes
        x, y = tools.training.x, tools.training.y
        if not len(y):
            return self._no_knowledge()
        means, counts = class_means(tools.features(network, x), y, classes)
        if settings.noise:
            draws = classes if settings.noise_draw == "class" else 1
            drawn = tools.training.rng.standard_normal((draws, self.width))
            means += (settings.noise * drawn * (counts > 0)[:, None]).astype(np.float32)
        softened = _softmax(tools.predict(network, x) / settings.temperature)
        predictions, _ = class_means(softened, y, classes)
        return {_PROTOTYPES: means, _PREDICTIONS: predictions}

    def check(self, update: Update) -> None:
        shares = update.tensors[_PREDICTIONS]
        if shares.size and not -_WELL_OUT <= shares.min() <= shares.max() <= 1 + _WELL_OUT:
            raise RefusedError(
                "content",
                f"tensor '{_PREDICTIONS}': expected shares from 0 to 1, got {shares.min():g} to "
                f"{shares.max():g}",
            )

    def aggregate(self, state: ServerState, updates: Updates, tools: ServerTools) -> ServerState:
        classes = self.model.num_classes
        rows = CollectedRows(
            old={name: state.tensors[name] for name in _KNOWLEDGE},
            weigh=lambda update: np.maximum(class_counts_of(update, classes), 0),
        )
        params = combine_updates(
            updates, self.shared, tools.aggregator, state.tensors, visit=rows.collect
        )
        if params is None:
            return ServerState(round_id=state.round_id + 1, tensors=state.tensors)
        tensors: dict[str, NDArray[Any]] = {
            **params,
            **rows.merged(tools.aggregator, len(updates)),
            _PRESENT: rows.present(state.tensors[_PRESENT]),
        }
        return ServerState(round_id=state.round_id + 1, tensors=tensors)


def _taught(settings: FedHKDSettings, tensors: Tensors, tools: ClientTools) -> LocalObjective:
    """What the client's training is taught, of the classes that it has."""
    own = np.isin(np.arange(len(tensors[_PRESENT])), tools.training.y)
    inputs = {
        _PROTOTYPES: tensors[_PROTOTYPES],
        _PREDICTIONS: tensors[_PREDICTIONS],
        _PRESENT: (own & (tensors[_PRESENT] > 0)).astype(np.float32),
        "temperature": np.float32(settings.temperature),
        "prediction_weight": np.float32(settings.prediction_weight),
        "feature_weight": np.float32(settings.feature_weight),
    }
    return LocalObjective(loss=_OBJECTIVE, inputs=lambda _rows: inputs)


def _softmax(logits: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True), dtype=np.float64)
    shares: NDArray[np.float32] = exponents / exponents.sum(axis=1, keepdims=True)
    return shares.astype(np.float32)
