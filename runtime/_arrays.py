"""Binds a program's ports to memory that already exists, so that a call copies no tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError, ProvisionError
from protofleet.runtime import _alp
from protofleet.runtime._signals import deferred_signals
from protofleet.wire.manifest import Port, Program
from protofleet.wire.tensors import Layout, TensorMap

_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype(np.float32), "int64": np.dtype(np.int64)}
# Full and last partial batch, each with two alternating states, and as much again for evaluation.
_KEPT_BINDINGS = 8


def address(array: NDArray[Any]) -> int:
    """Address of the array's first element."""
    data: int = array.__array_interface__["data"][0]
    return data


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


class Slots:
    """Contiguous arrays of one port each, which grow with the largest batch seen.

    Attributes:
        generation: counts growths; addresses are stable within one.
    """

    def __init__(self, ports: tuple[Port, ...]) -> None:
        self._ports = ports
        self._flat: dict[str, NDArray[Any]] = {}
        self._views: dict[int, dict[str, NDArray[Any]]] = {}
        self.generation = 0

    def at(self, batch: int) -> Mapping[str, NDArray[Any]]:
        """Arrays by port name, shaped for ``batch``."""
        views = self._views.get(batch)
        return self._make(batch) if views is None else views

    def _make(self, batch: int) -> Mapping[str, NDArray[Any]]:
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


class Runner:
    """Runs one session, reusing the bindings of the addresses and batch sizes seen last."""

    def __init__(self, session: Any, program: Program, *, calls_back: bool) -> None:
        self._session = session
        self._program = program
        self._calls_back = calls_back
        self._bindings: dict[tuple[int, ...], Any] = {}

    def run(self, key: tuple[int, ...], bind: Callable[[Any], None]) -> None:
        """Run with the binding of ``key``; ``bind`` fills it the first time.

        The caller guarantees that equal keys mean equal addresses and shapes.

        Raises:
            ProvisionError: the program failed or produced shapes other than its ports'.
            KernelError: a kernel raised.
        """
        binding = self._bindings.get(key)
        if binding is None:
            binding = self._session.io_binding()
            bind(binding)
            if len(self._bindings) >= _KEPT_BINDINGS:
                del self._bindings[next(iter(self._bindings))]
            self._bindings[key] = binding
        try:
            if self._calls_back:
                with deferred_signals():
                    self._session.run_with_iobinding(binding)
            else:
                self._session.run_with_iobinding(binding)
        except RuntimeError as error:
            raise ProvisionError(f"program '{self._program.file}': {error}") from error
        if self._calls_back:
            _alp.raise_pending()


def bind_map(bind: Callable[..., None], ports: tuple[Port, ...], tensors: TensorMap) -> None:
    """Bind ports to the places of their keys in a checked tensor map.

    Args:
        bind: ``bind_input`` or ``bind_output`` of an IOBinding.
        ports: the ports; their keys are names in ``tensors``.
        tensors: the map that stays alive for as long as the binding is run.
    """
    start = address(tensors.buffer)
    specs = {spec.name: spec for spec in tensors.layout.specs}
    for port in ports:
        spec = specs[port.key]
        bind(port.name, "cpu", 0, np.float32, spec.shape, start + 4 * spec.offset)


def bind_arrays(bind: Callable[..., None], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Bind contiguous arrays by port name."""
    for name, array in arrays.items():
        bind(name, "cpu", 0, array.dtype.type, array.shape, address(array))
