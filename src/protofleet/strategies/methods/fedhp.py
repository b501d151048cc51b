"""FedHP: only one learned prototype per class travels; anchors keep the prototypes apart.

Source: Fonio, Polato and Esposito, "FedHP: Federated Learning with Hyperspherical Prototypical
Regularization" (ESANN 2024), and the authors' code, the module ``fedhp`` of fluke. A model's logits
are minus the Euclidean distances (not squared) of its features to the prototypes, the parameter
``prototypes`` of its head. All devices start from the bundle's backbone, which never travels.

| symbol | name | shape | dtype |
|---|---|---|---|
| π, π_i | ``params/<head>.prototypes`` | (C, d) | float32 |
| Π̄ | ``anchors`` | (C, d) | float32 |
| θ_i | ``params/<other name>`` | the model's | float32 |
| N_i^j | ``class_counts`` | (C,) | int64 |
| λ | ``anchor_weight`` | () | float |

A round: π goes down and replaces the client's; the client trains θ_i and π_i on cross-entropy plus
λ times the mean over all classes of 1 - cos(π_i, Π̄), each with an optimiser that it keeps for good;
π_i comes up; the next π is the mean of them, class by class, weighted by N_i^j / N_i. After the
last round all clients get π, fit once more, and are scored.

Anchors are the prototypes of round 1, so in that round nothing else need travel. Later a client's
payload holds them beside the prototypes until the server has used an update of that client: who
sent prototypes has stored the anchors. That costs C d floats once, for a client that joins after
round 1, and again where an update never arrived; the server's ``anchored`` remembers it with 8
bytes per client. A client that has lost its store and gets prototypes alone abstains, and with its
next payload gets the anchors too; so does a client whose 8 bytes are another's.

Deviations:
    - A class that no participant has keeps its prototype; the code divides zero by zero.
    - ``regulariser = "sum"`` is the paper's sum over the classes, C times stronger than the code.
    - ``prototype_sum = "printed"`` is eq. 5 as printed, divided by the number of participants
      instead of the sum of the weights: prototypes shrink by about 1/C each round. It is made of
      the weighted mean, so another aggregation rule is refused with it.
    - N_i is the sum of the registered counts.
    - In the code the anchors travel in every round, both ways; in the paper once.
    - A bundle whose prototypes have been trained begins with them (``start = "spread"``: never).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels import hyperspherical_prototypes
from protofleet.strategies.aggregation import MEAN
from protofleet.strategies.bounds import MOST_PASSES, Bounds, LearningRate, Share, Weight
from protofleet.strategies.common import (
    PARAMS,
    client_key,
    listed,
    network_names,
    network_tensors,
    ordered,
)
from protofleet.strategies.optimisers import Adam, Group, Sgd
from protofleet.strategies.prototypes import begins_with_bundle, class_counts_of, merge_prototypes
from protofleet.strategies.strategy import PrivacySupport, Strategy
from protofleet.strategies.training import LocalObjective, Training, train
from protofleet.strategies.types import (
    ClientState,
    ClientTools,
    Description,
    Payload,
    ServerState,
    ServerTools,
    TensorSchema,
    TensorSchemas,
    UnsuitableModelError,
    Update,
    Updates,
    WireContents,
)
from protofleet.tensors import Model

_NAME = "prototypes"
_ANCHORS = "anchors"
_ANCHORED = "anchored"
_OBJECTIVE = "prototype_distance"


class FedHPSettings(Training, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training, the regulariser, and how the server starts and merges.

    Attributes:
        optimiser: of everything but the prototypes; kept across rounds.
        prototype_optimiser: of the prototypes; kept across rounds.
        anchor_weight: lambda, the regulariser's weight.
        regulariser: mean (the code) or sum (the paper) over the classes.
        prototype_sum: normalised (the code) or as printed in eq. 5.
        start: the first prototypes are driven apart (``spread``), or the ``bundle``'s own; by
            default these where they have been trained.
        sphere_steps, sphere_lr, sphere_momentum, sphere_weight_decay: how the server drives the
            first prototypes apart (``kernels.hyperspherical_prototypes``).
    """

    optimiser: Adam | Sgd = Sgd(lr=0.01, momentum=0.9, weight_decay=1e-4)
    prototype_optimiser: Adam | Sgd = Adam(lr=0.005, eps=1e-8, eps_form="torch")
    anchor_weight: Weight = 0.1
    regulariser: Literal["mean", "sum"] = "mean"
    prototype_sum: Literal["normalised", "printed"] = "normalised"
    start: Literal["auto", "spread", "bundle"] = "auto"
    sphere_steps: Annotated[int, Bounds(0, MOST_PASSES)] = 1000
    sphere_lr: LearningRate = 0.1
    sphere_momentum: Share = 0.9
    sphere_weight_decay: Weight = 1e-4


