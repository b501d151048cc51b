"""Training objectives: what a training program minimises, and which inputs it needs for that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor
from torch.nn import functional


class ModelCall(Protocol):
    """What an objective sees of a model; every module of ``protofleet.export.models`` fits.

    An objective that looks at features and logits calls ``head(features(x))``: one pass.
    """

    def __call__(self, x: Tensor) -> Tensor:
        """Logits (B, C)."""

    def features(self, x: Tensor) -> Tensor:
        """Pooled features (B, d)."""

    def head(self, features: Tensor) -> Tensor:
        """Logits (B, C) of features (B, d)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputDecl:
    """An input of an objective.

    Attributes:
        dtype: of the array.
        shape: dimensions; the strings ``batch``, ``classes`` and ``features`` stand for B, C and
            the width of the model's pooled features. ``None`` stands for one example's shape,
            with the batch axis before it.
    """

    dtype: Literal["float32", "int64"]
    shape: tuple[int | str, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A scalar to minimise.

    Attributes:
        name: key in ``OBJECTIVES``, and of the training program in a bundle.
        inputs: what a batch must hold, by key.
        loss: mean loss () of a batch, from the model and the inputs by key.
    """

    name: str
    inputs: Mapping[str, InputDecl]
    loss: Callable[[ModelCall, Mapping[str, Tensor]], Tensor]


X = InputDecl(dtype="float32", shape=None)
"""The examples themselves."""
Y = InputDecl(dtype="int64", shape=("batch",))
"""Class of every example."""


def _cross_entropy(model: ModelCall, inputs: Mapping[str, Tensor]) -> Tensor:
    return functional.cross_entropy(model(inputs["x"]), inputs["y"])


OBJECTIVES: dict[str, Objective] = {
    objective.name: objective
    for objective in (
        Objective(name="cross_entropy", inputs={"x": X, "y": Y}, loss=_cross_entropy),
    )
}
"""Objectives by name; a new one is a function and a line here."""
