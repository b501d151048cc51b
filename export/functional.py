"""Calls of a module with tensors in the place of its own."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.func import functional_call


def call_with(module: nn.Module, tensors: dict[str, Tensor], *args: Any) -> Any:
    """``torch.func.functional_call``, after which the module has its own tensors again.

    Of a module that has two names in another one it does not put them back itself (PyTorch 2.13).

    Args:
        module: what is called.
        tensors: by name; buffers that it assigns are written back into them.
        args: of the call.
    """
    before = [(one, dict(one._parameters), dict(one._buffers)) for one in module.modules()]  # noqa: SLF001 - no public way to put them back
    try:
        return functional_call(module, tensors, args)
    finally:
        for one, params, buffers in before:
            one._parameters.update(params)  # noqa: SLF001 - as above
            one._buffers.update(buffers)  # noqa: SLF001 - as above
