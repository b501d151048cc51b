"""What mixes words in place of attention, and encoders of words, as their authors write them.

Sources: FNet (arXiv:2105.03824), Mamba (arXiv:2312.00752), Mamba-2 (arXiv:2405.21060), RWKV
(arXiv:2305.13048), RetNet (arXiv:2307.08621), Hyena (arXiv:2302.10866), QRNN (arXiv:1611.01576),
Switch (arXiv:2101.03961), DistilBERT (arXiv:1910.01108), ELECTRA (arXiv:2003.10555), ALBERT
(arXiv:1909.11942).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from protofleet.export.sweep.cases import CLASSES, SweepCase
from protofleet.export.sweep.texts import Decoder, RmsNorm, SwiGlu

_TOKENS, _LENGTH, _WIDTH = 200, 24, 32


class _Fourier(nn.Module):
    """FNet: the real part of a transform over words and channels."""

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real
        return result


class _SelectiveScan(nn.Module):
    """Mamba's block with the scan in a loop, as its reference has it."""

    def __init__(self, inner: int = 32, states: int = 4, rank: int = 4) -> None:
        super().__init__()
        self.in_proj = nn.Linear(_WIDTH, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, 4, groups=inner, padding=3)
        self.x_proj = nn.Linear(inner, rank + 2 * states, bias=False)
        self.dt_proj, self.sizes = nn.Linear(rank, inner), [rank, states, states]
        self.A_log = nn.Parameter(torch.log(torch.arange(1, states + 1).float().repeat(inner, 1)))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, _WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        u, gate = self.in_proj(x).chunk(2, dim=-1)
        u = self.conv1d(u.transpose(1, 2))[..., :length].transpose(1, 2)
        u = functional.silu(u)
        delta, b, c = torch.split(self.x_proj(u), self.sizes, dim=-1)
        delta = functional.softplus(self.dt_proj(delta))
        y = self._scan(u, delta, -torch.exp(self.A_log.float()), b, c)
        result: Tensor = self.out_proj((y + u * self.D) * functional.silu(gate))
        return result

    @staticmethod
    def _scan(u: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        decay = torch.exp(torch.einsum("bld,dn->bldn", delta, a))
        drive = torch.einsum("bld,bln,bld->bldn", delta, b, u)
        state = torch.zeros_like(drive[:, 0])
        ys = []
        for i in range(u.shape[1]):
            state = decay[:, i] * state + drive[:, i]
            ys.append(torch.einsum("bdn,bn->bd", state, c[:, i, :]))
        return torch.stack(ys, dim=1)


def _segment_sums(x: Tensor) -> Tensor:
    """Sums of x from j + 1 to i for all pairs; -∞ above the diagonal."""
    length = x.size(-1)
    wide = x.unsqueeze(-1).repeat(1, 1, 1, length)
    below = torch.tril(torch.ones(length, length, dtype=torch.bool), diagonal=-1)
    sums = torch.cumsum(wide.masked_fill(~below, 0), dim=-2)
    return sums.masked_fill(~torch.tril(torch.ones_like(below)), -torch.inf)


class _StateSpaceDual(nn.Module):
    """Mamba-2 as a product with a matrix of decays."""

    def __init__(self, heads: int = 4, states: int = 8) -> None:
        super().__init__()
        self.in_proj = nn.Linear(_WIDTH, _WIDTH + 2 * states + heads, bias=False)
        self.heads, self.sizes = heads, [_WIDTH, states, states, heads]
        self.dt_bias = nn.Parameter(torch.linspace(-3, 0, heads))
        self.A_log = nn.Parameter(torch.log(torch.arange(1, heads + 1).float()))
        self.norm, self.out_proj = RmsNorm(_WIDTH), nn.Linear(_WIDTH, _WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        values, b, c, dt = torch.split(self.in_proj(x), self.sizes, dim=-1)
        dt = functional.softplus(dt + self.dt_bias)
        values = torch.unflatten(values, -1, (self.heads, -1)) * dt.unsqueeze(-1)
        decays = torch.exp(_segment_sums((dt * -torch.exp(self.A_log)).transpose(1, 2)))
        y = torch.einsum("bln,bsn,bhls,bshp->blhp", c, b, decays, values)
        result: Tensor = self.out_proj(self.norm(y.flatten(2)))
        return result


class _TimeMix(nn.Module):
    """RWKV-4: each word mixed with the one before it, a weighted mean that decays, a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.time_decay = nn.Parameter(torch.linspace(-5, 3, _WIDTH))
        self.time_first = nn.Parameter(torch.ones(_WIDTH) * math.log(0.3))
        self.mix_k, self.mix_v, self.mix_r = (
            nn.Parameter(torch.full((1, 1, _WIDTH), 0.5)) for _ in range(3)
        )
        self.time_shift = nn.ZeroPad2d((0, 0, 1, -1))
        self.key, self.value, self.receptance, self.output = (
            nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        xx = self.time_shift(x)
        k = self.key(x * self.mix_k + xx * (1 - self.mix_k))
        v = self.value(x * self.mix_v + xx * (1 - self.mix_v))
        r = torch.sigmoid(self.receptance(x * self.mix_r + xx * (1 - self.mix_r)))
        decay = -torch.exp(self.time_decay)
        aa, bb = torch.zeros_like(k[:, 0]), torch.zeros_like(k[:, 0])
        pp = torch.full_like(aa, -1e38)
        outputs = []
        for t in range(x.size(1)):
            kk, vv = k[:, t], v[:, t]
            ww = self.time_first + kk
            p = torch.maximum(pp, ww)
            e1, e2 = torch.exp(pp - p), torch.exp(ww - p)
            outputs.append((e1 * aa + e2 * vv) / (e1 * bb + e2))
            ww = pp + decay
            p = torch.maximum(ww, kk)
            e1, e2 = torch.exp(ww - p), torch.exp(kk - p)
            aa, bb, pp = e1 * aa + e2 * vv, e1 * bb + e2, p
        result: Tensor = self.output(r * torch.stack(outputs, dim=1))
        return result


class _ChannelMix(nn.Module):
    """RWKV-4: squared ReLU, gated."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.full((_WIDTH,), 0.5))
        self.key, self.value = nn.Linear(_WIDTH, 64, bias=False), nn.Linear(64, _WIDTH, bias=False)
        self.receptance = nn.Linear(_WIDTH, _WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        xx = torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1]), dim=1)
        xk = torch.lerp(xx, x, self.mix)
        k = torch.square(torch.relu(self.key(xk)))
        result: Tensor = torch.sigmoid(self.receptance(xk)) * self.value(k)
        return result


