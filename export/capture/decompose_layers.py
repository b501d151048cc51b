"""Backward passes of layer normalisation and of lookups."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_aten = torch.ops.aten


def _native_layer_norm_backward(  # noqa: PLR0913, PLR0917 - the operator's signature
    grad: Tensor,
    x: Tensor,
    normalised: Sequence[int],
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,  # noqa: ARG001 - as above
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Normalisation over the last axes; its sums over channels are matrix products.

    PyTorch's own decomposition passes over the activations four times more.
    """
    shape, width = x.shape, math.prod(int(size) for size in normalised)
    examples = list(range(x.dim() - len(normalised)))
    if len(normalised) > 1:
        grad, x, mean, inverse = (v.flatten(len(examples)) for v in (grad, x, mean, inverse))
        weight = weight.flatten() if weight is not None else None
    unit = (x - mean) * inverse
    pulled = grad * unit
    by_input = by_weight = by_bias = None
    if output_mask[0]:
        factor = torch.ones(width, dtype=x.dtype) if weight is None else weight
        column = (factor / width).reshape(width, 1)
        along, across = pulled @ column, grad @ column
        scaled = grad if weight is None else grad * weight
        by_input = _in_shape((scaled - across - unit * along) * inverse, shape)
    if output_mask[1]:
        by_weight = _in_shape(pulled.sum(examples), normalised)
    if output_mask[2]:
        by_bias = _in_shape(grad.sum(examples), normalised)
    return by_input, by_weight, by_bias


def _in_shape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """As ``x.reshape(shape)``, but no operator where it is the shape already."""
    return x if x.dim() == len(shape) else x.reshape(shape)


def _embedding_backward(
    grad: Tensor,
    indices: Tensor,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,  # noqa: FBT001 - the operator's signature
) -> Tensor:
    """Add every row's gradient to the row of the table that it was looked up from."""
    rows = grad.reshape(-1, grad.shape[-1])
    flat = indices.reshape(-1, 1)
    if scale_grad_by_freq:
        ones = torch.ones_like(rows[:, :1])
        counts = torch.zeros(num_weights, 1, dtype=grad.dtype).scatter_add(0, flat, ones)
        rows = rows / counts.index_select(0, flat.squeeze(1))
    rows = torch.where(flat == padding_idx, torch.zeros_like(rows), rows)
    table = torch.zeros(num_weights, grad.shape[-1], dtype=grad.dtype)
    return table.scatter_add(0, flat.expand_as(rows), rows)


TABLE: Mapping[Any, Callable[..., Any]] = {
    _aten.native_layer_norm_backward.default: _native_layer_norm_backward,
    _aten.embedding_dense_backward.default: _embedding_backward,
}
"""Applied to the flat graph."""
