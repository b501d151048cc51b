"""Functions of PyTorch that are computed in another way while a model is captured.

Where a function's own form asks for fixed sizes, or has a backward pass without a form in programs,
what stands here replaces it before autograd sees it. The parity check compares the result with the
function itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from protofleet.export.capture import ordering


class ProgramFunctions(TorchFunctionMode):
    """Inside, functions that a program needs in another form take that form."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func`` or what replaces it; the latter may refuse by ``NotImplemented``."""
        replacement = _REPLACED.get(func)
        if replacement is not None:
            with self:
                result = replacement(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        return func(*args, **(kwargs or {}))


def _product(
    x: Tensor,
    dim: int | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - the function's signature
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    """Halves multiplied by each other; autograd's own gradient looks for zeros."""
    if dim is None or dtype is not None or not isinstance(x.shape[dim], int):
        return NotImplemented
    while (size := int(x.shape[dim])) > 1:
        half = size // 2
        pair = x.narrow(dim, 0, half) * x.narrow(dim, half, half)
        x = torch.cat((pair, x.narrow(dim, 2 * half, 1)), dim) if size % 2 else pair
    return x if keepdim else x.squeeze(dim)


def _cosine_similarity(x: Tensor, y: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    along, one, other = ((a * b).sum(dim, keepdim=True) for a, b in ((x, y), (x, x), (y, y)))
    sizes = torch.sqrt(one.clamp(min=eps * eps)) * torch.sqrt(other.clamp(min=eps * eps))
    return (along / sizes).squeeze(dim)


_REPLACED: dict[Any, Callable[..., Any]] = {
    torch.prod: _product,
    Tensor.prod: _product,
    torch.cosine_similarity: _cosine_similarity,
    functional.cosine_similarity: _cosine_similarity,
    **ordering.FUNCTIONS,
}
