"""Layers in terms of ordinary ones against PyTorch's own, values and gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.nn.utils import parametrizations

from protofleet.errors import ExportError
from protofleet.export.capture.functions import ProgramFunctions


def _agree(module, *inputs):
    """Values, gradients and buffers of two equal modules, one inside of the capture's functions."""
    other = copy.deepcopy(module)
    expected = module(*inputs)
    with ProgramFunctions():
        got = other(*inputs)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    weight = torch.randn_like(expected)
    for model, result in ((module, expected), (other, got)):
        params = list(model.parameters())
        if params:
            torch.autograd.backward((result * weight).sum(), inputs=params)
    pairs = zip(module.parameters(), other.parameters(), strict=True)
    torch.testing.assert_close(
        [b.grad for _, b in pairs], [a.grad for a in module.parameters()], rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(dict(other.named_buffers()), dict(module.named_buffers()))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1},
        {"stride": (1, 2, 3), "padding": (2, 0, 1), "dilation": (2, 1, 1), "groups": 2},
        {"padding": "same", "dilation": 2, "bias": False},
        {"padding": 1, "padding_mode": "circular"},
    ],
)
def test_convolutions_over_three_axes(options):
    torch.manual_seed(0)
    size = (2, 3, 2) if options.get("padding") == "same" else 3
    _agree(nn.Conv3d(4, 6, size, **options), torch.randn(2, 4, 7, 6, 8))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1, "output_padding": 1},
        {"stride": (3, 1, 2), "padding": (0, 2, 1), "output_padding": (2, 0, 1), "groups": 2},
        {"dilation": 2, "padding": 3, "bias": False},
    ],
)
def test_transposed_convolutions_over_three_axes(options):
    torch.manual_seed(0)
    _agree(nn.ConvTranspose3d(4, 6, (2, 3, 3), **options), torch.randn(2, 4, 5, 3, 4))


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("options", [{}, {"affine": True}, {"track_running_stats": True}])
def test_instance_norm(train, options):
    torch.manual_seed(0)
    module = nn.InstanceNorm2d(3, **options).train(train)
    _agree(module, torch.randn(4, 3, 5, 2))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_local_response_norm(size):
    x = torch.randn(2, 5, 4, 3)
    _agree(nn.LocalResponseNorm(size, alpha=0.3, beta=0.6, k=2.0), x)


@pytest.mark.parametrize("dim", [0, 1, -1, None])
def test_weight_norm(dim):
    torch.manual_seed(0)
    _agree(parametrizations.weight_norm(nn.Linear(5, 3), dim=dim), torch.randn(2, 5))


def test_bilinear():
    torch.manual_seed(0)
    _agree(nn.Bilinear(3, 4, 5), torch.randn(2, 6, 3), torch.randn(2, 6, 4))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 0, -1])
def test_bags_of_words(mode, padding):
    """The second bag is all padding, where there is one."""
    torch.manual_seed(0)
    module = nn.EmbeddingBag(7, 3, mode=mode, padding_idx=padding)
    _agree(module, torch.tensor([[1, 2, 2, 0], [padding or 0] * 4, [6, 0, 3, 5]]) % 7)


def test_weighted_bags():
    words, weights = torch.randint(7, (2, 4)), torch.randn(2, 4)
    table = torch.randn(7, 3)
    expected = functional.embedding_bag(words, table, mode="sum", per_sample_weights=weights)
    with ProgramFunctions():
        got = functional.embedding_bag(words, table, mode="sum", per_sample_weights=weights)
    torch.testing.assert_close(got, expected)


def test_what_a_program_cannot_do_is_refused_with_what_to_do():
    flat, starts = torch.arange(6), torch.tensor([0, 2])
    with ProgramFunctions():
        with pytest.raises(ExportError, match=r"offsets: .* pass token ids \(B, N\)"):
            nn.EmbeddingBag(7, 3)(flat, starts)
        with pytest.raises(ExportError, match=r"max_norm: .* leave max_norm out"):
            nn.Embedding(7, 3, max_norm=1.0)(flat)
        with pytest.raises(ExportError, match=r"max_norm: .* leave max_norm out"):
            nn.EmbeddingBag(7, 3, max_norm=1.0)(flat[None])


@pytest.mark.parametrize(
    ("pool", "axes", "shape"),
    [
        (nn.AdaptiveAvgPool1d, (0, 2, 1), (2, 3, 4)),
        (nn.AdaptiveAvgPool2d, (0, 3, 1, 2), (2, 3, 4, 5)),
        (nn.AdaptiveAvgPool3d, (0, 4, 1, 2, 3), (2, 3, 4, 5, 6)),
    ],
)
@pytest.mark.parametrize("size", [1, 2])
def test_an_average_over_channels_last_sets_no_strides(pool, axes, shape, size):
    class Pooled(nn.Module):
        def forward(self, x):
            return pool(size)(x.permute(axes))

    x = torch.randn(shape)
    _agree(Pooled(), x)
    with ProgramFunctions():
        code = make_fx(Pooled())(x).code
    assert "as_strided" not in code
