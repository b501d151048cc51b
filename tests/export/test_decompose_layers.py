"""Backward passes of layers against PyTorch's own."""

from __future__ import annotations

import pytest
import torch

from protofleet.export.capture.decompose_layers import TABLE

aten = torch.ops.aten


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_normalisation_over_the_last_axes(axes, affine):
    torch.manual_seed(0)
    x, grad = torch.randn(4, 3, 2, 7), torch.randn(4, 3, 2, 7)
    shape = list(x.shape[-axes:])
    weight, bias = (torch.randn(shape), torch.randn(shape)) if affine else (None, None)
    _, mean, inverse = torch.native_layer_norm(x, shape, weight, bias, 1e-5)
    given = (grad, x, shape, mean, inverse, weight, bias, [True, affine, affine])
    got = TABLE[aten.native_layer_norm_backward.default](*given)
    expected = aten.native_layer_norm_backward.default(*given)
    for one, other in zip(got, expected, strict=True):
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("by_frequency", [True, False])
@pytest.mark.parametrize("padding", [-1, 0])
def test_lookups(by_frequency, padding):
    words = torch.tensor([[1, 2, 2], [0, 2, 4]])
    given = (torch.randn(2, 3, 4), words, 5, padding, by_frequency)
    got = TABLE[aten.embedding_dense_backward.default](*given)
    torch.testing.assert_close(got, aten.embedding_dense_backward.default(*given))
