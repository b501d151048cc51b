"""FedNH: a fixed direction per class, spread evenly at first, into which class means seep.

Source: Dai, Chen, Li, Heinecke, Sun and Xu, "Tackling Data Heterogeneity in Federated Learning with
Class Prototypes" (AAAI 2023, arXiv:2212.02758), algorithm 1, and the authors' published code
(github.com/Yutong-Dai/FedNH). A model's logits are s times the cosines of its features and the
directions, the parameters ``scale`` and ``directions`` of its head.

| symbol | name | shape | dtype |
|---|---|---|---|
| θ, s | ``params/<name>``, ``params/<head>.scale`` | the model's, () | float32 |
| W | ``params/<head>.directions``, unit rows | (C, d) | float32 |
| μ_i | ``class_means``, of features of unit length | (C, d) | float32 |
| n_i,c | ``class_counts`` | (C,) | int64 |
| rho | ``smoothing`` | () | float |

A round: θ, s and W go down; the client trains θ and s on cross-entropy with W as it is; θ, s and
μ_i, the class means of the trained model's normalised features, come up. The server averages θ and
s; a row of W becomes normalise(rho W_c + (1 - rho) normalise(Σ_i n_i,c μ_i,c / Σ_i n_i,c)). After
the last round all clients get θ, s and W, fit once more, and are scored.

Deviations:
    - W starts as FedHP's anchors do, by ``kernels.hyperspherical_prototypes``; with ``start =
      "orthogonal"`` as orthonormal rows, as in the code.
    - Class means are sent as they are; ``class_means = "unit"`` scales them to unit length first,
      as the code does, so that spread classes count as much as dense ones.
    - Clients count alike in the mean of θ and s; ``by_examples`` weighs them by examples.
    - A class that no participant has keeps its row; the code divides by 1e-12 there.
    - The learning rate falls by ``lr_decay`` a round, from the server's first on, and s starts as
      the bundle has it, 1 (the code can fix it at 30).
    - Buffers of the model stay on the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels import hyperspherical_prototypes, unit_rows
from protofleet.strategies.averaging import (
    AveragingContext,
    SharedTraining,
    averaging,
    finish_round,
    initialise,
    receive,
    share_all,
)
from protofleet.strategies.bounds import MOST_PASSES, Bounds, LearningRate, Share, Weight
from protofleet.strategies.common import PARAMS, combine_updates, listed, parse_settings, prefixed
from protofleet.strategies.optimisers import Adam, Group, Sgd
from protofleet.strategies.prototypes import (
    ClassRows,
    CollectedRows,
    class_counts_of,
    class_means,
    feature_width,
)
from protofleet.strategies.training import Fit, train
from protofleet.strategies.types import (
    TASK_LOSS,
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
    float32_forms,
)
from protofleet.tensors import Layout, Model, Network

_DIRECTIONS = "directions"
_MEANS = "class_means"

DESCRIPTION = Description(
    name="fednh",
    paper="Dai et al., Tackling Data Heterogeneity in Federated Learning with Class Prototypes, "
    "arXiv:2212.02758",
    programs=(TASK_LOSS,),
    travels=Travels(
        down=("parameters", "directions of classes"),
        up=(
            "parameters without directions",
            "class means of normalised features",
            "registered once: number of examples of each class",
        ),
        personal=("buffers of the model",),
    ),
    class_counts=True,
    final_fit=True,
    takes_aggregator=True,
    reads_features=True,
    published={"kind": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5},
)


class FedNHSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training, and how the server starts and moves the directions.

    Attributes:
        lr_decay: the learning rate of a round is this times that of the round before.
        smoothing: rho, the share of a direction that stays.
        by_examples: clients' parameters count by examples, otherwise alike.
        class_means: sent ``plain`` or scaled to ``unit`` length.
        start: directions are driven apart (``spread``) or ``orthogonal``.
        sphere_steps, sphere_lr, sphere_momentum, sphere_weight_decay: how they are driven apart
            (``kernels.hyperspherical_prototypes``).
    """

    clip_norm: float | None = 10.0
    optimiser: Adam | Sgd = Sgd(lr=0.01, momentum=0.9, weight_decay=1e-5)
    lr_decay: Share = 0.99
    smoothing: Share = 0.9
    by_examples: bool = False
    class_means: Literal["plain", "unit"] = "plain"
    start: Literal["spread", "orthogonal"] = "spread"
    sphere_steps: Annotated[int, Bounds(0, MOST_PASSES)] = 1000
    sphere_lr: LearningRate = 0.1
    sphere_momentum: Share = 0.9
    sphere_weight_decay: Weight = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.local_init is not None:
            raise InputError(
                "setting 'local_init': every client has the server's directions, leave it out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """What all functions know beside the context.

    Attributes:
        name: of the directions, among the parameters.
        shape: (C, d).
        encoder: prefixed layout of everything else, the scale included.
    """

    name: str
    shape: tuple[int, int]
    encoder: Layout

    @property
    def directions(self) -> str:
        """Name of the directions where they travel."""
        return PARAMS + self.name


def build(settings: Mapping[str, Any], model: Model) -> Strategy:
    """FedNH for one model.

    Raises:
        InputError: unknown setting, wrong type, a value outside its range, a model without a
            direction per class, or more classes than orthogonal directions.
    """
    chosen = parse_settings(DESCRIPTION.name, settings, FedNHSettings)
    head = _head(model)
    if chosen.start == "orthogonal" and head.shape[0] > head.shape[1]:
        raise InputError(
            f"strategy 'fednh': setting 'start': {head.shape[0]} classes have no orthogonal "
            f'directions among {head.shape[1]} features; take "spread"'
        )
    context = share_all(DESCRIPTION, chosen, model)
    means = TensorForm(head.shape)
    return replace(
        averaging(context, partial(_client_update, head)),
        uplink=TensorForms(required={**float32_forms(head.encoder), _MEANS: means}),
        server_init=partial(_server_init, chosen, head),
        aggregate=partial(_aggregate, chosen, head),
        mean=None,
        private=PrivateForm(baseline=partial(_baseline, head), by_class=frozenset({_MEANS})),
    )


def _head(model: Model) -> _Head:
    shapes = model.params.layout.shapes
    named = [name for name in model.head if name.rpartition(".")[2] == _DIRECTIONS]
    width = feature_width(model)
    if len(named) != 1 or shapes[named[0]] != (model.num_classes, width):
        raise UnsuitableModelError(
            f"strategy 'fednh': expected a head with a parameter '{_DIRECTIONS}' "
            f"({model.num_classes}, {width}), got a head of {listed(model.head)}; export with "
            "--head-kind cosine, which replaces the head",
            flags="--head-kind cosine",
        )
    (name,) = named
    every = {PARAMS + key: shape for key, shape in shapes.items() if key != name}
    return _Head(name=name, shape=(model.num_classes, width), encoder=Layout.of(every))


def _server_init(
    settings: FedNHSettings, head: _Head, model: Model, rng: np.random.Generator
) -> ServerState:
    directions = _orthogonal(head.shape, rng)
    if settings.start == "spread":
        directions = hyperspherical_prototypes(
            *head.shape,
            rng=rng,
            steps=settings.sphere_steps,
            lr=settings.sphere_lr,
            momentum=settings.sphere_momentum,
            weight_decay=settings.sphere_weight_decay,
        )
    tensors = {**prefixed(PARAMS, model.params), head.directions: directions}
    return ServerState(round_id=0, tensors=tensors)


def _orthogonal(shape: tuple[int, int], rng: np.random.Generator) -> ClassRows:
    """Orthonormal rows, all such sets alike likely."""
    columns, triangle = np.linalg.qr(rng.standard_normal(shape[::-1]))
    return np.ascontiguousarray((columns * np.sign(np.diag(triangle))).T, np.float32)


def _client_update(
    head: _Head,
    context: AveragingContext[FedNHSettings],
    state: ClientState,
    payload: Payload,
    tools: ClientTools,
) -> tuple[ClientState, Update]:
    settings = context.settings
    start = initialise(settings, receive(context, state, payload), tools)
    moving = start.network.params.keys() - {head.name}
    rate = settings.optimiser.lr * settings.lr_decay ** (payload.round_id - 1)
    group = Group(names=moving, optimiser=msgspec.structs.replace(settings.optimiser, lr=rate))
    trained = train(start.network, tools.training, settings, Fit(groups=[group]))
    means = _unit_means(settings, head, trained.network, tools)
    return finish_round(start, trained, tools, head.encoder, send={_MEANS: means})


def _unit_means(
    settings: FedNHSettings, head: _Head, network: Network, tools: ClientTools
) -> ClassRows:
    """Class means of features of unit length; zeros for absent classes."""
    if not len(tools.training.y):
        return np.zeros(head.shape, np.float32)
    features = np.array(tools.features(network, tools.training.x), order="C")
    unit_rows(features)
    means, _ = class_means(features, tools.training.y, head.shape[0])
    if settings.class_means == "unit":
        unit_rows(means)
    return means


def _aggregate(
    settings: FedNHSettings, head: _Head, state: ServerState, updates: Updates, tools: ServerTools
) -> ServerState:
    old = state.tensors[head.directions]
    rows = CollectedRows(
        old={_MEANS: old}, weigh=lambda update: np.maximum(class_counts_of(update, len(old)), 0)
    )
    encoder = combine_updates(
        updates,
        head.encoder,
        tools.aggregator,
        state.tensors,
        by_examples=settings.by_examples,
        visit=rows.collect,
    )
    if encoder is None:
        return ServerState(round_id=state.round_id + 1, tensors=state.tensors)
    met = rows.present(np.zeros(len(old), np.uint8)) > 0
    means = rows.merged(tools.aggregator, len(updates))[_MEANS]
    tensors: dict[str, NDArray[Any]] = {
        **encoder,
        head.directions: _moved(old, means, met, settings.smoothing),
    }
    return ServerState(round_id=state.round_id + 1, tensors=tensors)


def _moved(old: ClassRows, means: ClassRows, met: NDArray[np.bool_], smoothing: float) -> ClassRows:
    """Directions a step towards the means of the classes that were ``met``."""
    unit_rows(means)
    moved = (smoothing * old + (1 - smoothing) * means).astype(np.float32)
    unit_rows(moved)
    return np.where(met[:, None], moved, old)


def _baseline(head: _Head, state: ServerState) -> dict[str, NDArray[Any]]:
    encoder = {name: state.tensors[name] for name in head.encoder.shapes}
    return {**encoder, _MEANS: state.tensors[head.directions]}
