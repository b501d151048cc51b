"""Grids and samples as a program computes them are PyTorch's own, values and gradients."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import protofleet as pf
from protofleet.export.capture.functions import ProgramFunctions


def _agree(apply: Any, *given: Tensor) -> None:
    """``apply``, by PyTorch and as replaced, of the same tensors."""
    values, gradients = [], []
    for replaced in (False, True):
        tensors = [one.clone().requires_grad_() for one in given]
        if replaced:
            with ProgramFunctions():
                result = apply(*tensors)
        else:
            result = apply(*tensors)
        values.append(result.detach())
        gradients.append(
            torch.autograd.grad(
                result.sin().sum(), tensors, allow_unused=True, materialize_grads=True
            )
        )
    torch.testing.assert_close(values[1], values[0], rtol=1e-4, atol=1e-5)
    for expected, got in zip(*gradients, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("ignore:Since version 1.3.0")
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("size", [(2, 3, 5, 7), (2, 1, 1, 4), (2, 2, 3, 4, 5)])
def test_grids(size: tuple[int, ...], *, align: bool) -> None:
    torch.manual_seed(0)
    rank = len(size) - 2
    _agree(
        lambda theta: functional.affine_grid(theta, size, align_corners=align),
        torch.randn(2, rank, rank + 1),
    )


@pytest.mark.parametrize(
    ("mode", "padding", "align"),
    list(
        itertools.product(("bilinear", "nearest"), ("zeros", "border", "reflection"), (False, True))
    ),
)
@pytest.mark.parametrize("sizes", [(5, 7), (1, 4), (3, 4, 5)])
def test_samples(sizes: tuple[int, ...], mode: str, padding: str, *, align: bool) -> None:
    """Places in the image and well outside it."""
    torch.manual_seed(0)
    _agree(
        lambda x, grid: functional.grid_sample(
            x, grid, mode=mode, padding_mode=padding, align_corners=align
        ),
        torch.randn(2, 3, *sizes),
        1.7 * torch.randn(2, *(4 for _ in sizes), len(sizes)),
    )


@pytest.mark.full_size
def test_a_spatial_transformer_exports(tmp_path: Path) -> None:
    """Localisation, grid and sampler in one (arXiv:1506.02025)."""

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.where = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, 6))
            self.head = nn.Linear(3 * 16, 3)

        def forward(self, x: Tensor) -> Tensor:
            grid = functional.affine_grid(
                self.where(x).view(-1, 2, 3), list(x.size()), align_corners=False
            )
            seen = functional.grid_sample(x, grid, align_corners=False)
            return self.head(functional.avg_pool2d(seen, 3).flatten(1))

    report = pf.export_model(
        Transformer(), tmp_path / "m.pfb", strategy="fedavg", input_shape=(3, 12, 12)
    )
    assert not report.left_out
