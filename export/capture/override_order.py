"""Functions of PyTorch in a form that programs have: resizing, running values, order.

They stand in before autograd sees them (``functions``), so that their gradients are those of their
parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_aten = torch.ops.aten

_INTERPOLATIONS = {
    ("nearest", 1, False): "upsample_nearest1d",
    ("nearest", 2, False): "upsample_nearest2d",
    ("nearest", 3, False): "upsample_nearest3d",
    ("nearest-exact", 1, False): "_upsample_nearest_exact1d",
    ("nearest-exact", 2, False): "_upsample_nearest_exact2d",
    ("nearest-exact", 3, False): "_upsample_nearest_exact3d",
    ("linear", 1, False): "upsample_linear1d",
    ("bilinear", 2, False): "upsample_bilinear2d",
    ("trilinear", 3, False): "upsample_trilinear3d",
    ("bicubic", 2, False): "upsample_bicubic2d",
    ("bilinear", 2, True): "_upsample_bilinear2d_aa",
    ("bicubic", 2, True): "_upsample_bicubic2d_aa",
}


def _interpolate(  # noqa: PLR0913, PLR0917 - the function's signature
    input: Tensor,  # noqa: A002 - as above
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,  # noqa: FBT001 - as above
    recompute_scale_factor: bool | None = None,  # noqa: FBT001 - as above
    antialias: bool = False,  # noqa: FBT001, FBT002 - as above
) -> Any:
    """The sizes that PyTorch finds, and the operator; what is wrong PyTorch says itself."""
    rank = input.dim() - 2
    name = _INTERPOLATIONS.get((mode, rank, antialias))
    if name is None or (size is None) == (scale_factor is None):
        return NotImplemented
    given = size if scale_factor is None else scale_factor
    by_axis = list(given) if isinstance(given, (list, tuple)) else [given] * rank
    factors: list[float | None] = [None] * rank
    if scale_factor is not None:
        if not recompute_scale_factor:
            factors = [float(factor) for factor in by_axis]
        inside = input.shape[2:]
        by_axis = [math.floor(float(int(n)) * f) for n, f in zip(inside, by_axis, strict=True)]
    align = [] if mode.startswith("nearest") else [bool(align_corners)]
    return getattr(_aten, name).default(input, by_axis, *align, *factors)


def _take_along_dim(input: Tensor, indices: Tensor, dim: int | None = None) -> Any:  # noqa: A002 - the function's signature
    if dim is None or input.dim() != indices.dim():
        return NotImplemented
    dim %= input.dim()
    pairs = list(zip(input.shape, indices.shape, strict=True))
    common = [b if a == 1 else a for a, b in pairs]
    x = input.expand([a if axis == dim else n for axis, ((a, _), n) in _numbered(pairs, common)])
    places = [b if axis == dim else n for axis, ((_, b), n) in _numbered(pairs, common)]
    return x.gather(dim, indices.expand(places))


def _numbered(pairs: Sequence[Any], common: Sequence[Any]) -> Any:
    return enumerate(zip(pairs, common, strict=True))


def _shifted(x: Tensor, dim: int, by: int, fill: float) -> Tensor:
    size = int(x.shape[dim])
    return torch.cat(
        (torch.full_like(x.narrow(dim, 0, by), fill), x.narrow(dim, 0, size - by)), dim
    )


def _cumprod(input: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:  # noqa: A002 - the function's signature
    """Products of two, four, eight, … neighbours: autograd's own gradient looks for zeros."""
    if dtype is not None or not isinstance(input.shape[dim], int):
        return NotImplemented
    by = 1
    while by < int(input.shape[dim]):
        input = input * _shifted(input, dim, by, 1.0)  # noqa: A001 - as above
        by *= 2
    return input


def _logcumsumexp(input: Tensor, dim: int) -> Any:  # noqa: A002 - the function's signature
    """As ``_cumprod``: PyTorch's gradient takes logarithms of gradients, which may be 0."""
    if not isinstance(input.shape[dim], int):
        return NotImplemented
    by = 1
    while by < int(input.shape[dim]):
        input = _log_of_sum(input, _shifted(input, dim, by, -math.inf))  # noqa: A001 - as above
        by *= 2
    return input


def _log_of_sum(a: Tensor, b: Tensor) -> Tensor:
    """log(exp a + exp b), where both may be -∞ too."""
    # Whatever is subtracted and added again has no gradient.
    most = torch.maximum(a, b).detach().clamp(min=torch.finfo(a.dtype).min)
    total = (a - most).exp() + (b - most).exp()
    some = total > 0
    logarithm = torch.where(some, total, torch.ones_like(total)).log()
    return most + torch.where(some, logarithm, torch.full_like(total, -math.inf))


def _running(
    earlier_wins: Callable[[Tensor, Tensor], Tensor], worst: float, named: Callable[..., Any]
) -> Callable[..., Any]:
    """Largest or smallest entry so far; of equal ones the later is named, as in PyTorch."""

    def running(input: Tensor, dim: int) -> Any:  # noqa: A002 - the function's signature
        size = input.shape[dim]
        if not isinstance(size, int):
            return NotImplemented
        shape = [1] * input.dim()
        shape[dim] = size
        places = torch.arange(size).reshape(shape).expand_as(input)
        by = 1
        while by < size:
            before = _shifted(input, dim, by, worst)
            wins = earlier_wins(before, input)
            input = torch.where(wins, before, input)  # noqa: A001 - as above
            places = torch.where(wins, _shifted(places, dim, by, 0), places)
            by *= 2
        return named((input, places))

    return running


def _kthvalue(
    input: Tensor,  # noqa: A002 - the function's signature
    k: int,
    dim: int = -1,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - as above
) -> Any:
    if not isinstance(input.shape[dim], int):
        return NotImplemented
    values, places = input.topk(k, dim, largest=False)
    value, place = (part.narrow(dim, k - 1, 1) for part in (values, places))
    found = (value, place) if keepdim else (value.squeeze(dim), place.squeeze(dim))
    return torch.return_types.kthvalue(found)


def _median(
    input: Tensor,  # noqa: A002 - the function's signature
    dim: int | None = None,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - as above
) -> Any:
    """The lower of two in the middle."""
    if dim is None or not isinstance(input.shape[dim], int):
        return NotImplemented
    values, places = _kthvalue(input, (int(input.shape[dim]) + 1) // 2, dim, keepdim)
    return torch.return_types.median((values, places))


_cummax = _running(torch.gt, -math.inf, torch.return_types.cummax)
_cummin = _running(torch.lt, math.inf, torch.return_types.cummin)

FUNCTIONS: dict[Any, Callable[..., Any]] = {
    functional.interpolate: _interpolate,
    **dict.fromkeys((torch.take_along_dim, Tensor.take_along_dim), _take_along_dim),
    **dict.fromkeys((torch.cumprod, Tensor.cumprod), _cumprod),
    **dict.fromkeys((torch.logcumsumexp, Tensor.logcumsumexp), _logcumsumexp),
    **dict.fromkeys((torch.cummax, Tensor.cummax), _cummax),
    **dict.fromkeys((torch.cummin, Tensor.cummin), _cummin),
    **dict.fromkeys((torch.kthvalue, Tensor.kthvalue), _kthvalue),
    **dict.fromkeys((torch.median, Tensor.median), _median),
}
"""What replaces a function; NotImplemented where it stays as it is."""
