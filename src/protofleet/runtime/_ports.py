"""Compares what a program file declares with what the manifest says of it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from protofleet.bundle.manifest import Port, Program
from protofleet.errors import ProvisionError

_SYMBOLIC_DIM = re.compile(r"batch(\*[1-9][0-9]*)?")


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output as the file declares it.

    Attributes:
        dtype: as a port's, or the runtime's name for another one.
        shape: dimensions; what is no integer may have any value.
    """

    dtype: str
    shape: Sequence[int | str | None]


def check_ports(
    where: str, program: Program, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]
) -> None:
    """Raise ProvisionError unless every input has a port and every port fits its tensor.

    Args:
        where: what to call the program.
        program: its ports.
        inputs: what the file reads, by name.
        outputs: what it writes.
    """
    surplus = inputs.keys() - {port.name for port in program.inputs}
    if surplus:
        raise ProvisionError(f"program '{where}': no port for its input '{min(surplus)}'")
    for ports, found in ((program.inputs, inputs), (program.outputs, outputs)):
        for port in ports:
            check_port(where, port, found.get(port.name))


def check_port(program: str, port: Port, found: Tensor | None) -> None:
    """Raise ProvisionError unless ``found``, what the program ``program`` has, fits ``port``."""
    where = f"program '{program}', port '{port.name}'"
    if found is None:
        raise ProvisionError(f"{where}: not in the program")
    if found.dtype != port.dtype:
        raise ProvisionError(f"{where}: expected {port.dtype}, got {found.dtype}")
    for dim in port.shape:
        if isinstance(dim, str) and not _SYMBOLIC_DIM.fullmatch(dim):
            raise ProvisionError(f"{where}: expected a dimension like 'batch*8', got '{dim}'")
    pairs = zip(port.shape, found.shape, strict=False)
    fixed = [(a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int)]
    if len(port.shape) != len(found.shape) or any(a != b for a, b in fixed):
        raise ProvisionError(f"{where}: expected {port.shape}, got {tuple(found.shape)}")
