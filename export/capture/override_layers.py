"""Layers in terms of ordinary ones: three spatial axes, instances, neighbours, bags of words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from protofleet.errors import ExportError

_AXES = 3


def _triple(value: int | Sequence[int]) -> list[int]:
    return (
        [value] * _AXES
        if isinstance(value, int)
        else [int(v) for v in value] * (_AXES // len(value))
    )


def _conv3d(  # noqa: PLR0913, PLR0917 - the function's signature
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
) -> Tensor:
    """Two spatial axes are convolved; the slices that the kernel's depth reaches are channels."""
    step, gap = _triple(stride), _triple(dilation)
    if isinstance(padding, str):
        reach = [g * (int(k) - 1) for g, k in zip(gap, weight.shape[2:], strict=True)]
        before = [0 if padding == "valid" else far // 2 for far in reach]
        after = [0 if padding == "valid" else far - far // 2 for far in reach]
    else:
        before = after = _triple(padding)
    sides = [n for pair in zip(before[::-1], after[::-1], strict=True) for n in pair]
    x = functional.pad(x, sides) if any(sides) else x
    slices = _slices(x, int(weight.shape[2]), step[0], gap[0])
    kernel = weight.flatten(1, 2)
    y = functional.conv2d(slices.flatten(0, 1), kernel, bias, step[1:], 0, gap[1:], groups)
    return torch.unflatten(y, 0, slices.shape[:2]).transpose(1, 2)


def _slices(x: Tensor, depth: int, step: int, gap: int) -> Tensor:
    """(B, C, D, H, W) → (B, D', C·depth, H, W): the slices that each place of the result reads."""
    count = (int(x.shape[2]) - gap * (depth - 1) - 1) // step + 1
    shifted = [x[:, :, k * gap : k * gap + (count - 1) * step + 1 : step] for k in range(depth)]
    return torch.stack(shifted, 2).flatten(1, 2).transpose(1, 2)


def _conv_transpose3d(  # noqa: PLR0913, PLR0917 - the function's signature
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
) -> Tensor:
    """As ``_conv3d``: along the depth a convolution of slices with empty ones between them."""
    step, pad, gap = _triple(stride), _triple(padding), _triple(dilation)
    extra = _triple(output_padding)
    depth = int(weight.shape[2])
    if step[0] > 1:
        apart = functional.pad(x.unsqueeze(3), (0, 0, 0, 0, 0, step[0] - 1)).flatten(2, 3)
        x = apart[:, :, : (int(x.shape[2]) - 1) * step[0] + 1]
    around = gap[0] * (depth - 1) - pad[0]
    x = functional.pad(x, (0, 0, 0, 0, around, around + extra[0]))
    slices = _slices(x, depth, 1, gap[0])
    kernel = weight.flip(2).transpose(1, 2).flatten(0, 1)
    y = functional.conv_transpose2d(
        slices.flatten(0, 1), kernel, bias, step[1:], pad[1:], extra[1:], groups, gap[1:]
    )
    return torch.unflatten(y, 0, slices.shape[:2]).transpose(1, 2)


def _instance_norm(  # noqa: PLR0913, PLR0917 - the function's signature
    input: Tensor,  # noqa: A002 - as above
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,  # noqa: FBT001, FBT002 - as above
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Every channel of every example is a row that a layer normalisation takes."""
    if not use_input_stats:
        return functional.batch_norm(input, running_mean, running_var, weight, bias, eps=eps)
    rows = input.flatten(2)
    if running_mean is not None and running_var is not None:
        with torch.no_grad():
            var, mean = (value.mean(0) for value in torch.var_mean(rows, -1))
            running_mean.copy_(running_mean * (1 - momentum) + mean * momentum)
            running_var.copy_(running_var * (1 - momentum) + var * momentum)
    y = functional.layer_norm(rows, [int(rows.shape[-1])], eps=eps)
    if weight is not None:
        y = y * weight[:, None]
    return (y if bias is None else y + bias[:, None]).reshape(input.shape)


def _local_response_norm(
    input: Tensor,  # noqa: A002 - the function's signature
    size: int,
    alpha: float = 1e-4,
    beta: float = 0.75,
    k: float = 1.0,
) -> Tensor:
    """The squares of ``size`` neighbouring channels are added as slices."""
    channels = int(input.shape[1])
    around = [0, 0] * (input.dim() - 2) + [size // 2, (size - 1) // 2]
    squares = functional.pad(input * input, around)
    total = squares.narrow(1, 0, channels)
    for place in range(1, size):
        total = total + squares.narrow(1, place, channels)
    return input / (total * (alpha / size) + k) ** beta


def _adaptive_average(rank: int) -> Callable[..., Any]:
    """One cell is the mean; PyTorch's own sets strides by hand where channels are the last axis."""

    def average(input: Tensor, output_size: int | Sequence[int | None] | None) -> Any:  # noqa: A002
        sizes = output_size if isinstance(output_size, Sequence) else [output_size]
        if any(size != 1 for size in sizes):
            return NotImplemented
        return input.mean(tuple(range(-rank, 0)), keepdim=True)

    return average


def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """``v`` with lengths ``g``: of the slices along ``dim``, or of the whole (-1)."""
    axes = [axis for axis in range(v.dim()) if dim in (-1, v.dim()) or axis != dim % v.dim()]
    return v * (g / torch.sqrt((v * v).sum(axes, keepdim=True)))


def _bilinear(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """X (…, I), y (…, J), weight (O, I, J) → (…, O)."""
    outputs, inputs, others = weight.shape
    spread = x @ weight.transpose(0, 1).reshape(inputs, outputs * others)
    result = (torch.unflatten(spread, -1, (outputs, others)) * y.unsqueeze(-2)).sum(-1)
    return result if bias is None else result + bias


def _embedding_bag(  # noqa: PLR0913, PLR0917 - the function's signature
    input: Tensor,  # noqa: A002 - as above
    weight: Tensor,
    offsets: Tensor | None = None,
    max_norm: float | None = None,
    norm_type: float = 2,  # noqa: ARG001 - with max_norm
    scale_grad_by_freq: bool = False,  # noqa: FBT001, FBT002 - as above
    mode: str = "mean",
    sparse: bool = False,  # noqa: ARG001, FBT001, FBT002 - gradients are dense
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,  # noqa: ARG001, FBT001, FBT002 - with offsets
    padding_idx: int | None = None,
) -> Tensor:
    """Lookups (B, N, d), of which those that are no padding are joined."""
    if offsets is not None or input.dim() != 2:
        raise ExportError(
            "EmbeddingBag with offsets: its bags lie one behind the other, but a batch of a "
            "program is the first axis: pass token ids (B, N), short bags filled up with "
            "padding_idx"
        )
    if max_norm is not None:
        raise _max_norm()
    rows = functional.embedding(input, weight, scale_grad_by_freq=scale_grad_by_freq)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(-1)
    if padding_idx is None:
        join: Callable[[Tensor, int], Tensor] = getattr(torch, "amax" if mode == "max" else mode)
        return join(rows, 1)
    counts = (input != padding_idx % int(weight.shape[0])).unsqueeze(-1)
    if mode == "max":
        largest = torch.where(counts, rows, torch.finfo(rows.dtype).min).amax(1)
        return torch.where(counts.any(1), largest, 0.0)
    total = torch.where(counts, rows, 0.0).sum(1)
    return total if mode == "sum" else total / counts.sum(1).clamp(min=1)


def _embedding(  # noqa: PLR0913, PLR0917 - the function's signature
    input: Tensor,  # noqa: A002, ARG001 - as above
    weight: Tensor,  # noqa: ARG001 - as above
    padding_idx: int | None = None,  # noqa: ARG001 - as above
    max_norm: float | None = None,
    norm_type: float = 2.0,  # noqa: ARG001 - as above
    scale_grad_by_freq: bool = False,  # noqa: ARG001, FBT001, FBT002 - as above
    sparse: bool = False,  # noqa: ARG001, FBT001, FBT002 - as above
) -> Any:
    if max_norm is not None:
        raise _max_norm()
    return NotImplemented


def _max_norm() -> ExportError:
    return ExportError(
        "Embedding with max_norm: it changes the trained table while it looks words up, which a "
        "program does not: leave max_norm out, and divide the looked up rows by their length "
        "(torch.nn.functional.normalize)"
    )


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    torch.conv3d: _conv3d,
    torch.conv_transpose3d: _conv_transpose3d,
    torch.adaptive_avg_pool1d: _adaptive_average(1),
    functional.adaptive_avg_pool2d: _adaptive_average(2),
    functional.adaptive_avg_pool3d: _adaptive_average(3),
    functional.instance_norm: _instance_norm,
    functional.local_response_norm: _local_response_norm,
    torch._weight_norm: _weight_norm,  # noqa: SLF001 - what torch.nn.utils calls
    torch.bilinear: _bilinear,
    functional.embedding: _embedding,
    functional.embedding_bag: _embedding_bag,
}
"""What replaces a function, by the function."""
