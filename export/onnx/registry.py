"""PyTorch's tables of ONNX operators, made once in a process instead of for every program.

Making them takes longer than to write a small program. That of operators depends on nothing but the
opset, that of decompositions on the operators of the first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from torch.onnx._internal.exporter import _decomp
from torch.onnx._internal.exporter._constants import TORCHLIB_OPSET
from torch.onnx._internal.exporter._registration import ONNXRegistry, TorchOp


@contextmanager
def shared_registry() -> Iterator[None]:
    """Inside, each export of ``torch.onnx`` gets a copy of the same tables."""
    with (
        mock.patch.object(ONNXRegistry, "from_torchlib", staticmethod(_copied)),
        mock.patch.object(_decomp, "create_onnx_friendly_decomposition_table", _decompositions),
    ):
        yield


def _copied(opset_version: int = TORCHLIB_OPSET) -> ONNXRegistry:
    copy = ONNXRegistry()
    copy._opset_version = opset_version  # noqa: SLF001 - as its own constructor function
    copy.functions = {
        target: list(forms) for target, forms in _made(opset_version).functions.items()
    }
    return copy


def _decompositions(registered: Iterable[TorchOp]) -> dict[TorchOp, Callable[..., Any]]:
    return dict(_made_decompositions(frozenset(registered)))


_from_torchlib = ONNXRegistry.from_torchlib
_decompositions_of = _decomp.create_onnx_friendly_decomposition_table


@functools.cache
def _made(opset_version: int) -> ONNXRegistry:
    return _from_torchlib(opset_version=opset_version)


@functools.cache
def _made_decompositions(registered: frozenset[TorchOp]) -> dict[TorchOp, Callable[..., Any]]:
    return _decompositions_of(set(registered))
