"""Convolutional networks of FedALA and FedHP: two 5x5 convolutions and what follows them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from protofleet.errors import InputError
from protofleet.export.models.layers import head_of

_KERNEL = 5


def _encoder(channels: int, filters: Sequence[int]) -> list[nn.Module]:
    """Valid convolutions with ReLU, each followed by 2x2 max pooling, then flattened."""
    first, second = filters
    return [
        nn.Conv2d(channels, first, _KERNEL),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, _KERNEL),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    ]


def _encoded(size: int, filters: Sequence[int]) -> int:
    """Features that ``_encoder`` gives for an image of ``size`` x ``size``."""
    side = ((size - _KERNEL + 1) // 2 - _KERNEL + 1) // 2
    if side < 1:
        raise InputError(f"CNN: expected images of at least 16 x 16, got {size} x {size}")
    return filters[-1] * side * side


class Cnn(nn.Module):
    """Images (B, channels, size, size) float32 → logits (B, classes).

    The encoder of ``_encoder``, then a hidden dense layer. FedALA's network by default; FedHP's for
    CIFAR-10 and SVHN has ``filters=(64, 64)``, ``hidden=384`` and ``head_bias=False``.

    Args:
        channels: input channels.
        size: height and width of the images.
        classes: C.
        filters: output channels of the two convolutions.
        hidden: units of the hidden dense layer.
        head_bias: whether the last layer has a bias.

    Raises:
        InputError: images too small for two convolutions.
    """

    def __init__(  # noqa: PLR0913 - settings by keyword
        self,
        *,
        channels: int = 1,
        size: int = 28,
        classes: int = 10,
        filters: Sequence[int] = (32, 64),
        hidden: int = 512,
        head_bias: bool = True,
    ) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_encoder(channels, filters), nn.Linear(_encoded(size, filters), hidden), nn.ReLU()
        )
        self.head = nn.Linear(hidden, classes, bias=head_bias)

    def features(self, x: Tensor) -> Tensor:
        """Activations of the hidden dense layer, (B, hidden)."""
        features: Tensor = self.body(x)
        return features

    def layers(self, x: Tensor) -> dict[str, Tensor]:
        """Activations of the hidden dense layer by its name."""
        return {f"body.{len(self.body) - 2}": self.features(x)}

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes)."""
        logits: Tensor = self.head(self.features(x))
        return logits


class PrototypeCnn(nn.Module):
    """FedHP's network: images (B, channels, size, size) float32 → minus distances (B, classes).

    No dense layer: the flattened encoder's output is compared with the prototypes. 1024 features
    for 28 x 28 images, 1600 for 32 x 32 with ``filters=(64, 64)``. With ``head_kind="cosine"`` it
    ends in cosines to directions instead, for FedNH.

    Args:
        channels: input channels.
        size: height and width of the images.
        classes: C.
        filters: output channels of the two convolutions.
        head_kind: name in ``layers.HEADS``.

    Raises:
        InputError: images too small for two convolutions, or no such head.
    """

    def __init__(
        self,
        *,
        channels: int = 1,
        size: int = 28,
        classes: int = 10,
        filters: Sequence[int] = (32, 64),
        head_kind: str = "prototypes",
    ) -> None:
        super().__init__()
        self.body = nn.Sequential(*_encoder(channels, filters))
        self.head = head_of(head_kind, _encoded(size, filters), classes)

    def features(self, x: Tensor) -> Tensor:
        """Flattened encoder output, (B, d), never negative."""
        features: Tensor = self.body(x)
        return features

    def forward(self, x: Tensor) -> Tensor:
        """Minus the distance to every prototype, or the scaled cosines, (B, classes)."""
        logits: Tensor = self.head(self.features(x))
        return logits
