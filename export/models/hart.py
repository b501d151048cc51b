"""HART, a light transformer for windows of accelerometer and gyroscope, optionally with ALP.

Sources: Ek, Portet, Lalanda, "Transformer-based Models to Deal with Heterogeneous Environments in
Human Activity Recognition" (arXiv:2209.11750); with ALP: FedAli (arXiv:2411.10595) and its
published TensorFlow code.

Input (B, 128, 6): columns 0-2 accelerometer, 3-5 gyroscope. Z = 8 tokens of 192 channels. With
``sensors=1`` the input is (B, 128, 3), and that sensor's patches fill all of a token's channels, so
that everything after them is as it was.

Deviations:
    - The reference overwrites the light-weight convolution's kernel by its softmax before every
      training call, leaves it there, and uses the stored kernel as it is in inference. That map
      contracts by about the kernel's length, so that within a few calls the kernel is uniform up to
      its last gradient step. Here the kernel in use is always softmax(parameter), in training and
      in inference, and the gradient flows through the softmax; ``light_convolution =
      "published_code"`` does what the reference does.
    - The reference stacks the four group results on the leading axis and reshapes without
      restoring their order, which mixes channels of different samples of a batch. The order is
      restored unless ``fidelity="code"``.
    - Initial weights are Glorot uniform by the sides of their matrices. Keras counts other fans for
      convolution and attention kernels and so starts those smaller.
    - Strided patch convolutions without overlap are dense layers on cut patches, and the
      convolution over a window of Z tokens is a product with a banded matrix: the same sums.
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
from protofleet.strategies.training import REWRITTEN

PAPER_PROTOTYPES = (2048, 1024, 512, 256, 128, 64)
"""FedAli's prototype counts, from input to head."""

_GROUPS = 4
_AXES = 3


@dataclass(frozen=True, kw_only=True)
class HartConfig(AlignmentConfig):
    """Settings of HART, beside those of its alignment layers.

    Attributes:
        classes: C.
        sensors: of three axes each: 2, or 1 for an accelerometer alone.
        window: samples per window.
        patch: samples per token.
        width: channels of a token, a multiple of 16.
        kernels: length of the light-weight convolution's kernel, one block each.
        heads: attention heads of either branch.
        head_width: hidden units of the classifier.
        prototypes: G of every block's ALP layer; empty for plain HART.
        beta: initial share of the prototypes in an ALP layer's output.
        pretrained: use the rates for a pretrained encoder (0.1, head 0.5) as defaults.
        dropout: rate in the encoder; None for the default (0.3 from scratch).
        drop_path: rate of the last block, rising linearly from 0; None for ``dropout``.
        head_dropout: rate in the classifier; None for the default (0.3 from scratch).
        fidelity: ``"code"`` reproduces the reference's mixing across samples.
        light_convolution: ``"softmax"``: the kernel in use is the softmax of the trained one.
            ``"published_code"``: every training step first sets the trained kernel to its softmax,
            uses that, and moves it by the gradient at it, which does not pass through the softmax;
            inference uses what is stored, unnormalised. A step is one of this project's trainers
            (``strategies.training.REWRITTEN``).

    Raises:
        InputError: sizes that do not fit together, another number of sensors, or an unknown
            fidelity or light convolution.
    """

    classes: int = 6
    sensors: int = 2
    window: int = 128
    patch: int = 16
    width: int = 192
    kernels: Sequence[int] = (3, 7, 15, 31, 31, 31)
    heads: int = 3
    head_width: int = 1024
    prototypes: Sequence[int] = ()
    beta: float = 0.2
    pretrained: bool = False
    dropout: float | None = None
    drop_path: float | None = None
    head_dropout: float | None = None
    fidelity: str = "default"
    light_convolution: str = "softmax"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sensors not in {1, 2}:
            raise InputError(f"HART: expected 1 or 2 sensors of 3 axes, got {self.sensors}")
        if self.window % self.patch:
            raise InputError(f"HART: window {self.window} is no multiple of patch {self.patch}")
        if self.width % 16:
            raise InputError(f"HART: expected a width that is a multiple of 16, got {self.width}")
        if self.prototypes and len(self.prototypes) != len(self.kernels):
            raise InputError(
                f"HART: expected one prototype count per block ({len(self.kernels)}), "
                f"got {len(self.prototypes)}"
            )
        if self.fidelity not in {"default", "code"}:
            raise InputError(f"HART: expected fidelity default or code, got '{self.fidelity}'")
        if self.light_convolution not in {"softmax", "published_code"}:
            raise InputError(
                "HART: expected light_convolution softmax or published_code, got "
                f"'{self.light_convolution}'"
            )

    @property
    def tokens(self) -> int:
        """Z."""
        return self.window // self.patch

    @property
    def encoder_dropout(self) -> float:
        """Rate in the encoder after defaults."""
        return (0.1 if self.pretrained else 0.3) if self.dropout is None else self.dropout

    @property
    def classifier_dropout(self) -> float:
        """Rate in the classifier after defaults."""
        if self.head_dropout is not None:
            return self.head_dropout
        return 0.5 if self.pretrained else self.encoder_dropout

    def drop_path_of(self, block: int) -> float:
        """Drop-path rate of a block, linear from 0 to the last block's."""
        last = self.encoder_dropout if self.drop_path is None else self.drop_path
        return last * block / max(1, len(self.kernels) - 1)


