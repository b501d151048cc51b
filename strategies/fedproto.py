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

A round: C̄ and ``present`` go down; the client trains its own model on cross-entropy plus λ times
the mean squared difference of its features to their class's C̄; C_i, the means of the trained
model's features over the client's examples, come up; the next C̄ is their mean, weighted by the
clients' numbers of examples of the class. A client predicts the class of the nearest C̄ that it
received, by squared distance, and with its model's own head before there is any.

Deviations:
    - Weights of the mean are normalised; printed, eq. 6 divides by the number of clients too.
    - A class that no participant has keeps its prototype; a class that nobody ever had takes no
      part in the loss and is never predicted.
    - After the last round every client gets the last C̄, trains once more and is scored, as in the
      comparison of FedHP; the paper scores without that training.
    - The default optimiser is Adam with a rate of 1e-4 for 5 epochs, as in the comparison of FedAli
      (arXiv:2411.10595); the paper has SGD with a rate of 0.01 and momentum 0.5 for 1 epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.strategies import common
from protofleet.strategies.common import (
    client_model,
    downlink,
    network_names,
    network_tensors,
    ordered,
    parse_settings,
)
from protofleet.strategies.optimisers import check_range
from protofleet.strategies.prototypes import (
    NearestPrototype,
    class_counts_of,
    class_means,
    feature_width,
    merge_prototypes,
)
from protofleet.strategies.training import Fit, Trained, Training, train
from protofleet.strategies.types import (
    ClientState,
    ClientTools,
    Description,
    Payload,
    PrivateForm,
    Score,
    ServerState,
    ServerTools,
    Strategy,
    TensorForm,
    Travels,
    Update,
    Updates,
    Uplink,
)
from protofleet.tensors import Model, Tensors

_PROTOTYPES = "prototypes"
_PRESENT = "present"
_OBJECTIVE = "prototype_mse"

DESCRIPTION = Description(
    name="fedproto",
    paper="Tan et al., FedProto: Federated Prototype Learning across Heterogeneous Clients, "
    "arXiv:2105.00243",
    programs=(_OBJECTIVE,),
    travels=Travels(
        down=("global prototypes", "which classes have one"),
        up=("means of features by class", "registered once: number of examples of each class"),
        personal=("parameters", "buffers of the model"),
    ),
    class_counts=True,
    final_fit=True,
    takes_aggregator=True,
    features=True,
)


class FedProtoSettings(Training, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training and its pull towards the prototypes.

    Attributes:
        prototype_weight: lambda, the weight of the squared difference to the prototypes.
    """

    prototype_weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("prototype_weight", self.prototype_weight, low=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """What all functions know; ``width``: d."""

    settings: FedProtoSettings
    model: Model
    width: int


def build(settings: Mapping[str, Any], model: Model) -> Strategy:
    """FedProto for one model.

    Raises:
        InputError: unknown setting, wrong type, a value outside its range, or a bundle
            without features.
    """
    chosen = parse_settings(DESCRIPTION.name, settings, FedProtoSettings)
    context = _Context(settings=chosen, model=model, width=feature_width(model))
    return Strategy(
        description=DESCRIPTION,
        settings=chosen,
        uplink=Uplink(required={_PROTOTYPES: TensorForm((model.num_classes, context.width))}),
        server_init=partial(_server_init, context),
        downlink=downlink,
        client_init=partial(_client_init, context),
        client_update=partial(_client_update, context),
        client_model=partial(client_model, model),
        client_score=lambda state: _score(state.tensors),
        carried=network_names(model),
        aggregate=partial(_aggregate, context),
        server_model=lambda _state: None,
        private=PrivateForm(
            baseline=lambda state: {_PROTOTYPES: state.tensors[_PROTOTYPES]},
            by_class=frozenset({_PROTOTYPES}),
        ),
    )


def _no_prototypes(context: _Context) -> dict[str, NDArray[Any]]:
    classes = context.model.num_classes
    return {
        _PROTOTYPES: np.zeros((classes, context.width), np.float32),
        _PRESENT: np.zeros(classes, np.uint8),
    }


def _server_init(context: _Context, _model: Model, _rng: np.random.Generator) -> ServerState:
    return ServerState(round_id=0, tensors=_no_prototypes(context))


def _client_init(context: _Context, model: Model) -> ClientState:
    tensors = {**common.client_init(model).tensors, **_no_prototypes(context)}
    return ClientState(round_id=0, tensors=tensors)


def _score(tensors: Tensors) -> Score | None:
    present = tensors[_PRESENT]
    return NearestPrototype(tensors[_PROTOTYPES], present) if present.any() else None


def _client_update(
    context: _Context, state: ClientState, payload: Payload, tools: ClientTools
) -> tuple[ClientState, Update]:
    network = client_model(context.model, state)
    trained = train(network, tools.training, context.settings, _fit(context, payload))
    update = Update(
        client_id=tools.client_id,
        round_id=payload.round_id,
        num_examples=len(tools.training.y),
        tensors={_PROTOTYPES: _local_prototypes(context, trained, tools)},
        evaluation=tools.evaluate(trained.network, score=_score(payload.tensors)),
        loss=trained.loss,
    )
    kept = {**network_tensors(trained.network), **payload.tensors}
    return ClientState(round_id=payload.round_id, tensors=kept), update


def _fit(context: _Context, payload: Payload) -> Fit:
    inputs = {
        "prototypes": payload.tensors[_PROTOTYPES],
        "present": payload.tensors[_PRESENT].astype(np.float32),
        "weight": np.float32(context.settings.prototype_weight),
    }
    return Fit(objective=_OBJECTIVE, inputs=lambda _rows: inputs)


def _local_prototypes(
    context: _Context, trained: Trained, tools: ClientTools
) -> NDArray[np.float32]:
    """Means of the trained model's features, zeros for absent classes (eq. 3)."""
    if not len(tools.training.y):
        return _no_prototypes(context)[_PROTOTYPES]
    features = tools.features(trained.network, tools.training.x)
    means, _ = class_means(features, tools.training.y, context.model.num_classes)
    return means


def _aggregate(
    context: _Context, state: ServerState, updates: Updates, tools: ServerTools
) -> ServerState:
    """Eq. 6 with normalised weights."""
    present = state.tensors[_PRESENT].astype(bool)

    def terms() -> Iterator[tuple[NDArray[Any], NDArray[np.int64]]]:
        nonlocal present
        for update in ordered(updates):
            counts = np.zeros(context.model.num_classes, np.int64)
            if update.num_examples:
                counts = class_counts_of(update, context.model.num_classes)
                present = present | (counts > 0)
            yield update.tensors[_PROTOTYPES], counts

    merged = merge_prototypes(tools.aggregator, terms(), state.tensors[_PROTOTYPES])
    tensors: dict[str, NDArray[Any]] = {_PROTOTYPES: merged, _PRESENT: present.astype(np.uint8)}
    return ServerState(round_id=state.round_id + 1, tensors=tensors)
