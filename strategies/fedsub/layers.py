"""The dense layers of a model that FedSub fuses, and where subnetworks reach in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.strategies.common import PARAMS
from protofleet.strategies.fedsub.fusion import Active, Flags
from protofleet.tensors import Model

MASKS = "masks/"
"""Prefix of the masks in an update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A dense layer.

    Attributes:
        name: before ``.weight`` and ``.bias``.
        units, inputs: shape of its weights.
        before: layer whose units are its inputs; None: they are always active.
        hidden: whether it has a ReLU; units of the output layer are always active.
    """

    name: str
    units: int
    inputs: int
    before: str | None
    hidden: bool

    @property
    def weight(self) -> str:
        """Name of its weights in states, payloads and updates."""
        return f"{PARAMS}{self.name}.weight"

    @property
    def bias(self) -> str:
        """The same of its bias."""
        return f"{PARAMS}{self.name}.bias"


def dense_layers(model: Model, head: str) -> tuple[Layer, ...]:
    """All layers ``<name>.weight (units, inputs)`` with ``<name>.bias (units,)``, in order.

    Args:
        model: any with such layers; other parameters are passed over.
        head: how the names of the output layer's parameters start.

    Raises:
        InputError: no hidden layers, or no output layer.
    """
    shapes = model.params.layout.shapes
    layers: list[Layer] = []
    for weight, shape in shapes.items():
        name = weight.removesuffix(".weight")
        if name == weight or len(shape) != 2 or shapes.get(f"{name}.bias") != shape[:1]:
            continue
        units, inputs = shape
        chained = layers and layers[-1].units == inputs
        before = layers[-1].name if chained else None
        hidden = not weight.startswith(head)
        layers.append(Layer(name=name, units=units, inputs=inputs, before=before, hidden=hidden))
    if len({layer.hidden for layer in layers}) != 2:
        raise InputError(
            "strategy 'fedsub': expected dense layers '<name>.weight' and '<name>.bias', hidden "
            f"ones and one that starts with '{head}' (setting 'head'), got {shapes}; export a "
            "perceptron"
        )
    return tuple(layers)


def pack_masks(means: NDArray[np.float32], threshold: float) -> NDArray[np.uint8]:
    """Bits ``(C, ceil(units / 8))`` of the units whose average ``(C, units)`` is larger."""
    return np.packbits(means > threshold, axis=1)


def reach(
    layers: Sequence[Layer],
    masks: Sequence[Mapping[str, NDArray[np.uint8]]],
    mask: Literal["inout", "out"],
    *,
    classes: int,
) -> dict[str, Active]:
    """Where all clients' subnetworks reach in each fused tensor, by its name.

    Args:
        layers: that are fused.
        masks: of each client, those of the hidden layers by their prefixed names.
        mask: whether inactive inputs make a weight inactive.
        classes: C.
    """
    everyone = len(masks), classes
    units: dict[str, Flags] = {}
    found = {}
    for layer in layers:
        rows = units[layer.name] = _units(layer, masks, everyone)
        before = layer.before if mask == "inout" else None
        columns = np.ones((*everyone, layer.inputs), np.bool_) if before is None else units[before]
        found[layer.weight] = Active(rows=rows, columns=columns)
        found[layer.bias] = Active(rows=rows, columns=np.ones((*everyone, 1), np.bool_))
    return found


def _units(
    layer: Layer, masks: Sequence[Mapping[str, NDArray[np.uint8]]], everyone: tuple[int, int]
) -> Flags:
    """``(M, C, units)``, which of them are active."""
    if not layer.hidden:
        return np.ones((*everyone, layer.units), np.bool_)
    bits = np.array([one[MASKS + layer.name] for one in masks], np.uint8)
    return np.unpackbits(bits, axis=2, count=layer.units).astype(np.bool_)
