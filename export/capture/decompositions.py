"""Breaks operators without an ONNX translation down into ordinary ones.

Shapes are static apart from the batch, so that paddings are plain numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions

from protofleet.errors import ExportError
from protofleet.export.capture import decompose_layers, decompose_numbers, resizing, windows
from protofleet.export.capture.alp_nodes import (
    alp_ablation_infer_node,
    alp_ablation_train_node,
    alp_infer_node,
    alp_train_node,
)
from protofleet.export.models import alp

Table = Mapping[Any, Callable[..., Any]]
Sizes = tuple[list[int], list[int], list[int]]
"""Stride, padding and dilation, one number per spatial axis."""

_aten = torch.ops.aten
_MOST_TAPS = 16


def backward_table() -> dict[Any, Callable[..., Any]]:
    """Applied while autograd runs.

    Operators that write to an argument without saying so, and those whose own form pins the batch
    size or is none in a runtime.
    """
    return {
        _aten.native_batch_norm.default: _native_batch_norm,
        **decompose_numbers.AUTOGRAD,
        **get_decompositions([_aten.im2col, _aten.col2im]),
        **resizing.TABLE,
        **windows.TABLE,
    }


@functools.cache
def forward_table() -> Table:
    """Applied to the flat graph: PyTorch's core decompositions and what they leave over.

    Made once in a process: PyTorch asks its dispatcher for every operator that it knows, which
    takes longer than a small program does.
    """
    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    table.update(get_decompositions(_EXTRA))
    table.update(_OWN)
    table.update(decompose_numbers.TABLE)
    table.update(decompose_layers.TABLE)
    return MappingProxyType(table)


def _native_batch_norm(  # noqa: PLR0913, PLR0917 - the operator's signature
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,  # noqa: FBT001 - as above
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch normalisation that writes its statistics visibly; second results as autograd's.

    Scale and weight become one factor per channel: one pass over the activations less.
    """
    axes = [axis for axis in range(x.dim()) if axis != 1]
    shape = [1, -1] + [1] * (x.dim() - 2)
    if training:
        var, mean = torch.var_mean(x, axes, correction=0)
        count = math.prod(x.shape[axis] for axis in axes)
        if running_mean is not None and running_var is not None:
            unbiased = var * (count / (count - 1))
            running_mean.copy_(running_mean * (1 - momentum) + mean * momentum)
            running_var.copy_(running_var * (1 - momentum) + unbiased * momentum)
    elif running_mean is None or running_var is None:
        raise TypeError("batch_norm in evaluation needs running statistics")
    else:
        mean, var = running_mean, running_var
    inverse = torch.rsqrt(var + eps)
    scale = inverse if weight is None else inverse * weight
    y = (x - mean.view(shape)) * scale.view(shape)
    if bias is not None:
        y = y + bias.view(shape)
    return y, mean, inverse


