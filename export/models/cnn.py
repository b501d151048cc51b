"""Four-layer convolutional network of FedALA and FedHP: two 5x5 convolutions, two dense layers."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from protofleet.errors import InputError

_KERNEL = 5


class Cnn(nn.Module):
    """Images (B, channels, size, size) float32 → logits (B, classes).

    Valid convolutions with ReLU, each followed by 2x2 max pooling, then a hidden dense layer.

    Args:
        channels: input channels.
        size: height and width of the images.
        classes: C.
        filters: output channels of the two convolutions.
        hidden: units of the hidden dense layer.

    Raises:
        InputError: images too small for two convolutions.
    """

    def __init__(
        self,
        *,
        channels: int = 1,
        size: int = 28,
        classes: int = 10,
        filters: Sequence[int] = (32, 64),
        hidden: int = 512,
    ) -> None:
        super().__init__()
        first, second = filters
        side = ((size - _KERNEL + 1) // 2 - _KERNEL + 1) // 2
        if side < 1:
            raise InputError(f"CNN: expected images of at least 16 x 16, got {size} x {size}")
        self.body = nn.Sequential(
            nn.Conv2d(channels, first, _KERNEL),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(first, second, _KERNEL),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(second * side * side, hidden),
            nn.ReLU(),
        )
        self.head = nn.Linear(hidden, classes)

    def features(self, x: Tensor) -> Tensor:
        """Activations of the hidden dense layer, (B, hidden)."""
        features: Tensor = self.body(x)
        return features

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes)."""
        logits: Tensor = self.head(self.features(x))
        return logits
