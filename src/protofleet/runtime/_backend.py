"""What a runtime must offer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from protofleet.bundle.manifest import Manifest
from protofleet.runtime._arrays import Arrays

Kernels = Literal["auto", "custom", "graph"]
"""Who computes ALP nodes: ``custom`` the kernels, ``graph`` the runtime, ``auto`` the faster one
that is installed. The numbers are the same. LiteRT has the graph only."""

Feed = Callable[[], tuple[Arrays, Arrays]]
"""Gives the arrays to read and the arrays to write, by port name."""


class ProgramSource(Protocol):
    """What the runtime needs of a bundle."""

    @property
    def manifest(self) -> Manifest:
        """Programs, parameters and buffers by name and shape."""

    def read(self, name: str, /) -> bytes:
        """The content of one file."""


class Runner(Protocol):
    """One loaded program."""

    def run(self, key: tuple[int, ...], feed: Feed) -> None:
        """Compute the outputs of ``feed`` from its inputs.

        The caller guarantees that equal keys mean equal addresses and shapes.

        Raises:
            ProvisionError: the program failed or produced shapes other than its ports'.
            KernelError: a kernel raised.
        """


class Backend(Protocol):
    """A bundle's programs in the format of one runtime.

    Attributes:
        name: ``onnx`` or ``litert``.
        uses_kernels: whether ``protofleet.kernels`` computes ALP nodes.
    """

    name: Literal["onnx", "litert"]
    uses_kernels: bool

    def where(self, program: str) -> str:
        """What to call a program in a message."""

    def open(self, program: str) -> Runner:
        """Load a program.

        Raises:
            ProvisionError: it does not load, or differs from its ports.
        """
