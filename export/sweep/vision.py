"""Convolutional networks that see images, as their authors write them, at a size for seconds.

Sources: AlexNet (Krizhevsky 2012), NiN (arXiv:1312.4400), GoogLeNet (arXiv:1409.4842), Xception
(arXiv:1610.02357), ResNeXt (arXiv:1611.05431), SE-ResNet (arXiv:1709.01507), CBAM
(arXiv:1807.06521), GhostNet (arXiv:1911.11907), RegNet (arXiv:2003.13678), MnasNet
(arXiv:1807.11626), RepVGG (arXiv:2101.03697), HRNet (arXiv:1908.07919), spatial transformers
(arXiv:1506.02025), capsules (arXiv:1710.09829), CoordConv (arXiv:1807.03247), involution
(arXiv:2103.06255), deformable convolution (arXiv:1703.06211), ECA (arXiv:1910.03151), FPN
(arXiv:1612.03144), non-local networks (arXiv:1711.07971), global filters (arXiv:2107.00645).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from protofleet.export.sweep.cases import CLASSES, SweepCase
from protofleet.export.sweep.images import SqueezeExcite

_SIDE = 32


def conv_norm(
    before: int, after: int, size: int = 3, stride: int = 1, groups: int = 1
) -> nn.Module:
    """Convolution, batch normalisation, ReLU."""
    conv = nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after), nn.ReLU(inplace=True))


def _pooled(*layers: nn.Module, width: int) -> nn.Module:
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d((1, 1)), nn.Flatten(1), nn.Linear(width, CLASSES)
    )


def _alexnet() -> nn.Module:
    """Overlapping pools and responses normalised over neighbouring channels."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, 2, 2),
        nn.ReLU(inplace=True),
        nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=2),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(16, 32, 5, padding=2, groups=2),
        nn.ReLU(inplace=True),
        nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=2),
        nn.MaxPool2d(3, 2),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(288, 64),
        nn.ReLU(inplace=True),
        nn.Linear(64, CLASSES),
    )


