"""Small vision transformer, optionally with an ALP layer after every block's first LN.

Sources: Dosovitskiy et al., "An Image is Worth 16x16 Words" (arXiv:2010.11929); with ALP: FedAli
(arXiv:2411.10595), which gives ViT-tiny's depth (6), heads (3) and width (192) only. Patch 4 on
32x32 images, the class token and the place of ALP are this project's choices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from protofleet.errors import InputError
from protofleet.export.models.alp import Alignment, AlignmentConfig, generator_beside
from protofleet.export.models.layers import Attention, DropPath, dense, layer_norm, mlp

DIGITS_PROTOTYPES = (128, 64, 32)
"""Prototype counts for 8x8 digits and three blocks."""


@dataclass(frozen=True, kw_only=True)
class VitConfig(AlignmentConfig):
    """Settings of the vision transformer, beside those of its alignment layers.

    Attributes:
        classes: C.
        size: height and width of the images.
        channels: input channels.
        patch: height and width of a patch.
        depth: number of blocks.
        width: channels of a token, a multiple of ``heads``.
        heads: attention heads.
        mlp_width: hidden units of a block's MLP; None for 4 x width.
        dropout: rate in the blocks.
        drop_path: rate of the last block, rising linearly from 0.
        prototypes: G of every block's ALP layer; empty for none.
        beta: initial share of the prototypes in an ALP layer's output.

    Raises:
        InputError: sizes that do not fit together.
    """

    classes: int = 10
    size: int = 32
    channels: int = 3
    patch: int = 4
    depth: int = 6
    width: int = 192
    heads: int = 3
    mlp_width: int | None = None
    dropout: float = 0.1
    drop_path: float = 0.1
    prototypes: Sequence[int] = ()
    beta: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size % self.patch:
            raise InputError(f"ViT: image size {self.size} is no multiple of patch {self.patch}")
        if self.width % self.heads:
            raise InputError(f"ViT: width {self.width} is no multiple of heads {self.heads}")
        if self.prototypes and len(self.prototypes) != self.depth:
            raise InputError(
                f"ViT: expected one prototype count per block ({self.depth}), "
                f"got {len(self.prototypes)}"
            )

    @property
    def side(self) -> int:
        """Patches per row."""
        return self.size // self.patch


class VitBlock(nn.Module):
    """LN → ALP → attention → LN → MLP, with skips that take the un-aligned tokens."""

    def __init__(
        self, config: VitConfig, index: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        width = config.width
        self.norm = layer_norm(width)
        self.align = (
            Alignment(width, config.prototypes[index], config, generator=generator)
            if config.prototypes
            else None
        )
        self.attention = Attention(
            width, heads=config.heads, key_width=width // config.heads, dropout=config.dropout
        )
        self.mlp_norm = layer_norm(width)
        self.mlp = mlp(width, config.mlp_width or 4 * width, config.dropout)
        self.drop_path = DropPath(config.drop_path * index / max(1, config.depth - 1))

    def forward(self, x: Tensor, beta: Tensor | None) -> Tensor:
        """One block, (B, Z, width) → the same."""
        tokens = self.norm(x)
        if self.align is not None and beta is not None:
            tokens = self.align(tokens, beta)
        x = x + self.drop_path(self.attention(tokens))
        out: Tensor = x + self.drop_path(self.mlp(self.mlp_norm(x)))
        return out


class Vit(nn.Module):
    """Vision transformer: images (B, channels, size, size) float32 → logits (B, classes)."""

    beta: Tensor | None

    def __init__(self, config: VitConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.embedding = dense(config.channels * config.patch**2, width)
        self.class_token = nn.Parameter(torch.randn(1, width) * 0.02)
        self.position = nn.Parameter(torch.randn(config.side**2 + 1, width) * 0.02)
        generator = generator_beside()
        self.blocks = nn.ModuleList(VitBlock(config, i, generator) for i in range(config.depth))
        self.norm = layer_norm(width)
        self.head = dense(width, config.classes)
        self.register_buffer("beta", torch.tensor(config.beta) if config.prototypes else None)

    def patches(self, x: Tensor) -> Tensor:
        """Cut images into patches (B, side², channels·patch²), row by row."""
        side, patch = self.config.side, self.config.patch
        cells = torch.unflatten(torch.unflatten(x, 3, (side, patch)), 2, (side, patch))
        return cells.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)

    def features(self, x: Tensor) -> Tensor:
        """Encoded class token, (B, width)."""
        tokens = self.embedding(self.patches(x))
        first = self.class_token.expand(tokens.shape[0], 1, -1)
        tokens = torch.cat((first, tokens), dim=1) + self.position
        for block in self.blocks:
            tokens = block(tokens, self.beta)
        encoded: Tensor = self.norm(tokens[:, 0])
        return encoded

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes)."""
        logits: Tensor = self.head(self.features(x))
        return logits


def vit(**settings: Any) -> Vit:
    """Vision transformer with the settings of ``VitConfig``; ViT-tiny by default."""
    return Vit(VitConfig(**settings))


def vit_digits(**settings: Any) -> Vit:
    """A small one for 8x8 images of digits, with ALP unless ``prototypes`` is set to empty."""
    small: dict[str, Any] = {
        "size": 8,
        "channels": 1,
        "patch": 2,
        "depth": 3,
        "width": 64,
        "heads": 4,
        "prototypes": DIGITS_PROTOTYPES,
    }
    return vit(**{**small, **settings})
