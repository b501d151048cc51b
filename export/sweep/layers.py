"""Layers with weights, normalisation, attention and dropout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from protofleet.export.sweep.cases import SweepCase, function

_SERIES = (4, 12)
_IMAGE = (4, 6, 6)
_VOLUME = (2, 4, 4, 4)
_TOKENS = (5, 8)
_VOCABULARY = 11


def _layer(
    name: str,
    build: Callable[[], nn.Module],
    input_shape: tuple[int, ...],
    *,
    group: str,
    tokens: int | None = None,
) -> SweepCase:
    return SweepCase(name=name, group=group, build=build, input_shape=input_shape, tokens=tokens)


class _Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(3, 3, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Of the two halves of ``x``."""
        y: Tensor = self.layer(*x.chunk(2, -1))
        return y


class _Attention(nn.Module):
    """Self-attention, with what the caller passes on beside the tokens."""

    def __init__(self, *, weights: bool = False, mask: bool = False, **kwargs: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, **kwargs)
        self.weights, self.first = weights, bool(kwargs.get("batch_first"))
        self.register_buffer("mask", torch.ones(5, 5).triu(1).bool() if mask else None)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 5, 8) → (B, 5, 8), or with the weights beside it."""
        x = x if self.first else x.transpose(0, 1)
        y, weights = self.attention(x, x, x, need_weights=self.weights, attn_mask=self.mask)
        y = y if self.first else y.transpose(0, 1)
        return y if weights is None else torch.cat((y, weights), -1)


class _Norms(nn.Module):
    """Two linear layers, the second without bias."""

    def __init__(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.first = wrap(nn.Linear(12, 7))
        self.second = wrap(nn.Linear(7, 5, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """One after the other."""
        y: Tensor = self.second(torch.tanh(self.first(x)))
        return y


class _Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens that look at their own sines."""
        y: Tensor = self.layer(x, x.sin())
        return y


def _encoder(**kwargs: Any) -> nn.TransformerEncoderLayer:
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **kwargs)


def _convolution(
    kind: type[nn.Module], shape: tuple[int, ...], *args: Any, **kwargs: Any
) -> SweepCase:
    given = [*map(str, args), *(f"{k}={v}" for k, v in kwargs.items())]
    name = f"nn.{kind.__name__}({', '.join(given)})"
    return _layer(name, lambda: kind(*args, **kwargs), shape, group="convolutions")


_CONVOLUTIONS = (
    _convolution(nn.Conv1d, _SERIES, 4, 6, 3),
    _convolution(nn.Conv1d, _SERIES, 4, 6, 3, stride=2, padding=1, dilation=2, groups=2),
    _convolution(nn.Conv1d, _SERIES, 4, 6, 5, padding="same", bias=False),
    _convolution(nn.Conv1d, _SERIES, 4, 4, 3, padding=1, padding_mode="circular"),
    _convolution(nn.Conv1d, _SERIES, 4, 4, 3, padding=1, padding_mode="reflect"),
    _convolution(nn.Conv1d, _SERIES, 4, 4, 3, padding=1, padding_mode="replicate"),
    _convolution(nn.Conv2d, _IMAGE, 4, 6, 3, stride=2, padding=1),
    _convolution(nn.Conv2d, _IMAGE, 4, 8, 3, groups=4, padding=1),
    _convolution(nn.Conv2d, _IMAGE, 4, 4, 3, groups=2, dilation=2, padding="same"),
    _convolution(nn.Conv2d, _IMAGE, 4, 4, 3, padding=1, padding_mode="circular"),
    _convolution(nn.Conv2d, _IMAGE, 4, 4, 3, padding=1, padding_mode="reflect"),
    _convolution(nn.Conv3d, _VOLUME, 2, 4, 3),
    _convolution(
        nn.Conv3d, _VOLUME, 2, 4, (3, 2, 1), stride=(1, 2, 1), padding=(1, 0, 1), groups=2
    ),
    _convolution(nn.ConvTranspose1d, _SERIES, 4, 6, 3, stride=2),
    _convolution(nn.ConvTranspose2d, _IMAGE, 4, 6, 3, stride=2, padding=1, output_padding=1),
    _convolution(nn.ConvTranspose3d, _VOLUME, 2, 3, 2, stride=2),
)

