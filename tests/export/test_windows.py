"""Windows looked up beside each other: PyTorch's own pooling and unfolding say what is right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from protofleet.export.capture.windows import TABLE

_aten = torch.ops.aten


def _with_ties(*shape: int) -> Tensor:
    """Few different values: the first of equal ones has to win."""
    torch.manual_seed(0)
    return torch.randint(0, 4, shape).float()


def _agrees(name: str, x: Tensor, *window: Any) -> None:
    x = x.requires_grad_()
    expected, places = getattr(_aten, name)(x, *window)
    got, found = TABLE[getattr(_aten, name).default](x.detach(), *window)
    assert torch.equal(got, expected)
    assert torch.equal(found, places)
    grad = torch.randn_like(expected)
    (by_input,) = torch.autograd.grad(expected, x, grad)
    backward = TABLE[getattr(_aten, f"{name}_backward").default]
    torch.testing.assert_close(backward(grad, x.detach(), *window, places), by_input)


@pytest.mark.parametrize(
    "window",
    [
        ([2, 2], [], [0], [1], True),
        ([3, 2], [2, 1], [1, 0], [1], True),
        ([2, 2], [1], [0], [2], False),
        ([2, 3], [2], [1], [2, 1], True),
    ],
)
def test_max_pooling_of_planes_agrees(window: tuple[Any, ...]) -> None:
    _agrees("max_pool2d_with_indices", _with_ties(2, 3, 7, 6), *window)


@pytest.mark.parametrize(
    "window",
    [([2, 2, 2], [], [0], [1], False), ([3, 2, 3], [2], [1, 0, 1], [1], True)],
)
def test_max_pooling_of_volumes_agrees(window: tuple[Any, ...]) -> None:
    _agrees("max_pool3d_with_indices", _with_ties(2, 2, 5, 6, 4), *window)


def test_plain_windows_are_left_to_the_runtimes() -> None:
    x = torch.randn(1, 1, 4, 4)
    window: tuple[Any, ...] = ([2, 2], [2], [0], [1], False)
    pooled = TABLE[_aten.max_pool2d_with_indices.default](x, *window)
    assert pooled is NotImplemented


@pytest.mark.parametrize(("rank", "sizes"), [(2, (7, 5)), (3, (5, 4, 7))])
@pytest.mark.parametrize("out", [1, 3, 4])
def test_adaptive_max_pooling_agrees(rank: int, sizes: tuple[int, ...], out: int) -> None:
    name = f"adaptive_max_pool{rank}d"
    x = _with_ties(2, 2, *sizes).requires_grad_()
    expected, places = getattr(_aten, name)(x, [out] * rank)
    got, found = TABLE[getattr(_aten, name).default](x.detach(), [out] * rank)
    assert torch.equal(got, expected)
    assert torch.equal(found, places)
    grad = torch.randn_like(expected)
    (by_input,) = torch.autograd.grad(expected, x, grad)
    backward = TABLE[getattr(_aten, f"{name}_backward").default]
    torch.testing.assert_close(backward(grad, x.detach(), places), by_input)


@pytest.mark.parametrize(("axis", "size", "step"), [(1, 3, 1), (2, 2, 3), (-1, 4, 2)])
def test_unfolding_agrees(axis: int, size: int, step: int) -> None:
    x = torch.randn(2, 7, 9, requires_grad=True)
    expected = x.unfold(axis, size, step)
    assert torch.equal(TABLE[_aten.unfold.default](x.detach(), axis, size, step), expected)
    grad = torch.randn_like(expected)
    (by_input,) = torch.autograd.grad(expected, x, grad)
    backward = TABLE[_aten.unfold_backward.default]
    torch.testing.assert_close(backward(grad, list(x.shape), axis, size, step), by_input)


def test_a_gradient_reaches_the_first_of_equal_entries() -> None:
    x = torch.ones(1, 1, 3, 3, requires_grad=True)
    functional.max_pool2d(x, 3, 1, dilation=1, ceil_mode=True).sum().backward()
    backward = TABLE[_aten.max_pool2d_with_indices_backward.default]
    places = torch.zeros(1, 1, 1, 1, dtype=torch.int64)
    grad = torch.ones(1, 1, 1, 1)
    window: tuple[Any, ...] = ([3, 3], [1], [0], [1], True)
    got = backward(grad, x.detach(), *window, places)
    assert torch.equal(got, x.grad)
