"""Architectures of time series without attention, as their authors write them.

Windows are (time, channels), as intake makes them.

Sources: FCN and ResNet (arXiv:1611.06455), LSTM-FCN (arXiv:1709.05206), MLSTM-FCN
(arXiv:1801.04503), OmniScaleCNN (arXiv:2002.10061), XceptionTime (arXiv:1911.03803), MiniRocket
(arXiv:2012.08791), TSMixer (arXiv:2303.06053), DLinear and NLinear (arXiv:2205.13504), TimesNet
(arXiv:2210.02186), N-BEATS (arXiv:1905.10437).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from protofleet.export.sweep.cases import CLASSES, SweepCase
from protofleet.export.sweep.sequences import ChannelsFirst

_TIME, _CHANNELS = 128, 6


class ConvNorm(nn.Sequential):
    """A convolution over time that keeps its length, batch normalisation, ReLU."""

    def __init__(self, before: int, after: int, size: int, *, act: bool = True) -> None:
        super().__init__(
            nn.Conv1d(before, after, size, padding="same", bias=False),
            nn.BatchNorm1d(after),
            nn.ReLU(inplace=True) if act else nn.Identity(),
        )


def _fcn_body(squeeze: type[nn.Module] = nn.Identity) -> nn.Sequential:
    first, second = ConvNorm(_CHANNELS, 16, 7), ConvNorm(16, 32, 5)
    return nn.Sequential(first, squeeze(), second, ConvNorm(32, 16, 3))


class _ResidualOfThree(nn.Module):
    """ResNet-TS: kernels of 7, 5 and 3, and a short cut of width 1."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            ConvNorm(before, after, 7),
            ConvNorm(after, after, 5),
            ConvNorm(after, after, 3, act=False),
        )
        same = before == after
        self.short = nn.BatchNorm1d(before) if same else ConvNorm(before, after, 1, act=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.convs(x) + self.short(x))


