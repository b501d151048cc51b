"""Products and cosines whose own forms look at values, or ask for fixed sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def _product(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - the function's signature
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    """Halves multiplied by each other; PyTorch's own gradient looks for zeros."""
    if dim is None or dtype is not None or not isinstance(x.shape[dim], int):
        return NotImplemented
    while (size := int(x.shape[dim])) > 1:
        half = size // 2
        pair = x.narrow(dim, 0, half) * x.narrow(dim, half, half)
        x = torch.cat((pair, x.narrow(dim, 2 * half, 1)), dim) if size % 2 else pair
    return x if keepdim else x.squeeze(dim)


def _cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    along, one, other = ((a * b).sum(dim) for a, b in ((x1, x2), (x1, x1), (x2, x2)))
    sizes = torch.sqrt(one.clamp(min=eps * eps)) * torch.sqrt(other.clamp(min=eps * eps))
    return along / sizes


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.prod: _product,
    Tensor.prod: _product,
    torch.cosine_similarity: _cosine_similarity,
    functional.cosine_similarity: _cosine_similarity,
}
"""What replaces a function, by the function."""
