"""Whether a model takes tokens: int64 numbers, such as the words of a text."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from protofleet.errors import ExportError
from protofleet.export.classifier.calls import evaluation

_TABLES = (nn.Embedding, nn.EmbeddingBag)
_BATCH = 2


def find_tokens(model: nn.Module, input_shape: Sequence[int]) -> int | None:
    """The number of tokens of a model that takes int64 examples, else None.

    It is the smallest table that rows are looked up in by what the example holds.

    Args:
        model: called in evaluation mode; its mode is restored.
        input_shape: of one example.

    Raises:
        ExportError: it takes int64 examples only, and no ``nn.Embedding`` reads them.
    """
    shape = (_BATCH, *input_shape)
    ones = torch.ones(shape, dtype=torch.int64)  # 0 is padding to many: nothing but it may fail
    if _runs(model, torch.zeros(shape)) or not _runs(model, ones):
        return None
    other = ones.clone()
    other[..., -1] = 0
    sizes = [
        table.num_embeddings
        for (table, before), (_, after) in zip(
            _looked_up(model, ones), _looked_up(model, other), strict=True
        )
        if not torch.equal(before, after)
    ]
    if not sizes:
        raise ExportError(
            f"model ({type(model).__qualname__}): takes int64 examples, but no nn.Embedding reads "
            "them: say how many tokens there are with --tokens"
        )
    return min(sizes)


def _runs(model: nn.Module, example: Tensor) -> bool:
    with evaluation(model):
        try:
            model(example)
        except Exception:  # noqa: BLE001 - whatever the user's code raises
            return False
    return True


def _looked_up(
    model: nn.Module, example: Tensor
) -> list[tuple[nn.Embedding | nn.EmbeddingBag, Tensor]]:
    """Tables and what was looked up in them, in order, for a batch of tokens."""
    found: list[tuple[nn.Embedding | nn.EmbeddingBag, Tensor]] = []
    hooks = [
        table.register_forward_pre_hook(lambda table, args: found.append((table, args[0].clone())))
        for table in model.modules()
        if isinstance(table, _TABLES)
    ]
    try:
        with evaluation(model):
            model(example)
    finally:
        for hook in hooks:
            hook.remove()
    return found
