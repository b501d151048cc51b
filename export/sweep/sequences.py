"""Architectures that see windows of sensors or texts, as a user would write them.

Recurrent ones stand in ``recurrent``. Windows are (time, channels), as intake makes them.

Sources: TCN (arXiv:1803.01271), WaveNet (arXiv:1609.03499), InceptionTime (arXiv:1909.04939),
U-Net (arXiv:1505.04597), PatchTST (arXiv:2211.14730), Perceiver (arXiv:2103.03206), gMLP
(arXiv:2105.08050), TextCNN (arXiv:1408.5882), fastText (arXiv:1607.01759), GPT (Radford 2018), BERT
(arXiv:1810.04805).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm

from protofleet.export.sweep.cases import CLASSES, SweepCase

_GROUP = "architectures"
_TIME, _CHANNELS = 128, 6
_TOKENS, _LENGTH = 200, 24


class ChannelsFirst(nn.Module):
    """A network of convolutions over time, and the mean over time classified."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.head = body, nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of windows (B, time, channels)."""
        logits: Tensor = self.head(self.body(x.transpose(1, 2)).mean(-1))
        return logits


class _Causal(nn.Module):
    """Two dilated causal convolutions with weight normalisation, and a short cut."""

    def __init__(self, before: int, after: int, dilation: int) -> None:
        super().__init__()
        self.reach = 2 * dilation
        self.conv1 = weight_norm(nn.Conv1d(before, after, 3, dilation=dilation))
        self.conv2 = weight_norm(nn.Conv1d(after, after, 3, dilation=dilation))
        self.short = nn.Conv1d(before, after, 1)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.conv1(functional.pad(x, (self.reach, 0))))
        inner = functional.relu(self.conv2(functional.pad(self.drop(inner), (self.reach, 0))))
        return functional.relu(inner + self.short(x))


class _Gated(nn.Module):
    """WaveNet's gate with a residual."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, 2 * width, 2, dilation=dilation)
        self.mix = nn.Conv1d(width, width, 1)
        self.dilation = dilation

    def forward(self, x: Tensor) -> Tensor:
        signal, gate = self.conv(functional.pad(x, (self.dilation, 0))).chunk(2, 1)
        result: Tensor = x + self.mix(torch.tanh(signal) * torch.sigmoid(gate))
        return result


class _Inception(nn.Module):
    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.narrow = nn.Conv1d(before, width, 1, bias=False)
        self.convs = nn.ModuleList(
            nn.Conv1d(width, width, size, padding="same", bias=False) for size in (39, 19, 9)
        )
        self.pool = nn.Sequential(nn.MaxPool1d(3, 1, 1), nn.Conv1d(before, width, 1, bias=False))
        self.norm = nn.BatchNorm1d(4 * width)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.narrow(x)
        joined = torch.cat([*(conv(inner) for conv in self.convs), self.pool(x)], 1)
        return functional.relu(self.norm(joined))


class _Residual1d(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(width, width, 7, padding=3)
        self.conv2 = nn.Conv1d(width, width, 5, padding=2)
        self.norm1, self.norm2 = nn.BatchNorm1d(width), nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(x + self.norm2(self.conv2(inner)))


class UNet(nn.Module):
    """Down twice, up twice by interpolation, joined by short cuts."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv1d(_CHANNELS, width, 3, padding=1)
        self.second = nn.Conv1d(width, 2 * width, 3, padding=1)
        self.third = nn.Conv1d(2 * width, 4 * width, 3, padding=1)
        self.up2 = nn.Conv1d(6 * width, 2 * width, 3, padding=1)
        self.up1 = nn.ConvTranspose1d(2 * width, width, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, time) → (B, 2·width, time)."""
        one = functional.relu(self.first(x))
        two = functional.relu(self.second(functional.max_pool1d(one, 2)))
        three = functional.relu(self.third(functional.max_pool1d(two, 2)))
        wide = functional.interpolate(three, scale_factor=2, mode="linear", align_corners=False)
        two = functional.relu(self.up2(torch.cat([wide, two], 1)))
        return torch.cat([functional.relu(self.up1(two)), one], 1)


def _encoder(width: int, layers: int, *, norm_first: bool = False) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(
        width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=norm_first
    )
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def _waves(length: int, width: int) -> Tensor:
    """Sine and cosine positions."""
    angles = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, width, 2) / width)
    return torch.stack([torch.sin(angles), torch.cos(angles)], -1).flatten(1)


class TimeTransformer(nn.Module):
    """Samples as tokens with sine positions, and PyTorch's own encoder."""

    positions: Tensor

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Linear(_CHANNELS, width)
        self.register_buffer("positions", _waves(_TIME, width))
        self.encoder = _encoder(width, 2)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.encoder(self.embed(x) + self.positions).mean(1))
        return logits


