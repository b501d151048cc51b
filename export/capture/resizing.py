"""Padding by the example's own entries, interpolation, and pooling by averages: fixed maps.

Every axis is mapped on its own (``axis_maps``), by rows that follow PyTorch's processor kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofleet.export.capture.axis_maps import Row, combine, transposed

Rows = Sequence[Row]
_Filter = Callable[[float], float]

_aten = torch.ops.aten
_CUBIC, _CUBIC_ANTIALIAS = -0.75, -0.5


def _mapped(x: Tensor, by_axis: Sequence[Rows]) -> Tensor:
    """The last axes, each by its map."""
    for axis, rows in enumerate(by_axis, start=x.dim() - len(by_axis)):
        if not _keeps(rows, int(x.shape[axis])):
            x = combine(x, axis, rows)
    return x


def _mapped_back(grad: Tensor, by_axis: Sequence[Rows], sizes: Sequence[int]) -> Tensor:
    turned = [
        rows if _keeps(rows, size) else transposed(rows, size)
        for rows, size in zip(by_axis, sizes, strict=True)
    ]
    return _mapped(grad, turned)


def _keeps(rows: Rows, size: int) -> bool:
    return len(rows) == size and all(list(row) == [(i, 1.0)] for i, row in enumerate(rows))


def _sizes(x: Tensor, rank: int) -> list[int]:
    return [int(size) for size in x.shape[x.dim() - rank :]]


def _reflected(place: int, size: int) -> int:
    place = abs(place)
    return place if place < size else 2 * (size - 1) - place


def _replicated(place: int, size: int) -> int:
    return min(max(place, 0), size - 1)


def _padding(inside: Callable[[int, int], int]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Forward and backward of a padding, by the place inside that an outer one repeats."""

    def rows(sizes: Sequence[int], widths: Sequence[int]) -> list[Rows]:
        pairs = list(zip(widths[::2], widths[1::2], strict=True))[::-1]
        return [
            [[(inside(place, size), 1.0)] for place in range(-before, size + after)]
            for size, (before, after) in zip(sizes, pairs, strict=True)
        ]

    def forward(x: Tensor, padding: Sequence[int]) -> Tensor:
        return _mapped(x, rows(_sizes(x, len(padding) // 2), padding))

    def backward(grad: Tensor, x: Tensor, padding: Sequence[int]) -> Tensor:
        sizes = _sizes(x, len(padding) // 2)
        return _mapped_back(grad, rows(sizes, padding), sizes)

    return forward, backward


def _scale(size: int, out: int, factor: float | None, *, align_corners: bool = False) -> np.float32:
    """Input places between two neighbours of the result."""
    if align_corners:
        return np.float32((size - 1) / (out - 1) if out > 1 else 0)
    if factor is not None and factor > 0:
        return np.float32(1 / factor)
    return np.float32(np.float32(size) / np.float32(out))


def _nearest(size: int, out: int, factor: float | None) -> Rows:
    if out in (size, 2 * size):
        return [[(place * size // out, 1.0)] for place in range(out)]
    return _nearest_volume(size, out, factor)


def _nearest_volume(size: int, out: int, factor: float | None) -> Rows:
    """Over three axes PyTorch goes by the factor also where the size stays or doubles."""
    scale = _scale(size, out, factor)
    return [[(min(int(np.float32(place) * scale), size - 1), 1.0)] for place in range(out)]


def _nearest_exact(size: int, out: int, factor: float | None) -> Rows:
    scale = _scale(size, out, factor)
    places = (int(np.float32(place + 0.5) * scale) for place in range(out))
    return [[(min(place, size - 1), 1.0)] for place in places]


def _linear(size: int, out: int, factor: float | None, *, align_corners: bool) -> Rows:
    scale = _scale(size, out, factor, align_corners=align_corners)
    rows = []
    for place in range(out):
        source = place * scale if align_corners else max(float((place + 0.5) * scale - 0.5), 0.0)
        first = min(int(source), size - 1)
        share = min(max(float(source - first), 0.0), 1.0)
        rows.append(_merged([(first, 1 - share), (min(first + 1, size - 1), share)]))
    return rows


def _cubic(size: int, out: int, factor: float | None, *, align_corners: bool) -> Rows:
    scale = _scale(size, out, factor, align_corners=align_corners)
    rows = []
    for place in range(out):
        source = place * scale if align_corners else (place + 0.5) * scale - 0.5
        first = math.floor(source)
        rows.append(
            _merged(
                (_replicated(first + k, size), _cubic_weight(float(source) - first - k, _CUBIC))
                for k in (-1, 0, 1, 2)
            )
        )
    return rows


def _cubic_weight(distance: float, bend: float) -> float:
    """Keys' convolution kernel (1981)."""
    far = abs(distance)
    if far <= 1:
        return ((bend + 2) * far - (bend + 3)) * far * far + 1
    return ((far - 5) * far + 8) * far * bend - 4 * bend if far < 2 else 0.0


def _antialiased(kernel: _Filter, reach: float) -> Callable[..., Rows]:
    """A kernel as wide as the result is smaller, weights adding up to one."""

    def rows(size: int, out: int, factor: float | None, *, align_corners: bool) -> Rows:
        scale = float(_scale(size, out, factor, align_corners=align_corners))
        wide = max(scale, 1.0)
        found = []
        for place in range(out):
            centre = scale * (place + 0.5)
            start = max(int(centre - reach * wide + 0.5), 0)
            stop = min(int(centre + reach * wide + 0.5), size)
            weights = [kernel((j - centre + 0.5) / wide) for j in range(start, stop)]
            found.append(_merged((start + j, w / sum(weights)) for j, w in enumerate(weights)))
        return found

    return rows


def _unless_kept(rows_of: Callable[..., Rows]) -> Callable[..., Rows]:
    """The entries as they are where the size stays, whatever the factor."""

    def rows(size: int, out: int, factor: float | None, *, align_corners: bool) -> Rows:
        if out == size:
            return [[(place, 1.0)] for place in range(out)]
        return rows_of(size, out, factor, align_corners=align_corners)

    return rows


def _merged(row: Any) -> Row:
    """Equal places added up."""
    weights: dict[int, float] = {}
    for place, weight in row:
        weights[place] = weights.get(place, 0.0) + weight
    return [(place, weight) for place, weight in weights.items() if weight != 0]


def _repeating(
    rows_of: Callable[..., Rows], rows_back: Callable[..., Rows]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Forward and backward of a nearest interpolation.

    The rows differ where PyTorch's kernels do: a factor so near to one that the size stays.
    """

    def by_axis(
        rows: Callable[..., Rows], sizes: Sequence[int], out: Sequence[int], factors: Sequence[Any]
    ) -> list[Rows]:
        given = [*factors, *[None] * (len(out) - len(factors))]
        return [rows(*axis) for axis in zip(sizes, map(int, out), given, strict=True)]

    def forward(x: Tensor, out: Sequence[int], *factors: float | None) -> Tensor:
        return _mapped(x, by_axis(rows_of, _sizes(x, len(out)), out, factors))

    def backward(
        grad: Tensor, out: Sequence[int], before: Sequence[int], *factors: float | None
    ) -> Tensor:
        sizes = [int(size) for size in before[2:]]
        return _mapped_back(grad, by_axis(rows_back, sizes, out, factors), sizes)

    return forward, backward


def _smooth(
    rows_of: Callable[..., Rows], rows_back: Callable[..., Rows]
) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Forward and backward of an interpolation between neighbours; rows as in ``_repeating``."""

    def both(*, align: bool) -> tuple[Callable[..., Any], Callable[..., Any]]:
        return _repeating(
            lambda *axis: rows_of(*axis, align_corners=align),
            lambda *axis: rows_back(*axis, align_corners=align),
        )

    def forward(x: Tensor, out: Sequence[int], align: bool, *factors: float | None) -> Tensor:  # noqa: FBT001 - the operator's signature
        result: Tensor = both(align=align)[0](x, out, *factors)
        return result

    def backward(
        grad: Tensor,
        out: Sequence[int],
        before: Sequence[int],
        align: bool,  # noqa: FBT001 - the operator's signature
        *factors: float | None,
    ) -> Tensor:
        result: Tensor = both(align=align)[1](grad, out, before, *factors)
        return result

    return forward, backward


def _adaptive_rows(size: int, out: int) -> Rows:
    return [
        [(i, 1 / (stop - start)) for i in range(start, stop)]
        for start, stop in adaptive_windows(size, out)
    ]


def adaptive_windows(size: int, out: int) -> list[tuple[int, int]]:
    """Start and end of the windows of an adaptive pooling."""
    return [(o * size // out, -(-(o + 1) * size // out)) for o in range(out)]


def _adaptive_average(x: Tensor, out: Sequence[int]) -> Tensor:
    sizes = _sizes(x, len(out))
    return _mapped(x, [_adaptive_rows(*axis) for axis in zip(sizes, map(int, out), strict=True)])


def _adaptive_average_backward(rank: int) -> Callable[..., Any]:
    def backward(grad: Tensor, x: Tensor) -> Tensor:
        sizes = _sizes(x, rank)
        by_axis = [_adaptive_rows(*a) for a in zip(sizes, _sizes(grad, rank), strict=True)]
        return _mapped_back(grad, by_axis, sizes)

    return backward


def pooled_size(size: int, kernel: int, stride: int, padding: int, *, ceil_mode: bool) -> int:
    """Number of windows along an axis; the last one begins inside or in the padding before."""
    room = size + 2 * padding - kernel
    count = (-(-room // stride) if ceil_mode else room // stride) + 1
    begins_outside = ceil_mode and (count - 1) * stride >= size + padding
    return count - 1 if begins_outside else count


def _average_rows(  # noqa: PLR0913 - a window
    size: int, kernel: int, stride: int, padding: int, *, ceil_mode: bool, divisor: Any
) -> Rows:
    """``divisor``: a number; None: as many as there are with padding; 0: without it."""
    rows = []
    for place in range(pooled_size(size, kernel, stride, padding, ceil_mode=ceil_mode)):
        start = place * stride - padding
        stop = min(start + kernel, size + padding)
        inside = range(max(start, 0), min(stop, size))
        share = stop - start if divisor is None else divisor or len(inside)
        rows.append([(i, 1 / share) for i in inside])
    return rows


def _average_maps(  # noqa: PLR0913, PLR0917 - the operator's signature
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,  # noqa: FBT001, FBT002 - as above
    count_include_pad: bool = True,  # noqa: FBT001, FBT002 - as above
    divisor: int | None = None,
) -> list[Rows] | None:
    """None for plain windows over a plane, which both runtimes know."""
    rank = len(kernel)
    if rank == 2 and not any(padding) and not ceil_mode and divisor is None:
        return None
    by = None if count_include_pad else 0
    divisors = [by] * rank if divisor is None else [divisor, *[1] * (rank - 1)]
    strides, paddings = list(stride or kernel), list(padding)
    return [
        _average_rows(size, *window, ceil_mode=ceil_mode, divisor=by_axis)
        for size, by_axis, *window in zip(
            _sizes(x, rank),
            divisors,
            kernel,
            strides * (rank // len(strides)),
            paddings * (rank // len(paddings)),
            strict=True,
        )
    ]


def _average(x: Tensor, *window: Any) -> Any:
    maps = _average_maps(x, *window)
    return NotImplemented if maps is None else _mapped(x, maps)


def _average_backward(grad: Tensor, x: Tensor, *window: Any) -> Any:
    maps = _average_maps(x, *window)
    return NotImplemented if maps is None else _mapped_back(grad, maps, _sizes(x, len(maps)))


def _table() -> dict[Any, Callable[..., Any]]:
    triangle = lambda far: max(0.0, 1 - abs(far))  # noqa: E731 - a kernel in one line
    keys = lambda far: _cubic_weight(far, _CUBIC_ANTIALIAS)  # noqa: E731 - as above
    linear = (_unless_kept(_linear),) * 2
    wide_linear, wide_cubic = _antialiased(triangle, 1), _antialiased(keys, 2)
    pairs: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
        "upsample_linear1d": _smooth(*linear),
        "upsample_bilinear2d": _smooth(*linear),
        "upsample_trilinear3d": _smooth(*linear),
        "upsample_bicubic2d": _smooth(_cubic, _cubic),
        "_upsample_bilinear2d_aa": _smooth(_unless_kept(wide_linear), wide_linear),
        "_upsample_bicubic2d_aa": _smooth(_unless_kept(wide_cubic), wide_cubic),
    }
    for rank in (1, 2, 3):
        nearest = _nearest if rank < 3 else _nearest_volume
        pairs[f"reflection_pad{rank}d"] = _padding(_reflected)
        pairs[f"replication_pad{rank}d"] = _padding(_replicated)
        pairs[f"upsample_nearest{rank}d"] = _repeating(nearest, _nearest)
        pairs[f"_upsample_nearest_exact{rank}d"] = _repeating(_nearest_exact, _nearest_exact)
    for rank in (2, 3):
        pairs[f"_adaptive_avg_pool{rank}d"] = (_adaptive_average, _adaptive_average_backward(rank))
        pairs[f"avg_pool{rank}d"] = (_average, _average_backward)
    table = {}
    for name, (forward, backward) in pairs.items():
        table[getattr(_aten, name).default] = forward
        table[getattr(_aten, f"{name}_backward").default] = backward
    return table


TABLE = _table()
"""Decompositions by operator."""