class _Retention(nn.Module):
    """RetNet: products that decay with the distance, each head normalised by groups."""

    decay: Tensor

    def __init__(self, heads: int = 4) -> None:
        super().__init__()
        self.q, self.k, self.v, self.g, self.o = (
            nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(5)
        )
        gammas = 1 - 2.0 ** (-5 - torch.arange(heads))
        distance = torch.arange(_LENGTH)[:, None] - torch.arange(_LENGTH)[None]
        decay = torch.where(distance >= 0, gammas[:, None, None] ** distance.clamp(min=0), 0.0)
        self.register_buffer("decay", decay)
        self.heads, self.norm = heads, nn.GroupNorm(heads, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        q, k, v = (
            one(x).reshape(b, n, self.heads, -1).permute(0, 2, 1, 3)
            for one in (self.q, self.k, self.v)
        )
        scores = (q @ k.transpose(-1, -2)) * d**-0.5 * self.decay
        scores = scores / scores.detach().abs().sum(-1, keepdim=True).clamp(min=1)
        y = (scores @ v).transpose(1, 2).reshape(b * n, d)
        result: Tensor = self.o(functional.silu(self.g(x)) * self.norm(y).reshape(b, n, d))
        return result


class _Hyena(nn.Module):
    """Hyena: long filters that a small network of positions makes, applied by spectra."""

    places: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.short = nn.Conv1d(3 * _WIDTH, 3 * _WIDTH, 3, padding=2, groups=3 * _WIDTH)
        t = torch.linspace(0, 1, _LENGTH)[:, None]
        bands = 2 * math.pi * torch.arange(1, 4) * t
        self.register_buffer("places", torch.cat([t, torch.cos(bands), torch.sin(bands)], -1))
        self.filter = nn.Sequential(nn.Linear(7, 16), nn.Hardswish(), nn.Linear(16, _WIDTH))
        self.decay, self.bias = (
            nn.Parameter(torch.linspace(0.5, 5, _WIDTH)),
            nn.Parameter(torch.randn(_WIDTH)),
        )

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        u = self.short(self.project(x).transpose(1, 2))[..., :n]
        q, k, v = u.split(_WIDTH, dim=1)
        filters = self.filter(self.places) * torch.exp(-self.places[:, :1] * self.decay.abs())
        k_f = torch.fft.rfft(filters.T, n=2 * n) / (2 * n)
        v = v * k
        u_f = torch.fft.rfft(v, n=2 * n)
        y = torch.fft.irfft(u_f * k_f, n=2 * n, norm="forward")[..., :n]
        y = (y + v * self.bias.unsqueeze(-1)) * q
        result: Tensor = self.out(y.transpose(1, 2))
        return result


class _Qrnn(nn.Module):
    """QRNN: gates by convolutions, a mean that forgets in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(_WIDTH, 3 * _WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        gates = self.conv(functional.pad(x.transpose(1, 2), [1, 0])).permute(2, 0, 1)
        z, f, o = gates.chunk(3, dim=2)
        z, f, o = z.tanh(), f.sigmoid(), o.sigmoid()
        c = [(1 - f[0]) * z[0]]
        for step in range(1, x.shape[1]):
            c.append(f[step] * c[-1] + (1 - f[step]) * z[step])
        result: Tensor = (o * torch.stack(c)).transpose(0, 1)
        return result


class _Switch(nn.Module):
    """Switch: each word goes to its best expert, times the router's trust in it."""

    def __init__(self, experts: int = 3) -> None:
        super().__init__()
        self.router = nn.Linear(_WIDTH, experts)
        self.experts = nn.ModuleList(SwiGlu(_WIDTH, 24) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        b, n, d = x.shape
        flat = x.view(-1, d)
        trust, route = torch.max(self.router(flat).softmax(-1), dim=-1)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            mask = (route == number).unsqueeze(-1)
            out = torch.where(mask, expert(flat), out)
        return (out * trust.unsqueeze(-1)).view(b, n, d)


class _PickedSwitch(_Switch):
    """The same as a repository has it: the words of an expert are picked out of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.view(-1, x.shape[-1])
        trust, route = torch.max(self.router(flat).softmax(-1), dim=-1)
        out = flat.new_zeros(flat.shape)
        for number, expert in enumerate(self.experts):
            places = torch.eq(route, number).nonzero(as_tuple=True)[0]
            out[places, :] = expert(flat[places, :])
        return (out * trust.unsqueeze(-1)).view(*x.shape)


class _BertLayer(nn.Module):
    """DistilBERT's block: a mask of words that are padding, norms behind."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.q_lin, self.k_lin, self.v_lin, self.out_lin = (
            nn.Linear(width, width) for _ in range(4)
        )
        self.sa_norm, self.output_norm = (nn.LayerNorm(width, eps=1e-12) for _ in range(2))
        self.lin1, self.lin2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.heads, self.dropout = heads, nn.Dropout(p=0.1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        bs, length, dim = x.size()
        shape = (bs, -1, self.heads, dim // self.heads)
        q, k, v = (
            one(x).view(shape).transpose(1, 2) for one in (self.q_lin, self.k_lin, self.v_lin)
        )
        scores = torch.matmul(q / math.sqrt(dim // self.heads), k.transpose(2, 3))
        padding = (mask == 0).view(bs, 1, 1, length).expand_as(scores)
        scores = scores.masked_fill(padding, torch.tensor(torch.finfo(scores.dtype).min))
        weights = self.dropout(nn.functional.softmax(scores, dim=-1))
        context = torch.matmul(weights, v).transpose(1, 2).contiguous().view(bs, -1, dim)
        x = self.sa_norm(self.out_lin(context) + x)
        inner = self.dropout(self.lin2(functional.gelu(self.lin1(x))))
        result: Tensor = self.output_norm(inner + x)
        return result


class _Encoder(nn.Module):
    """Words that may be narrower than the layers (ELECTRA), layers that may be one (ALBERT).

    Args:
        narrow: the width of words' vectors.
        shared: all layers are the same.
        kinds: a vector of the sentence's kind is added, as BERT's family has it.
    """

    position_ids: Tensor

    def __init__(self, *, narrow: int = _WIDTH, shared: bool = False, kinds: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(_TOKENS, narrow, padding_idx=0)
        self.places = nn.Embedding(_LENGTH + 8, narrow)
        self.kinds = nn.Embedding(2, narrow) if kinds else None
        self.register_buffer("position_ids", torch.arange(_LENGTH + 8).expand((1, -1)))
        self.norm, self.dropout = nn.LayerNorm(narrow, eps=1e-12), nn.Dropout(0.1)
        self.project = nn.Linear(narrow, _WIDTH) if narrow != _WIDTH else nn.Identity()
        one = _BertLayer(_WIDTH)
        self.layers = nn.ModuleList([one, one] if shared else [one, _BertLayer(_WIDTH)])
        self.pre_classifier, self.classifier = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, CLASSES)

    def forward(self, input_ids: Tensor) -> Tensor:
        mask = (input_ids != 0).long()
        h = self.words(input_ids) + self.places(self.position_ids[:, : input_ids.size(1)])
        if self.kinds is not None:
            h = h + self.kinds(torch.zeros_like(input_ids))
        h = self.project(self.dropout(self.norm(h)))
        for layer in self.layers:
            h = layer(h, mask)
        pooled = nn.ReLU()(self.pre_classifier(h[:, 0]))
        logits: Tensor = self.classifier(self.dropout(pooled))
        return logits


def _text(name: str, build: Callable[[], nn.Module], length: int = _LENGTH) -> SweepCase:
    return SweepCase(
        name=name,
        group="architectures",
        build=build,
        input_shape=(length,),
        tokens=_TOKENS,
        whole=True,
    )


CASES: tuple[SweepCase, ...] = (
    _text("FNet", lambda: Decoder(_Fourier)),
    _text(
        "Mamba, scan in a loop of 12",
        lambda: Decoder(_SelectiveScan, nn.Identity, RmsNorm),
        length=12,
    ),
    _text("Mamba-2", lambda: Decoder(_StateSpaceDual, nn.Identity, RmsNorm)),
    _text("RWKV-4 in a loop of 12", lambda: Decoder(_TimeMix, _ChannelMix), length=12),
    _text("RetNet", lambda: Decoder(_Retention, SwiGlu)),
    _text("Hyena", lambda: Decoder(_Hyena)),
    _text("QRNN", lambda: Decoder(_Qrnn)),
    _text("Switch, all experts computed", lambda: Decoder(nn.Identity, _Switch)),
    _text("Switch, words picked by expert", lambda: Decoder(nn.Identity, _PickedSwitch)),
    _text("DistilBERT", _Encoder),
    _text("ELECTRA", lambda: _Encoder(narrow=16, kinds=True)),
    _text("ALBERT", lambda: _Encoder(narrow=16, shared=True, kinds=True)),
)