class FedHp(Strategy):
    """Prototypes of classes on a sphere, which alone are shared."""

    description = Description(
        name="fedhp",
        paper="Fonio et al., FedHP: Federated Learning with Hyperspherical Prototypical "
        "Regularization, ESANN 2024",
        objectives=(_OBJECTIVE,),
        travels=WireContents(
            down=("global prototypes", "to a newcomer after round 1: anchors"),
            up=("local prototypes", "registered once: number of examples of each class"),
            personal=("all other parameters", "buffers of the model", "moments of the optimisers"),
        ),
        class_counts=True,
        final_fit=True,
        combines="rule",
        published={"kind": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4},
    )
    settings: FedHPSettings

    def __init__(self, settings: FedHPSettings, model: Model) -> None:
        super().__init__(settings, model)
        self.head = _head(model)
        self.prototypes = PARAMS + self.head
        prototypes = TensorSchema(model.params[self.head].shape)
        self.payload = TensorSchemas(
            required={self.prototypes: prototypes}, optional={_ANCHORS: prototypes}
        )
        self.uplink = TensorSchemas(optional={self.prototypes: prototypes})
        self.carried = network_names(model) - {self.prototypes}
        if settings.prototype_sum == "printed":
            self.description = replace(self.description, combines="each")
        else:
            self.private = PrivacySupport(
                baseline=lambda state: {self.prototypes: state.tensors[self.prototypes]},
                by_class=frozenset({self.prototypes}),
            )

    def server_init(self, model: Model, rng: np.random.Generator) -> ServerState:
        settings, anchors = self.settings, model.params[self.head].copy()
        if not begins_with_bundle(settings.start, model):
            anchors = hyperspherical_prototypes(
                *anchors.shape,
                rng=rng,
                steps=settings.sphere_steps,
                lr=settings.sphere_lr,
                momentum=settings.sphere_momentum,
                weight_decay=settings.sphere_weight_decay,
            )
        tensors: dict[str, NDArray[Any]] = {
            self.prototypes: anchors,
            _ANCHORS: anchors,
            _ANCHORED: np.zeros(0, np.int64),
        }
        return ServerState(round_id=0, tensors=tensors)

    def downlink(self, state: ServerState, client_id: str) -> Payload:
        names = [self.prototypes]
        if state.round_id and client_key(client_id) not in state.tensors[_ANCHORED]:
            names.append(_ANCHORS)
        return Payload(
            round_id=state.round_id + 1, tensors={name: state.tensors[name] for name in names}
        )

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        anchors = self._anchors(state, payload)
        if anchors is None:
            return self._abstain(state, payload, tools)
        network = self.client_model(state)
        network.params[self.head][...] = payload.tensors[self.prototypes]
        trained = train(network, tools.training, self.settings, self._objective(state, anchors))
        update = Update(
            client_id=tools.client_id,
            round_id=payload.round_id,
            num_examples=len(tools.training.y),
            tensors={self.prototypes: trained.network.params[self.head]},
            evaluation=tools.evaluate(trained.network),
            loss=trained.loss,
        )
        kept = {**network_tensors(trained.network), **trained.moments(), _ANCHORS: anchors}
        return ClientState(round_id=payload.round_id, tensors=kept), update

    def _anchors(self, state: ClientState, payload: Payload) -> NDArray[Any] | None:
        if payload.round_id == 1:
            return payload.tensors[self.prototypes]
        return payload.tensors.get(_ANCHORS, state.tensors.get(_ANCHORS))

    def _objective(self, state: ClientState, anchors: NDArray[Any]) -> LocalObjective:
        settings, backbone = self.settings, self.model.params.keys() - {self.head}
        classes = len(anchors) if settings.regulariser == "mean" else 1
        inputs = {"anchors": anchors, "weight": np.float32(settings.anchor_weight / classes)}
        return LocalObjective(
            loss=_OBJECTIVE,
            inputs=lambda _rows: inputs,
            groups=[
                Group(optimiser=settings.optimiser, names=backbone),
                Group(optimiser=settings.prototype_optimiser, names=(self.head,)),
            ],
            moments=state.tensors,
        )

    def _abstain(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        """Ask for the anchors, by an update without tensors."""
        update = Update(
            client_id=tools.client_id,
            round_id=payload.round_id,
            num_examples=len(tools.training.y),
            tensors={},
            evaluation=tools.evaluate(self.client_model(state)),
        )
        return replace(state, round_id=payload.round_id), update

    def aggregate(self, state: ServerState, updates: Updates, tools: ServerTools) -> ServerState:
        printed = self.settings.prototype_sum == "printed"
        if printed and tools.aggregator is not MEAN:
            raise InputError(
                "strategy 'fedhp': prototype_sum = 'printed' is made of the clients' weighted "
                f"mean, got aggregation '{tools.aggregator.name}'; leave one of the two out"
            )
        old = state.tensors[self.prototypes]
        tally = _Tally(name=self.prototypes, shares=np.zeros(len(old)))
        merged = merge_prototypes(tools.aggregator, tally.terms(updates, old), old)
        held = tally.shares > 0
        if printed:
            # Eq. 5: the sum of w_ij pi_ij is the weighted mean times the sum of the weights.
            merged[held] *= (tally.shares[held] / len(tally.anchored))[:, None]
        known = np.union1d(state.tensors[_ANCHORED], np.array(tally.anchored, np.int64))
        remembered = np.setdiff1d(known, np.array(tally.lacking, np.int64))
        tensors = {**state.tensors, self.prototypes: merged, _ANCHORED: remembered}
        return ServerState(round_id=state.round_id + 1, tensors=tensors)


def _head(model: Model) -> str:
    """Name of the prototypes, among the parameters."""
    shapes = model.params.layout.shapes
    named = [name for name in model.head if name.rpartition(".")[2] == _NAME]
    if len(named) != 1 or len(shapes[named[0]]) != 2 or shapes[named[0]][0] != model.num_classes:
        flags = f"{'' if model.head else '--head NAME '}--head-kind prototypes"
        raise UnsuitableModelError(
            f"strategy 'fedhp': expected a head with a parameter '{_NAME}' of {model.num_classes} "
            f"rows, got a head of {listed(model.head)}; export with {flags}, which replaces the "
            "head",
            flags=flags,
        )
    return named[0]


@dataclass(slots=True, kw_only=True)
class _Tally:
    """What a round's updates say beside their prototypes.

    Attributes:
        name: of the prototypes in an update.
        shares: sum of ``w_ij`` over the clients, ``(C,) float64``.
        anchored: keys of clients that have the anchors.
        lacking: keys of those that have not.
    """

    name: str
    shares: NDArray[np.float64]
    anchored: list[int] = field(default_factory=list)
    lacking: list[int] = field(default_factory=list)

    def terms(
        self, updates: Updates, old: NDArray[Any]
    ) -> Iterator[tuple[NDArray[Any], NDArray[np.float64]]]:
        """Prototypes and weights ``w_ij = N_i^j / N_i``, 0 of clients without examples."""
        for update in ordered(updates):
            weights = np.zeros(len(self.shares))
            if not update.tensors:
                self.lacking.append(client_key(update.client_id))
            elif update.num_examples:
                counts = class_counts_of(update, len(self.shares))
                weights = counts / max(int(counts.sum()), 1)
                self.shares += weights
                self.anchored.append(client_key(update.client_id))
            yield update.tensors.get(self.name, old), weights
