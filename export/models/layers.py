"""Building blocks of models and objectives; randomness only through ordinary PyTorch functions.

The gradients of lengths, directions and distances are finite everywhere, at zero too.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from protofleet.errors import InputError

LAYER_NORM_EPS = 1e-6
_SHORTEST = 1e-6
"""A vector no longer than this counts as zero: it has no direction and passes no gradient on."""


def dense(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer initialised like Keras': Glorot uniform weights, zero bias."""
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def layer_norm(width: int) -> nn.LayerNorm:
    """Layer normalisation over the channels, with the reference's epsilon."""
    return nn.LayerNorm(width, eps=LAYER_NORM_EPS)


class DropPath(nn.Module):
    """Stochastic depth: drops whole entries of the leading axis and scales the rest by 1/(1-p)."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Drop entries of ``x`` (n, …) with probability ``rate`` while training."""
        if not self.training or self.rate == 0:
            return x
        noise = torch.rand(x.shape[0], *(1,) * (x.dim() - 1), dtype=x.dtype, device=x.device)
        return x * (noise >= self.rate).to(x.dtype) / (1 - self.rate)


class Attention(nn.Module):
    """Multi-head self-attention (B, Z, width) → (B, Z, width).

    Args:
        width: channels in and out.
        heads: number of heads.
        key_width: channels of a head's queries, keys and values.
        dropout: rate on the attention weights.
    """

    def __init__(self, width: int, *, heads: int, key_width: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.key_width, self.dropout = heads, key_width, dropout
        self.query = dense(width, heads * key_width)
        self.key = dense(width, heads * key_width)
        self.value = dense(width, heads * key_width)
        self.out = dense(heads * key_width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend from every token to all tokens of the same sample."""
        query, key, value = (self._split(part(x)) for part in (self.query, self.key, self.value))
        weights = torch.softmax(query @ key.transpose(-1, -2) * self.key_width**-0.5, dim=-1)
        weights = functional.dropout(weights, self.dropout, self.training)
        mixed: Tensor = self.out((weights @ value).transpose(1, 2).flatten(2))
        return mixed

    def _split(self, x: Tensor) -> Tensor:
        return torch.unflatten(x, 2, (self.heads, self.key_width)).transpose(1, 2)


def mlp(width: int, hidden: int, dropout: float) -> nn.Sequential:
    """Dense (swish) → dropout → dense, back to ``width``."""
    return nn.Sequential(dense(width, hidden), nn.SiLU(), nn.Dropout(dropout), dense(hidden, width))


class PrototypeHead(nn.Module):
    """One learned prototype per class: features (B, d) → minus Euclidean distances (B, C).

    Source: FedHP (Fonio et al., ESANN 2024). Prototypes start as directions drawn at random.
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.prototypes = nn.Parameter(functional.normalize(torch.randn(classes, features)))

    def forward(self, features: Tensor) -> Tensor:
        """Logits (B, C): the nearest prototype has the largest."""
        return -distances(features, self.prototypes)


class CosineHead(nn.Module):
    """A fixed direction per class: features (B, d) → scale times cosines (B, C).

    Source: FedNH (Dai et al., AAAI 2023), whose server sets the directions, rows of unit length.
    """

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.directions = nn.Parameter(functional.normalize(torch.randn(classes, features)))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, features: Tensor) -> Tensor:
        """Logits (B, C): the direction nearest by angle has the largest."""
        return self.scale * (unit(features) @ self.directions.T)


HEADS: dict[str, type[PrototypeHead | CosineHead]] = {
    "prototypes": PrototypeHead,
    "cosine": CosineHead,
}
"""Heads that take the place of a model's own, by the name of their kind."""


def head_of(kind: str, features: int, classes: int) -> nn.Module:
    """A head of ``HEADS``.

    Raises:
        InputError: there is none of this kind.
    """
    if kind not in HEADS:
        raise InputError(f"head_kind: expected one of {', '.join(HEADS)}, got '{kind}'")
    return HEADS[kind](features, classes)


def length(x: Tensor) -> Tensor:
    """Euclidean norm over the last axis, (…, d) → (…,); 0 with gradient 0 for a zero vector."""
    return _root(x.square().sum(-1))


def unit(x: Tensor) -> Tensor:
    """Vectors (…, d) scaled to length 1; a zero vector stays zero, with gradient 0."""
    square = x.square().sum(-1, keepdim=True)
    known, safe = _guarded(square)
    return x * torch.where(known, torch.rsqrt(safe), 0.0)


def distances(x: Tensor, points: Tensor) -> Tensor:
    """Euclidean distance of every row of ``x`` (B, d) to every one of ``points`` (C, d), (B, C).

    The square is multiplied out, so that no (B, C, d) array arises; a distance below about 3e-4 of
    the vectors' lengths is rounding.
    """
    products = x @ points.T
    return _root(x.square().sum(1, keepdim=True) + points.square().sum(1) - 2 * products)


def _root(square: Tensor) -> Tensor:
    known, safe = _guarded(square)
    return torch.where(known, torch.sqrt(safe), 0.0)


def _guarded(square: Tensor) -> tuple[Tensor, Tensor]:
    """Where a square is large enough for a root's derivative, and the square with ones elsewhere.

    Both branches of ``where`` are differentiated: the unused one must be finite too.
    """
    known = square > _SHORTEST**2
    return known, torch.where(known, square, 1.0)
