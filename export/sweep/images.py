"""Architectures that see images, as a user would write them: nothing of Protofleet in them.

Each is the published design at a size that exports in seconds.

Sources: LeNet-5 (LeCun 1998), VGG (arXiv:1409.1556), ResNet (arXiv:1512.03385) with group
normalisation (arXiv:1803.08494), SqueezeNet (arXiv:1602.07360), DenseNet (arXiv:1608.06993),
MobileNetV2 (arXiv:1801.04381) and V3 (arXiv:1905.02244), ShuffleNetV2 (arXiv:1807.11164),
EfficientNet (arXiv:1905.11946), ConvNeXt (arXiv:2201.03545), ConvMixer (arXiv:2201.09792), ViT
(arXiv:2010.11929), Swin (arXiv:2103.14030), MLP-Mixer (arXiv:2105.01601), DS-CNN
(arXiv:1711.07128).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from protofleet.export.sweep.cases import CLASSES, SweepCase

_GROUP = "architectures"
_SIDE = 32


def lenet() -> nn.Module:
    """LeNet-5 with its tanh and average pools."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.Tanh(),
        nn.Linear(120, 84),
        nn.Tanh(),
        nn.Linear(84, CLASSES),
    )


class Vgg(nn.Module):
    """VGG with torchvision's attributes: ``features`` is a module, not a method."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 8, 16, 32)
        layers: list[nn.Module] = []
        for before, after in pairwise(widths):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after)]
            layers += [nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(
            nn.Linear(128, 32), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(32, CLASSES)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.classifier(self.avgpool(self.features(x)).flatten(1))
        return logits


class _GroupNormBlock(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1, self.norm2 = nn.GroupNorm(4, after), nn.GroupNorm(4, after)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)))))
        return functional.relu(inner + self.short(x))


class _Fire(nn.Module):
    def __init__(self, before: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(before, squeeze, 1)
        self.narrow = nn.Conv2d(squeeze, expand, 1)
        self.wide = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.squeeze(x))
        return torch.cat([functional.relu(self.narrow(x)), functional.relu(self.wide(x))], 1)


class _Dense(nn.Module):
    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(before)
        self.conv = nn.Conv2d(before, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(functional.relu(self.norm(x)))], 1)


class SqueezeExcite(nn.Module):
    """Channels (B, C, …) weighted by what their means say."""

    def __init__(self, width: int, inner: int, gate: type[nn.Module]) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1)
        self.gate = gate()

    def forward(self, x: Tensor) -> Tensor:
        """The weighted channels."""
        pooled = functional.adaptive_avg_pool2d(x, 1)
        weights: Tensor = self.gate(self.up(functional.relu(self.down(pooled))))
        return x * weights


class _Inverted(nn.Module):
    """Inverted residual of MobileNetV2; V3 and EfficientNet add squeeze and excitation."""

    def __init__(  # noqa: PLR0913 - a block's settings, by keyword
        self,
        before: int,
        after: int,
        *,
        stride: int,
        act: type[nn.Module],
        gate: type[nn.Module] | None = None,
        drop: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = before * 4
        layers: list[nn.Module] = [nn.Conv2d(before, hidden, 1, bias=False)]
        layers += [nn.BatchNorm2d(hidden), act()]
        layers += [nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False)]
        layers += [nn.BatchNorm2d(hidden), act()]
        if gate is not None:
            layers.append(SqueezeExcite(hidden, 4, gate))
        layers += [nn.Conv2d(hidden, after, 1, bias=False), nn.BatchNorm2d(after)]
        self.layers = nn.Sequential(*layers)
        self.residual, self.drop = before == after and stride == 1, drop

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.layers(x)
        if not self.residual:
            return inner
        if self.training and self.drop:
            kept = torch.rand(x.shape[0], 1, 1, 1) >= self.drop
            inner = inner * kept.to(x.dtype) / (1 - self.drop)
        return x + inner


def _mobile(act: type[nn.Module], gate: type[nn.Module] | None, drop: float = 0.0) -> nn.Module:
    def block(before: int, after: int, stride: int) -> nn.Module:
        return _Inverted(before, after, stride=stride, act=act, gate=gate, drop=drop)

    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1, bias=False),
        nn.BatchNorm2d(8),
        act(),
        block(8, 8, 1),
        block(8, 16, 2),
        block(16, 16, 1),
        nn.Conv2d(16, 32, 1, bias=False),
        nn.BatchNorm2d(32),
        act(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(32, CLASSES),
    )


class _Shuffle(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.branch = nn.Sequential(
            nn.Conv2d(half, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(),
            nn.Conv2d(half, half, 3, 1, 1, groups=half, bias=False),
            nn.BatchNorm2d(half),
            nn.Conv2d(half, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(),
        )

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1)
        joined = torch.cat((left, self.branch(right)), 1)
        batch, width, high, wide = joined.shape
        return joined.view(batch, 2, width // 2, high, wide).transpose(1, 2).flatten(1, 2)


class _ConvNextBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(1e-2 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        inner = self.scale * self.down(functional.gelu(self.up(inner)))
        result: Tensor = x + inner.permute(0, 3, 1, 2)
        return result


class _Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.inner(x)
        return result


def _conv_mixer() -> nn.Module:
    def block(width: int) -> list[nn.Module]:
        depthwise = nn.Conv2d(width, width, 5, groups=width, padding="same")
        mixed = nn.Sequential(depthwise, nn.GELU(), nn.BatchNorm2d(width))
        return [_Residual(mixed), nn.Conv2d(width, width, 1), nn.GELU(), nn.BatchNorm2d(width)]

    stem = [nn.Conv2d(3, 16, 4, 4), nn.GELU(), nn.BatchNorm2d(16)]
    rest = [nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(), nn.Linear(16, CLASSES)]
    return nn.Sequential(*stem, *block(16), *block(16), *rest)


class PlainVit(nn.Module):
    """Patches, a class token, learned positions, PyTorch's own encoder."""

    def __init__(self, width: int = 32, patch: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        count = (_SIDE // patch) ** 2
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, count + 1, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the class token."""
        rows = self.patches(x).flatten(2).transpose(1, 2)
        rows = torch.cat([self.token.expand(x.shape[0], -1, -1), rows], 1) + self.places
        logits: Tensor = self.head(self.encoder(rows)[:, 0])
        return logits


class SwinBlock(nn.Module):
    """Attention within windows of 4 by 4 rows and columns, shifted by ``shift``."""

    def __init__(self, width: int, shift: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.shift = shift

    def forward(self, x: Tensor) -> Tensor:
        """(B, 8, 8, width) → the same."""
        batch, width = x.shape[0], x.shape[3]
        rolled = torch.roll(self.norm1(x), (-self.shift, -self.shift), (1, 2))
        windows = rolled.view(batch, 2, 4, 2, 4, width).permute(0, 1, 3, 2, 4, 5)
        rows = windows.reshape(batch * 4, 16, width)
        mixed = self.attention(rows, rows, rows, need_weights=False)[0]
        back = mixed.view(batch, 2, 2, 4, 4, width).permute(0, 1, 3, 2, 4, 5)
        x = x + torch.roll(back.reshape(batch, 8, 8, width), (self.shift, self.shift), (1, 2))
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class Swin(nn.Module):
    """Two Swin blocks, the second with shifted windows."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.blocks = nn.Sequential(SwinBlock(width, 0), SwinBlock(width, 2))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        rows = self.blocks(self.patches(x).permute(0, 2, 3, 1))
        logits: Tensor = self.head(rows.mean((1, 2)))
        return logits


class _MixerBlock(nn.Module):
    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = nn.Sequential(nn.Linear(count, 32), nn.GELU(), nn.Linear(32, count))
        self.channels = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).mT).mT
        result: Tensor = x + self.channels(self.norm2(x))
        return result


