"""Classifiers as people write them: without methods for features, and with names of their own."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = ("class0", "class1", "class2")


def perceptron() -> nn.Sequential:
    """(B, 9) → (B, 3), nothing has a name."""
    return nn.Sequential(
        nn.Linear(9, 12), nn.ReLU(), nn.Dropout(0.1), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)
    )


class Images(nn.Module):
    """As torchvision's: ``features`` and ``classifier`` are modules, (B, 1, 12, 12) → (B, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 4, 3, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3),
            nn.ReLU(inplace=True),
        )
        self.classifier = nn.Sequential(
            nn.Linear(24, 8), nn.ReLU(inplace=True), nn.Dropout(0.2), nn.Linear(8, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = functional.avg_pool2d(self.features(x), 2, 1)
        return self.classifier(torch.flatten(x, 1))


class Encoder(nn.Module):
    """PyTorch's own transformer encoder, (B, 10, 6) → (B, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.fc = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.encoder(self.embed(x)).mean(1))


class _Temporal(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, padding=dilation, dilation=dilation)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        return x + functional.gelu(self.norm(self.conv(x)))


class Tcn(nn.Module):
    """Temporal blocks; the head is made first, scales its logits, (B, 6, 20) → (B, 3)."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.ones(1))
        self.stem = nn.Conv1d(6, 8, 1)
        self.blocks = nn.Sequential(*(_Temporal(8, 2**i) for i in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(functional.relu(self.stem(x)))
        return self.out(x[:, :, -1]) * self.scale


class Tied(nn.Module):
    """The head's weight is the first layer's, (B, 5) → (B, 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 5, bias=False)
        self.norm = nn.LayerNorm(5)
        self.lm_head = nn.Linear(5, 5)
        self.lm_head.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.lm_head(self.norm(torch.tanh(self.first(x))))


class TwoHeads(nn.Module):
    """An auxiliary layer that no logits depend on, and two heads that are added, (B, 5)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 7)
        self.first, self.second = nn.Linear(7, 3), nn.Linear(7, 3)
        self.auxiliary = nn.Linear(7, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.gelu(self.body(x))
        logits = self.first(hidden) + self.second(hidden)
        self.auxiliary(hidden)
        return logits
