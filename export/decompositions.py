"""Breaks operators without an ONNX translation down into ordinary ones.

Shapes are static apart from the batch, so that paddings are plain numbers.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions

from protofleet.export import alp
from protofleet.export.onnx_alp import alp_infer_node, alp_train_node

Table = Mapping[Any, Callable[..., Any]]
Sizes = tuple[list[int], list[int], list[int]]
"""Stride, padding and dilation, one number per spatial axis."""

_aten = torch.ops.aten


def backward_table() -> dict[Any, Callable[..., Any]]:
    """Applied while autograd runs: operators that write to an argument without saying so."""
    return {_aten.native_batch_norm.default: _native_batch_norm}


def forward_table() -> dict[Any, Callable[..., Any]]:
    """Applied to the flat graph: PyTorch's core decompositions and what they leave over."""
    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    table.update(get_decompositions(_EXTRA))
    table.update(_OWN)
    del table[_aten.squeeze.dim]
    return table


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
    """Batch normalisation that writes its statistics visibly; second results as autograd's."""
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
    y = (x - mean.view(shape)) * inverse.view(shape)
    if weight is not None:
        y = y * weight.view(shape)
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
    sizes = (list(stride), list(padding), list(dilation))
    by_input = by_weight = by_bias = None
    if output_mask[0] and transposed:
        by_input = _convolution(grad, weight, sizes, groups)
    elif output_mask[0]:
        extra = _output_padding(x, grad, weight, sizes)
        by_input = _convolution(grad, weight, sizes, groups, extra=extra)
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


def _weight_gradient(
    x: Tensor,
    grad: Tensor,
    weight: Tensor,
    sizes: Sizes,
    groups: int,
) -> Tensor:
    """Correlate input with output gradient, the batch as the axis that is summed over.

    ``x`` (B, C, …), ``grad`` (B, O, …) → (O, C/groups, kernel…). Stride and dilation change
    places; positions beyond the kernel come from windows that the stride skipped.
    """
    stride, padding, dilation = sizes
    batch, channels = x.shape[:2]
    inside = x.shape[2:]
    moved = x.reshape(batch, groups, channels // groups, *inside).permute(
        2, 1, 0, *range(3, 3 + len(inside))
    )
    result = _convolution(
        moved.reshape(channels // groups, groups * batch, *inside),
        grad.transpose(0, 1),
        (dilation, padding, stride),
        groups,
    )
    for axis, size in enumerate(weight.shape[2:], start=2):
        result = result.narrow(axis, 0, int(size))
    return result.transpose(0, 1)


def _power(x: Tensor, exponent: float) -> Any:
    """Squaring's backward pass raises to the power of one: ONNX Runtime would call ``pow``."""
    return x.clone() if exponent == 1 else NotImplemented


def _max_pool2d_backward(  # noqa: PLR0913, PLR0917 - the operator's signature
    grad: Tensor,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],  # noqa: ARG001 - none where windows cover the input
    dilation: Sequence[int],
    ceil_mode: bool,  # noqa: ARG001, FBT001 - as above
    indices: Tensor,
) -> Tensor:
    """Add every output gradient at the position that was the maximum."""
    covered = [
        int(n) * k == int(size)
        for n, k, size in zip(grad.shape[-2:], kernel_size, x.shape[-2:], strict=True)
    ]
    if all(covered) and list(stride or kernel_size) == list(kernel_size) and set(dilation) == {1}:
        return _from_tiles(grad, x, kernel_size)
    plane = torch.zeros_like(x).flatten(-2)
    return plane.scatter_add(-1, indices.flatten(-2), grad.flatten(-2)).reshape(x.shape)


def _from_tiles(grad: Tensor, x: Tensor, kernel: Sequence[int]) -> Tensor:
    """The same for windows side by side, without indices: they cost ONNX Runtime its fast pooling.

    Of equal entries in a window the first takes the gradient, as in PyTorch.
    """
    high, wide = kernel
    places = [x[:, :, i::high, j::wide] for i in range(high) for j in range(wide)]
    largest = functools.reduce(torch.maximum, places)
    left, shares = grad, []
    for place in places:
        shares.append(torch.where(place == largest, left, 0.0))
        left = torch.where(place == largest, 0.0, left)
    rows = [torch.stack(shares[i : i + wide], -1).flatten(-2) for i in range(0, len(shares), wide)]
    return torch.stack(rows, -2).reshape(x.shape)


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


def _embedding_backward(
    grad: Tensor,
    indices: Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,  # noqa: FBT001 - the operator's signature
) -> Any:
    """Add every row's gradient to the row of the table that it was looked up from."""
    if scale_grad_by_freq:
        return NotImplemented
    rows = grad.reshape(-1, grad.shape[-1])
    flat = indices.reshape(-1, 1)
    rows = torch.where(flat == padding_idx, torch.zeros_like(rows), rows)
    table = torch.zeros(num_weights, grad.shape[-1], dtype=grad.dtype)
    return table.scatter_add(0, flat.expand_as(rows), rows)


def _empty(size: Sequence[Any], *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return torch.zeros(size, dtype=dtype)


def _empty_like(x: Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return torch.zeros_like(x, dtype=dtype)


def _copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:  # noqa: ARG001, FBT001, FBT002 - the operator's signature
    """What remains of ``target.copy_(source)`` once writes are functional."""
    source = source.to(target.dtype)
    return source.clone() if source.dim() == target.dim() else source.expand(target.shape)


def _squeeze_dims(x: Tensor, dims: Sequence[int]) -> Tensor:
    for dim in sorted((d % x.dim() for d in dims), reverse=True):
        x = _aten.squeeze.dim(x, dim)
    return x


_EXTRA = (
    _aten.var_mean.correction,
    _aten.native_batch_norm_backward,
    _aten.native_group_norm,
    _aten.grid_sampler_2d,
)

_OWN: Table = {
    _aten.pow.Tensor_Scalar: _power,
    _aten.squeeze.dims: _squeeze_dims,
    _aten.empty.memory_format: _empty,
    _aten.empty_like.default: _empty_like,
    _aten.copy.default: _copy,
    _aten.native_batch_norm.default: _native_batch_norm,
    _aten.convolution_backward.default: _convolution_backward,
    _aten.max_pool2d_with_indices_backward.default: _max_pool2d_backward,
    _aten.avg_pool2d_backward.default: _avg_pool2d_backward,
    _aten.embedding_dense_backward.default: _embedding_backward,
    alp.alp_train._opoverload: alp_train_node,  # noqa: SLF001 - no public name for it
    alp.alp_infer._opoverload: alp_infer_node,  # noqa: SLF001 - as above
}
