"""One program of a bundle: ports by role, who runs it, and the batch on its way in."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Port, Program, Role
from protofleet.errors import InputError, ProvisionError
from protofleet.runtime._arrays import Arrays, Slots
from protofleet.runtime._backend import Backend, Runner
from protofleet.tensors import Layout


class LazyProgram:
    """A program, its model's layouts and what they share; it is loaded at the first call.

    Attributes:
        program: the signature.
        params, buffers: layouts of the bundle's network.
        where: what to call it in a message.
        lock: held while the program's buffers are in use.
    """

    def __init__(
        self, name: str, program: Program, layouts: tuple[Layout, Layout], backend: Backend
    ) -> None:
        self.program = program
        self.params, self.buffers = layouts
        self.where = backend.where(name)
        self.lock = threading.Lock()
        self._name = name
        self._backend = backend
        self.check()

    @cached_property
    def runner(self) -> Runner:
        """Runs it.

        Raises:
            ProvisionError: the program does not load, or differs from its ports.
        """
        return self._backend.open(self._name)

    def inputs(self, role: Role) -> tuple[Port, ...]:
        """Input ports of a role, in order."""
        return tuple(port for port in self.program.inputs if port.role == role)

    def outputs(self, role: Role) -> tuple[Port, ...]:
        """Output ports of a role, in order."""
        return tuple(port for port in self.program.outputs if port.role == role)

    def only_output(self, role: Role, key: str | None = None) -> Port:
        """The float32 output of a role (and key).

        Raises:
            ProvisionError: there is none, or more than one, or of another dtype.
        """
        ports = [port for port in self.outputs(role) if key in (None, port.key)]
        if len(ports) != 1 or ports[0].dtype != "float32":
            raise ProvisionError(
                f"program '{self.where}': expected one float32 output with role '{role}'"
                f"{f' and key {key!r}' if key else ''}, got {len(ports)}"
            )
        return ports[0]

    def check(self) -> None:
        """Raise ProvisionError unless ports of parameters and buffers fit the layouts."""
        shapes: Mapping[str, Mapping[str, tuple[int, ...]]] = {
            "param": self.params.shapes,
            "grad": self.params.shapes,
            "state": self.buffers.shapes,
        }
        for port in (*self.program.inputs, *self.program.outputs):
            if port.role not in shapes:
                continue
            expected = shapes[port.role].get(port.key)
            if expected != port.shape or port.dtype != "float32":
                raise ProvisionError(
                    f"program '{self.where}', port '{port.name}': {port.role} "
                    f"'{port.key}' is {expected} float32 in the bundle, got {port.shape} "
                    f"{port.dtype}"
                )


class InputStaging:
    """Checks a batch and stages it in contiguous memory.

    Every array is copied, also one without a batch axis: at most some hundred kilobytes, and a
    strategy may hand in what this very program writes to, such as a part of ``Step.grads``.
    """

    def __init__(self, where: str, ports: tuple[Port, ...]) -> None:
        self._where = where
        self._ports = ports
        self._slots = Slots(ports)
        self._sizer = next(
            ((port, port.shape.index("batch")) for port in ports if "batch" in port.shape), None
        )

    @property
    def generation(self) -> int:
        """Changes when staged memory has moved."""
        return self._slots.generation

    def size(self, batch: Mapping[str, Any]) -> int:
        """The batch size of ``batch``; 1 where no input has a batch axis.

        Raises:
            InputError: the array with that axis is absent, empty or of another rank.
        """
        if self._sizer is None:
            return 1
        port, axis = self._sizer
        array = self._array(batch, port)
        if array.ndim != len(port.shape) or array.shape[axis] < 1:
            raise InputError(
                f"program '{self._where}', input '{port.key}': expected {port.shape} {port.dtype} "
                f"with a batch of at least 1, got {array.shape} {array.dtype}"
            )
        return int(array.shape[axis])

    def stage(self, batch: Mapping[str, Any], size: int) -> Arrays:
        """Copy the batch's arrays into contiguous memory; arrays by port name.

        A float32 port of shape () takes any real number: Python's, numpy's, or an array of
        shape (). An int64 port takes whole numbers in float32, too: examples are kept so.

        Raises:
            InputError: an array is absent or has another shape or dtype.
        """
        staged = self._slots.at(size)
        for port in self._ports:
            array, place = self._array(batch, port), staged[port.name]
            fits = array.dtype == place.dtype or _holds_whole_numbers(array, port)
            if array.shape != place.shape or not fits:
                raise InputError(
                    f"program '{self._where}', input '{port.key}': expected "
                    f"{place.shape} {port.dtype}, got {array.shape} {array.dtype}"
                )
            place[...] = array
        return staged

    def _array(self, batch: Mapping[str, Any], port: Port) -> NDArray[Any]:
        value = batch.get(port.key)
        if not port.shape and port.dtype == "float32" and _is_number(value):
            return np.asarray(value, port.dtype)
        if not isinstance(value, np.ndarray):
            raise InputError(
                f"program '{self._where}', input '{port.key}': expected {port.shape} "
                f"{port.dtype}, got {'nothing' if value is None else type(value).__name__}"
            )
        return value


def _holds_whole_numbers(array: NDArray[Any], port: Port) -> bool:
    return (
        port.dtype == "int64"
        and array.dtype == np.float32
        and bool(np.all(np.trunc(array) == array))
    )


def _is_number(value: Any) -> bool:
    """Whether it is one real number, whatever holds it."""
    if isinstance(value, np.ndarray):
        return value.shape == () and value.dtype.kind in "fiu"
    return isinstance(value, int | float | np.floating | np.integer) and not isinstance(value, bool)