def _convolution_backward(  # noqa: PLR0913, PLR0917 - the operator's signature
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,  # noqa: ARG001 - as above
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,  # noqa: FBT001 - as above
    output_padding: Sequence[int],  # noqa: ARG001 - follows from the sizes
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of a convolution by input, weight and bias, each a convolution again."""
    if len(stride) > 2:
        raise ExportError(f"convolution: expected one or two spatial axes, got {len(stride)}")
    sizes = (list(stride), list(padding), list(dilation))
    by_input = by_weight = by_bias = None
    if output_mask[0] and transposed:
        by_input = _convolution(grad, weight, sizes, groups)
    elif output_mask[0]:
        by_input = _input_gradient(x, grad, weight, sizes, groups)
    if output_mask[1]:
        pair = (grad, x) if transposed else (x, grad)
        by_weight = _weight_gradient(*pair, weight, sizes, groups)
    if output_mask[2]:
        by_bias = grad.sum([0, *range(2, grad.dim())])
    return by_input, by_weight, by_bias


def _convolution(
    x: Tensor, weight: Tensor, sizes: Sizes, groups: int, *, extra: list[int] | None = None
) -> Tensor:
    """A convolution without bias; transposed, with output padding ``extra``, if that is given."""
    padding = [0] * len(sizes[0]) if extra is None else extra
    result: Tensor = _aten.convolution(x, weight, None, *sizes, extra is not None, padding, groups)
    return result


def _output_padding(x: Tensor, grad: Tensor, weight: Tensor, sizes: Sizes) -> list[int]:
    """Trailing input positions that no window reaches: a stride that leaves a remainder."""
    return [
        int(x.shape[i + 2])
        - ((int(grad.shape[i + 2]) - 1) * step - 2 * pad + gap * (int(weight.shape[i + 2]) - 1) + 1)
        for i, (step, pad, gap) in enumerate(zip(*sizes, strict=True))
    ]


def _input_gradient(x: Tensor, grad: Tensor, weight: Tensor, sizes: Sizes, groups: int) -> Tensor:
    """Gradient by ``x``: a transposed convolution, or a plain one where that does no more work.

    ONNX Runtime's transposed convolution is three times slower than the plain one on small images.
    """
    stride, padding, dilation = sizes
    reach = [gap * (int(size) - 1) for gap, size in zip(dilation, weight.shape[2:], strict=True)]
    opposite = [far - pad for far, pad in zip(reach, padding, strict=True)]
    if set(stride) == {1} and all(0 <= a <= b for a, b in zip(opposite, padding, strict=True)):
        outputs, inputs, *window = weight.shape
        grouped = weight.reshape(groups, outputs // groups, inputs, *window).transpose(1, 2)
        turned = grouped.flip(*range(3, 3 + len(window)))
        swapped = turned.reshape(groups * inputs, outputs // groups, *window)
        return _convolution(grad, swapped, ([1] * len(window), opposite, dilation), groups)
    extra = _output_padding(x, grad, weight, sizes)
    return _convolution(grad, weight, sizes, groups, extra=extra)


def _weight_gradient(
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    sizes: Sizes,
    groups: int,
) -> Tensor:
    """Correlate input with output gradient, the batch as the axis that is summed over.

    ``x`` (B, C, …), ``grad`` (B, O, …) → (O, C/groups, kernel…). Stride and dilation change
    places; positions beyond the kernel come from padding that no window needed. The channels are
    one more spatial axis, along which the kernel is one entry long: a single image makes one wide
    matrix product, where an image for each channel makes many that are as narrow as the kernel
    and take twice as long.
    """
    stride, padding, dilation = sizes
    if groups == 1 and _MOST_TAPS >= math.prod(weight.shape[2:]) == max(weight.shape[2:]):
        return _weight_gradient_by_taps(x, grad, weight, sizes)
    batch, channels = x.shape[:2]
    reached = _reached(x, grad, weight, sizes)
    inside = reached.shape[2:]
    image = reached.reshape(batch, groups, channels // groups, *inside).transpose(0, 1)
    result = _convolution(
        image.reshape(1, groups * batch, channels // groups, *inside),
        grad.transpose(0, 1).unsqueeze(2),
        ([1, *dilation], [0, *padding], [1, *stride]),
        groups,
    )
    for axis, size in enumerate(weight.shape[2:], start=3):
        result = result.narrow(axis, 0, int(size))
    return result.squeeze(0)


def _weight_gradient_by_taps(x: Tensor, grad: Tensor, weight: Tensor, sizes: Sizes) -> Tensor:
    """As ``_weight_gradient``, for windows along one axis: a product for each of their places.

    A third of the time of one convolution in ONNX Runtime: that gathers the windows entry by entry.
    """
    stride, padding, dilation = sizes
    planes, rows = x.transpose(0, 1), grad.transpose(0, 1).flatten(1)
    for axis, pad in enumerate(padding, start=2):
        planes = _framed(planes, axis, pad, pad)
    along = max(range(len(stride)), key=lambda axis: int(weight.shape[axis + 2]))
    taps = []
    for tap in range(int(weight.shape[along + 2])):
        place = planes
        for axis, (step, gap) in enumerate(zip(stride, dilation, strict=True)):
            start = tap * gap if axis == along else 0
            end = start + (int(grad.shape[axis + 2]) - 1) * step + 1
            place = _aten.slice(place, axis + 2, start, end, step)
        taps.append(rows @ place.flatten(1).T)
    return torch.stack(taps, -1).reshape(weight.shape)


def _reached(x: Tensor, grad: Tensor, weight: Tensor, sizes: Sizes) -> Tensor:
    """``x`` without trailing positions that no window reaches: a stride that leaves a remainder."""
    for axis, (step, pad, gap) in enumerate(zip(*sizes, strict=True), start=2):
        far = (int(grad.shape[axis]) - 1) * step + gap * (int(weight.shape[axis]) - 1) + 1 - pad
        if far < int(x.shape[axis]):
            x = x.narrow(axis, 0, far)
    return x


def _power(x: Tensor, exponent: float) -> Any:
    """Squaring's backward pass raises to the power of one: ONNX Runtime would call ``pow``."""
    return x.clone() if exponent == 1 else NotImplemented


def _max_pool2d_backward(  # noqa: PLR0913, PLR0917 - the operator's signature
    grad: Tensor,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,  # noqa: ARG001, FBT001 - follows from the sizes
    indices: Tensor,  # noqa: ARG001 - TFLite's pooling gives none, and ONNX Runtime's is slower with
) -> Tensor:
    """Add every output gradient at the position that was the maximum.

    Of equal entries in a window the first takes the gradient, as in PyTorch.
    """
    covered = [
        int(n) * k == int(size)
        for n, k, size in zip(grad.shape[-2:], kernel_size, x.shape[-2:], strict=True)
    ]
    if all(covered) and list(stride or kernel_size) == list(kernel_size) and set(dilation) == {1}:
        return _from_tiles(grad, x, kernel_size)
    sizes = (list(stride or kernel_size), list(padding), list(dilation))
    return _from_windows(grad, x, kernel_size, sizes)


def _from_windows(grad: Tensor, x: Tensor, kernel: Sequence[int], sizes: Sizes) -> Tensor:
    """For windows that overlap or leave gaps: one spread-out plane for each place in a window."""
    stride, padding, dilation = sizes
    reach = [
        (int(n) - 1) * step + gap * (width - 1) + 1
        for n, step, gap, width in zip(grad.shape[-2:], stride, dilation, kernel, strict=True)
    ]
    behind = [
        far - int(size) - pad for far, size, pad in zip(reach, x.shape[-2:], padding, strict=True)
    ]
    plane = x
    for axis, before, after in ((2, padding[0], behind[0]), (3, padding[1], behind[1])):
        plane = _framed(plane, axis, before, after, fill=float("-inf"))
    starts = [
        (i * dilation[0], j * dilation[1]) for i in range(kernel[0]) for j in range(kernel[1])
    ]
    ends = [(int(n) - 1) * step + 1 for n, step in zip(grad.shape[-2:], stride, strict=True)]
    places = [
        plane[:, :, i : i + ends[0] : stride[0], j : j + ends[1] : stride[1]] for i, j in starts
    ]
    largest = functools.reduce(torch.maximum, places)
    left, planes = grad, []
    for (i, j), place in zip(starts, places, strict=True):
        share = left * (place == largest).to(left.dtype)
        left = left - share
        rows = _framed(_apart(share, stride), 3, j, reach[1] - j - ends[1])
        planes.append(_framed(rows, 2, i, reach[0] - i - ends[0]))
    total: Tensor = functools.reduce(torch.add, planes)
    for axis, before, after in ((2, padding[0], behind[0]), (3, padding[1], behind[1])):
        total = _framed(total, axis, -before, -after)
    return total


def _framed(x: Tensor, axis: int, before: int, after: int, *, fill: float = 0.0) -> Tensor:
    """Entries ``fill`` before and behind one axis; a negative number takes entries away.

    PyTorch's own padding pins the batch size while it is traced.
    """
    start, size = max(0, -before), int(x.shape[axis])
    x = x.narrow(axis, start, size - start - max(0, -after))
    parts = [x]
    for place, number in ((0, before), (len(parts) + 1, after)):
        if number > 0:
            shape = (*x.shape[:axis], number, *x.shape[axis + 1 :])
            parts.insert(place, torch.full(shape, fill, dtype=x.dtype))
    return torch.cat(parts, axis) if len(parts) > 1 else x


def _apart(x: Tensor, stride: Sequence[int]) -> Tensor:
    """Rows and columns ``stride`` places apart, with zeros between."""
    *batch, high, wide = x.shape
    for step, lead, size in ((stride[1], (*batch, high), wide), (stride[0], tuple(batch), high)):
        inner = x.shape[len(lead) + 1 :]
        opened = x.reshape(*lead, size, 1, math.prod(int(n) for n in inner))
        spread = _framed(opened, len(lead) + 1, 0, step - 1)
        end = (int(size) - 1) * step + 1
        x = spread.reshape(*lead, size * step, *inner).narrow(len(lead), 0, end)
    return x


def _from_tiles(grad: Tensor, x: Tensor, kernel: Sequence[int]) -> Tensor:
    """For windows side by side: the planes fit into each other."""
    high, wide = kernel
    places = [x[:, :, i::high, j::wide] for i in range(high) for j in range(wide)]
    largest = functools.reduce(torch.maximum, places)
    left, shares = grad, []
    for place in places:
        share = left * (place == largest).to(left.dtype)
        shares.append(share)
        left = left - share
    rows = [torch.stack(shares[i : i + wide], -1).flatten(-2) for i in range(0, len(shares), wide)]
    return torch.stack(rows, -2).reshape(x.shape)


def _threshold_backward(grad: Tensor, x: Tensor, threshold: float) -> Tensor:
    """ReLU's gradient. ONNX Runtime chooses by a mask at less than half the speed of a product."""
    return grad * (x > threshold).to(grad.dtype)


def _silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """With y = x·s, s = sigmoid(x), of the forward pass: the gradient is y + s·(1 - y)."""
    share = torch.sigmoid(x)
    y = x * share
    return grad * (y + share * (1 - y))


def _avg_pool2d_backward(  # noqa: PLR0913, PLR0917 - the operator's signature
    grad: Tensor,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,  # noqa: FBT001 - as above
    count_include_pad: bool,  # noqa: FBT001 - as above
    divisor_override: int | None,
) -> Any:
    """Spread every output gradient over its window: a transposed convolution with ones."""
    if ceil_mode or (any(padding) and not count_include_pad):
        return NotImplemented
    sizes = (list(stride or kernel_size), list(padding), [1, 1])
    ones = torch.ones(1, 1, *kernel_size, dtype=grad.dtype)
    planes = grad.reshape(-1, 1, *grad.shape[-2:]) / (divisor_override or math.prod(kernel_size))
    extra = _output_padding(x.reshape(-1, 1, *x.shape[-2:]), planes, ones, sizes)
    spread = _convolution(planes, ones, sizes, 1, extra=extra)
    return spread.reshape(x.shape)


def _empty(size: Sequence[Any], *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return torch.zeros(size, dtype=dtype)


def _empty_like(x: Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return torch.zeros_like(x, dtype=dtype)


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:  # noqa: ARG001, FBT001, FBT002 - the operator's signature
    """What remains of ``target.copy_(source)`` once writes are functional."""
    source = source.to(target.dtype)
    return source.clone() if source.dim() == target.dim() else source.expand(target.shape)


def _squeeze_dims(x: Tensor, dims: Sequence[int]) -> Tensor:
    ones = [dim for dim in {d % x.dim() for d in dims if x.dim()} if _is_one(x, dim)]
    if not ones:
        same: Tensor = _aten.alias(x)
        return same
    for dim in sorted(ones, reverse=True):
        x = _aten.squeeze.dim(x, dim)
    return x


def _squeeze_dim(x: Tensor, dim: int) -> Any:
    """Without the operator where the axis stays: ONNX Runtime takes an axis of one only."""
    return NotImplemented if x.dim() == 0 or _is_one(x, dim) else _aten.alias(x)


def _is_one(x: Tensor, dim: int) -> bool:
    """Whether an axis is one at any batch size."""
    size = x.shape[dim]
    return isinstance(size, int) and size == 1


def _repeat(x: Tensor, repeats: Sequence[Any]) -> Tensor:
    """A new axis before each that is repeated."""
    x = x.reshape((1,) * (len(repeats) - x.dim()) + tuple(x.shape))
    for axis, count in enumerate(repeats):
        if isinstance(count, int) and count == 1:
            continue
        before, size, behind = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
        wide = x.unsqueeze(axis).expand(*before, count, size, *behind)
        x = wide.reshape(*before, count * size, *behind)
    return x


def _roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """The two parts of an axis change places."""
    if not dims:
        return NotImplemented
    for shift, axis in zip(shifts, dims, strict=True):
        size = int(x.shape[axis])
        cut = -shift % size
        if cut:
            parts = (x.narrow(axis, cut, size - cut), x.narrow(axis, 0, cut))
            x = torch.cat(parts, axis)
    return x


def _max_over(
    x: Tensor,
    dim: int,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - the operator's signature
) -> tuple[Tensor, Tensor]:
    return x.amax(dim, keepdim), x.argmax(dim, keepdim)


def _min_over(
    x: Tensor,
    dim: int,
    keepdim: bool = False,  # noqa: FBT001, FBT002 - as above
) -> tuple[Tensor, Tensor]:
    return x.amin(dim, keepdim), x.argmin(dim, keepdim)


_EXTRA = (
    _aten.var_mean.correction,
    _aten.native_batch_norm_backward,
    _aten.native_group_norm,
    _aten.grid_sampler_2d,
)

_OWN: Table = {
    _aten.pow.Tensor_Scalar: _power,
    _aten.repeat.default: _repeat,
    _aten.roll.default: _roll,
    _aten.max.dim: _max_over,
    _aten.min.dim: _min_over,
    _aten.squeeze.dim: _squeeze_dim,
    _aten.squeeze.dims: _squeeze_dims,
    _aten.empty.memory_format: _empty,
    _aten.empty_like.default: _empty_like,
    _aten.copy.default: _copy,
    _aten.native_batch_norm.default: _native_batch_norm,
    _aten.convolution_backward.default: _convolution_backward,
    _aten.max_pool2d_with_indices_backward.default: _max_pool2d_backward,
    _aten.threshold_backward.default: _threshold_backward,
    _aten.silu_backward.default: _silu_backward,
    _aten.avg_pool2d_backward.default: _avg_pool2d_backward,
    alp.alp_train._opoverload: alp_train_node,  # noqa: SLF001 - no public name for it
    alp.alp_infer._opoverload: alp_infer_node,  # noqa: SLF001 - as above
    alp.alp_ablation_train._opoverload: alp_ablation_train_node,  # noqa: SLF001 - as above
    alp.alp_ablation_infer._opoverload: alp_ablation_infer_node,  # noqa: SLF001 - as above
}
