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
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels import hyperspherical_prototypes
from protofleet.strategies.aggregation import MEAN
from protofleet.strategies.bounds import MOST_PASSES, Bounds, LearningRate, Share, Weight
from protofleet.strategies.common import (
    PARAMS,
    client_init,
    client_key,
    client_model,
    listed,
    network_names,
    network_tensors,
    ordered,
    parse_settings,
)
from protofleet.strategies.optimisers import Adam, Group, Sgd
from protofleet.strategies.prototypes import class_counts_of, merge_prototypes
from protofleet.strategies.training import Fit, Training, train
from protofleet.strategies.types import (
    ClientState,
    ClientTools,
    Description,
    Payload,
    PrivateForm,
    ServerState,
    ServerTools,
    Strategy,
    TensorForm,
    TensorForms,
    Travels,
    UnsuitableModelError,
    Update,
    Updates,
)
from protofleet.tensors import Model

_NAME = "prototypes"
_ANCHORS = "anchors"
_ANCHORED = "anchored"
_OBJECTIVE = "prototype_distance"

DESCRIPTION = Description(
    name="fedhp",
    paper="Fonio et al., FedHP: Federated Learning with Hyperspherical Prototypical "
    "Regularization, ESANN 2024",
    programs=(_OBJECTIVE,),
    travels=Travels(
        down=("global prototypes", "to a newcomer after round 1: anchors"),
        up=("local prototypes", "registered once: number of examples of each class"),
        personal=("all other parameters", "buffers of the model", "moments of the optimisers"),
    ),
    class_counts=True,
    final_fit=True,
    takes_aggregator=True,
    published={"kind": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-4},
)


