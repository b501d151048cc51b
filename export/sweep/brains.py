"""Architectures of EEG, sleep and ECG, as their authors write them.

Windows of EEG are (1, electrodes, time), of sleep and ECG (1, time).

Sources: EEGNet (arXiv:1611.08024), ShallowConvNet and DeepConvNet (arXiv:1703.05051), EEG-TCNet
(arXiv:2006.00622), ATCNet (Altaheri 2022), EEG Conformer (Song 2022), TSception
(arXiv:2104.02935), DeepSleepNet (arXiv:1703.04046), TinySleepNet (Supratak 2020), SleepEEGNet
(arXiv:1903.02108), ResNet of ECG (arXiv:1707.01836).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from protofleet.export.sweep.cases import CLASSES, SweepCase

_ELECTRODES, _TIME = 8, 256
_NIGHT = 600
"""Samples of an epoch of sleep, at a fifth of the papers' rate."""


class _BoundedConv2d(nn.Conv2d):
    """A convolution whose filters have at most a norm, as braindecode bounds them."""

    def __init__(self, *args: Any, max_norm: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.max_norm = max_norm

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = torch.renorm(self.weight.data, p=2, dim=0, maxnorm=self.max_norm)
        return super().forward(x)


class _BoundedLinear(nn.Linear):
    """The same of a linear layer."""

    def __init__(self, *args: Any, max_norm: float = 0.25, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.max_norm = max_norm

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = torch.renorm(self.weight.data, p=2, dim=0, maxnorm=self.max_norm)
        return super().forward(x)


def _eegnet_body(rate: float = 0.25) -> nn.Sequential:
    """(B, 1, electrodes, time) → (B, 16, 1, time / 32)."""
    return nn.Sequential(
        nn.Conv2d(1, 8, (1, 64), padding=(0, 32), bias=False),
        nn.BatchNorm2d(8, momentum=0.01, eps=1e-3),
        _BoundedConv2d(8, 16, (_ELECTRODES, 1), groups=8, bias=False),
        nn.BatchNorm2d(16, momentum=0.01, eps=1e-3),
        nn.ELU(),
        nn.AvgPool2d((1, 4)),
        nn.Dropout(rate),
        nn.Conv2d(16, 16, (1, 16), padding=(0, 8), groups=16, bias=False),
        nn.Conv2d(16, 16, 1, bias=False),
        nn.BatchNorm2d(16, momentum=0.01, eps=1e-3),
        nn.ELU(),
        nn.AvgPool2d((1, 8)),
        nn.Dropout(rate),
    )


class _EegNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = _eegnet_body()
        self.classifier = _BoundedLinear(16 * 8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        logits: Tensor = self.classifier(x.view(-1, x.shape[1] * x.shape[2] * x.shape[3]))
        return logits


class _Expression(nn.Module):
    """A function as a layer, as braindecode writes squares and logarithms."""

    def __init__(self, expression: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.expression = expression

    def forward(self, x: Tensor) -> Tensor:
        return self.expression(x)


def _safe_log(x: Tensor) -> Tensor:
    return torch.log(torch.clamp(x, min=1e-6))


def _shallow() -> nn.Module:
    """ShallowConvNet: log power of learned bands and places."""
    return nn.Sequential(
        _Expression(lambda x: x.permute(0, 1, 3, 2)),
        nn.Conv2d(1, 16, (25, 1)),
        nn.Conv2d(16, 16, (1, _ELECTRODES), bias=False),
        nn.BatchNorm2d(16, momentum=0.1, affine=True, eps=1e-5),
        _Expression(torch.square),
        nn.AvgPool2d((75, 1), (15, 1)),
        _Expression(_safe_log),
        nn.Dropout(0.5),
        nn.Conv2d(16, CLASSES, (11, 1)),
        _Expression(lambda x: x.squeeze(3).squeeze(2)),
    )


def _deep() -> nn.Module:
    """DeepConvNet: four blocks of convolution, normalisation, ELU and largest of three."""
    layers: list[nn.Module] = [
        nn.Conv2d(1, 8, (1, 10)),
        nn.Conv2d(8, 8, (_ELECTRODES, 1), bias=False),
    ]
    widths = (8, 16, 32)
    for n, width in enumerate(widths):
        if n:
            layers += [nn.Dropout(0.5), nn.Conv2d(widths[n - 1], width, (1, 10), bias=False)]
        layers += [nn.BatchNorm2d(width, momentum=0.1), nn.ELU(), nn.MaxPool2d((1, 3), (1, 3))]
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(CLASSES))


def _deep_ready() -> nn.Module:
    model = _deep()
    with torch.no_grad():
        model.eval()(torch.zeros(1, 1, _ELECTRODES, _TIME))
    return model.train()


class _Chomp(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :, : -self.size].contiguous()


class _TcnBlock(nn.Module):
    """A residual block of two causal convolutions that are cut at the end."""

    def __init__(self, width: int, dilation: int, size: int = 4) -> None:
        super().__init__()
        reach = (size - 1) * dilation
        layers: list[nn.Module] = []
        for _ in range(2):
            layers += [nn.Conv1d(width, width, size, padding=reach, dilation=dilation)]
            layers += [_Chomp(reach), nn.BatchNorm1d(width), nn.ELU(), nn.Dropout(0.3)]
        self.net = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return functional.elu(self.net(x) + x)


class _EegTcNet(nn.Module):
    """EEGNet's features over time, then temporal convolutions; the last step classifies."""

    def __init__(self) -> None:
        super().__init__()
        self.eegnet = _eegnet_body()
        self.tcn = nn.Sequential(_TcnBlock(16, 1), _TcnBlock(16, 2))
        self.classifier = _BoundedLinear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.squeeze(self.eegnet(x), 2)
        logits: Tensor = self.classifier(self.tcn(x)[:, :, -1])
        return logits


class _AtcNet(nn.Module):
    """ATCNet: windows that slide over EEGNet's features, each with attention and a TCN."""

    def __init__(self, windows: int = 2) -> None:
        super().__init__()
        self.eegnet, self.windows = _eegnet_body(), windows
        self.norms = nn.ModuleList(nn.LayerNorm(16, eps=1e-6) for _ in range(windows))
        self.attention = nn.ModuleList(
            nn.MultiheadAttention(16, 2, dropout=0.5, batch_first=True) for _ in range(windows)
        )
        self.tcns = nn.ModuleList(
            nn.Sequential(_TcnBlock(16, 1), _TcnBlock(16, 2)) for _ in range(windows)
        )
        self.heads = nn.ModuleList(_BoundedLinear(16, CLASSES) for _ in range(windows))

    def forward(self, x: Tensor) -> Tensor:
        features = self.eegnet(x)[:, :, 0].permute(0, 2, 1)
        length = features.shape[1]
        outputs = []
        for w in range(self.windows):
            window = features[..., w : length - self.windows + w + 1, :]
            normed = self.norms[w](window)
            window = window + self.attention[w](normed, normed, normed)[0]
            outputs.append(self.heads[w](self.tcns[w](window.permute(0, 2, 1))[..., -1]))
        return torch.mean(torch.stack(outputs, dim=0), dim=0)


class _ConformerAttention(nn.Module):
    """Attention by einsum, as EEG Conformer has it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.width, self.heads = width, heads
        self.keys, self.queries, self.values = (nn.Linear(width, width) for _ in range(3))
        self.drop, self.projection = nn.Dropout(0.5), nn.Linear(width, width)

    def _split(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        return x.reshape(b, n, self.heads, -1).permute(0, 2, 1, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self._split(one(x)) for one in (self.queries, self.keys, self.values))
        energy = torch.einsum("bhqd, bhkd -> bhqk", q, k)
        weights = self.drop(functional.softmax(energy / self.width**0.5, dim=-1))
        out = torch.einsum("bhal, bhlv -> bhav ", weights, v)
        b, h, n, d = out.shape
        result: Tensor = self.projection(out.permute(0, 2, 1, 3).reshape(b, n, h * d))
        return result


class _Residual(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.fn = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        res = x
        x = self.fn(x)
        x += res
        return x


def _eeg_conformer(width: int = 16) -> nn.Module:
    """Patches by ShallowConvNet's convolutions, two encoder blocks, three linear layers."""
    block = [
        (
            _Residual(nn.LayerNorm(width), _ConformerAttention(width, 4), nn.Dropout(0.5)),
            _Residual(
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                nn.GELU(),
                nn.Dropout(0.5),
                nn.Linear(4 * width, width),
                nn.Dropout(0.5),
            ),
        )
        for _ in range(2)
    ]
    return nn.Sequential(
        nn.Conv2d(1, width, (1, 25), (1, 1)),
        nn.Conv2d(width, width, (_ELECTRODES, 1), (1, 1)),
        nn.BatchNorm2d(width),
        nn.ELU(),
        nn.AvgPool2d((1, 75), (1, 15)),
        nn.Dropout(0.5),
        nn.Conv2d(width, width, (1, 1), stride=(1, 1)),
        _Expression(lambda x: x.flatten(2).transpose(1, 2)),
        *(layer for pair in block for layer in pair),
        nn.Flatten(),
        nn.Linear(11 * width, 64),
        nn.ELU(),
        nn.Dropout(0.5),
        nn.Linear(64, CLASSES),
    )


class _TSception(nn.Module):
    """Kernels of three lengths along time; a filter over all electrodes and one over each half."""

    def __init__(self, width: int = 9) -> None:
        super().__init__()
        self.times = nn.ModuleList(self._block(1, width, (1, k), 8) for k in (64, 32, 16))
        half = (_ELECTRODES // 2, 1)
        self.whole = self._block(width, width, (_ELECTRODES, 1), 2)
        self.halves = self._block(width, width, half, 2, stride=half)
        self.fusion = self._block(width, width, (3, 1), 4)
        self.bn_t, self.bn_s, self.bn_f = (nn.BatchNorm2d(width) for _ in range(3))
        self.fc = nn.Sequential(
            nn.Linear(width, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, CLASSES)
        )

    @staticmethod
    def _block(
        before: int, after: int, kernel: tuple[int, int], pool: int, *, stride: Any = 1
    ) -> nn.Sequential:
        conv = nn.Conv2d(before, after, kernel, stride)
        return nn.Sequential(conv, nn.LeakyReLU(), nn.AvgPool2d((1, pool), (1, pool)))

    def forward(self, x: Tensor) -> Tensor:
        out = torch.cat([block(x) for block in self.times], dim=-1)
        out = self.bn_t(out)
        out = self.bn_s(torch.cat((self.whole(out), self.halves(out)), dim=2))
        out = self.bn_f(self.fusion(out))
        logits: Tensor = self.fc(torch.squeeze(torch.mean(out, dim=-1), dim=-1))
        return logits


def _two_rates(small: int, wide: int, width: int = 16) -> nn.ModuleList:
    """DeepSleepNet's two stacks: small filters for when, large ones for which frequencies."""

    def stack(size: int, step: int, pools: tuple[int, int], inner: int) -> nn.Sequential:
        layers: list[nn.Module] = [nn.Conv1d(1, width, size, step, size // 2, bias=False)]
        layers += [nn.BatchNorm1d(width), nn.ReLU(), nn.MaxPool1d(pools[0]), nn.Dropout(0.5)]
        for _ in range(2):
            layers += [nn.Conv1d(width, width, inner, padding="same", bias=False)]
            layers += [nn.BatchNorm1d(width), nn.ReLU()]
        return nn.Sequential(*layers, nn.MaxPool1d(pools[1]))

    return nn.ModuleList(
        (stack(small, 2, (4, 4), 8), stack(wide, 10, (2, 2), 6)),
    )


class _DeepSleepNet(nn.Module):
    """Both stacks joined, a bidirectional LSTM with a short cut."""

    def __init__(self) -> None:
        super().__init__()
        self.stacks, self.drop = _two_rates(10, 80), nn.Dropout(0.5)
        self.lstm = nn.LSTM(16, 16, 2, bidirectional=True, dropout=0.5, batch_first=True)
        self.short = nn.Sequential(nn.Linear(16, 32, bias=False), nn.ReLU())
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        features = self.drop(torch.cat([stack(x) for stack in self.stacks], -1)).transpose(1, 2)
        outputs, _ = self.lstm(features)
        joined = self.drop(outputs + self.short(features))
        logits: Tensor = self.head(joined[:, -1])
        return logits


class _TinySleepNet(nn.Module):
    """Convolutions with the paper's paddings, an LSTM from states that are made by the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.cnn = nn.Sequential(
            nn.ConstantPad1d((5, 5), 0),
            nn.Conv1d(1, 16, 20, 3, bias=False),
            nn.BatchNorm1d(16, eps=1e-3),
            nn.ReLU(inplace=True),
            nn.MaxPool1d(8, 8),
            nn.Dropout(0.5),
            nn.ConstantPad1d((3, 4), 0),
            nn.Conv1d(16, 16, 8, 1, bias=False),
            nn.BatchNorm1d(16, eps=1e-3),
            nn.ReLU(inplace=True),
            nn.ConstantPad1d((1, 1), 0),
            nn.MaxPool1d(4, 4),
        )
        self.rnn = nn.LSTM(16, 16, 1, batch_first=True)
        self.fc = nn.Sequential(nn.Dropout(0.5), nn.Linear(16, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.cnn(x).permute(0, 2, 1)
        state = (torch.zeros(1, x.size(0), 16), torch.zeros(1, x.size(0), 16))
        x, _ = self.rnn(x, state)
        logits: Tensor = self.fc(x[:, -1, :].reshape(-1, 16))
        return logits


class _SleepEegNet(nn.Module):
    """SleepEEGNet: an encoder, and a decoder that attends to it for as many steps as there are."""

    def __init__(self, width: int = 16, steps: int = 4) -> None:
        super().__init__()
        self.stacks, self.steps = _two_rates(20, 100), steps
        self.encoder = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.decoder = nn.LSTMCell(CLASSES + 2 * width, 2 * width)
        self.memory = nn.Linear(2 * width, width, bias=False)
        self.query = nn.Linear(2 * width, width, bias=False)
        self.v, self.out = nn.Linear(width, 1, bias=False), nn.Linear(2 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        features = torch.cat([stack(x) for stack in self.stacks], -1).transpose(1, 2)
        outputs, (h, c) = self.encoder(features)
        state = (torch.cat([h[0], h[1]], -1), torch.cat([c[0], c[1]], -1))
        logits = x.new_zeros(x.size(0), CLASSES)
        for _ in range(self.steps):
            scores = self.v(torch.tanh(self.memory(outputs) + self.query(state[0]).unsqueeze(1)))
            context = (torch.softmax(scores, 1) * outputs).sum(dim=1)
            state = self.decoder(torch.cat([logits.softmax(-1), context], dim=-1), state)
            logits = self.out(state[0])
        return logits


class _EcgBlock(nn.Module):
    """ResNet of ECG: pre-activation, every second block half as long, the short cut by maxima."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm1d(before), nn.BatchNorm1d(after)
        self.conv1 = nn.Conv1d(before, after, 16, stride, padding=7 if stride == 2 else 8)
        self.conv2 = nn.Conv1d(after, after, 15, padding=7)
        self.pool, self.before, self.after = nn.MaxPool1d(stride, stride), before, after
        self.drop = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        short = self.pool(x)
        if self.after > self.before:
            extra = torch.zeros_like(short)[:, : self.after - self.before]
            short = torch.cat([short, extra], dim=1)
        y = self.conv1(functional.relu(self.bn1(x)))[..., : short.shape[-1]]
        result: Tensor = short + self.conv2(self.drop(functional.relu(self.bn2(y))))
        return result


def _ecg_resnet() -> nn.Module:
    stem = (nn.Conv1d(1, 8, 16, padding="same"), nn.BatchNorm1d(8), nn.ReLU())
    blocks = (_EcgBlock(8, 8, 1), _EcgBlock(8, 16, 2), _EcgBlock(16, 16, 2))
    rest = (nn.BatchNorm1d(16), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    return nn.Sequential(*stem, *blocks, *rest, nn.Linear(16, CLASSES))


def _eeg(name: str, build: Callable[[], nn.Module]) -> SweepCase:
    shape = (1, _ELECTRODES, _TIME)
    return SweepCase(name=name, group="architectures", build=build, input_shape=shape, whole=True)


def _night(name: str, build: Callable[[], nn.Module]) -> SweepCase:
    shape = (1, _NIGHT)
    return SweepCase(name=name, group="architectures", build=build, input_shape=shape, whole=True)


CASES: tuple[SweepCase, ...] = (
    _eeg("EEGNet", _EegNet),
    _eeg("ShallowConvNet", _shallow),
    _eeg("DeepConvNet", _deep_ready),
    _eeg("EEG-TCNet", _EegTcNet),
    _eeg("ATCNet", _AtcNet),
    _eeg("EEG Conformer", _eeg_conformer),
    _eeg("TSception", _TSception),
    _night("DeepSleepNet", _DeepSleepNet),
    _night("TinySleepNet", _TinySleepNet),
    _night("SleepEEGNet", _SleepEegNet),
    _night("ResNet of ECG", _ecg_resnet),
)
