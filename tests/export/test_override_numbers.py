"""Products and cosines against PyTorch's own, values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from protofleet.export.capture.functions import ProgramFunctions


def _both(compute, *shapes, zero=False):
    torch.manual_seed(0)
    given = [torch.randn(shape) for shape in shapes]
    if zero:
        given[0][0] = 0.0
    results = []
    for mode in (False, True):
        inputs = [value.clone().requires_grad_() for value in given]
        if mode:
            with ProgramFunctions():
                value = compute(*inputs)
        else:
            value = compute(*inputs)
        results.append((value, torch.autograd.grad(value.sin().sum(), inputs)))
    (expected, wanted), (got, grads) = results
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(grads, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8])
def test_products_over_an_axis(size):
    """Also with one zero, and with many."""
    _both(lambda x: x.prod(1), (2, size, 3))
    _both(lambda x: torch.prod(x, -1, keepdim=True), (2, 3, size), zero=True)


def test_cosines():
    _both(lambda x, y: functional.cosine_similarity(x, y, dim=-1), (4, 3), (4, 3))
    _both(torch.cosine_similarity, (4, 3, 2), (4, 3, 2))
    _both(lambda x, y: functional.cosine_similarity(x[:, None], y[None], dim=2), (4, 3), (5, 3))