class PatchTransformer(nn.Module):
    """PatchTST: overlapping patches of every channel by ``unfold``, normalised per window."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed, self.encoder = nn.Linear(16, width), _encoder(width, 1)
        self.places = nn.Parameter(0.02 * torch.randn(15, width))
        self.head = nn.Linear(_CHANNELS * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        x = (x - x.mean(1, keepdim=True)) / (x.std(1, keepdim=True) + 1e-5)
        patches = x.transpose(1, 2).unfold(-1, 16, 8)
        rows = self.embed(patches).flatten(0, 1) + self.places
        pooled = self.encoder(rows).mean(1).unflatten(0, (-1, _CHANNELS))
        logits: Tensor = self.head(pooled.flatten(1))
        return logits


class Perceiver(nn.Module):
    """Eight learned latents that attend to all samples, and then to each other."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Linear(_CHANNELS + 4, width)
        self.latents = nn.Parameter(0.1 * torch.randn(8, width))
        self.cross = nn.MultiheadAttention(width, 2, batch_first=True)
        self.inner = _encoder(width, 1, norm_first=True)
        self.register_buffer("waves", _waves(_TIME, 4))
        self.head = nn.Linear(width, CLASSES)

    waves: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        rows = self.embed(torch.cat([x, self.waves.expand(x.shape[0], -1, -1)], -1))
        latents = self.latents.expand(x.shape[0], -1, -1)
        latents = latents + self.cross(latents, rows, rows)[0]
        logits: Tensor = self.head(self.inner(latents).mean(1))
        return logits


class SpatialGate(nn.Module):
    """gMLP's block: half of the channels gate the other along time."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm, self.up = nn.LayerNorm(width), nn.Linear(width, 2 * hidden)
        self.gate_norm, self.down = nn.LayerNorm(hidden), nn.Linear(hidden, width)
        self.along = nn.Conv1d(_TIME, _TIME, 1)
        nn.init.ones_(self.along.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """(B, time, width) → the same."""
        value, gate = functional.gelu(self.up(self.norm(x))).chunk(2, -1)
        result: Tensor = x + self.down(value * self.along(self.gate_norm(gate)))
        return result


class GatedMlp(nn.Module):
    """One gMLP block over samples."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed, self.block = nn.Linear(_CHANNELS, width), SpatialGate(width, 16)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.block(self.embed(x)).mean(1))
        return logits


