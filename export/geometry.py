"""Lengths, directions and distances whose gradient is finite everywhere, at zero too."""

from __future__ import annotations

import torch
from torch import Tensor

_SHORTEST = 1e-6
"""A vector no longer than this counts as zero: it has no direction and passes no gradient on."""


def length(x: Tensor) -> Tensor:
    """Euclidean norm over the last axis, (…, d) → (…,); 0 with gradient 0 for a zero vector."""
    return _root(x.square().sum(-1))


def unit(x: Tensor) -> Tensor:
    """Vectors (…, d) scaled to length 1; a zero vector stays zero, with gradient 0."""
    square = x.square().sum(-1, keepdim=True)
    known, safe = _guarded(square)
    return x * torch.where(known, torch.rsqrt(safe), 0.0)


def distances(x: Tensor, points: Tensor) -> Tensor:
    """Euclidean distance of every row of ``x`` (B, d) to every one of ``points`` (C, d), (B, C).

    The square is multiplied out, so that no (B, C, d) array arises; a distance below about 3e-4 of
    the vectors' lengths is rounding.
    """
    products = x @ points.T
    return _root(x.square().sum(1, keepdim=True) + points.square().sum(1) - 2 * products)


def _root(square: Tensor) -> Tensor:
    known, safe = _guarded(square)
    return torch.where(known, torch.sqrt(safe), 0.0)


def _guarded(square: Tensor) -> tuple[Tensor, Tensor]:
    """Where a square is large enough for a root's derivative, and the square with ones elsewhere.

    Both branches of ``where`` are differentiated: the unused one must be finite too.
    """
    known = square > _SHORTEST**2
    return known, torch.where(known, square, 1.0)