class LightConvolution(nn.Module):
    """Four shared softmax kernels over four channel groups, (B, Z, width) → (B, Z, width).

    The slice is cut into rows of Z consecutive values as they lie in memory, four rows to a
    group set, and each row is convolved (zero padding, same length).

    Args:
        length: of a kernel.
        drop_path: rate at which a group is left out.
        fidelity: as in ``HartConfig``.
        kernel_rule: ``light_convolution`` of ``HartConfig``.
    """

    kernel_rewritten: Tensor

    def __init__(
        self, length: int, *, drop_path: float, fidelity: str, kernel_rule: str = "softmax"
    ) -> None:
        super().__init__()
        limit = (3.0 / length) ** 0.5  # Glorot uniform with fan-in = fan-out = length
        self.kernel = nn.Parameter(torch.empty(_GROUPS, length).uniform_(-limit, limit))
        self.drop_path = DropPath(drop_path)
        self.mixes_samples = fidelity == "code"
        self.rewrites = kernel_rule == "published_code"
        if self.rewrites:
            self.register_buffer("kernel" + REWRITTEN, torch.zeros(_GROUPS, length))

    def forward(self, x: Tensor) -> Tensor:
        """Convolve; the drop-path acts on the four groups, not on samples."""
        tokens = x.shape[1]
        mixed: Tensor = x.reshape(-1, _GROUPS * tokens) @ self._blocks(tokens)
        if self.mixes_samples:
            mixed = mixed.reshape(-1, _GROUPS, tokens).transpose(0, 1)
        return mixed.reshape(x.shape)

    def _blocks(self, tokens: int) -> Tensor:
        """(4Z, 4Z): the groups' bands along the diagonal.

        At HART's eight tokens one product with zeros costs less than to bring every group's rows
        together and back; with many more tokens it would cost more.
        """
        bands = self.drop_path(self._band(tokens))
        apart = torch.eye(_GROUPS, dtype=bands.dtype, device=bands.device)
        blocks: Tensor = bands[:, :, None] * apart[:, None, :, None]
        return blocks.reshape(_GROUPS * tokens, _GROUPS * tokens)

    def _band(self, tokens: int) -> Tensor:
        """(4, Z, Z): entry (g, i, j) is the kernel's tap at i - j."""
        length = self.kernel.shape[1]
        at = torch.arange(tokens, device=self.kernel.device)
        taps = torch.arange(length, device=self.kernel.device)
        lag = at[:, None] - at + (length - 1) // 2
        select = (lag[None] == taps[:, None, None]).to(self.kernel.dtype)
        band = self._in_use() @ select.flatten(1)
        return band.reshape(_GROUPS, tokens, tokens)

    def _in_use(self) -> Tensor:
        """The kernel (4, length) of this call."""
        if not self.rewrites:
            return torch.softmax(self.kernel, dim=1)
        if not self.training:
            return self.kernel
        written = torch.softmax(self.kernel.detach(), dim=1)
        with torch.no_grad():
            self.kernel_rewritten.copy_(written)
        return written + (self.kernel - self.kernel.detach())  # its gradient is the kernel's


