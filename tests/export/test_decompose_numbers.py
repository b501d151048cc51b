"""Norms, distances and the like against PyTorch's own, and their gradients."""

from __future__ import annotations

import math

import pytest
import torch

from protofleet.export.capture.decompose_numbers import AUTOGRAD, TABLE

aten = torch.ops.aten


@pytest.mark.parametrize("order", [0, 1, 2, 3, 0.5, math.inf, -math.inf])
@pytest.mark.parametrize("axes", [None, [1], [0, -1]])
def test_norms(order, axes):
    x = torch.randn(2, 3, 4)
    got = TABLE[aten.linalg_vector_norm.default](x, order, axes, keepdim=True)
    expected = torch.linalg.vector_norm(x, order, axes, keepdim=True)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("order", [1.0, 2.0, 3.5, math.inf])
def test_distances_and_their_gradient(order):
    """Two rows are equal: their distance has gradient zero."""
    x, y = torch.randn(2, 4, 3, requires_grad=True), torch.randn(2, 5, 3)
    y[:, 0] = x.detach()[:, 0]
    expected = torch.cdist(x, y, order, compute_mode="donot_use_mm_for_euclid_dist")
    got = AUTOGRAD[aten._cdist_forward.default](x.detach(), y, order, None)
    torch.testing.assert_close(got, expected.detach())
    grad = torch.randn_like(expected)
    (wanted,) = torch.autograd.grad(expected, x, grad)
    backward = AUTOGRAD[aten._cdist_backward.default]
    torch.testing.assert_close(backward(grad, x.detach(), y, order, got), wanted)


@pytest.mark.parametrize("correction", [None, 0, 2])
@pytest.mark.parametrize("axes", [None, [1], [0, 2]])
def test_variances(correction, axes):
    x = torch.randn(3, 4, 5)
    for keep in (True, False):
        got = TABLE[aten.var.correction](x, axes, correction=correction, keepdim=keep)
        expected = aten.var.correction(x, axes, correction=correction, keepdim=keep)
        torch.testing.assert_close(got, expected)


def test_numbers_that_are_none_give_way_to_the_other():
    x = torch.tensor([1.0, math.nan, 2.0, math.nan])
    y = torch.tensor([2.0, 1.0, math.nan, math.nan])
    for named in (aten.fmin.default, aten.fmax.default):
        torch.testing.assert_close(TABLE[named](x, y), named(x, y), equal_nan=True)


def test_shrinking_passes_gradients_outside_only():
    x = torch.tensor([-2.0, -0.5, -0.1, 0.0, 0.3, 0.5, 1.0])
    grad = torch.arange(1.0, 8.0)
    for named in (aten.hardshrink_backward.default, aten.softshrink_backward.default):
        assert torch.equal(AUTOGRAD[named](grad, x, 0.5), named(grad, x, 0.5))
