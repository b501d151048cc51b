"""Spatial transformers: grids of an affine map, and sampling at the places of a grid.

A sample is a sum over the whole image, weighted along each axis by how near an entry is (Jaderberg
et al., arXiv:1506.02025, eq. 5): products of matrices, which both runtimes have with gradients, in
the place of lookups by computed numbers, which one of them lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def _affine_grid(
    theta: Tensor,
    size: Sequence[int],
    align_corners: bool | None = None,  # noqa: FBT001 - the function's signature
) -> Any:
    """Of fixed sizes but the batch's, (B, d, d + 1) → (B, *sizes, d), the last axis first."""
    sizes = [int(n) for n in size[2:]]
    rank = len(sizes)
    if theta.dim() != 3 or theta.shape[1:] != (rank, rank + 1):
        return NotImplemented
    grid = theta[:, :, -1].reshape(-1, *[1] * rank, rank)
    for axis, n in enumerate(sizes):
        # The map's columns are of x, y, z; the image's axes of z, y, x.
        column = theta[:, :, rank - 1 - axis].reshape(-1, *[1] * rank, rank)
        shape = [1] * (rank + 2)
        shape[axis + 1] = n
        grid = grid + column * _centres(n, align_corners=bool(align_corners)).reshape(shape)
    return grid


def _centres(n: int, *, align_corners: bool) -> Tensor:
    """Where the entries of an axis lie between -1 and 1."""
    if align_corners:
        return torch.linspace(-1, 1, n) if n > 1 else torch.zeros(1)
    return torch.linspace(-1, 1, n) * ((n - 1) / n) if n > 1 else torch.zeros(1)


def _grid_sample(
    input: Tensor,  # noqa: A002 - the function's signature
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,  # noqa: FBT001 - as above
) -> Any:
    """(B, C, *sizes) at (B, *places, d) → (B, C, *places)."""
    rank = input.dim() - 2
    fixed = all(isinstance(n, int) for n in (*input.shape[1:], *grid.shape[1:]))
    if mode not in _WEIGHTS or not fixed or grid.dim() != rank + 2 or grid.shape[-1] != rank:
        return NotImplemented
    places = grid.flatten(1, -2)
    found, sizes = input, [int(n) for n in input.shape[2:]]
    for axis in reversed(range(rank)):
        at = _on_axis(
            places[..., rank - 1 - axis], sizes[axis], padding_mode, align_corners=align_corners
        )
        weights = _WEIGHTS[mode](at, sizes[axis])  # (B, P, n)
        if axis == rank - 1:
            rows = found.reshape(input.shape[0], -1, sizes[axis])
            found = rows @ weights.transpose(1, 2)
            found = found.reshape(*input.shape[:-1], -1)
        else:
            wide = weights.transpose(1, 2).reshape(-1, *[1] * (axis + 1), *weights.shape[:0:-1])
            found = (found * wide).sum(-2)
    return found.reshape(*input.shape[:2], *grid.shape[1:-1])


def _on_axis(at: Tensor, n: int, padding: str, *, align_corners: bool | None) -> Tensor:
    """From -1 to 1 → entries of an axis, by what lies outside of it."""
    at = (at + 1) / 2 * (n - 1) if align_corners else ((at + 1) * n - 1) / 2
    if padding == "reflection":
        low, high = (0.0, n - 1.0) if align_corners else (-0.5, n - 0.5)
        span = high - low
        if span <= 0:
            return torch.zeros_like(at)
        away = (at - low).abs()
        turns = (away / span).floor()
        rest = away - turns * span
        even = (turns / 2).floor() * 2 == turns
        at = torch.where(even, rest, span - rest) + low
    return at if padding == "zeros" else at.clamp(0, n - 1)


def _linear(at: Tensor, n: int) -> Tensor:
    """Weights of the two neighbours; at an entry the slope is that to the next one."""
    first = at.detach().floor()
    share = (at - first)[..., None]
    entries = torch.arange(n, dtype=at.dtype)
    here, following = entries == first[..., None], entries == first[..., None] + 1
    return torch.where(here, 1 - share, torch.where(following, share, torch.zeros_like(share)))


def _nearest(at: Tensor, n: int) -> Tensor:
    return (torch.arange(n, dtype=at.dtype) == at.detach().round()[..., None]).to(at.dtype)


_WEIGHTS: dict[str, Callable[[Tensor, int], Tensor]] = {"bilinear": _linear, "nearest": _nearest}

FUNCTIONS: dict[Any, Callable[..., Any]] = {
    functional.affine_grid: _affine_grid,
    functional.grid_sample: _grid_sample,
}
"""What replaces a function; NotImplemented where it stays as it is."""
