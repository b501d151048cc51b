"""ProtoHAR: a client fits its head, then the body, whose features global prototypes attract.

Source: Cheng et al., "ProtoHAR: Prototype Guided Personalized Federated Learning for Human Activity
Recognition" (IEEE JBHI 27(8), 2023, doi:10.1109/JBHI.2023.3275438), and the authors' published code
(github.com/cheng-haha/ProtoHAR).

| symbol | name | shape | dtype |
|---|---|---|---|
| body | ``params/<name>`` without the head | the model's | float32 |
| head | ``params/<head…>``, on the device only | the model's | float32 |
| C̄ | ``prototypes`` | (C, d) | float32 |
| classes with C̄ | ``present`` | (C,) | uint8 |
| abs(D_k,y) | ``class_counts`` | (C,) | int64 |
| λ | ``prototype_weight`` | () | float |

A round: body and global prototypes go down. The client trains its head alone on cross-entropy, then
its body alone on cross-entropy plus λ times the mean squared difference of the features to their
class's global prototype; body and the class means of the features come up. The server averages
bodies by number of examples and prototypes by number of examples of the class.

Scores are of the received body with the client's own head, before local training, as in the
authors' simulator; those after it are ``after_fit``. The last body is scored in one more fit.

Deviations:
    - Prototypes are class means of the trained model's features, and their mean over clients is
      weighted by examples (``prototype_mean = "plain"``: unweighted, as in the code). The code sums
      features over the batches of all epochs while the body moves, so that its prototypes are as
      many times too long as there are epochs.
    - A class that no participant has keeps its prototype; the code forgets it for a round.
    - Where a class has no prototype its examples add nothing to λ's term but count in its mean: in
      the code their difference to themselves is 0.
    - The gradient of the phase alone is clipped; in the code stale gradients of the other part
      count in the norm.
    - Buffers of the model stay on the device.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.strategies.bounds import Passes, Weight
from protofleet.strategies.common import (
    PARAMS,
    combine_updates,
    network_tensors,
    prefixed,
    scored,
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
from protofleet.strategies.strategy import PrivacySupport, Strategy
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
from protofleet.tensors import Model, Network

_PROTOTYPES = "prototypes"
_PRESENT = "present"
_OBJECTIVE = "prototype_mse"
_HEAD = "head/"
_BODY = "body/"


class ProtoHarSettings(Training, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training in two phases.

    Attributes:
        head: parameters whose names start so stay on the device; None: those that the bundle
            calls its head.
        head_epochs: passes that move the head alone, before ``epochs`` passes that move the body.
        head_optimiser: of the head; ``optimiser`` is the body's. Both keep their moments.
        prototype_weight: λ.
        prototype_mean: clients count by their examples of the class (``examples``) or alike
            (``plain``).
    """

    epochs: int = 5
    batch_size: int = 32
    clip_norm: float | None = 50.0
    optimiser: Adam | Sgd = Sgd(lr=0.01, momentum=0.9)
    head: str | None = None
    head_epochs: Passes = 1
    head_optimiser: Adam | Sgd = Sgd(lr=0.01, momentum=0.9)
    prototype_weight: Weight = 1.0
    prototype_mean: Literal["examples", "plain"] = "examples"


