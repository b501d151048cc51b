"""Two-layer perceptron d_in-128-512-C, the network of FedSub, and two with prototypes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from protofleet.errors import InputError
from protofleet.export.classifier.align import align
from protofleet.export.models.layers import head_of


class Mlp(nn.Module):
    """Dense layers with ReLU: examples (B, …) float32 of any shape → logits (B, classes).

    Args:
        inputs: values of an example.
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
        self.head: nn.Module = nn.Linear(hidden[-1], classes)

    def features(self, x: Tensor) -> Tensor:
        """Activations of the last hidden layer, (B, hidden[-1])."""
        features: Tensor = self.body(x.flatten(1))
        return features

    def layers(self, x: Tensor) -> dict[str, Tensor]:
        """Activations (B, units) of every hidden layer by the dense layer's name."""
        activations: dict[str, Tensor] = {}
        x = x.flatten(1)
        for index, module in enumerate(self.body):
            x = module(x)
            if isinstance(module, nn.ReLU):
                activations[f"body.{index - 1}"] = x
        return activations

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes)."""
        logits: Tensor = self.head(self.features(x))
        return logits


def mlp_prototypes(
    *,
    inputs: int = 64,
    classes: int = 10,
    hidden: Sequence[int] = (128, 512),
    head_kind: str = "prototypes",
) -> Mlp:
    """``Mlp`` whose head is a prototype per class, or with ``"cosine"`` a direction (``HEADS``)."""
    model = Mlp(inputs=inputs, classes=classes, hidden=hidden)
    model.head = head_of(head_kind, hidden[-1], classes)
    return model


def mlp_alp(
    *,
    inputs: int = 64,
    classes: int = 10,
    hidden: Sequence[int] = (128, 512),
    prototypes: Sequence[int] = (16,),
) -> nn.Module:
    """``Mlp`` with an alignment layer behind each hidden dense layer (``classifier.align``).

    Raises:
        InputError: no hidden layer, or neither one number of prototypes nor one for each of them.
    """
    model = Mlp(inputs=inputs, classes=classes, hidden=hidden)
    dense = [f"body.{2 * number}" for number in range(len(hidden))]
    return align(model, after=dense, prototypes=prototypes)
