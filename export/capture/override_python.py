"""What a model calls beside operators: Python functions of PyTorch, and tables of numbers.

Some of these functions look at data, or keep tensors in ways of their own; no replacement of an
operator reaches them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._dynamo import config as dynamo
from torch.autograd.grad_mode import _unsafe_preserve_version_counter
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def plain_python() -> Iterator[None]:
    """Inside, functions that no program can follow give their result without the detour.

    What ``torch.compile`` made runs as it was written; a mask is not compared with the causal one,
    of which PyTorch makes a hint to its fused kernels; nothing is computed twice to spare
    memory, which a program decides for itself; and autocast leaves all in float32.
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
        stack.enter_context(autocast_by(lambda: None))
        yield


@contextmanager
def autocast_by(enter: Callable[[], None]) -> Iterator[None]:
    """Inside, whoever enters ``torch.autocast`` calls ``enter`` and nothing else happens."""

    def entered(block: torch.autocast) -> torch.autocast:
        enter()
        return block

    def left(_block: torch.autocast, *_error: object) -> None:
        """What is raised inside goes on."""

    with (
        patch.object(torch.autocast, "__enter__", entered),
        patch.object(torch.autocast, "__exit__", left),
    ):
        yield


class DataInPlace(TorchFunctionMode):
    """Inside, ``x.data = y`` writes into x, and ``x.data`` is x without its history.

    Whatever follows a tensor, be it a program or a view, then sees what was written.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``func`` or what stands for it."""
        form = _DATA.get(func)
        return func(*args, **(kwargs or {})) if form is None else form(*args)


def _data(x: Tensor) -> Tensor:
    return x.detach()


def _set_data(x: Tensor, value: Tensor) -> None:
    """As PyTorch does it: no history, and nothing that was computed before is out of date."""
    if x is not value:
        with torch.no_grad(), _unsafe_preserve_version_counter(x):
            x.copy_(value)


_DATA: dict[Any, Callable[..., Any]] = {
    Tensor.data.__get__: _data,  # type: ignore[attr-defined]
    Tensor.data.__set__: _set_data,  # type: ignore[attr-defined]
}


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


_TABLES = (
    torch.bartlett_window,
    torch.blackman_window,
    torch.hamming_window,
    torch.hann_window,
    torch.kaiser_window,
)

FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **{factory: _table(factory) for factory in _TABLES},
    **_DATA,
}
"""What replaces a function, by the function."""