class _SqueezeExcite(nn.Module):
    """MLSTM-FCN's: linear layers without biases on the means over time."""

    def __init__(self, width: int = 16, reduction: int = 8) -> None:
        super().__init__()
        self.fc = nn.Sequential(
            nn.Linear(width, width // reduction, bias=False),
            nn.ReLU(inplace=True),
            nn.Linear(width // reduction, width, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        b, c, _ = x.size()
        y = self.fc(functional.adaptive_avg_pool1d(x, 1).view(b, c)).view(b, c, 1)
        result: Tensor = x * y.expand_as(x)
        return result


class _LstmFcn(nn.Module):
    """An LSTM beside a fully convolutional network; the multivariate one sees time as channels."""

    def __init__(self, *, shuffled: bool, squeeze: type[nn.Module] = nn.Identity) -> None:
        super().__init__()
        self.shuffled = shuffled
        self.lstm = nn.LSTM(_TIME if shuffled else _CHANNELS, 16, batch_first=True)
        self.dropout, self.body = nn.Dropout(0.8), _fcn_body(squeeze)
        self.fc = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.permute(0, 2, 1)
        _, (hidden, _) = self.lstm(rows if self.shuffled else x)
        pooled = self.body(rows).mean(dim=-1)
        joined = torch.cat([self.dropout(hidden[-1]), pooled], dim=1)
        logits: Tensor = self.fc(joined)
        return logits


class _OmniScaleLayer(nn.Module):
    """Kernels of many lengths as one, whose unused ends a mask keeps at zero."""

    mask: Tensor

    def __init__(self, before: int, each: int, sizes: tuple[int, ...]) -> None:
        super().__init__()
        longest = max(sizes)
        mask = torch.zeros(len(sizes) * each, before, longest)
        for number, size in enumerate(sizes):
            left = (longest - 1) // 2 - (size - 1) // 2
            mask[number * each : (number + 1) * each, :, left : left + size] = 1
        self.register_buffer("mask", mask, persistent=False)
        self.weight = nn.Parameter(mask * 0.2 * torch.randn_like(mask))
        self.bias = nn.Parameter(torch.zeros(mask.shape[0]))
        self.padding = ((longest - 1) // 2, longest // 2)
        self.bn = nn.BatchNorm1d(mask.shape[0])

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = self.weight * self.mask
        padded = functional.pad(x, self.padding)
        result: Tensor = self.bn(functional.conv1d(padded, self.weight, self.bias))
        return functional.relu(result)


def _omniscale() -> nn.Module:
    primes = (1, 2, 3, 5, 7, 11, 13)
    layers = (
        _OmniScaleLayer(6, 4, primes),
        _OmniScaleLayer(28, 4, primes),
        _OmniScaleLayer(28, 8, (1, 2)),
    )
    return ChannelsFirst(nn.Sequential(*layers), 16)


class _SeparableConv1d(nn.Module):
    def __init__(self, before: int, after: int, size: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(
            before, before, size, padding=size // 2, groups=before, bias=False
        )
        self.pointwise = nn.Conv1d(before, after, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.pointwise(self.depthwise(x))
        return result


class _XceptionModule(nn.Module):
    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.bottleneck = nn.Conv1d(before, width, 1, bias=False)
        self.convs = nn.ModuleList(_SeparableConv1d(width, width, k) for k in (39, 19, 9))
        self.pooled = nn.Sequential(nn.MaxPool1d(3, 1, 1), nn.Conv1d(before, width, 1, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        narrow = self.bottleneck(x)
        return torch.cat([conv(narrow) for conv in self.convs] + [self.pooled(x)], dim=1)


class _XceptionTime(nn.Module):
    """Two modules with a short cut, a pool to a fixed length, convolutions down to classes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = _XceptionModule(_CHANNELS, 4), _XceptionModule(16, 8)
        self.short = nn.Sequential(nn.Conv1d(_CHANNELS, 32, 1, bias=False), nn.BatchNorm1d(32))
        self.head = nn.Sequential(
            nn.AdaptiveAvgPool1d(50),
            ConvNorm(32, 16, 1),
            ConvNorm(16, CLASSES, 1),
            nn.AdaptiveAvgPool1d(1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        inner = functional.relu(self.second(self.first(x)) + self.short(x))
        logits: Tensor = self.head(inner).squeeze(-1)
        return logits


class _MiniRocket(nn.Module):
    """84 fixed kernels of -1 and 2 at some dilations; how often a bias is exceeded is a feature.

    The biases are fixed, as are the kernels; the head alone trains.
    """

    kernels: Tensor
    biases: Tensor

    def __init__(self, dilations: tuple[int, ...] = (1, 4, 15)) -> None:
        super().__init__()
        places = torch.tensor(list(itertools.combinations(range(9), 3)))
        kernels = torch.full((84, 9), -1.0).scatter_(1, places, 2.0)
        self.register_buffer("kernels", kernels.unsqueeze(1).repeat(_CHANNELS, 1, 1))
        self.register_buffer("biases", torch.randn(len(dilations), 84))
        self.dilations = dilations
        self.head = nn.Sequential(
            nn.BatchNorm1d(84 * len(dilations)), nn.Linear(84 * len(dilations), CLASSES)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        features = []
        for number, dilation in enumerate(self.dilations):
            c = functional.conv1d(
                x, self.kernels, padding=4 * dilation, dilation=dilation, groups=_CHANNELS
            )
            c = c.view(x.shape[0], _CHANNELS, 84, -1).sum(1)
            features.append((c > self.biases[number].view(1, 84, 1)).float().mean(2))
        logits: Tensor = self.head(torch.cat(features, 1))
        return logits


class _TsMixerBlock(nn.Module):
    """Mixes along time and then along features, each behind a normalisation over both."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.BatchNorm1d(_TIME * _CHANNELS) for _ in range(2))
        self.time = nn.Linear(_TIME, _TIME)
        self.up, self.down = nn.Linear(_CHANNELS, width), nn.Linear(width, _CHANNELS)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x.flatten(1, -1)).reshape(x.shape).transpose(1, 2)
        x = x + self.dropout(functional.relu(self.time(y))).transpose(1, 2)
        y = self.norm2(torch.flatten(x, 1, -1)).reshape(x.shape)
        y = self.dropout(functional.relu(self.up(y)))
        result: Tensor = x + self.dropout(self.down(y))
        return result


class _Decomposition(nn.Module):
    """A moving average over time whose ends are repeated, and what is left."""

    def __init__(self, size: int = 25) -> None:
        super().__init__()
        self.size, self.avg = size, nn.AvgPool1d(size, stride=1, padding=0)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        front = x[:, 0:1, :].repeat(1, (self.size - 1) // 2, 1)
        end = x[:, -1:, :].repeat(1, (self.size - 1) // 2, 1)
        padded = torch.cat([front, x, end], dim=1)
        trend = self.avg(padded.permute(0, 2, 1)).permute(0, 2, 1)
        return x - trend, trend


class _DLinear(nn.Module):
    """A linear layer of its own for each channel's trend and season."""

    def __init__(self, steps: int = 16) -> None:
        super().__init__()
        self.decomposition, self.steps = _Decomposition(), steps
        self.seasonal = nn.ModuleList(nn.Linear(_TIME, steps) for _ in range(_CHANNELS))
        self.trend = nn.ModuleList(nn.Linear(_TIME, steps) for _ in range(_CHANNELS))
        self.head = nn.Linear(_CHANNELS * steps, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        season, trend = (part.permute(0, 2, 1) for part in self.decomposition(x))
        output = torch.zeros([x.size(0), _CHANNELS, self.steps], dtype=x.dtype).to(x.device)
        for i in range(_CHANNELS):
            output[:, i, :] = self.seasonal[i](season[:, i, :]) + self.trend[i](trend[:, i, :])
        logits: Tensor = self.head(output.reshape(x.size(0), -1))
        return logits


class _NLinear(nn.Module):
    """The last sample is taken off, a linear layer along time, and put on again."""

    def __init__(self, steps: int = 16) -> None:
        super().__init__()
        self.linear, self.head = nn.Linear(_TIME, steps), nn.Linear(steps * _CHANNELS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        last = x[:, -1:, :].detach()
        x = self.linear((x - last).permute(0, 2, 1)).permute(0, 2, 1) + last
        logits: Tensor = self.head(x.flatten(1))
        return logits


class _TimesBlock(nn.Module):
    """2-D convolutions over the periods that a batch's spectrum says, as the repository has it."""

    def __init__(self, width: int, top: int = 2) -> None:
        super().__init__()
        self.top = top
        self.conv = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.GELU(), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x, dim=1).abs()
        strength = spectrum.mean(0).mean(-1)
        strength[0] = 0
        _, top = torch.topk(strength, self.top)
        periods = x.shape[1] // top.detach().cpu().numpy()
        results = []
        for period in periods:
            length = math.ceil(x.shape[1] / period) * int(period)
            padded = functional.pad(x, (0, 0, 0, length - x.shape[1]))
            image = padded.reshape(x.shape[0], length // period, int(period), -1)
            image = self.conv(image.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
            results.append(image.reshape(x.shape[0], length, -1)[:, : x.shape[1]])
        weights = spectrum.mean(-1)[:, top].softmax(1)
        mixed: Tensor = (torch.stack(results, -1) * weights[:, None, None]).sum(-1)
        return mixed + x


class _FixedTimesBlock(nn.Module):
    """The same with the periods of the training data, weighed by each example's spectrum."""

    def __init__(self, width: int, periods: tuple[int, ...] = (8, 30)) -> None:
        super().__init__()
        self.periods = periods
        self.conv = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.GELU(), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.size()
        spectrum = torch.fft.rfft(x, dim=1).abs().mean(-1)
        results = []
        for period in self.periods:
            length = (time // period + (time % period > 0)) * period
            padded = torch.cat([x, x.new_zeros(batch, length - time, width)], dim=1)
            image = padded.reshape(batch, length // period, period, width)
            image = self.conv(image.permute(0, 3, 1, 2).contiguous()).permute(0, 2, 3, 1)
            results.append(image.reshape(batch, -1, width)[:, :time, :])
        stacked = torch.stack(results, dim=-1)
        weights = spectrum[:, [time // period for period in self.periods]].softmax(1)
        weights = weights.unsqueeze(1).unsqueeze(1).repeat(1, time, width, 1)
        return torch.sum(stacked * weights, -1) + x


class _Embedded(nn.Module):
    """Samples embedded, a body over (B, time, width), the mean over time classified."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.embed, self.body = nn.Linear(_CHANNELS, width), body
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.body(self.embed(x))).mean(1))
        return logits


class _NBeatsBlock(nn.Module):
    """Four layers, and coefficients of a basis that explains past and future."""

    backward_basis: Tensor
    forward_basis: Tensor

    def __init__(self, size: int, horizon: int, *, seasonal: bool) -> None:
        super().__init__()
        layers = [nn.Linear(size if n == 0 else 32, 32) for n in range(4)]
        self.layers = nn.ModuleList(layers)
        past, ahead = torch.arange(size) / size, torch.arange(horizon) / horizon
        self.register_buffer("backward_basis", self._basis(past, seasonal=seasonal))
        self.register_buffer("forward_basis", self._basis(ahead, seasonal=seasonal))
        self.theta = nn.Linear(32, 2 * self.forward_basis.shape[0], bias=False)

    @staticmethod
    def _basis(t: Tensor, *, seasonal: bool) -> Tensor:
        if not seasonal:
            return torch.stack([t**i for i in range(3)])
        waves = [2 * math.pi * i * t for i in range(1, 4)]
        return torch.cat([torch.stack([f(w) for w in waves]) for f in (torch.cos, torch.sin)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for layer in self.layers:
            x = torch.relu(layer(x))
        back, ahead = self.theta(x).chunk(2, dim=-1)
        return (
            torch.einsum("bp,pt->bt", back, self.backward_basis),
            torch.einsum("bp,pt->bt", ahead, self.forward_basis),
        )


class _NBeats(nn.Module):
    """Blocks that take what those before left over; the sum of their forecasts is classified."""

    def __init__(self, horizon: int = 12) -> None:
        super().__init__()
        size = _TIME * _CHANNELS
        self.blocks = nn.ModuleList(
            _NBeatsBlock(size, horizon, seasonal=season) for season in (False, False, True)
        )
        self.horizon, self.head = horizon, nn.Linear(horizon, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        residual = x.reshape(x.shape[0], -1).flip(dims=(1,))
        forecast = residual.new_zeros(x.shape[0], self.horizon)
        for block in self.blocks:
            backcast, ahead = block(residual)
            residual = residual - backcast
            forecast = forecast + ahead
        logits: Tensor = self.head(forecast)
        return logits


def _window(name: str, build: Callable[[], nn.Module]) -> SweepCase:
    shape = (_TIME, _CHANNELS)
    return SweepCase(name=name, group="architectures", build=build, input_shape=shape, whole=True)


def _tsmixer() -> nn.Module:
    mixers = nn.Sequential(_TsMixerBlock(16), _TsMixerBlock(16))
    return nn.Sequential(mixers, nn.Flatten(), nn.Linear(_TIME * _CHANNELS, CLASSES))


CASES: tuple[SweepCase, ...] = (
    _window("FCN", lambda: ChannelsFirst(_fcn_body(), 16)),
    _window(
        "ResNet of time series",
        lambda: ChannelsFirst(nn.Sequential(_ResidualOfThree(6, 16), _ResidualOfThree(16, 16)), 16),
    ),
    _window("LSTM-FCN", lambda: _LstmFcn(shuffled=False)),
    _window("MLSTM-FCN", lambda: _LstmFcn(shuffled=True, squeeze=_SqueezeExcite)),
    _window("OmniScaleCNN", _omniscale),
    _window("XceptionTime", _XceptionTime),
    _window("MiniRocket, fixed kernels", _MiniRocket),
    _window("TSMixer", _tsmixer),
    _window("DLinear", _DLinear),
    _window("NLinear", _NLinear),
    _window("TimesNet, periods of the batch", lambda: _Embedded(_TimesBlock(8), 8)),
    _window("TimesNet, periods that are set", lambda: _Embedded(_FixedTimesBlock(8), 8)),
    _window("N-BEATS", _NBeats),
)
