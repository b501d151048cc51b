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

    Args:
        model: called in evaluation mode; its mode is restored.
        input_shape: of one example.

    Raises:
        ExportError: it takes int64 examples only, and no ``nn.Embedding`` reads them.
    """
    if not takes_tokens(model, input_shape):
        return None
    rows = table_rows(model, input_shape)
    if rows is None:
        raise ExportError(
            f"model ({type(model).__qualname__}): takes int64 examples, but no nn.Embedding reads "
            "them: say how many tokens there are with --tokens"
        )
    return rows


def takes_tokens(model: nn.Module, input_shape: Sequence[int]) -> bool:
    """Whether a model takes int64 examples alone, or casts them and looks them up as they are.

    A model with an attribute ``vocabulary`` that casts takes float32 (docs/export.md).
    """
    shape = (_BATCH, *input_shape)
    if not _runs(model, _ones(shape)):
        return False
    if not _runs(model, torch.zeros(shape)):
        return True
    cast = [
        table.num_embeddings
        for table, *found in _looked_up_by(model, shape)
        if all(map(torch.equal, found, _examples(shape)))
    ]
    # A model that quantises numbers looks rows up, too, but takes any numbers.
    beyond = torch.full(shape, float(min(cast, default=0)))
    return bool(cast) and not hasattr(model, "vocabulary") and not _runs(model, beyond)


def table_rows(model: nn.Module, input_shape: Sequence[int]) -> int | None:
    """Rows of the smallest table that is read by what an int64 example holds; None: none is."""
    shape = (_BATCH, *input_shape)
    if not _runs(model, _ones(shape)):
        return None
    rows = [
        table.num_embeddings
        for table, before, after in _looked_up_by(model, shape)
        if not torch.equal(before, after)
    ]
    return min(rows, default=None)


def _ones(shape: Sequence[int]) -> Tensor:
    """Tokens 1: 0 is padding to many, and nothing but it may fail."""
    return torch.ones(tuple(shape), dtype=torch.int64)


def _examples(shape: Sequence[int]) -> tuple[Tensor, Tensor]:
    other = _ones(shape)
    other[..., -1] = 0
    return _ones(shape), other


def _looked_up_by(
    model: nn.Module, shape: Sequence[int]
) -> list[tuple[nn.Embedding | nn.EmbeddingBag, Tensor, Tensor]]:
    """Tables, and what was looked up in them for each of ``_examples``."""
    before, after = (_looked_up(model, example) for example in _examples(shape))
    return [(table, x, y) for (table, x), (_, y) in zip(before, after, strict=True)]


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
