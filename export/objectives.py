"""Training objectives: what a training program minimises, and which inputs it needs for that.

``docs/export.md`` has their formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from protofleet.export import losses
from protofleet.export.losses import Inputs, ModelCall

__all__ = ["OBJECTIVES", "InputDecl", "ModelCall", "Objective"]


@dataclass(frozen=True, slots=True, kw_only=True)
class InputDecl:
    """An input of an objective.

    Attributes:
        dtype: of the array.
        shape: dimensions; the strings ``batch``, ``classes`` and ``features`` stand for B, C and
            the width of the model's pooled features, and ``batch`` may only come first. ``()`` is
            one number for the whole batch. ``None`` stands for one example's shape, with the
            batch axis before it.
        flags: every entry is 0 or 1.
    """

    dtype: Literal["float32", "int64"]
    shape: tuple[int | str, ...] | None
    flags: bool = False

    @property
    def per_example(self) -> bool:
        """Whether the first axis is the batch."""
        return self.shape is None or self.shape[:1] == ("batch",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A scalar to minimise.

    Attributes:
        name: key in ``OBJECTIVES``, and of the training program in a bundle.
        inputs: what a batch must hold, by key; at least one of them per example.
        loss: mean loss () of a batch, from the model and the inputs by key.
    """

    name: str
    inputs: Mapping[str, InputDecl]
    loss: Callable[[ModelCall, Inputs], Tensor]


X = InputDecl(dtype="float32", shape=None)
"""The examples themselves."""
Y = InputDecl(dtype="int64", shape=("batch",))
"""Class of every example."""
SCALAR = InputDecl(dtype="float32", shape=())
"""A number, such as the weight of a term."""
FEATURES = InputDecl(dtype="float32", shape=("batch", "features"))
"""A vector for every example, beside its features."""
PROTOTYPES = InputDecl(dtype="float32", shape=("classes", "features"))
"""A vector for every class."""
PRESENT = InputDecl(dtype="float32", shape=("classes",), flags=True)
"""1 for every class that counts."""

OBJECTIVES: dict[str, Objective] = {
    objective.name: objective
    for objective in (
        Objective(name="cross_entropy", inputs={"x": X, "y": Y}, loss=losses.cross_entropy),
        Objective(
            name="moon",
            inputs={
                "x": X,
                "y": Y,
                "positive": FEATURES,
                "negative": FEATURES,
                "tau": SCALAR,
                "mu": SCALAR,
            },
            loss=losses.moon,
        ),
        Objective(
            name="prototype_mse",
            inputs={"x": X, "y": Y, "prototypes": PROTOTYPES, "present": PRESENT, "weight": SCALAR},
            loss=losses.prototype_mse,
        ),
        Objective(
            name="prototype_distance",
            inputs={"x": X, "y": Y, "anchors": PROTOTYPES, "weight": SCALAR},
            loss=losses.prototype_distance,
        ),
        Objective(
            name="cdfl",
            inputs={
                "x": X,
                "z": X,
                "y": Y,
                "teacher": FEATURES,
                "centroids": FEATURES,
                "tau": SCALAR,
                "contrastive": SCALAR,
                "distillation": SCALAR,
                "clustering": SCALAR,
            },
            loss=losses.cdfl,
        ),
    )
}
"""Objectives by name; a new one is a function and an entry here."""