class HartBlock(nn.Module):
    """LN → ALP → attention | convolution | attention on channel slices → LN → MLP, residual."""

    def __init__(
        self, config: HartConfig, index: int, generator: torch.Generator | None = None
    ) -> None:
        super().__init__()
        width, rate, path = config.width, config.encoder_dropout, config.drop_path_of(index)
        quarter = width // 4
        self.slices = (quarter, 2 * quarter, quarter)
        self.norm = layer_norm(width)
        self.align = (
            Alignment(width, config.prototypes[index], config, generator=generator)
            if config.prototypes
            else None
        )
        self.accelerometer = Attention(quarter, heads=config.heads, key_width=quarter, dropout=rate)
        self.convolution = LightConvolution(
            config.kernels[index],
            drop_path=path,
            fidelity=config.fidelity,
            kernel_rule=config.light_convolution,
        )
        self.gyroscope = Attention(quarter, heads=config.heads, key_width=quarter, dropout=rate)
        self.mlp_norm = layer_norm(width)
        self.mlp = mlp(width, 2 * width, rate)
        self.drop_path = DropPath(path)

    def forward(self, x: Tensor, beta: Tensor | None) -> Tensor:
        """One block, (B, Z, width) → the same; the skip takes the un-aligned tokens."""
        tokens = self.norm(x)
        if self.align is not None and beta is not None:
            tokens = self.align(tokens, beta)
        first, middle, last = tokens.split(self.slices, dim=2)
        branches = (
            self.drop_path(self.accelerometer(first)),
            self.convolution(middle),
            self.drop_path(self.gyroscope(last)),
        )
        x = x + torch.cat(branches, dim=2)
        out: Tensor = x + self.drop_path(self.mlp(self.mlp_norm(x)))
        return out


class Hart(nn.Module):
    """HART: windows (B, window, 6) float32 → logits (B, classes); 3 columns for one sensor."""

    beta: Tensor | None

    def __init__(self, config: HartConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.accelerometer_patches = dense(config.patch * _AXES, width // config.sensors)
        self.gyroscope_patches = (
            dense(config.patch * _AXES, width // config.sensors) if config.sensors > 1 else None
        )
        self.position = nn.Parameter(torch.empty(config.tokens, width).uniform_(-0.05, 0.05))
        generator = generator_beside()
        self.blocks = nn.ModuleList(
            HartBlock(config, i, generator) for i in range(len(config.kernels))
        )
        self.norm = layer_norm(width)
        self.head = nn.Sequential(
            dense(width, config.head_width),
            nn.SiLU(),
            nn.Dropout(config.classifier_dropout),
            dense(config.head_width, config.classes),
        )
        self.register_buffer("beta", torch.tensor(config.beta) if config.prototypes else None)

    def patches(self, x: Tensor) -> Tensor:
        """Cut windows (B, window, 6) into patches (B, Z, 6·patch), accelerometer values first."""
        cut = torch.unflatten(x, 1, (self.config.tokens, self.config.patch))
        if self.gyroscope_patches is None:
            return cut.flatten(2)
        return torch.cat((cut[..., :_AXES].flatten(2), cut[..., _AXES:].flatten(2)), dim=2)

    def embed(self, patches: Tensor) -> Tensor:
        """Project patches (B, Z', 6·patch) to tokens (B, Z', width), without positions."""
        if self.gyroscope_patches is None:
            tokens: Tensor = self.accelerometer_patches(patches)
            return tokens
        acceleration, rotation = patches.chunk(2, dim=2)
        return torch.cat(
            (self.accelerometer_patches(acceleration), self.gyroscope_patches(rotation)), dim=2
        )

    def encode(self, tokens: Tensor) -> Tensor:
        """Run the blocks on any number of tokens with positions, (B, Z', width) → the same."""
        for block in self.blocks:
            tokens = block(tokens, self.beta)
        encoded: Tensor = self.norm(tokens)
        return encoded

    def features(self, x: Tensor) -> Tensor:
        """Mean encoded token, (B, width)."""
        return self.encode(self.embed(self.patches(x)) + self.position).mean(1)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, classes)."""
        logits: Tensor = self.head(self.features(x))
        return logits


def hart(**settings: Any) -> Hart:
    """HART with the settings of ``HartConfig``."""
    return Hart(HartConfig(**settings))


def hart_alp(**settings: Any) -> Hart:
    """HART with an ALP layer in every block, the paper's prototype counts unless set."""
    return hart(**{"prototypes": PAPER_PROTOTYPES, **settings})