_NORMALISATION = tuple(
    _layer(name, build, shape, group="normalisation")
    for name, build, shape in (
        ("nn.BatchNorm1d", lambda: nn.BatchNorm1d(4), _SERIES),
        ("nn.BatchNorm1d, features", lambda: nn.BatchNorm1d(12), (12,)),
        ("nn.BatchNorm2d", lambda: nn.BatchNorm2d(4), _IMAGE),
        ("nn.BatchNorm2d, no affine", lambda: nn.BatchNorm2d(4, affine=False), _IMAGE),
        (
            "nn.BatchNorm2d, no running stats",
            lambda: nn.BatchNorm2d(4, track_running_stats=False),
            _IMAGE,
        ),
        ("nn.BatchNorm3d", lambda: nn.BatchNorm3d(2), _VOLUME),
        ("nn.InstanceNorm1d", lambda: nn.InstanceNorm1d(4), _SERIES),
        ("nn.InstanceNorm1d, affine", lambda: nn.InstanceNorm1d(4, affine=True), _SERIES),
        ("nn.InstanceNorm2d, affine", lambda: nn.InstanceNorm2d(4, affine=True), _IMAGE),
        (
            "nn.InstanceNorm2d, running stats",
            lambda: nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
            _IMAGE,
        ),
        ("nn.LocalResponseNorm", lambda: nn.LocalResponseNorm(3), _IMAGE),
        ("nn.LocalResponseNorm, series", lambda: nn.LocalResponseNorm(2, alpha=0.5), _SERIES),
        ("nn.GroupNorm", lambda: nn.GroupNorm(2, 4), _IMAGE),
        ("nn.GroupNorm, no affine", lambda: nn.GroupNorm(4, 4, affine=False), _SERIES),
        ("nn.LayerNorm", lambda: nn.LayerNorm(12), _SERIES),
        ("nn.LayerNorm, no bias", lambda: nn.LayerNorm(12, bias=False), _SERIES),
        ("nn.LayerNorm, two axes", lambda: nn.LayerNorm((4, 12)), _SERIES),
        (
            "nn.LayerNorm, no affine",
            lambda: nn.LayerNorm(12, elementwise_affine=False),
            _SERIES,
        ),
        ("nn.RMSNorm", lambda: nn.RMSNorm(12), _SERIES),
        ("weight_norm", lambda: _Norms(nn.utils.weight_norm), _SERIES),
        ("parametrizations.weight_norm", lambda: _Norms(parametrizations.weight_norm), _SERIES),
        (
            "parametrizations.weight_norm, Conv1d",
            lambda: parametrizations.weight_norm(nn.Conv1d(4, 6, 3)),
            _SERIES,
        ),
        ("spectral_norm", lambda: _Norms(nn.utils.spectral_norm), _SERIES),
        ("parametrizations.spectral_norm", lambda: _Norms(parametrizations.spectral_norm), _SERIES),
        (
            "parametrizations.spectral_norm, Conv1d",
            lambda: parametrizations.spectral_norm(nn.Conv1d(4, 6, 3)),
            _SERIES,
        ),
    )
)

_LAYERS = (
    *(
        _layer(name, build, shape, group="layers")
        for name, build, shape in (
            ("nn.Identity", nn.Identity, _SERIES),
            ("nn.Linear", lambda: nn.Linear(12, 5), _SERIES),
            ("nn.Linear, no bias", lambda: nn.Linear(12, 5, bias=False), _SERIES),
            ("nn.Bilinear", _Bilinear, (6,)),
            ("nn.Bilinear, several rows", _Bilinear, (4, 6)),
            ("nn.ChannelShuffle", lambda: nn.ChannelShuffle(2), _IMAGE),
            (
                "nn.Flatten, nn.Unflatten",
                lambda: nn.Sequential(nn.Flatten(), nn.Unflatten(1, (6, 8))),
                _SERIES,
            ),
            ("nn.Dropout", nn.Dropout, _SERIES),
            ("nn.Dropout1d", nn.Dropout1d, _SERIES),
            ("nn.Dropout2d", nn.Dropout2d, _IMAGE),
            ("nn.Dropout3d", nn.Dropout3d, _VOLUME),
            ("nn.AlphaDropout", nn.AlphaDropout, _SERIES),
            ("nn.FeatureAlphaDropout", nn.FeatureAlphaDropout, _IMAGE),
        )
    ),
    *(
        _layer(name, build, (7,), group="layers", tokens=_VOCABULARY)
        for name, build in (
            ("nn.Embedding", lambda: nn.Embedding(_VOCABULARY, 4)),
            ("nn.Embedding, padding_idx", lambda: nn.Embedding(_VOCABULARY, 4, padding_idx=0)),
            (
                "nn.Embedding, scale_grad_by_freq",
                lambda: nn.Embedding(_VOCABULARY, 4, scale_grad_by_freq=True),
            ),
            ("nn.EmbeddingBag, sum", lambda: nn.EmbeddingBag(_VOCABULARY, 4, mode="sum")),
            ("nn.EmbeddingBag, mean", lambda: nn.EmbeddingBag(_VOCABULARY, 4, padding_idx=0)),
            ("nn.EmbeddingBag, max", lambda: nn.EmbeddingBag(_VOCABULARY, 4, mode="max")),
        )
    ),
)


class _MaskedAttention(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(
            x,
            x.tanh(),
            x.sin(),
            attn_mask=torch.ones(5, 5).tril().bool(),
            dropout_p=0.2 if self.training else 0.0,
        )


_ATTENTION = (
    *(
        _layer(name, build, _TOKENS, group="attention")
        for name, build in (
            ("nn.MultiheadAttention", lambda: _Attention(weights=True)),
            ("nn.MultiheadAttention, batch_first", lambda: _Attention(batch_first=True)),
            (
                "nn.MultiheadAttention, mask and dropout",
                lambda: _Attention(batch_first=True, mask=True, dropout=0.3),
            ),
            (
                "nn.MultiheadAttention, mask and weights",
                lambda: _Attention(batch_first=True, mask=True, weights=True, bias=False),
            ),
            ("nn.TransformerEncoderLayer", _encoder),
            (
                "nn.TransformerEncoderLayer, norm_first",
                lambda: _encoder(norm_first=True, activation="gelu"),
            ),
            (
                "nn.TransformerEncoder",
                lambda: nn.TransformerEncoder(_encoder(dropout=0.0), 2),
            ),
            (
                "nn.TransformerDecoderLayer",
                _Decoder,
            ),
        )
    ),
    function(
        "F.scaled_dot_product_attention",
        "attention",
        lambda x: functional.scaled_dot_product_attention(x, x.tanh(), x.sin()),
        _TOKENS,
    ),
    function(
        "F.scaled_dot_product_attention, causal",
        "attention",
        lambda x: functional.scaled_dot_product_attention(x, x.tanh(), x.sin(), is_causal=True),
        _TOKENS,
    ),
    SweepCase(
        name="F.scaled_dot_product_attention, mask",
        group="attention",
        build=_MaskedAttention,
        input_shape=_TOKENS,
    ),
)


CASES: tuple[SweepCase, ...] = (*_CONVOLUTIONS, *_NORMALISATION, *_LAYERS, *_ATTENTION)
