"""What a model calls beside operators: Python functions of PyTorch, and tables of numbers.

Some of these functions look at data, or keep tensors in ways of their own; no replacement of an
operator reaches them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._dynamo import config as dynamo
from torch.nn.modules import transformer
from torch.utils import checkpoint
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def plain_python() -> Iterator[None]:
    """Inside, functions that no program can follow give their result without the detour.

    What ``torch.compile`` made runs as it was written; a mask is not compared with the causal one,
    of which PyTorch makes a hint to its fused kernels; and nothing is computed twice to spare
    memory, which a program decides for itself.
    """
    replaced = (
        (transformer, "_detect_is_causal_mask", _is_causal),
        (checkpoint, "CheckpointFunction", SimpleNamespace(apply=_called)),
        (checkpoint, "_checkpoint_without_reentrant_generator", _yields_once),
    )
    with ExitStack() as stack:
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(dynamo.patch(error_on_nested_fx_trace=False))
        for module, name, form in replaced:
            if hasattr(module, name):
                stack.enter_context(patch.object(module, name, form))
        yield


def _is_causal(
    mask: Tensor | None,  # noqa: ARG001 - the function's signature
    is_causal: bool | None = None,  # noqa: FBT001 - as above
    size: int | None = None,  # noqa: ARG001 - as above
) -> bool:
    return is_causal is True


def _called(function: Callable[..., Any], _preserve: bool, *args: Any) -> Any:  # noqa: FBT001 - as above
    return function(*args)


def _yields_once(*_: Any, **__: Any) -> Iterator[None]:
    yield


def _table(factory: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The numbers themselves: ONNX's window of that name has other ones, TFLite has none."""

    def table(*args: Any, **kwargs: Any) -> Tensor:
        with _disable_current_modes(), torch._C.DisableTorchFunction():  # noqa: SLF001 - no public one
            values = factory(*args, **kwargs)
            numbers = values.tolist()
        return torch.tensor(numbers, dtype=values.dtype)

    return table


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    factory: _table(factory)
    for factory in (
        torch.bartlett_window,
        torch.blackman_window,
        torch.hamming_window,
        torch.hann_window,
        torch.kaiser_window,
    )
}
"""What replaces a function, by the function."""
