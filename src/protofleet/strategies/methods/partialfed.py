"""PartialFed: a client loads some layers from the server and starts the others from its own.

Source: Sun, Huo, Yang and Bai, "PartialFed: Cross-Domain Personalized Federated Learning via
Partial Initialization" (NeurIPS 2021), the variants Fix and Adaptive.

| symbol | name | shape | dtype |
|---|---|---|---|
| θ; θ_i | ``params/<name>`` of payload; of update and state | the model's | float32 |
| logits of the decisions | ``decisions``, on the device only: load, keep | (L, 2) | float32 |
| τ | ``temperature``, ``temperature_decay``, ``min_temperature`` | () | float |

``mode = "fix"``: the layers that ``loaded`` names come from the server and are averaged there; the
others stay on the device, and never travel.

``mode = "adaptive"``: everything travels, and each client decides layer by layer. In a round it
trains two copies of every layer l, one that starts as received, a_l, and one that starts as its own
was, b_l, as the network of the weights v_l0 a_l + v_l1 b_l, where v_l is a softmax of
(logits_l + Gumbel noise) / τ, drawn anew for each step. With G_l, the gradient of the loss at that
network, the gradients are v_l0 G_l, v_l1 G_l and ± v_l0 v_l1 <G_l, a_l - b_l> / τ. After the round
a layer is a_l where the logit to load is at least the other, else b_l; that model is scored, kept,
and sent up whole. A layer is what has one name up to the last dot: weight and bias together.

Deviations:
    - Weights are mixed, not outputs of two branches: the same for dense layers and convolutions.
    - The temperature falls from round to round, by the server's count; its three numbers and the
      decisions' optimiser are this project's choice. Logits start at zero.
    - Default ``loaded``: all but the bundle's head.
    - Default optimiser as in ``fedavg.py``. Batch-norm statistics are buffers, which stay on the
      device anyway; weights and biases of a batch-norm are a layer as others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.strategies.bounds import Bounds, Share
from protofleet.strategies.common import PARAMS, listed, prefixed, shared_layout
from protofleet.strategies.methods.fedavg import FedAvg
from protofleet.strategies.optimisers import Adam, Group, Sgd
from protofleet.strategies.shared_model import (
    SharedModel,
    SharedTraining,
    finish_round,
    scored_early,
)
from protofleet.strategies.training import LocalObjective, refuse_rewritten, train
from protofleet.strategies.types import (
    TASK_LOSS,
    Batch,
    ClientState,
    ClientTools,
    GradFn,
    Payload,
    Step,
    Update,
    WireContents,
)
from protofleet.tensors import Layout, Model, Network, TensorMap

_DECISIONS = "decisions"
_LOADED, _OWN = "loaded/", "own/"


class PartialFedSettings(SharedTraining, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Local training, and which layers come from the server.

    Attributes:
        mode: ``adaptive``: each client learns which; ``fix``: those of ``loaded``.
        loaded: in mode fix, parameters whose names start with one of these are loaded; None: all
            but those that the bundle calls its head.
        decision_optimiser: of the decisions' logits; made anew each round.
        temperature: of the softmax in round 1.
        temperature_decay: what it is multiplied with from round to round.
        min_temperature: where it stops.
    """

    mode: Literal["adaptive", "fix"] = "adaptive"
    loaded: tuple[str, ...] | None = None
    decision_optimiser: Adam | Sgd = Adam(lr=0.01)
    temperature: Annotated[float, Bounds(1e-3)] = 5.0
    temperature_decay: Share = 0.965
    min_temperature: Annotated[float, Bounds(1e-3)] = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode == "adaptive" and self.loaded is not None:
            raise InputError(
                "setting 'loaded': in mode 'adaptive' clients decide; leave it out or set "
                "mode = 'fix'"
            )
        if self.mode == "adaptive" and self.local_init is not None:
            raise InputError(
                "setting 'local_init': in mode 'adaptive' layers are mixed by the decisions; leave "
                "it out or set mode = 'fix'"
            )

    def at(self, round_id: int) -> float:
        """The temperature of a round, from 1."""
        return max(
            self.min_temperature, self.temperature * self.temperature_decay ** (round_id - 1)
        )


class PartialFed(SharedModel):
    """Each client decides, layer by layer, what it loads."""

    description = replace(
        FedAvg.description,
        name="partialfed",
        paper="Sun et al., PartialFed: Cross-Domain Personalized Federated Learning via Partial "
        "Initialization, NeurIPS 2021",
        travels=WireContents(
            down=("parameters (mode fix: of the loaded layers)",),
            up=("parameters (mode fix: of the loaded layers)", "number of examples"),
            personal=("own layers", "which layers to load", "buffers of the model"),
        ),
        partial_work=False,
    )
    settings: PartialFedSettings

    def __init__(self, settings: PartialFedSettings, model: Model) -> None:
        shared = None
        if settings.mode == "fix":
            shared = _loaded_layout(model, settings.loaded)
        else:
            refuse_rewritten(self.description.name, model)
        super().__init__(settings, model, shared=shared)

    def client_init(self, model: Model) -> ClientState:
        fresh = super().client_init(model)
        if self.settings.mode == "fix":
            return fresh
        decisions = np.zeros((len(layers_of(model.params.layout)), 2), np.float32)
        return replace(fresh, tensors={**fresh.tensors, _DECISIONS: decisions})

    def client_update(
        self, state: ClientState, payload: Payload, tools: ClientTools
    ) -> tuple[ClientState, Update]:
        if self.settings.mode == "fix":
            return super().client_update(state, payload, tools)
        settings, decisions = self.settings, state.tensors[_DECISIONS]
        start = self.receive(state, payload)
        received, own = start.network, self.client_model(state)
        if scored_early(settings, payload):
            early = replace(received, params=chosen(received.params, own.params, decisions))
            start = replace(start, early=tools.evaluate(early))
        mixture = Mixture(
            layout=received.params.layout,
            grad_fn=tools.training.grad_fns[TASK_LOSS],
            temperature=settings.at(payload.round_id),
        )
        network = replace(received, params=mixture.pack(received.params, own.params, decisions))
        copies = Group(names=mixture.copies, optimiser=settings.optimiser)
        logits = Group(names=(_DECISIONS,), optimiser=settings.decision_optimiser)
        training = replace(tools.training, grad_fns={TASK_LOSS: mixture})
        trained = train(network, training, settings, LocalObjective(groups=[copies, logits]))
        params, decided = mixture.chosen(trained.network.params)
        finished = replace(trained, network=replace(trained.network, params=params))
        return finish_round(start, finished, tools, self.shared, keep={_DECISIONS: decided})


