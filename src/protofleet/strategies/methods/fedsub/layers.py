"""The layers of a model that FedSub fuses, and where subnetworks reach in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError
from protofleet.strategies.common import PARAMS, listed
from protofleet.strategies.methods.fedsub.fusion import Active, Flags
from protofleet.strategies.types import UnsuitableModelError
from protofleet.tensors import Model, ModelLayer

MASKS = "masks/"
"""Prefix of the masks in an update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """A dense layer or a convolution, whose weights are seen as a matrix ``(units, inputs)``.

    Attributes:
        name: before ``.weight`` and ``.bias``.
        units, inputs: shape of its weights; a convolution's inputs are channels times positions.
        before: layer whose units are its inputs, each as many times in a row as its number divides
            theirs; None: they are always active.
        hidden: whether it has a ReLU; units of the output layer are always active.
        has_bias: whether it has one.
    """

    name: str
    units: int
    inputs: int
    before: str | None
    hidden: bool
    has_bias: bool = True

    @property
    def weight(self) -> str:
        """Name of its weights in states, payloads and updates."""
        return f"{PARAMS}{self.name}.weight"

    @property
    def bias(self) -> str | None:
        """The same of its bias; None: it has none."""
        return f"{PARAMS}{self.name}.bias" if self.has_bias else None

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of its tensors in states, payloads and updates."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


def fused_layers(model: Model, *, output: bool) -> tuple[Layer, ...]:
    """The hidden layers that the bundle tells of, in order, and with ``output`` the output layer.

    Args:
        model: other parameters are passed over.
        output: whether the head's layers are fused too.

    Raises:
        UnsuitableModelError: the bundle does not tell of them.
        InputError: the model has no hidden layers, or no output layer.
    """
    if model.no_layers:
        raise InputError(
            "strategy 'fedsub': expected dense layers or convolutions with a ReLU or its like "
            f"behind them and a dense layer as head, got {model.no_layers}; with the model as it "
            "is take ditto, fedala or fedper"
        )
    told = [one for one in model.layers if one.hidden or _is_output(one, model)]
    if not any(one.hidden for one in told) or not any(not one.hidden for one in told):
        raise UnsuitableModelError(
            "strategy 'fedsub': expected dense layers or convolutions with a ReLU or its like and "
            "a head that is a dense layer, which the bundle does not tell of (its layers: "
            f"{listed([one.name for one in told])}): export with --strategy fedsub, "
            "which finds them"
        )
    return tuple(_layer(one, model) for one in told if one.hidden or output)


def _is_output(layer: ModelLayer, model: Model) -> bool:
    return f"{layer.name}.weight" in model.head


def _layer(layer: ModelLayer, model: Model) -> Layer:
    shapes = model.params.layout.shapes
    units, *others = shapes[f"{layer.name}.weight"]
    return Layer(
        name=layer.name,
        units=units,
        inputs=math.prod(others),
        before=layer.before,
        hidden=layer.hidden,
        has_bias=f"{layer.name}.bias" in shapes,
    )


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
        before = units.get(layer.before or "") if mask == "inout" else None
        found[layer.weight] = Active(rows=rows, columns=_columns(layer, before, everyone))
        if layer.bias is not None:
            found[layer.bias] = Active(rows=rows, columns=np.ones((*everyone, 1), np.bool_))
    return found


def _columns(layer: Layer, before: Flags | None, everyone: tuple[int, int]) -> Flags:
    """``(M, C, inputs)``, which of them are active."""
    if before is None:
        return np.ones((*everyone, layer.inputs), np.bool_)
    return np.repeat(before, layer.inputs // before.shape[2], axis=2)


def _units(
    layer: Layer, masks: Sequence[Mapping[str, NDArray[np.uint8]]], everyone: tuple[int, int]
) -> Flags:
    """``(M, C, units)``, which of them are active."""
    if not layer.hidden:
        return np.ones((*everyone, layer.units), np.bool_)
    bits = np.array([one[MASKS + layer.name] for one in masks], np.uint8)
    return np.unpackbits(bits, axis=2, count=layer.units).astype(np.bool_)
