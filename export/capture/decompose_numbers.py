"""Arithmetic, norms and distances in operators that both formats have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import get_decompositions

_aten = torch.ops.aten


def _hardtanh(x: Tensor, low: float = -1.0, high: float = 1.0) -> Tensor:
    return x.clamp(low, high)


def _clamp(x: Tensor, low: Any = None, high: Any = None) -> Any:
    """Bounds of one kind: ONNX has no form for a whole number beside another one."""
    alike = type(low) is type(high) or None in (low, high)
    if alike or not x.dtype.is_floating_point:
        return NotImplemented
    return x.clamp(float(low), float(high))


def _clamp_by_tensors(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    if low is not None:
        x = torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


def _shrink_backward(grad: Tensor, x: Tensor, reach: float) -> Tensor:
    """Nothing passes between ``-reach`` and ``reach``."""
    return grad * (x.abs() > reach).to(grad.dtype)


def _hypot(x: Tensor, y: Tensor) -> Tensor:
    return torch.sqrt(x * x + y * y)


def _fmin(x: Tensor, y: Tensor) -> Tensor:
    return torch.where((x <= y) | torch.isnan(y), x, y)


def _fmax(x: Tensor, y: Tensor) -> Tensor:
    return torch.where((x >= y) | torch.isnan(y), x, y)


def _erfc(x: Tensor) -> Tensor:
    return 1 - torch.erf(x)


def _round_decimals(x: Tensor, *, decimals: int) -> Tensor:
    scale = 10.0**decimals
    return torch.round(x * scale) / scale


def _var(
    x: Tensor,
    dim: Sequence[int] | None = None,
    *,
    correction: float | None = None,
    keepdim: bool = False,
) -> Tensor:
    """Squared differences to the mean, over their number less ``correction`` (1 unless given)."""
    axes = list(dim) if dim else list(range(x.dim()))
    centred = x - x.mean(axes, keepdim=True)
    count = math.prod(x.shape[axis] for axis in axes)
    fewer = count - (1 if correction is None else correction)
    return (centred * centred).sum(axes, keepdim=keepdim) / fewer


def _vector_norm(
    x: Tensor,
    ord: float = 2,  # noqa: A002 - the operator's signature
    dim: Sequence[int] | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - as above
    *,
    dtype: torch.dtype | None = None,  # noqa: ARG001 - float32 everywhere
) -> Tensor:
    """The norms of order 0, 1, 2, infinity and any other number."""
    axes = [dim] if isinstance(dim, int) else list(dim or range(x.dim()))
    if abs(ord) == math.inf:
        reduced = torch.amax if ord > 0 else torch.amin
        return reduced(x.abs(), axes, keepdim=keepdim)
    if ord == 0:
        return (x != 0).to(x.dtype).sum(axes, keepdim=keepdim)
    if ord == 1:
        return x.abs().sum(axes, keepdim=keepdim)
    if ord == 2:
        return torch.sqrt((x * x).sum(axes, keepdim=keepdim))
    return torch.pow(torch.pow(x.abs(), ord).sum(axes, keepdim=keepdim), 1 / ord)


def _distances(x: Tensor, y: Tensor, p: float, mode: int | None) -> Tensor:  # noqa: ARG001 - the operator's signature
    """(…, n, d) and (…, m, d) → (…, n, m)."""
    return _vector_norm(x.unsqueeze(-2) - y.unsqueeze(-3), p, [-1])


def _distances_backward(grad: Tensor, x: Tensor, y: Tensor, p: float, distances: Tensor) -> Tensor:
    """The gradient by ``x``; of a distance of zero it is zero, as in PyTorch."""
    gap = x.unsqueeze(-2) - y.unsqueeze(-3)
    size, far = gap.abs(), distances.unsqueeze(-1)
    if p == 1:
        share = torch.sign(gap)
    elif p == math.inf:
        share = torch.sign(gap) * (size == far).to(gap.dtype)
    else:
        apart = far > 0
        share = gap * torch.pow(size, p - 2) if p != 2 else gap
        share = share * apart / torch.pow(torch.where(apart, far, 1.0), p - 1)
    return (grad.unsqueeze(-1) * share).sum(-2)


def _where(condition: Tensor, x: Tensor, y: Tensor) -> Any:
    """Truth values are chosen by logic: ONNX Runtime chooses among numbers only."""
    if not x.dtype == y.dtype == torch.bool:
        return NotImplemented
    return (condition & x) | (~condition & y)


AUTOGRAD: Mapping[Any, Callable[..., Any]] = {
    _aten.hardshrink_backward.default: _shrink_backward,
    _aten.softshrink_backward.default: _shrink_backward,
    _aten._cdist_forward.default: _distances,  # noqa: SLF001 - its name
    _aten._cdist_backward.default: _distances_backward,  # noqa: SLF001 - as above
    _aten.linalg_vector_norm.default: _vector_norm,
}
"""Applied while autograd runs: what PyTorch knows for fixed sizes only."""

TABLE: Mapping[Any, Callable[..., Any]] = {
    **get_decompositions([_aten.rrelu_with_noise_backward]),
    _aten.hardtanh.default: _hardtanh,
    _aten.linalg_vector_norm.default: _vector_norm,
    _aten.clamp.default: _clamp,
    _aten.clamp.Tensor: _clamp_by_tensors,
    _aten.hypot.default: _hypot,
    _aten.fmin.default: _fmin,
    _aten.fmax.default: _fmax,
    _aten.erfc.default: _erfc,
    _aten.round.decimals: _round_decimals,
    _aten.var.correction: _var,
    _aten.where.self: _where,
}
"""Applied to the flat graph."""
