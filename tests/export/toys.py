"""Small modules that together use every layer that export promises."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Perceptron(nn.Module):
    """Batch normalisation and dropout between dense layers, (B, 5) → (B, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.4)
        self.head = nn.Linear(8, 3)

    def features(self, x: Tensor) -> Tensor:
        return self.drop(functional.silu(self.norm(self.first(x))))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Images(nn.Module):
    """2-D: groups, stride, dilation, batch norm, max and average pooling, (B, 4, 13, 12)."""

    def __init__(self) -> None:
        super().__init__()
        self.grouped = nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)
        self.norm = nn.BatchNorm2d(6)
        self.dilated = nn.Conv2d(6, 8, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1))
        self.up = nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1, groups=2)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.norm(self.grouped(x))), 2, 1)
        x = functional.avg_pool2d(self.up(functional.gelu(self.dilated(x))), 2)
        return self.head(x.mean((2, 3)))


class Signals(nn.Module):
    """1-D: depthwise and strided convolution with a remainder, pooling, group norm, (B, 6, 50)."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(6, 12, 5, stride=3, groups=6)
        self.mix = nn.Conv1d(12, 8, 3, padding=2, dilation=2)
        self.norm = nn.GroupNorm(2, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool1d(functional.leaky_relu(self.depthwise(x)), 3, 2, 1)
        x = functional.elu(self.norm(self.mix(x)))
        return self.head(functional.adaptive_avg_pool1d(x, 1).flatten(1))


class Words(nn.Module):
    """Embedding by position, PyTorch's own attention with dropout, layer norm, (B, 7, 8)."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(7, 8)
        self.norm = nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x + self.places(torch.arange(7)))
        mixed, _ = self.attention(x, x, x, need_weights=False)
        return self.head((x + mixed).amax(1))


INPUT_SHAPES = {Perceptron: (5,), Images: (4, 13, 12), Signals: (6, 50), Words: (7, 8)}


def batch(shape: tuple[int, ...], size: int = 4) -> dict[str, Tensor]:
    """An example batch for the cross-entropy of three classes."""
    return {"x": torch.zeros(size, *shape), "y": torch.zeros(size, dtype=torch.int64)}
