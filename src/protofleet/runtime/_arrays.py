"""Arrays by port name: shapes at a batch size, and memory that is reused from call to call."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Port
from protofleet.errors import InputError
from protofleet.tensors import Layout, TensorMap

Arrays = Mapping[str, NDArray[Any]]
"""Contiguous arrays by port name."""

_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.float32), "int64": np.dtype(np.int64)}


def resolve(shape: tuple[int | str, ...], batch: int) -> tuple[int, ...]:
    """The shape of a port at a batch size: ``("batch*8", 192)`` at 64 is ``(512, 192)``."""
    return tuple(d if isinstance(d, int) else _symbolic(d, batch) for d in shape)


def _symbolic(dim: str, batch: int) -> int:
    _, _, factor = dim.partition("*")
    return batch * int(factor or 1)


def check_map(what: str, tensors: TensorMap, layout: Layout) -> None:
    """Raise InputError unless every view of ``layout`` lies inside ``tensors.buffer``."""
    buffer = tensors.buffer
    same = tensors.layout is layout or tensors.layout == layout
    if not same or buffer.shape != (layout.size,) or buffer.dtype != np.float32:
        raise InputError(
            f"{what}: expected the bundle's {len(layout.specs)} tensors in ({layout.size},) "
            f"float32, got {len(tensors.layout.specs)} in {buffer.shape} {buffer.dtype}"
        )
    if not (buffer.flags.c_contiguous and buffer.flags.aligned):
        raise InputError(f"{what}: expected a contiguous, aligned buffer; pass a copy()")


def views(ports: tuple[Port, ...], tensors: TensorMap) -> dict[str, NDArray[Any]]:
    """The tensors of ``ports``' keys, by port name, where they lie."""
    return {port.name: tensors[port.key] for port in ports}


class Slots:
    """Contiguous arrays of one port each, which grow with the largest batch seen.

    Attributes:
        generation: counts growths; addresses are stable within one.
    """

    def __init__(self, ports: tuple[Port, ...]) -> None:
        self._ports = ports
        self._flat: dict[str, NDArray[Any]] = {}
        self._views: dict[int, Arrays] = {}
        self.generation = 0

    def at(self, batch: int) -> Arrays:
        """Arrays by port name, shaped for ``batch``."""
        found = self._views.get(batch)
        return self._make(batch) if found is None else found

    def _make(self, batch: int) -> Arrays:
        shapes = {port.name: resolve(port.shape, batch) for port in self._ports}
        if any(self._grows(name, shape) for name, shape in shapes.items()):
            self._views.clear()
            self.generation += 1
        for port in self._ports:
            size = math.prod(shapes[port.name])
            if self._grows(port.name, shapes[port.name]):
                self._flat[port.name] = np.zeros(size, _DTYPES[port.dtype])
        self._views[batch] = {
            name: self._flat[name][: math.prod(shape)].reshape(shape)
            for name, shape in shapes.items()
        }
        return self._views[batch]

    def _grows(self, name: str, shape: tuple[int, ...]) -> bool:
        return name not in self._flat or self._flat[name].size < math.prod(shape)
