"""Functions that a program computes in another way give what PyTorch's own give."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from protofleet.export.capture.functions import ProgramFunctions


def _agrees(apply: Any, x: Tensor) -> None:
    results, gradients, kinds = [], [], set()
    for replaced in (False, True):
        value = x.clone().requires_grad_()
        if replaced:
            with ProgramFunctions():
                result = apply(value)
        else:
            result = apply(value)
        kinds.add(type(result))
        parts = result if isinstance(result, tuple) else (result,)
        results.append([part.detach() for part in parts])
        (grad,) = torch.autograd.grad(parts[0].sin().sum(), value)
        gradients.append(grad)
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected)
    torch.testing.assert_close(gradients[1], gradients[0])
    assert len(kinds) == 1  # results of several parts have PyTorch's names: values, indices


@pytest.mark.parametrize(
    "apply",
    [
        lambda x: x.cumprod(-1),
        lambda x: torch.cumprod(x, 1),
        lambda x: x.logcumsumexp(-1),
        lambda x: torch.logcumsumexp(4 * x, 1),
        lambda x: x.cummax(-1),
        lambda x: x.cummin(1),
        lambda x: x.kthvalue(2, -1),
        lambda x: torch.kthvalue(x, 3, 1, keepdim=True),
        lambda x: x.median(-1),
        lambda x: torch.median(x, 1, keepdim=True),
        lambda x: x.take_along_dim(torch.tensor([[[2, 0]]]), dim=-1),
        lambda x: torch.take_along_dim(x[:, :1], x.argsort(-1)[..., :3], dim=2),
    ],
)
def test_order_and_running_values(apply: Any) -> None:
    torch.manual_seed(0)
    _agrees(apply, torch.randn(3, 4, 7))


def test_sums_of_logarithms_of_zero_and_of_far_apart_numbers() -> None:
    """Where PyTorch's own gradient is not finite."""
    x = torch.tensor([-torch.inf, -torch.inf, -300.0, 80.0, -90.0], requires_grad=True)
    with ProgramFunctions():
        got = x.logcumsumexp(0)
    assert torch.equal(got.detach(), torch.logcumsumexp(x.detach(), 0))
    (gradient,) = torch.autograd.grad(got[2:].sum(), x)
    torch.testing.assert_close(gradient, torch.tensor([0.0, 0.0, 1.0, 2.0, 0.0]))


def test_equal_entries_are_named_as_by_pytorch() -> None:
    x = torch.randint(0, 3, (4, 9)).float()
    expected = x.cummax(-1)
    with ProgramFunctions():
        got = x.cummax(-1)
    assert torch.equal(got[1], expected[1])


@pytest.mark.parametrize(
    "options",
    [
        {"size": (9, 4), "mode": "nearest"},
        {"scale_factor": (1.5, 2), "mode": "nearest-exact"},
        {"scale_factor": 1.7, "mode": "bilinear"},
        {"scale_factor": 1.7, "mode": "bicubic", "recompute_scale_factor": True},
        {"size": 7, "mode": "bilinear", "align_corners": True},
        {"size": 3, "mode": "bilinear", "antialias": True},
        {"size": 3, "mode": "area"},
    ],
)
def test_interpolation(options: dict[str, Any]) -> None:
    _agrees(lambda x: functional.interpolate(x, **options), torch.randn(2, 3, 6, 5))


def test_what_is_wrong_pytorch_says_itself() -> None:
    with ProgramFunctions(), pytest.raises(ValueError, match="only one of size or scale_factor"):
        functional.interpolate(torch.randn(1, 1, 4), size=2, scale_factor=2)