def _nin() -> nn.Module:
    """Network in network: convolutions of width 1 behind each, classes pooled."""

    def block(before: int, after: int, size: int) -> list[nn.Module]:
        first = [nn.Conv2d(before, after, size, padding=size // 2), nn.ReLU(inplace=True)]
        return [*first, *(m for _ in range(2) for m in (nn.Conv2d(after, after, 1), nn.ReLU()))]

    layers = [*block(3, 16, 5), nn.MaxPool2d(3, 2, 1), nn.Dropout(0.5), *block(16, 16, 3)]
    return nn.Sequential(*layers, nn.Conv2d(16, CLASSES, 1), nn.AvgPool2d(16), nn.Flatten())


class _Inception(nn.Module):
    """GoogLeNet's four branches."""

    def __init__(self, before: int, widths: tuple[int, int, int, int]) -> None:
        super().__init__()
        one, three, five, pool = widths
        self.branch1 = conv_norm(before, one, 1)
        self.branch2 = nn.Sequential(conv_norm(before, 8, 1), conv_norm(8, three, 3))
        self.branch3 = nn.Sequential(conv_norm(before, 4, 1), conv_norm(4, five, 5))
        pooling = nn.MaxPool2d(3, 1, 1, ceil_mode=True)
        self.branch4 = nn.Sequential(pooling, conv_norm(before, pool, 1))

    def forward(self, x: Tensor) -> Tensor:
        branches = (self.branch1, self.branch2, self.branch3, self.branch4)
        return torch.cat([branch(x) for branch in branches], 1)


def _googlenet() -> nn.Module:
    stem = (conv_norm(3, 16, 7, 2), nn.MaxPool2d(3, stride=2, ceil_mode=True))
    blocks = (_Inception(16, (8, 12, 8, 4)), nn.MaxPool2d(3, 2, ceil_mode=True))
    last = (_Inception(32, (8, 12, 8, 4)), nn.Dropout(0.2))
    return _pooled(*stem, *blocks, *last, width=32)


class _XceptionBlock(nn.Module):
    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for wide in (before, after):
            layers += [nn.ReLU(), nn.Conv2d(wide, wide, 3, 1, 1, groups=wide, bias=False)]
            layers += [nn.Conv2d(wide, after, 1, bias=False), nn.BatchNorm2d(after)]
        self.rep = nn.Sequential(*layers, nn.MaxPool2d(3, 2, 1))
        self.skip = nn.Conv2d(before, after, 1, stride=2, bias=False)
        self.skipbn = nn.BatchNorm2d(after)

    def forward(self, inp: Tensor) -> Tensor:
        x: Tensor = self.rep(inp)
        x += self.skipbn(self.skip(inp))
        return x


class _Bottleneck(nn.Module):
    """ResNet's: narrow, grouped (ResNeXt, RegNet), wide; squeezed or attended to before the sum."""

    def __init__(
        self, before: int, after: int, stride: int, groups: int, extra: Callable[[], nn.Module]
    ) -> None:
        super().__init__()
        inner = after // 2
        self.convs = nn.Sequential(
            conv_norm(before, inner, 1), conv_norm(inner, inner, 3, stride, groups)
        )
        self.last = nn.Sequential(nn.Conv2d(inner, after, 1, bias=False), nn.BatchNorm2d(after))
        self.attention = extra()
        self.downsample: nn.Module | None = None
        if stride != 1 or before != after:
            conv = nn.Conv2d(before, after, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out: Tensor = self.attention(self.last(self.convs(x)))
        out += identity
        return functional.relu(out, inplace=True)


class _Cbam(nn.Module):
    """Weights of channels by mean and maximum, then weights of places."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Flatten(), nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, width))
        self.spatial = nn.Conv2d(2, 1, 7, padding=3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        size = (x.size(2), x.size(3))
        average = self.mlp(functional.avg_pool2d(x, size, stride=size))
        largest = self.mlp(functional.max_pool2d(x, size, stride=size))
        x = x * torch.sigmoid(average + largest).unsqueeze(2).unsqueeze(3).expand_as(x)
        compressed = torch.cat((torch.max(x, 1)[0].unsqueeze(1), torch.mean(x, 1).unsqueeze(1)), 1)
        return x * torch.sigmoid(self.spatial(compressed))


class _Eca(nn.Module):
    """ECA: a convolution over neighbouring channels."""

    def __init__(self) -> None:
        super().__init__()
        self.avg_pool = nn.AdaptiveAvgPool2d(1)
        self.conv = nn.Conv1d(1, 1, kernel_size=3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(self.avg_pool(x).squeeze(-1).transpose(-1, -2)).transpose(-1, -2)
        return x * torch.sigmoid(y.unsqueeze(-1)).expand_as(x)


def _residual(
    groups: int = 1, extra: Callable[[], nn.Module] = nn.Identity, stride: int = 2
) -> nn.Module:
    first, second = _Bottleneck(8, 16, 1, groups, extra), _Bottleneck(16, 16, 2, groups, extra)
    return _pooled(conv_norm(3, 8, 3, stride), first, second, width=16)


class _Ghost(nn.Module):
    """GhostNet: half of the channels are cheap pictures of the other half."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        half, self.after = after // 2 + 1, after
        self.primary = conv_norm(before, half, 1)
        self.cheap = conv_norm(half, half, 3, 1, half)
        self.depthwise = nn.Conv2d(after, after, 3, stride, 1, groups=after, bias=False)
        self.norm = nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        x1 = self.primary(x)
        out = torch.cat([x1, self.cheap(x1)], dim=1)[:, : self.after, :, :]
        result: Tensor = self.norm(self.depthwise(out))
        return result


def _mnasnet() -> nn.Module:
    """A separable convolution, then inverted residuals of kernels of 3 and 5."""

    def inverted(before: int, after: int, size: int, stride: int) -> nn.Module:
        hidden = 3 * before
        return nn.Sequential(
            conv_norm(before, hidden, 1),
            conv_norm(hidden, hidden, size, stride, hidden),
            nn.Conv2d(hidden, after, 1, bias=False),
            nn.BatchNorm2d(after, momentum=1 - 0.9997),
        )

    stem = (conv_norm(3, 8, 3, 2), conv_norm(8, 8, 3, 1, 8), nn.Conv2d(8, 8, 1))
    blocks = (inverted(8, 12, 3, 2), inverted(12, 16, 5, 1))
    return _pooled(*stem, *blocks, nn.Dropout(0.2), width=16)


class _RepVgg(nn.Module):
    """RepVGG while it trains: 3 by 3, 1 by 1 and identity, each normalised."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.dense = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        )
        self.one = nn.Sequential(
            nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
        )
        self.identity = nn.BatchNorm2d(before) if before == after and stride == 1 else None

    def forward(self, x: Tensor) -> Tensor:
        same = 0 if self.identity is None else self.identity(x)
        return functional.relu(self.dense(x) + self.one(x) + same)


class _Hrnet(nn.Module):
    """Two resolutions side by side, fused by strides and by interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.high, self.low = (
            conv_norm(3, 8, 3, 2),
            conv_norm(8, 8),
            conv_norm(8, 16, 3, 2),
        )
        self.up, self.down = nn.Conv2d(16, 8, 1), nn.Conv2d(8, 16, 3, 2, 1)
        self.last, self.head = conv_norm(24, 16, 1), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        high, low = self.high(x), self.low(x)
        size = high.shape[-2:]
        wide = functional.interpolate(self.up(low), size=size, mode="bilinear", align_corners=True)
        high, low = functional.relu(high + wide), functional.relu(low + self.down(high))
        low = functional.interpolate(low, size=size, mode="bilinear", align_corners=True)
        logits: Tensor = self.head(self.last(torch.cat([high, low], 1)).mean((-2, -1)))
        return logits


class _Fpn(nn.Module):
    """A pyramid whose coarse levels are added to the fine ones; the levels vote."""

    def __init__(self) -> None:
        super().__init__()
        stages = (conv_norm(3, 8, 3, 2), conv_norm(8, 16, 3, 2), conv_norm(16, 32, 3, 2))
        self.stages = nn.ModuleList(stages)
        self.laterals = nn.ModuleList(nn.Conv2d(n, 8, 1) for n in (8, 16, 32))
        self.smooth = nn.ModuleDict({f"p{n}": nn.Conv2d(8, 8, 3, padding=1) for n in range(3)})
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        levels = []
        for stage in self.stages:
            x = stage(x)
            levels.append(x)
        top = self.laterals[2](levels[2])
        votes = [self.smooth["p2"](top).mean(dim=[2, 3])]
        for n in (1, 0):
            _, _, h, w = levels[n].size()
            top = functional.interpolate(top, size=(h, w), mode="nearest") + self.laterals[n](
                levels[n]
            )
            votes.append(self.smooth[f"p{n}"](top).mean(dim=[2, 3]))
        logits: Tensor = self.head(sum(votes) / len(votes))
        return logits


class _SpatialTransformer(nn.Module):
    """PyTorch's tutorial: a network that turns and scales the digit before another reads it.

    It begins near the identity: at the identity places lie on entries, where rounding decides which
    of two slopes is taken.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 8, 5)
        self.conv2_drop = nn.Dropout2d()
        self.fc1, self.fc2 = nn.Linear(128, 32), nn.Linear(32, CLASSES)
        pools = (nn.MaxPool2d(2, stride=2), nn.ReLU())
        self.localization = nn.Sequential(
            nn.Conv2d(1, 4, 7), *pools, nn.Conv2d(4, 6, 5), nn.MaxPool2d(2, stride=2), nn.ReLU()
        )
        self.fc_loc = nn.Sequential(nn.Linear(54, 16), nn.ReLU(), nn.Linear(16, 6))
        last: Any = self.fc_loc[2]
        last.weight.data.zero_()
        last.bias.data.copy_(torch.tensor([0.8, 0, 0, 0, 0.8, 0], dtype=torch.float))

    def forward(self, x: Tensor) -> Tensor:
        xs = self.localization(x).view(-1, 54)
        theta = self.fc_loc(xs).view(-1, 2, 3)
        grid = functional.affine_grid(theta, list(x.size()), align_corners=False)
        x = functional.grid_sample(x, grid, align_corners=False)
        x = functional.relu(functional.max_pool2d(self.conv1(x), 2))
        x = functional.relu(functional.max_pool2d(self.conv2_drop(self.conv2(x)), 2))
        x = functional.dropout(functional.relu(self.fc1(x.view(-1, 128))), training=self.training)
        return functional.log_softmax(self.fc2(x), dim=1)


class _Capsules(nn.Module):
    """Capsules: three rounds of routing by agreement; lengths are the scores."""

    def __init__(self, primary: int = 8, size: int = 4, wide: int = 6) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 9)
        self.capsules = nn.Conv2d(16, primary * size, 9, stride=2)
        self.size, places = size, primary * 36
        self.w = nn.Parameter(0.1 * torch.randn(CLASSES, places, size, wide))

    @staticmethod
    def _squash(x: Tensor, dim: int = -1) -> Tensor:
        squared = (x**2).sum(dim=dim, keepdim=True)
        return squared / (1 + squared) * x / (squared.sqrt() + 1e-8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.capsules(functional.relu(self.conv1(x)))
        u = self._squash(x.view(x.size(0), -1, self.size))
        u_hat = torch.einsum("bps,kpsw->bkpw", u, self.w)
        detached = u_hat.detach()
        b = torch.zeros(*u_hat.shape[:-1], 1)
        for _ in range(2):
            c = functional.softmax(b, dim=1)
            v = self._squash((c * detached).sum(dim=2))
            b = b + torch.matmul(detached, v.unsqueeze(-1))
        c = functional.softmax(b, dim=1)
        result: Tensor = torch.norm(self._squash((c * u_hat).sum(dim=2)), dim=-1)
        return result


class _CoordConv(nn.Module):
    """Two channels that say where, and their radius."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before + 3, after, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        batch, _, high, wide = x.size()
        xx = torch.arange(high).repeat(1, wide, 1).float() / (high - 1) * 2 - 1
        yy = torch.arange(wide).repeat(1, high, 1).transpose(1, 2).float() / (wide - 1) * 2 - 1
        xx, yy = (v.unsqueeze(0).repeat(batch, 1, 1, 1) for v in (xx.transpose(1, 2), yy.mT))
        rr = torch.sqrt(torch.pow(xx - 0.5, 2) + torch.pow(yy - 0.5, 2))
        result: Tensor = self.conv(torch.cat([x, xx.type_as(x), yy.type_as(x), rr], dim=1))
        return result


class _Involution(nn.Module):
    """Kernels that each place makes for itself, one for every group of channels."""

    def __init__(self, width: int, size: int = 3, group: int = 4) -> None:
        super().__init__()
        self.size, self.groups, self.group = size, width // group, group
        self.reduce = conv_norm(width, width // 2, 1)
        self.span = nn.Conv2d(width // 2, size**2 * self.groups, 1)
        self.unfold = nn.Unfold(size, 1, (size - 1) // 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        weight = self.span(self.reduce(x))
        b, _, h, w = weight.shape
        weight = weight.view(b, self.groups, self.size**2, h, w).unsqueeze(2)
        out = self.unfold(x).view(b, self.groups, self.group, self.size**2, h, w)
        result: Tensor = (weight * out).sum(dim=3).view(b, -1, h, w)
        return result


class _Deformable(nn.Module):
    """A 3 by 3 convolution over places that offsets move, by ``grid_sample``, with masks (v2)."""

    def __init__(self, width: int, after: int) -> None:
        super().__init__()
        self.offset, self.mask = (
            nn.Conv2d(width, 18, 3, padding=1),
            nn.Conv2d(width, 9, 3, padding=1),
        )
        nn.init.constant_(self.offset.weight, 0.01)
        self.weight = nn.Parameter(0.1 * torch.randn(after, width * 9))

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        offset = self.offset(x).view(b, 9, 2, h, w).permute(0, 1, 3, 4, 2)
        mask = torch.sigmoid(self.mask(x)).view(b, 1, 9, h * w)
        ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
        ky, kx = torch.meshgrid(torch.arange(-1, 2), torch.arange(-1, 2), indexing="ij")
        base = torch.stack((xs, ys), -1)[None] + torch.stack((kx, ky), -1).view(9, 1, 1, 2)
        size = torch.tensor([w - 1, h - 1], dtype=x.dtype)
        grid = 2 * (base + offset) / size - 1
        taps = functional.grid_sample(x, grid.reshape(b, 9 * h, w, 2), align_corners=True)
        taps = taps.view(b, c, 9, h * w) * mask
        return torch.einsum("ok,bkn->bon", self.weight, taps.flatten(1, 2)).view(b, -1, h, w)


class _GlobalFilter(nn.Module):
    """GFNet: a product with learned complex numbers between two Fourier transforms."""

    def __init__(self, width: int, side: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(side, side // 2 + 1, width, 2))
        self.norm, self.mlp = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.norm(x.permute(0, 2, 3, 1))
        _, a, b, _ = rows.size()
        spectrum = torch.fft.rfft2(rows.to(torch.float32), dim=(1, 2), norm="ortho")
        spectrum = spectrum * torch.view_as_complex(self.weight)
        rows = torch.fft.irfft2(spectrum, s=(a, b), dim=(1, 2), norm="ortho")
        return x + functional.gelu(self.mlp(rows)).permute(0, 3, 1, 2)


class _NonLocal(nn.Module):
    """A non-local block with pooled keys."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.theta, self.w = nn.Conv2d(width, half, 1), nn.Conv2d(half, width, 1)
        self.phi, self.g = (
            nn.Sequential(nn.Conv2d(width, half, 1), nn.MaxPool2d(2)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        b, half = x.size(0), x.size(1) // 2
        g = self.g(x).view(b, half, -1).permute(0, 2, 1)
        theta = self.theta(x).view(b, half, -1).permute(0, 2, 1)
        f = functional.softmax(torch.matmul(theta, self.phi(x).view(b, half, -1)), dim=-1)
        y = torch.matmul(f, g).permute(0, 2, 1).contiguous().view(b, half, *x.size()[2:])
        result: Tensor = self.w(y) + x
        return result


def _image(name: str, build: Callable[[], nn.Module], channels: int = 3) -> SweepCase:
    side = _SIDE if channels == 3 else 28
    shape = (channels, side, side)
    return SweepCase(name=name, group="architectures", build=build, input_shape=shape, whole=True)


def _stemmed(*layers: nn.Module, width: int = 16, stem: int = 8, stride: int = 2) -> nn.Module:
    return _pooled(conv_norm(3, stem, 3, stride), *layers, width=width)


CASES: tuple[SweepCase, ...] = (
    _image("AlexNet", _alexnet),
    _image("Network in network", _nin),
    _image("GoogLeNet", _googlenet),
    _image("Xception", lambda: _stemmed(_XceptionBlock(8, 16), _XceptionBlock(16, 16))),
    _image("ResNeXt", lambda: _residual(groups=4)),
    _image("SE-ResNet", lambda: _residual(extra=lambda: SqueezeExcite(16, 4, nn.Sigmoid))),
    _image("CBAM", lambda: _residual(extra=_Cbam, stride=4)),
    _image("ECA-Net", lambda: _residual(extra=_Eca)),
    _image("GhostNet", lambda: _stemmed(_Ghost(8, 16, 1), nn.ReLU(), _Ghost(16, 16, 2))),
    _image(
        "RegNet",
        lambda: _residual(groups=2, extra=lambda: SqueezeExcite(16, 2, nn.Sigmoid)),
    ),
    _image("MnasNet", _mnasnet),
    _image("RepVGG", lambda: _pooled(_RepVgg(3, 8, 2), _RepVgg(8, 8), _RepVgg(8, 16, 2), width=16)),
    _image("HRNet", _Hrnet),
    _image("Feature pyramid", _Fpn),
    _image("Spatial transformer", _SpatialTransformer, 1),
    _image("CapsNet", _Capsules, 1),
    _image("CoordConv", lambda: _stemmed(_CoordConv(8, 16), nn.ReLU())),
    _image("Involution", lambda: _stemmed(_Involution(8), conv_norm(8, 16, 1))),
    _image("Deformable convolution", lambda: _stemmed(_Deformable(8, 16), nn.ReLU())),
    _image("Non-local network", lambda: _stemmed(_NonLocal(16), nn.ReLU(), stem=16)),
    _image("GFNet", lambda: _stemmed(_GlobalFilter(16, 16), width=16, stem=16)),
)