class TextCnn(nn.Module):
    """Filters over three, four and five words, the largest of each."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(_TOKENS, width, padding_idx=0)
        self.convs = nn.ModuleList(nn.Conv1d(width, 8, size) for size in (3, 4, 5))
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        vectors = self.words(x).transpose(1, 2)
        largest = [functional.relu(conv(vectors)).amax(-1) for conv in self.convs]
        logits: Tensor = self.head(torch.cat(largest, 1))
        return logits


class Gpt(nn.Module):
    """Causal blocks with attention as GPT-2 writes it; the last token classifies."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(_TOKENS, width), nn.Embedding(_LENGTH, width)
        self.heads = heads
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        rows = self.words(x) + self.places(torch.arange(x.shape[1]))
        rows = rows + self._attend(self.norm1(rows))
        rows = rows + self.down(functional.gelu(self.up(self.norm2(rows)), approximate="tanh"))
        logits: Tensor = self.head(self.norm3(rows)[:, -1])
        return logits

    def _attend(self, rows: Tensor) -> Tensor:
        batch, length, width = rows.shape
        shape = (batch, length, self.heads, width // self.heads)
        query, key, value = (
            part.view(shape).transpose(1, 2) for part in self.qkv(rows).chunk(3, -1)
        )
        weights = query @ key.transpose(-2, -1) / math.sqrt(width // self.heads)
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = weights.masked_fill(later, float("-inf")).softmax(-1)
        mixed: Tensor = self.out((weights @ value).transpose(1, 2).reshape(batch, length, width))
        return mixed


class Bert(nn.Module):
    """Encoder with padding masked out; the first token is pooled."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(_TOKENS, width), nn.Embedding(_LENGTH, width)
        self.norm, self.encoder = nn.LayerNorm(width), _encoder(width, 1)
        self.pool, self.head = nn.Linear(width, width), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        rows = self.norm(self.words(x) + self.places.weight)
        padding = torch.zeros_like(x, dtype=rows.dtype).masked_fill(x == 0, -1e4)
        rows = self.encoder(rows, src_key_padding_mask=padding)
        logits: Tensor = self.head(torch.tanh(self.pool(rows[:, 0])))
        return logits


def _mlp() -> nn.Module:
    first = nn.Linear(_TIME * _CHANNELS, 32)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, CLASSES))


def _cnn() -> nn.Module:
    convs = (nn.Conv1d(_CHANNELS, 16, 5), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(16, 32, 5))
    return ChannelsFirst(nn.Sequential(*convs, nn.ReLU()), 32)


def _tcn() -> nn.Module:
    blocks = (_Causal(_CHANNELS, 12, 1), _Causal(12, 12, 2), _Causal(12, 12, 4))
    return ChannelsFirst(nn.Sequential(*blocks), 12)


def _wavenet() -> nn.Module:
    stem = nn.Conv1d(_CHANNELS, 12, 1)
    return ChannelsFirst(nn.Sequential(stem, *(_Gated(12, 2**n) for n in range(4))), 12)


def _resnet() -> nn.Module:
    stem = nn.Conv1d(_CHANNELS, 16, 7, 2, 3)
    return ChannelsFirst(nn.Sequential(stem, _Residual1d(16), _Residual1d(16)), 16)


def _inception() -> nn.Module:
    return ChannelsFirst(nn.Sequential(_Inception(_CHANNELS, 4), _Inception(16, 4)), 16)


def _fasttext() -> nn.Module:
    return nn.Sequential(nn.EmbeddingBag(_TOKENS, 16, mode="mean"), nn.Linear(16, CLASSES))


def _window(name: str, build: Callable[[], nn.Module]) -> SweepCase:
    shape = (_TIME, _CHANNELS)
    return SweepCase(name=name, group=_GROUP, build=build, input_shape=shape, whole=True)


def _text(name: str, build: Callable[[], nn.Module]) -> SweepCase:
    shape = (_LENGTH,)
    return SweepCase(
        name=name, group=_GROUP, build=build, input_shape=shape, tokens=_TOKENS, whole=True
    )


CASES: tuple[SweepCase, ...] = (
    _window("MLP", _mlp),
    _window("1-D CNN", _cnn),
    _window("TCN", _tcn),
    _window("WaveNet", _wavenet),
    _window("1-D ResNet", _resnet),
    _window("InceptionTime", _inception),
    _window("1-D U-Net", lambda: ChannelsFirst(UNet(), 16)),
    _window("TransformerEncoder", TimeTransformer),
    _window("PatchTST", PatchTransformer),
    _window("Perceiver", Perceiver),
    _window("gMLP", GatedMlp),
    _text("fastText", _fasttext),
    _text("TextCNN", TextCnn),
    _text("GPT", Gpt),
    _text("BERT", Bert),
)
