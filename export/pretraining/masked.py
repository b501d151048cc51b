"""Masked-autoencoder pretraining of HART, FedAli's appendix E.

Sources: He et al., "Masked Autoencoders Are Scalable Vision Learners" (arXiv:2111.06377); FedAli
(arXiv:2411.10595), appendix E, and its published code.

Of a window's Z tokens 60 %, to the nearest whole, are hidden. Only the visible are encoded; the
decoder sees all Z in their order, learned mask tokens in place of the hidden ones, and its
squared error is counted on the hidden patches alone.

Deviations:
    - The decoder is light: two HART blocks of half the encoder's width with kernels 3 and 7. The
      reference's has four of full width (3, 7, 7, 15), more work than the encoder's visible half.
    - Decoded tokens stand in their original order and each gives its own patch. The reference
      leaves them in the shuffled order and flattens all into one dense layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional

from protofleet.errors import InputError
from protofleet.export.models.hart import HartBlock, HartConfig
from protofleet.export.models.layers import dense, layer_norm

MASKED_SHARE = 0.6


@runtime_checkable
class TokenEncoder(Protocol):
    """A model whose input can be hidden patch by patch.

    Attributes:
        position: position of every token, (Z, d).
    """

    position: Tensor

    def patches(self, x: Tensor) -> Tensor:
        """Cut inputs (B, …) into patches (B, Z, p)."""

    def embed(self, patches: Tensor) -> Tensor:
        """Project patches (B, Z', p) to tokens (B, Z', d) without positions."""

    def encode(self, tokens: Tensor) -> Tensor:
        """Encode any number of tokens with positions, (B, Z', d) → the same."""


class MaskedAutoencoder(nn.Module):
    """An encoder, named ``encoder``, and a decoder thrown away after pretraining.

    Args:
        encoder: the model to pretrain.
        example: one input, (1, …) float32; its shape sizes the decoder.
        masked_share: share of hidden tokens.
        decoder_width: channels of the decoder, a multiple of 16; None for half the encoder's,
            rounded up to such a multiple.
        decoder_kernels: one HART block for each, with that kernel length.

    Raises:
        InputError: the model is no ``TokenEncoder``, or the share hides no or all tokens.
    """

    def __init__(
        self,
        encoder: nn.Module,
        example: Tensor,
        *,
        masked_share: float = MASKED_SHARE,
        decoder_width: int | None = None,
        decoder_kernels: Sequence[int] = (3, 7),
    ) -> None:
        super().__init__()
        if not isinstance(encoder, TokenEncoder):
            raise InputError(
                f"masked pretraining: {type(encoder).__name__} has no position, patches, embed "
                "and encode; use a HART model or train supervised"
            )
        self.encoder = encoder
        tokens, width = encoder.position.shape
        self.hidden_tokens = round(masked_share * tokens)
        if not 0 < self.hidden_tokens < tokens:
            raise InputError(
                f"masked pretraining: a share of {masked_share} hides {self.hidden_tokens} of "
                f"{tokens} tokens; some must be hidden and some visible"
            )
        patch_values = encoder.patches(example).shape[2]
        narrow = decoder_width or -(-width // 32) * 16
        config = HartConfig(width=narrow, kernels=decoder_kernels, dropout=0.1)
        self.mask_patch = nn.Parameter(torch.randn(patch_values))
        self.enter = dense(width, narrow)
        self.decoder = nn.ModuleList(HartBlock(config, i) for i in range(len(decoder_kernels)))
        self.leave = nn.Sequential(layer_norm(narrow), dense(narrow, patch_values))

    def forward(self, x: Tensor) -> Tensor:
        """Mean squared error () on the hidden patches of a batch (B, …); draws the mask."""
        encoder = cast("TokenEncoder", self.encoder)
        patches = encoder.patches(x)
        order = torch.rand(patches.shape[:2], device=x.device).argsort(1)
        hidden, visible = order[:, : self.hidden_tokens], order[:, self.hidden_tokens :]
        positions = encoder.position.expand(len(x), -1, -1)
        seen = encoder.encode(_take(encoder.embed(patches), visible) + _take(positions, visible))
        blank = encoder.embed(self.mask_patch.expand(len(x), self.hidden_tokens, -1))
        shuffled = torch.cat((blank, seen), dim=1)
        decoded = self._decode(_take(shuffled, order.argsort(1)) + positions)
        return functional.mse_loss(_take(decoded, hidden), _take(patches, hidden))

    def _decode(self, tokens: Tensor) -> Tensor:
        tokens = self.enter(tokens)
        for block in self.decoder:
            tokens = block(tokens, None)
        decoded: Tensor = self.leave(tokens)
        return decoded


def _take(tokens: Tensor, index: Tensor) -> Tensor:
    """Tokens (B, Z', d) of the batch's tokens (B, Z, d) by index (B, Z')."""
    return tokens.gather(1, index[:, :, None].expand(-1, -1, tokens.shape[2]))
