"""Models that call Python functions of PyTorch which look at data or compute twice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from protofleet.export.capture.functions import ProgramFunctions
from protofleet.export.capture.override_python import plain_python
from tests.export.both_formats import worst_error

_WINDOWS = [
    torch.bartlett_window,
    torch.blackman_window,
    torch.hamming_window,
    torch.hann_window,
    torch.kaiser_window,
]


class _Decoder(nn.Module):
    """Of two queries; PyTorch asks whether their mask is the causal one."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 1)
        self.embed, self.head = nn.Linear(6, 8), nn.Linear(16, 3)
        self.queries = nn.Parameter(torch.randn(1, 2, 8))
        mask = nn.Transformer.generate_square_subsequent_mask(2)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        queries = self.queries.expand(x.shape[0], -1, -1)
        found = self.decoder(queries, self.embed(x), tgt_mask=self.mask)
        return self.head(found.flatten(1))


@torch.compile
def _gated(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


class _Spared(nn.Module):
    """Activations that are not kept, in both of PyTorch's ways, and a compiled function."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Dropout(0.2))
        self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def _first(self, x: Tensor, *, scale: float) -> Tensor:
        return self.first(x) * scale

    def forward(self, x: Tensor) -> Tensor:
        x = checkpoint(self._first, x, scale=0.5, use_reentrant=False)
        return self.head(_gated(checkpoint(self.second, x, use_reentrant=True)))


class _Windowed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(12 * len(_WINDOWS), 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([x * window(12) for window in _WINDOWS], 1))


@pytest.mark.slow(seconds=15)
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        pytest.param(_Decoder, (5, 6), marks=pytest.mark.full_size),
        (_Spared, (6,)),
        (_Windowed, (12,)),
    ],
)
def test_such_a_model_agrees_in_both_formats(
    model: type[nn.Module], shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    assert worst_error(model(), shape) < 1e-4


@pytest.mark.parametrize("window", _WINDOWS)
def test_a_window_has_pytorch_s_own_numbers(window) -> None:
    expected = window(17, periodic=False)
    with ProgramFunctions():
        assert torch.equal(window(17, periodic=False), expected)


def test_statistics_of_what_is_not_kept_move_once() -> None:
    """PyTorch computes such a layer again in its backward pass, and counts the batch twice."""
    norm, x = nn.BatchNorm1d(6), torch.randn(4, 6, requires_grad=True)
    with plain_python():
        checkpoint(norm, x, use_reentrant=False).sum().backward()
    assert norm.num_batches_tracked == 1


def test_afterwards_everything_is_as_before() -> None:
    before = nn.modules.transformer._detect_is_causal_mask
    with plain_python():
        assert nn.modules.transformer._detect_is_causal_mask is not before
    assert nn.modules.transformer._detect_is_causal_mask is before
