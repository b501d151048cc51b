"""What alignment layers (ALP) do with examples: figures of each layer, computed in PyTorch.

| figure | meaning |
|---|---|
| ``cosine`` | mean cosine of an embedding and the prototype that it takes |
| ``used`` | share of the prototypes that any embedding of all examples takes |
| ``entropy`` | mean entropy of an embedding's row of the plan ÷ log G: 1 if any will do |
| ``mixed`` | mean of ‖β·GLU(p)‖ ÷ ‖(1 - β)·x‖: how much the prototypes add to an embedding |

All in inference, by the prototypes that it takes; a layer without a plan has no ``entropy``, one of
a single prototype neither, and β = 1 leaves out ``mixed``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from protofleet.errors import InputError
from protofleet.export.models.alp import (
    Alignment,
    assignment_scores,
    best_columns,
    l2_normalise,
)
from protofleet.tensors import Network

_BATCH = 32
"""Examples that are computed together, as in an evaluation: the plan couples them."""


class AlignmentDiagnosis:
    """Figures of a model's alignment layers on the same examples, for any values of the model.

    Args:
        model: its values are overwritten.
        x: examples, ``(n, …)``.

    Raises:
        InputError: the model has no alignment layers, or there are no examples.
    """

    def __init__(self, model: nn.Module, x: NDArray[np.float32]) -> None:
        named = model.named_modules()
        self._layers = {name: one for name, one in named if isinstance(one, Alignment)}
        if not self._layers or not len(x):
            what = "no examples" if self._layers else "a model without alignment layers"
            raise InputError(f"diagnostics: expected alignment layers and examples, got {what}")
        self._model, self._x = model.eval(), torch.from_numpy(x)

    def __call__(self, network: Network) -> dict[str, float]:
        """``<layer>.<figure>`` of a network's values, layers named as in its buffers."""
        values: dict[str, NDArray[Any]] = {**network.params, **network.buffers}
        self._model.load_state_dict(
            {name: torch.tensor(value) for name, value in values.items()}, strict=False
        )
        totals = {name: _Totals() for name in self._layers}
        with torch.no_grad(), self._watched(totals):
            for part in torch.split(self._x, _BATCH):
                self._model(part)
        return {
            f"{name}.{figure}": value
            for name, layer in self._layers.items()
            for figure, value in totals[name].figures(len(layer.inferring)).items()
        }

    @contextmanager
    def _watched(self, totals: dict[str, _Totals]) -> Iterator[None]:
        hooks = [
            layer.register_forward_pre_hook(totals[name].add)
            for name, layer in self._layers.items()
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


@dataclass(slots=True)
class _Totals:
    """Sums over embeddings, how many there were of each, and which prototypes were taken."""

    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    taken: set[int] = field(default_factory=set)

    def add(self, layer: nn.Module, args: tuple[Tensor, Tensor]) -> None:
        """Count a call of ``layer``, an ``Alignment``, on embeddings (B, Z, d) with β."""
        if not isinstance(layer, Alignment):
            return
        x, beta = args
        rows, bank, by = x.flatten(0, 1), layer.inferring, layer.config.alp_assignment
        scores = assignment_scores(rows, bank, by, layer.epsilon, layer.iterations)
        best = best_columns(scores, by)
        chosen = bank[best]
        self.taken.update(best.tolist())
        self._sum("cosine", (l2_normalise(rows) * l2_normalise(chosen)).sum(1))
        if by == "transport" and len(bank) > 1:
            shares = scores / scores.sum(1, keepdim=True)
            self._sum("entropy", torch.special.entr(shares).sum(1) / math.log(len(bank)))
        if beta < 1:
            lengths = (layer.gated(chosen) * beta).norm(dim=1), ((1 - beta) * rows).norm(dim=1)
            self._sum("mixed", lengths[0] / lengths[1])

    def _sum(self, figure: str, values: Tensor) -> None:
        self.sums[figure] += float(values.double().sum())
        self.counts[figure] += len(values)

    def figures(self, prototypes: int) -> dict[str, float]:
        """By name."""
        means = {name: total / self.counts[name] for name, total in self.sums.items()}
        return {**means, "used": len(self.taken) / prototypes}
