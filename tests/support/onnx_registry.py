"""PyTorch's table of ONNX operators, made once in a process instead of in every export.

Making it takes over a third of a small model's export, and it depends on nothing but the opset.
"""

from __future__ import annotations

import functools


@functools.cache
def share_registry() -> None:
    """From now on each export gets a copy of the same table."""
    from torch.onnx._internal.exporter import _registration  # noqa: PLC0415 - heavy

    registry = _registration.ONNXRegistry
    make = functools.cache(registry.from_torchlib)

    def copied(opset_version: int) -> _registration.ONNXRegistry:
        found = registry()
        found._opset_version = opset_version
        functions = make(opset_version=opset_version).functions
        found.functions = {target: list(metas) for target, metas in functions.items()}
        return found

    registry.from_torchlib = staticmethod(copied)
