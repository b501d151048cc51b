"""Padding, interpolation and averages as fixed maps: PyTorch's own operators say what is right."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from protofleet.export.capture.axis_maps import combine, put, take
from protofleet.export.capture.resizing import TABLE

_aten = torch.ops.aten
_SIZES = {1: (7,), 2: (6, 5), 3: (4, 3, 5)}


def _agrees(name: str, x: Tensor, *args: object, sizes_first: bool = False) -> None:
    """The forward and the backward operator of this name, on the same arguments."""
    torch.manual_seed(0)
    forward = getattr(_aten, name).default
    x = x.clone().requires_grad_()
    expected = forward(x, *args)
    got = TABLE[forward](x.detach(), *args)
    torch.testing.assert_close(got, expected.detach(), rtol=1e-4, atol=1e-5)
    grad = torch.randn_like(expected)
    (by_input,) = torch.autograd.grad(expected, x, grad)
    backward = TABLE[getattr(_aten, f"{name}_backward").default]
    before = (args[0], list(x.shape), *args[1:]) if sizes_first else (x.detach(), *args)
    torch.testing.assert_close(backward(grad, *before), by_input, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("kind", "rank"), [*product(("reflection", "replication"), (1, 2, 3))])
def test_padding_agrees(kind: str, rank: int) -> None:
    x = torch.randn(2, 3, *_SIZES[rank])
    for widths in ([2, 1] * rank, [0, 2] * rank):
        _agrees(f"{kind}_pad{rank}d", x, widths)


@pytest.mark.parametrize(
    ("name", "rank", "factor"),
    [
        (f"{name}{rank}d", rank, factor)
        for name in ("upsample_nearest", "_upsample_nearest_exact")
        for rank in (1, 2, 3)
        for factor in (None, 2.0, 1.7, 1.18, 0.6)
    ],
)
def test_nearest_interpolation_agrees(name: str, rank: int, factor: float | None) -> None:
    x = torch.randn(2, 2, *_SIZES[rank])
    out = [11, 4, 9][:rank] if factor is None else [int(n * factor) for n in _SIZES[rank]]
    _agrees(name, x, out, *[factor] * rank, sizes_first=True)


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("factor", [None, 2.0, 1.3, 1.18, 0.6])
@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("upsample_linear1d", 1),
        ("upsample_bilinear2d", 2),
        ("upsample_trilinear3d", 3),
        ("upsample_bicubic2d", 2),
        ("_upsample_bilinear2d_aa", 2),
        ("_upsample_bicubic2d_aa", 2),
    ],
)
def test_smooth_interpolation_agrees(
    name: str, rank: int, factor: float | None, *, align: bool
) -> None:
    x = torch.randn(2, 2, *_SIZES[rank])
    out = [11, 3, 9][:rank] if factor is None else [int(n * factor) for n in _SIZES[rank]]
    _agrees(name, x, out, align, *[factor] * rank, sizes_first=True)


@pytest.mark.parametrize("out", [1, 2, 3, 5])
@pytest.mark.parametrize("rank", [2, 3])
def test_adaptive_averages_agree(rank: int, out: int) -> None:
    name = f"_adaptive_avg_pool{rank}d"
    x = torch.randn(2, 2, *_SIZES[rank], requires_grad=True)
    expected = getattr(_aten, name)(x, [out] * rank)
    got = TABLE[getattr(_aten, name).default](x.detach(), [out] * rank)
    torch.testing.assert_close(got, expected.detach())
    grad = torch.randn_like(expected)
    (by_input,) = torch.autograd.grad(expected, x, grad)
    backward = TABLE[getattr(_aten, f"{name}_backward").default]
    torch.testing.assert_close(backward(grad, x.detach()), by_input)


@pytest.mark.parametrize("rank", [2, 3])
@pytest.mark.parametrize("ceil_mode", [False, True])
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("divisor", [None, 5])
def test_averages_agree(rank: int, divisor: int | None, *, ceil_mode: bool, counted: bool) -> None:
    x = torch.randn(2, 2, *[7, 6, 5][:rank])
    for stride in ([2] * rank, [3] * rank, []):
        window = ([3] * rank, stride, [1] * rank, ceil_mode, counted, divisor)
        _agrees(f"avg_pool{rank}d", x, *window)


def test_a_map_adds_up_what_its_rows_name() -> None:
    x = torch.tensor([[1.0, 2.0, 4.0]])
    assert combine(x, 1, [[(0, 0.5), (2, 2.0)], [], [(1, 1.0)]]).tolist() == [[8.5, 0.0, 2.0]]


@pytest.mark.parametrize("places", [[0, 1, 2], [1, 2], [0, 2], [2, 1, 0], [1, 1, 1, 0]])
def test_entries_are_taken_and_put_back(places: list[int]) -> None:
    x = torch.randn(2, 3, requires_grad=True)
    taken = take(x, 1, places)
    assert torch.equal(taken, x[:, places])
    grad = torch.randn_like(taken)
    (expected,) = torch.autograd.grad(x[:, places], x, grad)
    assert torch.equal(put(grad, 1, places, 3), expected)
