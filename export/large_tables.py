"""Fixed tables of a model that are too large for a program: they lie in the bundle's state, once.

A filter bank kept as an attribute, or as a buffer that is not persistent, neither trains nor
travels; while a model is exported it is a persistent buffer like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from protofleet.export.capture.limits import MAX_CONSTANT_BYTES
from protofleet.export.training_mode import trained_once


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """A large tensor of a module, and where it was.

    Attributes:
        module, name, value: whose, its attribute's name, and the tensor.
        attribute: a plain one; else a buffer that is not persistent.
    """

    module: nn.Module
    name: str
    value: Tensor
    attribute: bool

    def register(self) -> None:
        if self.attribute:
            delattr(self.module, self.name)
        self.module.register_buffer(self.name, self.value)

    def put_back(self) -> None:
        delattr(self.module, self.name)
        if self.attribute:
            setattr(self.module, self.name, self.value)
        else:
            self.module.register_buffer(self.name, self.value, persistent=False)


@contextmanager
def large_tables_as_buffers(model: nn.Module, x: Tensor) -> Iterator[None]:
    """Within the block large fixed float32 tensors are persistent buffers; then as they were.

    What a forward pass writes or assigns is no table but something that the model keeps.

    Args:
        model: any module.
        x: examples, (n, …).
    """
    tables = _tables(model)
    for table in tables.values():
        table.register()
    left = dict(tables)
    try:
        for name in _written(model, x) if tables else ():
            if name in left:
                left.pop(name).put_back()
        yield
    finally:
        for table in left.values():
            table.put_back()


def _tables(model: nn.Module) -> dict[str, _Table]:
    """Large tensors by the names that they have as buffers; one under several names once."""
    found: dict[str, _Table] = {}
    seen = set()
    for path, module in model.named_modules():
        passing = module._non_persistent_buffers_set  # noqa: SLF001 - no public way to ask
        buffers = {n: v for n, v in module.named_buffers(recurse=False) if n in passing}
        for name, value in [*vars(module).items(), *buffers.items()]:
            if not _is_large(value) or id(value) in seen:
                continue
            seen.add(id(value))
            found[f"{path}.{name}" if path else name] = _Table(
                module=module, name=name, value=value, attribute=name not in buffers
            )
    return found


def _is_large(value: object) -> bool:
    return (
        isinstance(value, Tensor)
        and value.dtype == torch.float32
        and value.nbytes > MAX_CONSTANT_BYTES
        and value.is_leaf
        and not value.requires_grad
        and bool(value.isfinite().all())
    )


def _written(model: nn.Module, x: Tensor) -> frozenset[str]:
    try:
        return trained_once(model, x).written
    except Exception:  # noqa: BLE001 - whatever the user's code raises, which the capture tells
        return frozenset()