class FedHPSettings(Training, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training, the regulariser, and how the server starts and merges.

    Attributes:
        optimiser: of everything but the prototypes; kept across rounds.
        prototype_optimiser: of the prototypes; kept across rounds.
        anchor_weight: lambda, the regulariser's weight.
        regulariser: mean (the code) or sum (the paper) over the classes.
        prototype_sum: normalised (the code) or as printed in eq. 5.
        sphere_steps, sphere_lr, sphere_momentum, sphere_weight_decay: how the server drives the
            first prototypes apart (``kernels.hyperspherical_prototypes``).
    """

    optimiser: Adam | Sgd = Sgd(lr=0.01, momentum=0.9, weight_decay=1e-4)
    prototype_optimiser: Adam | Sgd = Adam(lr=0.005, eps=1e-8, eps_form="torch")
    anchor_weight: Weight = 0.1
    regulariser: Literal["mean", "sum"] = "mean"
    prototype_sum: Literal["normalised", "printed"] = "normalised"
    sphere_steps: Annotated[int, Bounds(0, MOST_PASSES)] = 1000
    sphere_lr: LearningRate = 0.1
    sphere_momentum: Share = 0.9
    sphere_weight_decay: Weight = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Context:
    """What all functions know.

    Attributes:
        head: name of the prototypes among the parameters.
        groups: backbone and prototypes with their optimisers.
    """

    settings: FedHPSettings
    model: Model
    head: str
    groups: tuple[Group, Group]

    @property
    def prototypes(self) -> str:
        """Name of the prototypes where they travel."""
        return PARAMS + self.head


def build(settings: Mapping[str, Any], model: Model) -> Strategy:
    """FedHP for one model.

    Raises:
        InputError: unknown setting, wrong type, a value outside its range, or a model without a
            learned prototype per class.
    """
    context = _context(parse_settings(DESCRIPTION.name, settings, FedHPSettings), model)
    printed = context.settings.prototype_sum == "printed"
    prototypes = TensorForm(model.params[context.head].shape)
    return Strategy(
        description=replace(DESCRIPTION, takes_aggregator=not printed),
        settings=context.settings,
        payload=TensorForms(
            required={context.prototypes: prototypes}, optional={_ANCHORS: prototypes}
        ),
        uplink=TensorForms(optional={context.prototypes: prototypes}),
        server_init=partial(_server_init, context),
        downlink=partial(_downlink, context),
        client_init=client_init,
        client_update=partial(_client_update, context),
        client_model=partial(client_model, model),
        carried=network_names(model) - {context.prototypes},
        aggregate=partial(_aggregate, context),
        server_model=lambda _state: None,
        private=None if printed else _private(context),
    )


def _private(context: _Context) -> PrivateForm:
    name = context.prototypes
    return PrivateForm(
        baseline=lambda state: {name: state.tensors[name]}, by_class=frozenset({name})
    )


def _context(settings: FedHPSettings, model: Model) -> _Context:
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
    (head,) = named
    backbone = Group(optimiser=settings.optimiser, names=shapes.keys() - {head})
    prototypes = Group(optimiser=settings.prototype_optimiser, names=(head,))
    return _Context(settings=settings, model=model, head=head, groups=(backbone, prototypes))


def _server_init(context: _Context, model: Model, rng: np.random.Generator) -> ServerState:
    settings = context.settings
    anchors = hyperspherical_prototypes(
        *model.params[context.head].shape,
        rng=rng,
        steps=settings.sphere_steps,
        lr=settings.sphere_lr,
        momentum=settings.sphere_momentum,
        weight_decay=settings.sphere_weight_decay,
    )
    tensors: dict[str, NDArray[Any]] = {
        context.prototypes: anchors,
        _ANCHORS: anchors,
        _ANCHORED: np.zeros(0, np.int64),
    }
    return ServerState(round_id=0, tensors=tensors)


def _downlink(context: _Context, state: ServerState, client_id: str) -> Payload:
    names = [context.prototypes]
    if state.round_id and client_key(client_id) not in state.tensors[_ANCHORED]:
        names.append(_ANCHORS)
    return Payload(
        round_id=state.round_id + 1, tensors={name: state.tensors[name] for name in names}
    )


def _client_update(
    context: _Context, state: ClientState, payload: Payload, tools: ClientTools
) -> tuple[ClientState, Update]:
    anchors = _anchors(context, state, payload)
    if anchors is None:
        return _abstain(context, state, payload, tools)
    network = client_model(context.model, state)
    network.params[context.head][...] = payload.tensors[context.prototypes]
    trained = train(network, tools.training, context.settings, _fit(context, state, anchors))
    update = Update(
        client_id=tools.client_id,
        round_id=payload.round_id,
        num_examples=len(tools.training.y),
        tensors={context.prototypes: trained.network.params[context.head]},
        evaluation=tools.evaluate(trained.network),
        loss=trained.loss,
    )
    kept = {**network_tensors(trained.network), **trained.moments(), _ANCHORS: anchors}
    return ClientState(round_id=payload.round_id, tensors=kept), update


def _anchors(context: _Context, state: ClientState, payload: Payload) -> NDArray[Any] | None:
    if payload.round_id == 1:
        return payload.tensors[context.prototypes]
    return payload.tensors.get(_ANCHORS, state.tensors.get(_ANCHORS))


def _fit(context: _Context, state: ClientState, anchors: NDArray[Any]) -> Fit:
    settings = context.settings
    classes = len(anchors) if settings.regulariser == "mean" else 1
    inputs = {"anchors": anchors, "weight": np.float32(settings.anchor_weight / classes)}
    return Fit(
        objective=_OBJECTIVE,
        inputs=lambda _rows: inputs,
        groups=context.groups,
        moments=state.tensors,
    )


def _abstain(
    context: _Context, state: ClientState, payload: Payload, tools: ClientTools
) -> tuple[ClientState, Update]:
    """Ask for the anchors, by an update without tensors."""
    update = Update(
        client_id=tools.client_id,
        round_id=payload.round_id,
        num_examples=len(tools.training.y),
        tensors={},
        evaluation=tools.evaluate(client_model(context.model, state)),
    )
    return replace(state, round_id=payload.round_id), update


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


def _aggregate(
    context: _Context, state: ServerState, updates: Updates, tools: ServerTools
) -> ServerState:
    printed = context.settings.prototype_sum == "printed"
    if printed and tools.aggregator is not MEAN:
        raise InputError(
            "strategy 'fedhp': prototype_sum = 'printed' is made of the clients' weighted mean, "
            f"got aggregation '{tools.aggregator.name}'; leave one of the two out"
        )
    old = state.tensors[context.prototypes]
    tally = _Tally(name=context.prototypes, shares=np.zeros(len(old)))
    merged = merge_prototypes(tools.aggregator, tally.terms(updates, old), old)
    held = tally.shares > 0
    if printed:
        # Eq. 5: the sum of w_ij pi_ij is the weighted mean times the sum of the weights.
        merged[held] *= (tally.shares[held] / len(tally.anchored))[:, None]
    known = np.union1d(state.tensors[_ANCHORED], np.array(tally.anchored, np.int64))
    remembered = np.setdiff1d(known, np.array(tally.lacking, np.int64))
    tensors = {**state.tensors, context.prototypes: merged, _ANCHORED: remembered}
    return ServerState(round_id=state.round_id + 1, tensors=tensors)