def _loaded_layout(model: Model, loaded: tuple[str, ...] | None) -> Layout:
    if loaded is None:
        return shared_layout(model, None)
    shapes = model.params.layout.shapes
    chosen = {PARAMS + name: shape for name, shape in shapes.items() if name.startswith(loaded)}
    unknown = [one for one in loaded if not any(name.startswith(one) for name in shapes)]
    if unknown or not chosen or len(chosen) == len(shapes):
        raise InputError(
            "strategy 'partialfed': setting 'loaded': expected how the names of some parameters "
            f"start, not of all, got {listed(unknown or loaded)} for {listed(list(shapes))}"
        )
    return Layout.of(chosen)


def layers_of(layout: Layout) -> dict[str, tuple[str, ...]]:
    """Names of the parameters by layer: what stands before their last dot, or the whole name."""
    layers: dict[str, tuple[str, ...]] = {}
    for name in layout.shapes:
        layer = name.rpartition(".")[0] or name
        layers[layer] = (*layers.get(layer, ()), name)
    return layers


def chosen(loaded: TensorMap, own: TensorMap, decisions: NDArray[Any]) -> TensorMap:
    """Each layer from the one or the other, by the larger logit; of equal ones loaded."""
    params = loaded.copy()
    for (load, keep), names in zip(decisions, layers_of(own.layout).values(), strict=True):
        for name in names if keep > load else ():
            params[name][...] = own[name]
    return params


class Mixture:
    """Two copies of a model's parameters and the decisions, trained as one tensor map.

    A training program (``strategies.types.GradFn``) of that map, by the chain rule from the model's
    own program at the mixed parameters.

    Args:
        layout: of the model's parameters.
        grad_fn: the model's program.
        temperature: of the softmax.
    """

    def __init__(self, *, layout: Layout, grad_fn: GradFn, temperature: float) -> None:
        self._grad_fn, self._temperature = grad_fn, temperature
        self._layers = tuple(layers_of(layout).values())
        copies = {
            prefix + name: shape
            for prefix in (_LOADED, _OWN)
            for name, shape in layout.shapes.items()
        }
        self.copies = tuple(copies)
        self._mixed = TensorMap.zeros(layout)
        self._grads = TensorMap.zeros(Layout.of({**copies, _DECISIONS: (len(self._layers), 2)}))

    def pack(self, loaded: TensorMap, own: TensorMap, decisions: NDArray[Any]) -> TensorMap:
        """The map that is trained, from copies of these."""
        copies = prefixed(_LOADED, loaded) | prefixed(_OWN, own)
        return TensorMap.pack({**copies, _DECISIONS: decisions}, self._grads.layout)

    def chosen(self, params: TensorMap) -> tuple[TensorMap, NDArray[np.float32]]:
        """The model's parameters by the decisions as they are now, and a copy of those."""
        layout, decisions = self._mixed.layout, params[_DECISIONS].copy()
        loaded, own = (
            TensorMap.pack({name: params[prefix + name] for name in layout.shapes}, layout)
            for prefix in (_LOADED, _OWN)
        )
        return chosen(loaded, own, decisions), decisions

    def __call__(self, network: Network, batch: Batch, rng: np.random.Generator) -> Step:
        """Loss and gradients of one batch; noise of the decisions is drawn before the program's."""
        params, grads = network.params, self._grads
        shares = self._shares(params[_DECISIONS], rng)
        for (load, keep), names in zip(shares, self._layers, strict=True):
            for name in names:
                np.multiply(params[_LOADED + name], load, out=self._mixed[name])
                self._mixed[name][...] += keep * params[_OWN + name]
        step = self._grad_fn(replace(network, params=self._mixed), batch, rng)
        for row, (load, keep), names in zip(grads[_DECISIONS], shares, self._layers, strict=True):
            along = 0.0
            for name in names:
                gradient = step.grads[name]
                np.multiply(gradient, load, out=grads[_LOADED + name])
                np.multiply(gradient, keep, out=grads[_OWN + name])
                apart = params[_LOADED + name] - params[_OWN + name]
                along += float(np.sum(gradient * apart, dtype=np.float64))
            slope = load * keep * along / self._temperature
            row[...] = slope, -slope
        return replace(step, grads=grads)

    def _shares(
        self, decisions: NDArray[np.float32], rng: np.random.Generator
    ) -> list[tuple[float, float]]:
        """v_l0 and v_l1 of each layer."""
        noised = (decisions + rng.gumbel(size=decisions.shape)) / self._temperature
        lean = np.tanh((noised[:, 0] - noised[:, 1]) / 2)
        return list(zip(((1 + lean) / 2).tolist(), ((1 - lean) / 2).tolist(), strict=True))
