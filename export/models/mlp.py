"""Two-layer perceptron d_in-128-512-C, the network of FedSub."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from protofleet.errors import InputError


class Mlp(nn.Module):
    """Dense layers with ReLU: rows (B, inputs) float32 → logits (B, classes).

    Args:
        inputs: features of an example.
        classes: C.
        hidden: units of the hidden layers.

    Raises:
        InputError: no hidden layer.
    """

    def __init__(
        self, *, inputs: int = 64, classes: int = 10, hidden: Sequence[int] = (128, 512)
    ) -> None:
        super().__init__()
        if not hidden:
            raise InputError("MLP: expected at least one hidden layer, got none")
        layers: list[nn.Module] = []
        for before, after in pairwise((inputs, *hidden)):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(hidden[-1], classes)

    def features(self, x: Tensor) -> Tensor:
        """Activations of the last hidden layer, (B, hidden[-1])."""
        features: Tensor = self.body(x)
        return features

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes)."""
        logits: Tensor = self.head(self.features(x))
        return logits
