"""What the sweep exports: an operator, or an architecture, inside a small classifier."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

CLASSES = 3
_BATCH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepCase:
    """One row of the table.

    Attributes:
        name: as a user would search for it: ``F.pad, reflect``.
        group: the table's section.
        build: a fresh module, which takes a batch ``(B, *input_shape)`` and gives any tensor whose
            first axis is the batch.
        input_shape: of one example.
        tokens: examples are int64 numbers below this; None: float32.
        whole: the module is a classifier already, with ``CLASSES`` logits: an architecture.
    """

    name: str
    group: str
    build: Callable[[], nn.Module]
    input_shape: tuple[int, ...]
    tokens: int | None = None
    whole: bool = False


class _Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, x: Tensor) -> Tensor:
        """The function of ``x``."""
        return self._function(x)


def function(
    name: str, group: str, apply: Callable[[Tensor], Tensor], input_shape: tuple[int, ...] = (4, 6)
) -> SweepCase:
    """The case of an operator without parameters."""
    return SweepCase(
        name=name, group=group, build=lambda: _Function(apply), input_shape=input_shape
    )


class AsClassifier(nn.Module):
    """A classifier around a module, so that gradients reach it from both sides.

    Every entry of the example has a trained scale and shift before the module, and all that comes
    out is classified by a linear layer.

    Args:
        inner: takes ``(B, *input_shape)``.
        input_shape: of one example.
        tokens: as in ``SweepCase``; examples then reach the module as they are.
    """

    def __init__(
        self, inner: nn.Module, input_shape: tuple[int, ...], tokens: int | None = None
    ) -> None:
        super().__init__()
        self.inner = inner
        self.tokens = tokens
        self.scale = nn.Parameter(torch.ones(input_shape)) if tokens is None else None
        self.shift = nn.Parameter(torch.zeros(input_shape)) if tokens is None else None
        self.head = nn.Linear(self._width(input_shape), CLASSES)

    def _width(self, input_shape: tuple[int, ...]) -> int:
        example = torch.rand(_BATCH, *input_shape)
        if self.tokens is not None:
            example = torch.zeros(_BATCH, *input_shape, dtype=torch.int64)
        with torch.no_grad():
            return math.prod(self.inner(example).shape[1:])

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, CLASSES)."""
        if self.scale is not None and self.shift is not None:
            x = x * self.scale + self.shift
        logits: Tensor = self.head(self.inner(x).flatten(1).to(self.head.weight.dtype))
        return logits


def classifier(case: SweepCase) -> nn.Module:
    """The module that the sweep exports for a case."""
    torch.manual_seed(0)
    inner = case.build()
    return inner if case.whole else AsClassifier(inner, case.input_shape, case.tokens)
