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
    - A bundle whose directions have been trained begins with them (``start = "spread"``: never).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.kernels import hyperspherical_prototypes, unit_rows
from protofleet.strategies.bounds import MOST_PASSES, Bounds, LearningRate, Share, Weight
from protofleet.strategies.common import PARAMS, combine_updates, listed, prefixed
from protofleet.strategies.optimisers import Adam, Group, Sgd
from protofleet.strategies.prototypes import (
    ClassRows,
    CollectedRows,
    begins_with_bundle,
    class_counts_of,
    class_means,
    feature_width,
)
from protofleet.strategies.shared_model import SharedModel, SharedTraining, finish_round, initialise
from protofleet.strategies.strategy import PrivacySupport
from protofleet.strategies.training import LocalObjective, train
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
    UnsuitableModelError,
    Update,
    Updates,
    WireContents,
    float32_schemas,
)
from protofleet.tensors import Layout, Model, Network, Tensors

_DIRECTIONS = "directions"
_SCALE = "scale"
_MEANS = "class_means"


class FedNHSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training, and how the server starts and moves the directions.

    Attributes:
        lr_decay: the learning rate of a round is this times that of the round before.
        smoothing: rho, the share of a direction that stays.
        by_examples: clients' parameters count by examples, otherwise alike.
        class_means: sent ``plain`` or scaled to ``unit`` length.
        start: directions are driven apart (``spread``), ``orthogonal``, or the ``bundle``'s own;
            by default these where they have been trained, and else driven apart.
        sphere_steps, sphere_lr, sphere_momentum, sphere_weight_decay: how they are driven apart
            (``kernels.hyperspherical_prototypes``).
    """

    clip_norm: float | None = 10.0
    optimiser: Adam | Sgd = Sgd(lr=0.01, momentum=0.9, weight_decay=1e-5)
    lr_decay: Share = 0.99
    smoothing: Share = 0.9
    by_examples: bool = False
    class_means: Literal["plain", "unit"] = "plain"
    start: Literal["auto", "spread", "orthogonal", "bundle"] = "auto"
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


class FedNh(SharedModel):
    """Fixed directions of classes, which the server moves to the clients' means."""

    description = Description(
        name="fednh",
        paper="Dai et al., Tackling Data Heterogeneity in Federated Learning with Class "
        "Prototypes, arXiv:2212.02758",
        objectives=(TASK_LOSS,),
        travels=WireContents(
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
        combines="rule",
        reads_features=True,
        published={"kind": "sgd", "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5},
    )
    settings: FedNHSettings

    def __init__(self, settings: FedNHSettings, model: Model) -> None:
        super().__init__(settings, model)
        self.head = _head(model)
        self.shape = classes, width = (model.num_classes, feature_width(model))
        if settings.start == "orthogonal" and classes > width:
            raise InputError(
                f"strategy 'fednh': setting 'start': {classes} classes have no orthogonal "
                f'directions among {width} features; take "spread"'
            )
        self.directions = PARAMS + self.head
        every = self.shared.shapes
        self.encoder = Layout.of({key: every[key] for key in every if key != self.directions})
        means = TensorSchema(self.shape)
        self.uplink = TensorSchemas(required={**float32_schemas(self.encoder), _MEANS: means})
        self.mean = None
        self.private = PrivacySupport(baseline=self._baseline, by_class=frozenset({_MEANS}))

    def server_init(self, model: Model, rng: np.random.Generator) -> ServerState:
        tensors: dict[str, NDArray[Any]] = prefixed(PARAMS, model.params)
        if begins_with_bundle(self.settings.start, model):
            tensors |= self._of_bundle(tensors)
        else:
            tensors[self.directions] = self._drawn(rng)
        return ServerState(round_id=0, tensors=tensors)

    def _of_bundle(self, tensors: Tensors) -> dict[str, NDArray[Any]]:
        """The bundle's directions at length 1, and a scale that has their mean length."""
        directions = tensors[self.directions].copy()
        length = np.linalg.norm(directions, axis=1).mean(dtype=np.float64)
        unit_rows(directions)
        scale = self.directions.removesuffix(_DIRECTIONS) + _SCALE
        return {
            self.directions: directions,
            scale: np.asarray(tensors[scale] * length, np.float32),
        }

    def _drawn(self, rng: np.random.Generator) -> NDArray[np.float32]:
        """Orthogonal directions, or directions driven apart."""
        settings = self.settings
        orthogonal = _orthogonal(self.shape, rng)  # the same draws come before, whatever is taken
        if settings.start == "orthogonal":
            return orthogonal
        return hyperspherical_prototypes(
            *self.shape,
            rng=rng,
            steps=settings.sphere_steps,
            lr=settings.sphere_lr,
            momentum=settings.sphere_momentum,
            weight_decay=settings.sphere_weight_decay,
        )

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        settings = self.settings
        start = initialise(settings, self.receive(state, payload), tools)
        moving = start.network.params.keys() - {self.head}
        rate = settings.optimiser.lr * settings.lr_decay ** (payload.round_id - 1)
        group = Group(names=moving, optimiser=msgspec.structs.replace(settings.optimiser, lr=rate))
        trained = train(start.network, tools.training, settings, LocalObjective(groups=[group]))
        means = self._unit_means(trained.network, tools)
        return finish_round(start, trained, tools, self.encoder, send={_MEANS: means})

    def aggregate(self, state: ServerState, updates: Updates, tools: ServerTools) -> ServerState:
        settings, old = self.settings, state.tensors[self.directions]
        rows = CollectedRows(
            old={_MEANS: old}, weigh=lambda update: np.maximum(class_counts_of(update, len(old)), 0)
        )
        encoder = combine_updates(
            updates,
            self.encoder,
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
            self.directions: _moved(old, means, met, settings.smoothing),
        }
        return ServerState(round_id=state.round_id + 1, tensors=tensors)

    def _unit_means(self, network: Network, tools: ClientTools) -> ClassRows:
        """Class means of features of unit length; zeros for absent classes."""
        if not len(tools.training.y):
            return np.zeros(self.shape, np.float32)
        features = np.array(tools.features(network, tools.training.x), order="C")
        unit_rows(features)
        means, _ = class_means(features, tools.training.y, self.shape[0])
        if self.settings.class_means == "unit":
            unit_rows(means)
        return means

    def _baseline(self, state: ServerState) -> dict[str, NDArray[Any]]:
        encoder = {name: state.tensors[name] for name in self.encoder.shapes}
        return {**encoder, _MEANS: state.tensors[self.directions]}


def _head(model: Model) -> str:
    """Name of the directions, among the parameters."""
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
    return named[0]


def _orthogonal(shape: tuple[int, int], rng: np.random.Generator) -> ClassRows:
    """Orthonormal rows, all such sets alike likely."""
    columns, triangle = np.linalg.qr(rng.standard_normal(shape[::-1]))
    return np.ascontiguousarray((columns * np.sign(np.diag(triangle))).T, np.float32)


def _moved(old: ClassRows, means: ClassRows, met: NDArray[np.bool_], smoothing: float) -> ClassRows:
    """Directions a step towards the means of the classes that were ``met``."""
    unit_rows(means)
    moved = (smoothing * old + (1 - smoothing) * means).astype(np.float32)
    unit_rows(moved)
    return np.where(met[:, None], moved, old)
