"""Architectures of texts, as their authors write them: words (length,) below a vocabulary.

Sources: DPCNN (Johnson 2017), RCNN (Lai 2015), HAN (Yang 2016), CharCNN (arXiv:1509.01626), BiLSTM
with attention (Zhou 2016), ALiBi (arXiv:2108.12409), rotary positions (arXiv:2104.09864), LLaMA
(arXiv:2302.13971), T5 (arXiv:1910.10683), Transformer-XL (arXiv:1901.02860), linear attention
(arXiv:2006.16236), Performer (arXiv:2009.14794), Linformer (arXiv:2006.04768), Longformer
(arXiv:2004.05150).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from protofleet.export.sweep.cases import CLASSES, SweepCase

_TOKENS, _LENGTH = 200, 24
_WIDTH, _HEADS = 32, 4


class _Dpcnn(nn.Module):
    """Pairs of convolutions with a short cut, half as long each time, until one step is left."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_TOKENS, _WIDTH, padding_idx=0)
        self.region = nn.Conv2d(1, width, (3, _WIDTH))
        self.conv = nn.Conv2d(width, width, (3, 1))
        self.padding1, self.padding2 = nn.ZeroPad2d((0, 0, 1, 1)), nn.ZeroPad2d((0, 0, 0, 1))
        self.max_pool, self.fc = nn.MaxPool2d((3, 1), stride=2), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.region(self.embedding(x).unsqueeze(1))
        x = self._twice(x)
        while x.size()[2] > 2:
            px = self.max_pool(self.padding2(x))
            x = px + self._twice(px)
        logits: Tensor = self.fc(x.amax(2).squeeze(-1))
        return logits

    def _twice(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.conv(functional.relu(self.padding1(x)))
        return x


class _Rcnn(nn.Module):
    """A bidirectional LSTM beside the words themselves, the largest over time."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_TOKENS, _WIDTH, padding_idx=_TOKENS - 1)
        self.lstm = nn.LSTM(_WIDTH, hidden, bidirectional=True, batch_first=True)
        self.maxpool, self.fc = nn.MaxPool1d(_LENGTH), nn.Linear(2 * hidden + _WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        embed = self.embedding(x)
        out, _ = self.lstm(embed)
        out = functional.relu(torch.cat((embed, out), 2)).permute(0, 2, 1)
        logits: Tensor = self.fc(self.maxpool(out).squeeze(-1))
        return logits


class _WordAttention(nn.Module):
    """A GRU whose steps a learned context weighs."""

    def __init__(self, before: int, hidden: int) -> None:
        super().__init__()
        self.gru = nn.GRU(before, hidden, bidirectional=True, batch_first=True)
        self.project, self.context = nn.Linear(2 * hidden, 16), nn.Parameter(torch.randn(16, 1))

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.gru(x)
        scores = torch.matmul(torch.tanh(self.project(h)), self.context)
        result: Tensor = (h * torch.softmax(scores, dim=1)).sum(1)
        return result


class _Han(nn.Module):
    """Sentences of six words, each read by one network, together by another."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_TOKENS, 16)
        self.words, self.sentences = _WordAttention(16, 8), _WordAttention(16, 8)
        self.fc = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        b = x.size(0)
        sentences = self.words(self.embedding(x.view(b * 4, _LENGTH // 4)))
        logits: Tensor = self.fc(self.sentences(sentences.view(b, 4, -1)))
        return logits


class _CharCnn(nn.Module):
    """Characters as one-hot rows."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(_TOKENS, 16, 7), nn.ReLU(), nn.MaxPool1d(3), nn.Conv1d(16, 16, 3), nn.ReLU()
        )
        self.fc = nn.Sequential(
            nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, CLASSES)
        )

    def forward(self, x: Tensor) -> Tensor:
        rows = functional.one_hot(x, _TOKENS).float().transpose(1, 2)
        logits: Tensor = self.fc(self.conv(rows).flatten(1))
        return logits


class _AttentiveBiLstm(nn.Module):
    """The sum of both directions, weighed by a learned vector; padding is masked out."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_TOKENS, _WIDTH, padding_idx=0)
        self.lstm = nn.LSTM(_WIDTH, hidden, 2, bidirectional=True, dropout=0.3, batch_first=True)
        self.w, self.fc = nn.Parameter(torch.randn(1, hidden, 1)), nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.embedding(x))
        forward, backward = torch.split(outputs, outputs.shape[2] // 2, dim=2)
        h = forward + backward
        scores = torch.bmm(torch.tanh(h), self.w.repeat(h.size(0), 1, 1)).squeeze(-1)
        scores = scores.masked_fill(x.eq(0), -1e9)
        alpha = torch.softmax(scores, 1).unsqueeze(1)
        logits: Tensor = self.fc(torch.tanh(torch.bmm(alpha, h).squeeze(1)))
        return logits


def _heads_of(x: Tensor) -> Tensor:
    return x.view(x.shape[0], x.shape[1], _HEADS, -1).transpose(1, 2)


def _joined(x: Tensor) -> Tensor:
    return x.transpose(1, 2).contiguous().view(x.shape[0], x.shape[2], -1)


class _Attention(nn.Module):
    """Projections, and what a kind of attention does with queries, keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (_heads_of(one(x)) for one in (self.q_proj, self.k_proj, self.v_proj))
        mixed: Tensor = self.o_proj(_joined(self.attend(q, k, v)))
        return mixed

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """As PyTorch does it."""
        return functional.scaled_dot_product_attention(q, k, v)


class _Alibi(_Attention):
    """Scores fall with the distance, by a slope of each head; later words are masked."""

    bias: Tensor

    def __init__(self) -> None:
        super().__init__()
        slopes = 2.0 ** (-8.0 / _HEADS * torch.arange(1, _HEADS + 1))
        places = torch.arange(_LENGTH)
        bias = slopes.view(-1, 1, 1) * (places[None, :] - places[:, None])
        mask = torch.full((_LENGTH, _LENGTH), float("-inf")).triu(1)
        self.register_buffer("bias", bias + mask, persistent=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)) + self.bias
        return functional.softmax(scores.float(), dim=-1).type_as(q) @ v


def _half_turned(x: Tensor) -> Tensor:
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


class _Rotary(_Attention):
    """Queries and keys turned by their places; causal by PyTorch's own attention."""

    inv_freq: Tensor

    def __init__(self) -> None:
        super().__init__()
        size = _WIDTH // _HEADS
        inv_freq = 1.0 / (10000 ** (torch.arange(0, size, 2).float() / size))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        t = torch.arange(q.shape[-2], device=q.device, dtype=self.inv_freq.dtype)
        angles = torch.einsum("i,j->ij", t, self.inv_freq)
        emb = torch.cat((angles, angles), dim=-1)
        cos, sin = emb.cos()[None, None], emb.sin()[None, None]
        q, k = (x * cos + _half_turned(x) * sin for x in (q, k))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class _ComplexRotary(_Attention):
    """The same as Meta writes it: pairs are complex numbers, grouped keys are repeated."""

    def __init__(self) -> None:
        super().__init__()
        self.k_proj, self.v_proj = (nn.Linear(_WIDTH, _WIDTH // 2, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.q_proj(x).view(b, n, _HEADS, -1)
        k, v = (one(x).view(b, n, _HEADS // 2, -1) for one in (self.k_proj, self.v_proj))
        q, k = self._turned(q), self._turned(k)
        k, v = (
            y[:, :, :, None, :].expand(b, n, _HEADS // 2, 2, y.shape[-1]).reshape(b, n, _HEADS, -1)
            for y in (k, v)
        )
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(q.shape[-1])
        mask = torch.triu(torch.full((1, 1, n, n), float("-inf")), diagonal=1).type_as(scores)
        scores = functional.softmax((scores + mask).float(), dim=-1).type_as(q)
        mixed: Tensor = self.o_proj(_joined(torch.matmul(scores, v)))
        return mixed

    @staticmethod
    def _turned(x: Tensor) -> Tensor:
        size = x.shape[-1]
        freqs = 1.0 / (10000.0 ** (torch.arange(0, size, 2)[: size // 2].float() / size))
        angles = torch.outer(torch.arange(x.shape[1]), freqs).float()
        turns = torch.polar(torch.ones_like(angles), angles).view(1, x.shape[1], 1, size // 2)
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


class _RelativeBias(_Attention):
    """T5: a learned bias for buckets of distances, finer for the near ones, no scale."""

    def __init__(self, buckets: int = 16, far: int = 32) -> None:
        super().__init__()
        self.relative = nn.Embedding(buckets, _HEADS)
        self.buckets, self.far = buckets, far

    def _bucket(self, distance: Tensor) -> Tensor:
        buckets = self.buckets // 2
        result = (distance > 0).to(torch.long) * buckets
        distance = torch.abs(distance)
        exact = buckets // 2
        scale = torch.log(distance.float() / exact) / math.log(self.far / exact)
        large = exact + (scale * (buckets - exact)).to(torch.long)
        large = torch.min(large, torch.full_like(large, buckets - 1))
        return result + torch.where(distance < exact, distance, large)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        context = torch.arange(q.size(2), dtype=torch.long)[:, None]
        memory = torch.arange(k.size(2), dtype=torch.long)[None, :]
        bias = self.relative(self._bucket(memory - context)).permute([2, 0, 1]).unsqueeze(0)
        scores = torch.matmul(q, k.transpose(3, 2)) + bias
        weights = functional.dropout(functional.softmax(scores, dim=-1), 0.1, self.training)
        return torch.matmul(weights, v)


class _RelativeShift(_Attention):
    """Transformer-XL: scores with positions, moved into place by padding and a view."""

    def __init__(self) -> None:
        super().__init__()
        self.r = nn.Parameter(0.1 * torch.randn(_HEADS, 2 * _LENGTH - 1, _WIDTH // _HEADS))
        self.u, self.w = (nn.Parameter(torch.zeros(_HEADS, 1, _WIDTH // _HEADS)) for _ in range(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        b, h, n, _ = q.shape
        content = torch.einsum("bhid,bhjd->bhij", q + self.u, k)
        places = torch.einsum("bhid,hjd->bhij", q + self.w, self.r)
        padded = torch.cat([torch.zeros((b, h, n, 1)), places], dim=-1)
        shifted = padded.view(b, h, 2 * n, n)[:, :, 1:].view_as(places)[..., :n]
        return ((content + shifted) / math.sqrt(q.size(-1))).softmax(-1) @ v


class _Linear(_Attention):
    """Linear attention: elu + 1 of queries and keys, causal by cumulated sums."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        kv = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(dim=2)
        z = 1 / (torch.einsum("bhnd,bhnd->bhn", q, k.cumsum(2)) + 1e-6)
        return torch.einsum("bhnd,bhnde,bhn->bhne", q, kv, z)


class _Performer(_Attention):
    """Performer: positive random features that are orthogonal, drawn once."""

    projection: Tensor

    def __init__(self, features: int = 16) -> None:
        super().__init__()
        size = _WIDTH // _HEADS
        blocks = [torch.linalg.qr(torch.randn(size, size))[0].T for _ in range(features // size)]
        lengths = torch.randn(features, size).norm(dim=1)
        self.register_buffer("projection", torch.diag(lengths) @ torch.cat(blocks))

    def _features(self, x: Tensor, *, query: bool) -> Tensor:
        x = x * x.shape[-1] ** -0.25
        dash = torch.einsum("...id,jd->...ij", x, self.projection)
        diagonal = ((x**2).sum(dim=-1) / 2.0).unsqueeze(dim=-1)
        axes = (-1,) if query else (-1, -2)
        largest = torch.amax(dash, dim=axes, keepdim=True).detach()
        features: Tensor = torch.exp(dash - diagonal - largest) + 1e-4
        return features / math.sqrt(self.projection.shape[0])

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = self._features(q, query=True), self._features(k, query=False)
        inverse = 1.0 / torch.einsum("...nd,...d->...n", q, k.sum(dim=-2))
        context = torch.einsum("...nd,...ne->...de", k, v)
        return torch.einsum("...de,...nd,...n->...ne", context, q, inverse)


class _Linformer(_Attention):
    """Linformer: keys and values projected along the length."""

    def __init__(self, short: int = 8) -> None:
        super().__init__()
        self.e, self.f = (nn.Parameter(torch.randn(_LENGTH, short) / 5) for _ in range(2))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k = torch.einsum("bhnd,nk->bhkd", k, self.e)
        v = torch.einsum("bhnd,nk->bhkd", v, self.f)
        return (q @ k.mT / math.sqrt(q.size(-1))).softmax(-1) @ v


class _Window(_Attention):
    """Longformer: chunks of keys by ``unfold``, and the first word seen by all."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        w, n = 4, q.shape[2]
        keys, values = (
            functional.pad(y, (0, 0, w, w), value=0.0).unfold(2, 2 * w + 1, 1) for y in (k, v)
        )
        scores = torch.einsum("bhnd,bhndw->bhnw", q, keys)
        places = torch.arange(n)[:, None] + torch.arange(-w, w + 1)[None, :]
        outside = (places < 0) | (places >= n)
        scores = scores.masked_fill(outside, torch.finfo(scores.dtype).min)
        whole = torch.einsum("bhnd,bhd->bhn", q, k[:, :, 0]).unsqueeze(-1)
        weights = torch.cat((whole, scores), dim=-1).div(math.sqrt(q.size(-1))).softmax(-1)
        local = torch.einsum("bhnw,bhndw->bhnd", weights[..., 1:], values)
        return local + weights[..., :1] * v[:, :, :1]


class RmsNorm(nn.Module):
    """LLaMA's normalisation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        """The rows with a mean square of 1."""
        y = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * y.to(x.dtype)


class SwiGlu(nn.Module):
    """LLaMA's gated layer."""

    def __init__(self, width: int = _WIDTH, hidden: int = 48) -> None:
        super().__init__()
        self.w1, self.w3 = (
            nn.Linear(width, hidden, bias=False),
            nn.Linear(width, hidden, bias=False),
        )
        self.w2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Rows of the same width."""
        result: Tensor = self.w2(functional.silu(self.w1(x)) * self.w3(x))
        return result


class _Gelu(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(_WIDTH, 64), nn.GELU(), nn.Linear(64, _WIDTH), nn.Dropout(0.1))


class Decoder(nn.Module):
    """Words embedded, blocks of two parts with short cuts, normed; the mean classifies.

    Args:
        mixer: what mixes along the length.
        mlp: what mixes channels.
        norm: before each.
    """

    def __init__(
        self,
        mixer: Callable[[], nn.Module],
        mlp: Callable[[], nn.Module] = _Gelu,
        norm: Callable[[int], nn.Module] = nn.LayerNorm,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(_TOKENS, _WIDTH)
        self.mixer, self.mlp = mixer(), mlp()
        self.norm1, self.norm2, self.norm3 = (norm(_WIDTH) for _ in range(3))
        self.head = nn.Linear(_WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        h = self.words(x)
        h = h + self.mixer(self.norm1(h))
        h = h + self.mlp(self.norm2(h))
        logits: Tensor = self.head(self.norm3(h).mean(dim=1))
        return logits


def _text(name: str, build: Callable[[], nn.Module]) -> SweepCase:
    return SweepCase(
        name=name,
        group="architectures",
        build=build,
        input_shape=(_LENGTH,),
        tokens=_TOKENS,
        whole=True,
    )


CASES: tuple[SweepCase, ...] = (
    _text("DPCNN", _Dpcnn),
    _text("RCNN", _Rcnn),
    _text("HAN", _Han),
    _text("CharCNN", _CharCnn),
    _text("BiLSTM with attention", _AttentiveBiLstm),
    _text("ALiBi", lambda: Decoder(_Alibi)),
    _text("Rotary positions", lambda: Decoder(_Rotary)),
    _text("LLaMA", lambda: Decoder(_ComplexRotary, SwiGlu, RmsNorm)),
    _text("T5's relative bias", lambda: Decoder(_RelativeBias)),
    _text("Transformer-XL's shift", lambda: Decoder(_RelativeShift)),
    _text("Linear attention", lambda: Decoder(_Linear)),
    _text("Performer", lambda: Decoder(_Performer)),
    _text("Linformer", lambda: Decoder(_Linformer)),
    _text("Longformer's window", lambda: Decoder(_Window)),
)
