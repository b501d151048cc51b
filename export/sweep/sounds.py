"""Architectures of sound, as their authors write them: waveforms (samples,), spectra inside.

Sources: SincNet (arXiv:1808.00158), M5 (arXiv:1610.00087), CRNN (arXiv:1609.04243), AST
(arXiv:2104.01778), BC-ResNet (arXiv:2106.04140), MatchboxNet (arXiv:2004.08531), wav2vec 2.0
(arXiv:2006.11477), LEAF (arXiv:2101.08596), YAMNet as MobileNet over log-mel (arXiv:1704.04861),
KWT (arXiv:2104.00769), ECAPA-TDNN (arXiv:2005.07143).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from protofleet.export.sweep.cases import CLASSES, SweepCase

_RATE, _SAMPLES = 4000, 2000
_BANDS = 16


def _mel_bank(bins: int, bands: int) -> Tensor:
    """Triangles (bins, bands), equally wide on the mel scale."""
    top = 2595 * math.log10(1 + _RATE / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, bands + 2) / 2595) - 1)
    slopes = edges[None, :] - torch.linspace(0, _RATE / 2, bins)[:, None]
    widths = edges.diff()
    down, up = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    return torch.clamp(torch.minimum(down, up), min=0)


class LogMel(nn.Module):
    """Power spectra of frames, a bank of triangles, the logarithm: (B, samples) → (B, bands, T)."""

    window: Tensor
    bank: Tensor

    def __init__(self, size: int = 128, hop: int = 64) -> None:
        super().__init__()
        self.size, self.hop = size, hop
        self.register_buffer("window", torch.hann_window(size))
        self.register_buffer("bank", _mel_bank(size // 2 + 1, _BANDS))

    def forward(self, x: Tensor) -> Tensor:
        """Log-mel bands over time."""
        spectrum = torch.stft(
            x, self.size, self.hop, window=self.window, center=True, return_complex=True
        )
        power = spectrum.abs().pow(2.0)
        mel = torch.matmul(power.transpose(-1, -2), self.bank).transpose(-1, -2)
        return torch.log(mel + 1e-3)


def _frames(x: Tensor) -> Tensor:
    """Bands as an image of one channel."""
    return x.unsqueeze(1)


class _Sinc(nn.Module):
    """SincNet: a bank of band passes of which the two cut-offs are learned."""

    n_: Tensor
    window_: Tensor

    def __init__(self, filters: int = 12, size: int = 101) -> None:
        super().__init__()
        self.size = size
        hz = torch.linspace(30, _RATE / 2 - 150, filters + 1)
        self.low_hz_ = nn.Parameter(hz[:-1].unsqueeze(1))
        self.band_hz_ = nn.Parameter(hz.diff().unsqueeze(1))
        half = torch.linspace(0, size / 2 - 1, steps=size // 2)
        self.register_buffer("window_", 0.54 - 0.46 * torch.cos(2 * math.pi * half / size))
        places = torch.arange(-(size - 1) / 2.0, 0).view(1, -1)
        self.register_buffer("n_", 2 * math.pi * places / _RATE)

    def forward(self, x: Tensor) -> Tensor:
        low = 50 + torch.abs(self.low_hz_)
        high = torch.clamp(low + 50 + torch.abs(self.band_hz_), 50, _RATE / 2)
        band = (high - low)[:, 0]
        difference = torch.sin(torch.matmul(high, self.n_)) - torch.sin(torch.matmul(low, self.n_))
        left = difference / (self.n_ / 2) * self.window_
        center = 2 * band.view(-1, 1)
        right = torch.flip(left, dims=[1])
        passes = torch.cat([left, center, right], dim=1) / (2 * band[:, None])
        return functional.conv1d(x, passes.view(-1, 1, self.size), stride=4)


class _SincNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sinc = _Sinc()
        self.ln0, self.ln1 = nn.LayerNorm(_SAMPLES), nn.LayerNorm([12, 158])
        self.conv, self.ln2 = nn.Conv1d(12, 16, 5), nn.LayerNorm([16, 51])
        self.act = nn.LeakyReLU(0.2)
        self.fc = nn.Sequential(nn.Linear(16 * 51, 32), nn.BatchNorm1d(32, momentum=0.05))
        self.out = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.ln0(x).view(-1, 1, _SAMPLES)
        x = self.act(self.ln1(functional.max_pool1d(torch.abs(self.sinc(x)), 3)))
        x = self.act(self.ln2(functional.max_pool1d(self.conv(x), 3)))
        logits: Tensor = self.out(self.act(self.fc(x.view(x.shape[0], -1))))
        return functional.log_softmax(logits, dim=1)


class _M5(nn.Module):
    """M5 as PyTorch's tutorial has it, over waveforms."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv1d(1, width, 40, stride=4), nn.BatchNorm1d(width)
        self.conv2, self.bn2 = nn.Conv1d(width, width, 3), nn.BatchNorm1d(width)
        self.conv3, self.bn3 = nn.Conv1d(width, 2 * width, 3), nn.BatchNorm1d(2 * width)
        self.pool, self.fc1 = nn.MaxPool1d(4), nn.Linear(2 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(functional.relu(self.bn1(self.conv1(x.unsqueeze(1)))))
        x = self.pool(functional.relu(self.bn2(self.conv2(x))))
        x = self.pool(functional.relu(self.bn3(self.conv3(x))))
        x = functional.avg_pool1d(x, x.shape[-1])
        x = self.fc1(x.permute(0, 2, 1))
        return functional.log_softmax(x, dim=2).squeeze(1)


class _Crnn(nn.Module):
    """Convolutions over log-mel, then GRUs over time."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.BatchNorm2d(1)]
        for before, after, pool in ((1, 8, (2, 2)), (8, 16, (2, 2)), (16, 16, (4, 1))):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ELU()]
            layers += [nn.MaxPool2d(pool, pool), nn.Dropout(0.1)]
        self.mel, self.conv = LogMel(), nn.Sequential(*layers)
        self.gru, self.head = nn.GRU(16, 16, 2, batch_first=True), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(_frames(self.mel(x)))
        x = x.permute(0, 3, 1, 2).contiguous().flatten(2)
        logits: Tensor = self.head(self.gru(x)[0][:, -1])
        return logits


class _Ast(nn.Module):
    """AST: overlapping patches of the spectrogram, a class and a distillation token."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.mel, self.patches = LogMel(), nn.Conv2d(1, width, 8, 6)
        self.cls, self.dist = (nn.Parameter(torch.zeros(1, 1, width)) for _ in range(2))
        self.places = nn.Parameter(0.02 * torch.randn(1, 2 * 5 + 2, width))
        layer = nn.TransformerEncoderLayer(
            width, 3, 48, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.mlp_head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        bands = self.mel(x)
        rows = self.patches(bands.unsqueeze(1)).flatten(2).transpose(1, 2)
        b = rows.shape[0]
        rows = torch.cat((self.cls.expand(b, -1, -1), self.dist.expand(b, -1, -1), rows), dim=1)
        rows = self.norm(self.blocks(rows + self.places))
        logits: Tensor = self.mlp_head((rows[:, 0] + rows[:, 1]) / 2)
        return logits


class _SubSpectralNorm(nn.Module):
    """BatchNorm of each group of bands by itself."""

    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.groups, self.bn = groups, nn.BatchNorm2d(width * groups)

    def forward(self, x: Tensor) -> Tensor:
        b, c, f, t = x.size()
        x = self.bn(x.view(b, c * self.groups, f // self.groups, t))
        return x.view(b, c, f, t)


class _BroadcastBlock(nn.Module):
    """BC-ResNet: a 2-D branch, and a branch along time that is broadcast over the bands."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.f2 = nn.Sequential(
            nn.Conv2d(width, width, (3, 1), padding=(1, 0), groups=width, bias=False),
            _SubSpectralNorm(width, 4),
        )
        self.f1 = nn.Sequential(
            nn.Conv2d(
                width,
                width,
                (1, 3),
                padding=(0, dilation),
                dilation=(1, dilation),
                groups=width,
                bias=False,
            ),
            nn.BatchNorm2d(width),
            nn.SiLU(),
            nn.Conv2d(width, width, 1, bias=False),
            nn.Dropout2d(0.1),
        )

    def forward(self, x: Tensor) -> Tensor:
        two = self.f2(x)
        one = self.f1(functional.adaptive_avg_pool2d(two, (1, two.shape[-1])))
        return functional.relu(x + two + one)


def _bc_resnet() -> nn.Module:
    stem = (nn.Conv2d(1, 8, 5, (2, 1), 2, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    blocks = (_BroadcastBlock(8, 1), _BroadcastBlock(8, 2))
    rest = (nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, CLASSES, 1), nn.Flatten())
    return nn.Sequential(LogMel(), nn.Unflatten(1, (1, -1)), *stem, *blocks, *rest)


class _MatchboxBlock(nn.Module):
    """MatchboxNet: time-channel separable convolutions with a short cut."""

    def __init__(self, before: int, after: int, size: int, repeats: int = 2) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for n in range(repeats):
            wide = before if n == 0 else after
            layers += [nn.Conv1d(wide, wide, size, groups=wide, padding=size // 2, bias=False)]
            layers += [nn.Conv1d(wide, after, 1, bias=False), nn.BatchNorm1d(after, eps=1e-3)]
            layers += [nn.ReLU(), nn.Dropout(0.1)] if n < repeats - 1 else []
        self.layers = nn.Sequential(*layers)
        self.short = nn.Sequential(nn.Conv1d(before, after, 1, bias=False), nn.BatchNorm1d(after))

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(
            functional.relu(self.layers(x) + self.short(x)), 0.1, self.training
        )


def _matchbox() -> nn.Module:
    first = nn.Sequential(nn.Conv1d(_BANDS, 16, 11, 2, 5), nn.BatchNorm1d(16), nn.ReLU())
    last = nn.Sequential(nn.Conv1d(16, 16, 5, dilation=2, padding=4), nn.BatchNorm1d(16), nn.ReLU())
    blocks = (_MatchboxBlock(16, 16, 13), _MatchboxBlock(16, 16, 15))
    rest = (nn.Conv1d(16, CLASSES, 1), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    return nn.Sequential(LogMel(), first, *blocks, last, *rest)


class _Wav2Vec(nn.Module):
    """wav2vec 2.0's convolutions, normed by channel, positions by a grouped convolution."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.conv0 = nn.Conv1d(1, width, 10, 5, bias=False)
        self.group_norm = nn.GroupNorm(width, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, width, 3, 2, bias=False) for _ in range(3))
        self.norm = nn.LayerNorm(width)
        places = nn.Conv1d(width, width, 16, padding=8, groups=4)
        self.places = nn.utils.weight_norm(places, name="weight", dim=2)
        layer = nn.TransformerEncoderLayer(width, 4, 32, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.masked = nn.Parameter(torch.empty(width).uniform_())
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - x.mean(-1, keepdim=True)) / torch.sqrt(x.var(-1, keepdim=True) + 1e-7)
        x = functional.gelu(self.group_norm(self.conv0(x[:, None])))
        for conv in self.convs:
            x = functional.gelu(conv(x))
        x = self.norm(x.transpose(1, 2))
        if self.training:
            hidden = torch.rand(x.shape[:2], device=x.device) < 0.1
            x = torch.where(hidden.unsqueeze(-1), self.masked, x)
        places = functional.gelu(self.places(x.transpose(1, 2))[:, :, :-1])
        logits: Tensor = self.head(self.encoder(x + places.transpose(1, 2)).mean(dim=1))
        return logits


class _Leaf(nn.Module):
    """LEAF: Gabor filters, low passes of learned widths, energies normalised by channel."""

    def __init__(self, filters: int = 8, size: int = 101, steps: int = 16) -> None:
        super().__init__()
        self.size, self.steps = size, steps
        self.centers = nn.Parameter(torch.linspace(0.1, 3.0, filters))
        self.widths = nn.Parameter(torch.full((filters,), 12.0))
        self.low = nn.Parameter(torch.full((1, filters, 1), 0.4))
        self.alpha, self.delta = (
            nn.Parameter(torch.ones(filters)),
            nn.Parameter(torch.ones(filters)),
        )
        self.root, self.smooth = (
            nn.Parameter(torch.full((filters,), 2.0)),
            nn.Parameter(torch.full((filters,), 0.3)),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(filters * steps, CLASSES))

    def _gabor(self) -> Tensor:
        t = torch.arange(-(self.size // 2), self.size // 2 + 1, dtype=torch.float32)
        centers = self.centers.clamp(0, math.pi)[:, None]
        widths = self.widths.clamp(4.0, float(self.size))[:, None]
        envelope = torch.exp(-(t**2) / (2 * widths**2)) / (math.sqrt(2 * math.pi) * widths)
        waves = torch.polar(envelope, centers * t)
        return torch.view_as_real(waves).permute(0, 2, 1).reshape(-1, 1, self.size)

    def forward(self, x: Tensor) -> Tensor:
        b, filters = x.shape[0], self.centers.numel()
        y = functional.conv1d(x.unsqueeze(1), self._gabor(), padding=self.size // 2)
        power = y.view(b, filters, 2, -1).square().sum(2)
        t = torch.linspace(-1, 1, 125)
        low = torch.exp(-0.5 * (t / self.low.clamp(0.02, 0.5)) ** 2).permute(1, 0, 2)
        pooled = functional.conv1d(power, low, stride=125, groups=filters, padding=62)
        floor = pooled.clamp(min=1e-5)
        smooth = self.smooth.clamp(0, 1)
        state, states = floor[:, :, 0], []
        for step in range(floor.shape[-1]):
            state = smooth * floor[:, :, step] + (1 - smooth) * state
            states.append(state)
        ema = torch.stack(states, -1)
        alpha = torch.minimum(self.alpha, torch.ones_like(self.alpha)).view(1, -1, 1)
        root = (1 / torch.maximum(self.root, torch.ones_like(self.root))).view(1, -1, 1)
        delta = self.delta.view(1, -1, 1)
        logits: Tensor = self.head((floor / (1e-6 + ema) ** alpha + delta) ** root - delta**root)
        return logits


def _yamnet() -> nn.Module:
    """MobileNet v1 over a patch of log-mel."""

    def separable(before: int, after: int, stride: int) -> list[nn.Module]:
        depthwise = nn.Conv2d(before, before, 3, stride, 1, groups=before, bias=False)
        pointwise = nn.Conv2d(before, after, 1, bias=False)
        norms = (nn.BatchNorm2d(n, eps=1e-4) for n in (before, after))
        return [depthwise, next(norms), nn.ReLU(), pointwise, next(norms), nn.ReLU()]

    stem = [nn.Conv2d(1, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8, eps=1e-4), nn.ReLU()]
    blocks = [*separable(8, 16, 1), *separable(16, 16, 2), *separable(16, 32, 1)]
    rest = (nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(32, CLASSES))
    return nn.Sequential(LogMel(), nn.Unflatten(1, (1, _BANDS)), *stem, *blocks, *rest)


class _Kwt(nn.Module):
    """KWT: each frame is a token; attention after the norm, as in the paper."""

    def __init__(self, width: int = 24, heads: int = 2) -> None:
        super().__init__()
        self.mel, self.norm0 = LogMel(), nn.InstanceNorm1d(_BANDS)
        self.project = nn.Linear(_BANDS, width)
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, 33, width))
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out, self.norm1, self.norm2 = (
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.LayerNorm(width),
        )
        self.mlp = nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.project(self.norm0(self.mel(x)).transpose(1, 2))
        b, n, _ = x.shape
        x = torch.cat((self.token.repeat(b, 1, 1), x), dim=1)
        x = x + self.places[:, : n + 1]
        q, k, v = self.qkv(x).reshape(b, n + 1, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        attn = torch.einsum("bhid,bhjd->bhij", q, k).mul(self.scale).softmax(dim=-1)
        out = torch.einsum("bhij,bhjd->bhid", attn, v).permute(0, 2, 1, 3).flatten(2)
        x = self.norm1(self.out(out) + x)
        x = self.norm2(self.mlp(x) + x)
        logits: Tensor = self.head(x[:, 0])
        return logits


class _Res2Block(nn.Module):
    """ECAPA-TDNN: groups of channels, each with what the one before gave, then squeeze, excite."""

    def __init__(self, width: int = 16, scale: int = 4, dilation: int = 2) -> None:
        super().__init__()
        part = width // scale
        self.convs = nn.ModuleList(
            nn.Conv1d(part, part, 3, padding=dilation, dilation=dilation) for _ in range(scale - 1)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(part) for _ in range(scale - 1))
        self.part, self.se = (
            part,
            nn.Sequential(nn.Linear(width, 4), nn.ReLU(), nn.Linear(4, width)),
        )

    def forward(self, x: Tensor) -> Tensor:
        pieces = torch.split(x, self.part, 1)
        results = [pieces[0]]
        for n, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            piece = pieces[n + 1] if n == 0 else results[-1] + pieces[n + 1]
            results.append(norm(functional.relu(conv(piece))))
        y = torch.cat(results, dim=1)
        return x + y * torch.sigmoid(self.se(y.mean(dim=2))).unsqueeze(2)


class _Ecapa(nn.Module):
    """ECAPA-TDNN with statistics that attention weighs, and additive-margin-free logits."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.mel, self.norm = LogMel(), nn.InstanceNorm1d(_BANDS)
        self.conv = nn.Sequential(nn.Conv1d(_BANDS, width, 5, padding=2), nn.ReLU())
        self.block1, self.block2 = _Res2Block(width), _Res2Block(width, dilation=3)
        self.attention = nn.Sequential(
            nn.Conv1d(3 * 2 * width, 16, 1), nn.Tanh(), nn.Conv1d(16, 2 * width, 1)
        )
        self.bn, self.weight = nn.BatchNorm1d(4 * width), nn.Parameter(torch.empty(CLASSES, 64))
        nn.init.xavier_normal_(self.weight, gain=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(self.norm(self.mel(x)))
        one = self.block1(x)
        y = torch.cat((one, self.block2(x + one)), dim=1)
        t = y.size()[-1]
        mean, std = (
            torch.mean(y, dim=2, keepdim=True),
            torch.sqrt(torch.var(y, dim=2, keepdim=True).clamp(min=1e-4)),
        )
        whole = torch.cat((y, mean.repeat(1, 1, t), std.repeat(1, 1, t)), dim=1)
        w = torch.softmax(self.attention(whole), dim=2)
        mu = torch.sum(y * w, dim=2)
        sg = torch.sqrt((torch.sum((y**2) * w, dim=2) - mu**2).clamp(min=1e-4))
        vector = self.bn(torch.cat((mu, sg), 1))
        return 10 * functional.linear(
            functional.normalize(vector), functional.normalize(self.weight)
        )


def _sound(name: str, build: Callable[[], nn.Module]) -> SweepCase:
    shape = (_SAMPLES,)
    return SweepCase(name=name, group="architectures", build=build, input_shape=shape, whole=True)


CASES: tuple[SweepCase, ...] = (
    _sound("SincNet", _SincNet),
    _sound("M5", _M5),
    _sound("CRNN over log-mel", _Crnn),
    _sound("AST", _Ast),
    _sound("BC-ResNet", _bc_resnet),
    _sound("MatchboxNet", _matchbox),
    _sound("wav2vec 2.0", _Wav2Vec),
    _sound("LEAF", _Leaf),
    _sound("YAMNet", _yamnet),
    _sound("Keyword Transformer", _Kwt),
    _sound("ECAPA-TDNN", _Ecapa),
)