class Mixer(nn.Module):
    """MLP-Mixer over 16 patches."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.blocks = nn.Sequential(_MixerBlock(16, width), _MixerBlock(16, width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        rows = self.patches(x).flatten(2).mT
        logits: Tensor = self.head(self.norm(self.blocks(rows)).mean(1))
        return logits


def _pooled(*layers: nn.Module, width: int) -> nn.Module:
    rest = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))
    return nn.Sequential(*layers, *rest)


def _separable(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    )


def ds_cnn() -> nn.Module:
    """DS-CNN for keywords: 49 frames of 10 coefficients."""
    stem = nn.Conv2d(1, 24, (10, 4), (2, 2), (5, 1), bias=False)
    blocks = [_separable(24) for _ in range(3)]
    return _pooled(stem, nn.BatchNorm2d(24), nn.ReLU(), *blocks, width=24)


def resnet_group_norm() -> nn.Module:
    """Three residual blocks with group normalisation, which federations prefer."""
    stem = nn.Conv2d(3, 8, 3, padding=1)
    blocks = (_GroupNormBlock(8, 8, 1), _GroupNormBlock(8, 16, 2), _GroupNormBlock(16, 32, 2))
    return _pooled(stem, *blocks, width=32)


def squeezenet() -> nn.Module:
    """SqueezeNet: a convolution in place of the dense layer, pooled to logits."""
    stem = (nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True))
    fires = (_Fire(16, 4, 16), _Fire(32, 8, 16))
    rest = (nn.Dropout(0.5), nn.Conv2d(32, CLASSES, 1), nn.ReLU())
    return nn.Sequential(*stem, *fires, *rest, nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten())


def densenet() -> nn.Module:
    """One dense block, a transition, another."""
    first = (nn.Conv2d(3, 8, 3, padding=1), _Dense(8, 4), _Dense(12, 4))
    transition = (nn.Conv2d(16, 8, 1), nn.AvgPool2d(2))
    return _pooled(*first, *transition, _Dense(8, 4), _Dense(12, 4), width=16)


def shufflenet() -> nn.Module:
    """Two ShuffleNetV2 units."""
    return _pooled(nn.Conv2d(3, 16, 3, 2, 1), _Shuffle(16), _Shuffle(16), width=16)


def convnext() -> nn.Module:
    """Two stages of one block each, and the downsampling between them."""
    stem = nn.Conv2d(3, 16, 4, 4)
    between = (nn.GroupNorm(1, 16), nn.Conv2d(16, 32, 2, 2))
    return _pooled(stem, _ConvNextBlock(16), *between, _ConvNextBlock(32), width=32)


def _case(name: str, build: Callable[[], nn.Module], shape: tuple[int, ...]) -> SweepCase:
    return SweepCase(name=name, group=_GROUP, build=build, input_shape=shape, whole=True)


_COLOUR = (3, _SIDE, _SIDE)

CASES: tuple[SweepCase, ...] = (
    _case("LeNet-5", lenet, (1, 28, 28)),
    _case("VGG, as in torchvision", Vgg, _COLOUR),
    _case("ResNet with GroupNorm", resnet_group_norm, _COLOUR),
    _case("SqueezeNet", squeezenet, _COLOUR),
    _case("DenseNet", densenet, _COLOUR),
    _case("DS-CNN", ds_cnn, (1, 49, 10)),
    _case("MobileNetV2", lambda: _mobile(nn.ReLU6, None), _COLOUR),
    _case("MobileNetV3", lambda: _mobile(nn.Hardswish, nn.Hardsigmoid), _COLOUR),
    _case("EfficientNet", lambda: _mobile(nn.SiLU, nn.Sigmoid, 0.1), _COLOUR),
    _case("ShuffleNetV2", shufflenet, _COLOUR),
    _case("ConvNeXt", convnext, _COLOUR),
    _case("ConvMixer", _conv_mixer, _COLOUR),
    _case("ViT", PlainVit, _COLOUR),
    _case("Swin", Swin, _COLOUR),
    _case("MLP-Mixer", Mixer, _COLOUR),
)
