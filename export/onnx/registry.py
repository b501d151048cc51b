"""PyTorch's table of ONNX operators, made once in a process instead of for every program.

Making it takes longer than to write a small program, and it depends on nothing but the opset.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from torch.onnx._internal.exporter._constants import TORCHLIB_OPSET
from torch.onnx._internal.exporter._registration import ONNXRegistry


@contextmanager
def shared_registry() -> Iterator[None]:
    """Inside, each export of ``torch.onnx`` gets a copy of the same table."""
    with mock.patch.object(ONNXRegistry, "from_torchlib", staticmethod(_copied)):
        yield


def _copied(opset_version: int = TORCHLIB_OPSET) -> ONNXRegistry:
    copy = ONNXRegistry()
    copy._opset_version = opset_version  # noqa: SLF001 - as its own constructor function
    copy.functions = {
        target: list(forms) for target, forms in _made(opset_version).functions.items()
    }
    return copy


_from_torchlib = ONNXRegistry.from_torchlib


@functools.cache
def _made(opset_version: int) -> ONNXRegistry:
    return _from_torchlib(opset_version=opset_version)
