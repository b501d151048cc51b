"""Windows: unfolding, and pooling by the largest entry where a runtime's own cannot.

That is three axes, dilation, adaptive sizes.

Every window's entries are looked up beside each other; the first largest one takes the gradient,
as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofleet.export.capture.axis_maps import put, take
from protofleet.export.capture.resizing import adaptive_windows, pooled_size

Windows = Sequence[Sequence[Sequence[int]]]
"""By axis, and by place in the result: the places of the window."""

_aten = torch.ops.aten


def _beside(x: Tensor, windows: Windows) -> Tensor:
    """(…, sizes…) → (…, results…, entries of a window)."""
    first, rank = x.dim() - len(windows), len(windows)
    for axis, table in enumerate(windows, start=first):
        x = take(x, axis, [place for window in table for place in window])
    split = x.reshape(*x.shape[:first], *(n for t in windows for n in (len(t), len(t[0]))))
    order = [*range(first), *range(first, first + 2 * rank, 2)]
    moved = split.permute(*order, *range(first + 1, first + 2 * rank, 2))
    return moved.reshape(*moved.shape[: first + rank], math.prod(len(t[0]) for t in windows))


def _back(shares: Tensor, windows: Windows, sizes: Sequence[int]) -> Tensor:
    """The gradient of ``_beside``."""
    rank = len(windows)
    first = shares.dim() - 1 - rank
    split = shares.reshape(*shares.shape[:-1], *(len(table[0]) for table in windows))
    order = [axis for k in range(rank) for axis in (first + k, first + rank + k)]
    moved = split.permute(*range(first), *order)
    x = moved.reshape(*moved.shape[:first], *(len(table) * len(table[0]) for table in windows))
    for axis, (table, size) in enumerate(zip(windows, sizes, strict=True), start=first):
        x = put(x, axis, [place for window in table for place in window], size)
    return x


def _first_largest(beside: Tensor) -> Tensor:
    """Where the first largest entry of the last axis is, as a bool."""
    numbers = torch.arange(int(beside.shape[-1]))
    return beside.argmax(-1, keepdim=True) == numbers


def _pooled(x: Tensor, windows: Windows, flat: Tensor) -> tuple[Tensor, Tensor]:
    """Largest entries, and their places, of which ``flat`` holds those of all windows."""
    beside = _beside(x, windows)
    return beside.amax(-1), (_first_largest(beside).to(torch.int64) * flat).sum(-1)


def _places(windows: Windows, sizes: Sequence[int], before: Sequence[int]) -> Tensor:
    """Places in the flat plane, (results…, entries of a window) int64."""
    rank = len(windows)
    total = np.zeros((), np.int64)
    for axis, (table, pad) in enumerate(zip(windows, before, strict=True)):
        shape = [1] * (2 * rank)
        shape[axis], shape[rank + axis] = len(table), len(table[0])
        inside = (np.asarray(table) - pad).reshape(shape)
        total = total + inside * math.prod(sizes[axis + 1 :])
    return torch.tensor(total.reshape(*total.shape[:rank], -1))


def _adaptive(sizes: Sequence[int], out: Sequence[int]) -> list[list[list[int]]]:
    """Windows of one length on an axis: shorter ones name their last entry again."""
    tables = []
    for size, count in zip(sizes, out, strict=True):
        ranges = adaptive_windows(size, int(count))
        longest = max(stop - start for start, stop in ranges)
        tables.append([[min(a + k, b - 1) for k in range(longest)] for a, b in ranges])
    return tables


def _adaptive_max(x: Tensor, out: Sequence[int]) -> tuple[Tensor, Tensor]:
    sizes = [int(size) for size in x.shape[x.dim() - len(out) :]]
    windows = _adaptive(sizes, out)
    return _pooled(x, windows, _places(windows, sizes, [0] * len(sizes)))


def _adaptive_max_backward(rank: int) -> Callable[..., Any]:
    def backward(grad: Tensor, x: Tensor, _indices: Tensor) -> Tensor:
        sizes = [int(size) for size in x.shape[x.dim() - rank :]]
        windows = _adaptive(sizes, [int(size) for size in grad.shape[grad.dim() - rank :]])
        winners = _first_largest(_beside(x, windows)).to(grad.dtype)
        return _back(winners * grad.unsqueeze(-1), windows, sizes)

    return backward


class _Window:
    """A max pooling's arguments for one input."""

    def __init__(  # noqa: PLR0913, PLR0917 - the operator's signature
        self,
        x: Tensor,
        kernel: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,  # noqa: FBT001, FBT002 - as above
    ) -> None:
        rank = len(kernel)
        self.sizes = [int(size) for size in x.shape[x.dim() - rank :]]
        self.plain = rank == 2 and not ceil_mode and set(dilation) == {1}
        self.before = list(padding) * (rank // len(padding))
        strides = list(stride or kernel)
        axes = zip(
            self.sizes,
            kernel,
            strides * (rank // len(strides)),
            self.before,
            list(dilation) * (rank // len(dilation)),
            strict=True,
        )
        self.tables = [
            [
                [place * step + k * gap for k in range(width)]
                for place in range(
                    pooled_size(size, gap * (width - 1) + 1, step, pad, ceil_mode=ceil_mode)
                )
            ]
            for size, width, step, pad, gap in axes
        ]
        self.wide = [max(table[-1][-1] + 1, size + pad) for table, size, pad in self._axes()]

    def _axes(self) -> Any:
        return zip(self.tables, self.sizes, self.before, strict=True)

    def padded(self, x: Tensor) -> Tensor:
        """With entries that are never the largest."""
        behind = [w - s - p for w, s, p in zip(self.wide, self.sizes, self.before, strict=True)]
        pairs = list(zip(self.before, behind, strict=True))[::-1]
        amounts = [amount for pair in pairs for amount in pair]
        return _aten.constant_pad_nd(x, amounts, float("-inf")) if any(amounts) else x

    def cropped(self, x: Tensor) -> Tensor:
        """Without them."""
        for axis, (size, pad) in enumerate(zip(self.sizes, self.before, strict=True)):
            x = x.narrow(x.dim() - len(self.sizes) + axis, pad, size)
        return x


def _max(x: Tensor, *window: Any) -> Any:
    found = _Window(x, *window)
    if found.plain:
        return NotImplemented
    flat = _places(found.tables, found.sizes, found.before)
    return _pooled(found.padded(x), found.tables, flat)


def _max_backward(grad: Tensor, x: Tensor, *window: Any) -> Any:
    found = _Window(x, *window[:-1])
    if found.plain:
        return NotImplemented
    winners = _first_largest(_beside(found.padded(x), found.tables)).to(grad.dtype)
    return found.cropped(_back(winners * grad.unsqueeze(-1), found.tables, found.wide))


def _unfold(x: Tensor, axis: int, size: int, step: int) -> Tensor:
    """Windows of an axis, their entries on a new last axis."""
    axis %= x.dim()
    starts = range(0, int(x.shape[axis]) - size + 1, step)
    found = take(x, axis, [start + k for start in starts for k in range(size)])
    return found.reshape(*x.shape[:axis], len(starts), size, *x.shape[axis + 1 :]).movedim(
        axis + 1, -1
    )


def _unfold_backward(
    grad: Tensor, before: Sequence[Any], axis: int, size: int, step: int
) -> Tensor:
    axis %= len(before)
    count = int(grad.shape[axis])
    beside = grad.movedim(-1, axis + 1)
    values = beside.reshape(*grad.shape[:axis], count * size, *beside.shape[axis + 2 :])
    places = [start * step + k for start in range(count) for k in range(size)]
    return put(values, axis, places, int(before[axis]))


TABLE: dict[Any, Callable[..., Any]] = {
    _aten.unfold.default: _unfold,
    _aten.unfold_backward.default: _unfold_backward,
    _aten.adaptive_max_pool2d.default: _adaptive_max,
    _aten.adaptive_max_pool2d_backward.default: _adaptive_max_backward(2),
    _aten.adaptive_max_pool3d.default: _adaptive_max,
    _aten.adaptive_max_pool3d_backward.default: _adaptive_max_backward(3),
    _aten.max_pool2d_with_indices.default: _max,
    _aten.max_pool2d_with_indices_backward.default: _max_backward,
    _aten.max_pool3d_with_indices.default: _max,
    _aten.max_pool3d_with_indices_backward.default: _max_backward,
}
"""Decompositions by operator."""
