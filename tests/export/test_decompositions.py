"""The backward pass of max pooling whose windows lie side by side."""

from __future__ import annotations

import pytest
import torch

from protofleet.export.capture.decompositions import _max_pool2d_backward


@pytest.mark.parametrize("seed", range(5))
def test_of_equal_entries_the_first_takes_the_gradient_as_in_pytorch(seed):
    torch.manual_seed(seed)
    x = torch.randint(0, 3, (3, 4, 6, 9)).float().requires_grad_()
    y, indices = torch.nn.functional.max_pool2d(x, (2, 3), return_indices=True)
    grad = torch.randn_like(y)
    (expected,) = torch.autograd.grad(y, x, grad)
    fixed = ([2, 3], [], [0, 0], [1, 1], False)
    assert torch.equal(_max_pool2d_backward(grad, x.detach(), *fixed, indices), expected)
