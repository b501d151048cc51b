"""Building blocks of the models; randomness only through ordinary PyTorch functions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from protofleet.export.geometry import distances

LAYER_NORM_EPS = 1e-6


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