class ProtoHar(Strategy):
    """Head, then body, towards prototypes of classes."""

    description = Description(
        name="protohar",
        paper="Cheng et al., ProtoHAR: Prototype Guided Personalized Federated Learning for Human "
        "Activity Recognition, IEEE JBHI 27(8), 2023",
        objectives=(TASK_LOSS, _OBJECTIVE),
        travels=WireContents(
            down=("body", "global prototypes", "which classes have one"),
            up=("body", "class means of features", "number of examples", "class counts"),
            personal=("head", "buffers of the model", "moments of the optimisers"),
        ),
        class_counts=True,
        final_fit=True,
        combines="rule",
        reads_features=True,
        published={"kind": "sgd", "lr": 0.01, "momentum": 0.9},
    )
    settings: ProtoHarSettings

    def __init__(self, settings: ProtoHarSettings, model: Model) -> None:
        super().__init__(settings, model)
        self.shared, self.width = shared_layout(model, settings.head), feature_width(model)
        body = float32_schemas(self.shared)
        prototypes = TensorSchema((model.num_classes, self.width))
        present = TensorSchema((model.num_classes,), "uint8")
        self.payload = TensorSchemas(required={**body, _PROTOTYPES: prototypes, _PRESENT: present})
        self.uplink = TensorSchemas(required={**body, _PROTOTYPES: prototypes})
        self.carried = frozenset(prefixed(PARAMS, model.params).keys() - self.shared.shapes.keys())
        self.private = PrivacySupport(
            baseline=lambda state: {n: v for n, v in state.tensors.items() if n != _PRESENT},
            by_class=frozenset({_PROTOTYPES}),
        )

    def server_init(self, model: Model, _rng: np.random.Generator) -> ServerState:
        every, classes = prefixed(PARAMS, model.params), model.num_classes
        tensors: dict[str, NDArray[Any]] = {
            **{name: every[name] for name in self.shared.shapes},
            _PROTOTYPES: np.zeros((classes, self.width), np.float32),
            _PRESENT: np.zeros(classes, np.uint8),
        }
        return ServerState(round_id=0, tensors=tensors)

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        network = unpack_network({**state.tensors, **payload.tensors}, self.model)
        before = tools.evaluate(network)
        head, body = self._two_phases(network, state, payload, tools)
        model = network_tensors(body.network)
        own = self._local_prototypes(body.network, tools)
        update = Update(
            client_id=tools.client_id,
            round_id=payload.round_id,
            num_examples=len(tools.training.y),
            tensors={**{name: model[name] for name in self.shared.shapes}, _PROTOTYPES: own},
            evaluation=scored(before, body.network, tools),
            loss=body.loss,
        )
        moments = {**prefixed(_HEAD, head.moments()), **prefixed(_BODY, body.moments())}
        return ClientState(round_id=payload.round_id, tensors={**model, **moments}), update

    def _two_phases(
        self, network: Network, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[Trained, Trained]:
        """The network with the head fitted, and then with the body fitted too: in one memory."""
        settings = self.settings
        bodies = {name.removeprefix(PARAMS) for name in self.shared.shapes}
        heads = network.params.keys() - bodies
        head = train(
            network,
            tools.training,
            msgspec.structs.replace(settings, epochs=settings.head_epochs),
            LocalObjective(
                groups=[Group(names=heads, optimiser=settings.head_optimiser)],
                moments=_moments_of(state, _HEAD),
            ),
        )
        inputs = {
            "prototypes": payload.tensors[_PROTOTYPES],
            "present": payload.tensors[_PRESENT].astype(np.float32),
            "weight": np.float32(settings.prototype_weight),
        }
        objective = LocalObjective(
            loss=_OBJECTIVE,
            inputs=lambda _rows: inputs,
            groups=[Group(names=bodies, optimiser=settings.optimiser)],
            moments=_moments_of(state, _BODY),
        )
        return head, train(head.network, tools.training, settings, objective)

    def _local_prototypes(self, network: Network, tools: ClientTools) -> NDArray[np.float32]:
        """Class means of the trained network's features; zeros for absent classes."""
        classes = self.model.num_classes
        if not len(tools.training.y):
            return np.zeros((classes, self.width), np.float32)
        features = tools.features(network, tools.training.x)
        return class_means(features, tools.training.y, classes)[0]

    def aggregate(self, state: ServerState, updates: Updates, tools: ServerTools) -> ServerState:
        rows = CollectedRows(old={_PROTOTYPES: state.tensors[_PROTOTYPES]}, weigh=self._weights)
        body = combine_updates(
            updates, self.shared, tools.aggregator, state.tensors, visit=rows.collect
        )
        if body is None:
            return ServerState(round_id=state.round_id + 1, tensors=state.tensors)
        tensors: dict[str, NDArray[Any]] = {
            **body,
            **rows.merged(tools.aggregator, len(updates)),
            _PRESENT: rows.present(state.tensors[_PRESENT]),
        }
        return ServerState(round_id=state.round_id + 1, tensors=tensors)

    def _weights(self, update: Update) -> NDArray[np.int64]:
        """``(C,)``, how much a client's prototypes count; 0 for classes that it lacks."""
        counts = np.maximum(class_counts_of(update, self.model.num_classes), 0)
        return counts if self.settings.prototype_mean == "examples" else np.sign(counts)


def _moments_of(state: ClientState, prefix: str) -> dict[str, NDArray[Any]]:
    """Moments of a phase."""
    return {
        name.removeprefix(prefix): value
        for name, value in state.tensors.items()
        if name.startswith(prefix)
    }
