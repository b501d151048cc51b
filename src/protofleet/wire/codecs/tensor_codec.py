"""What a codec is: how the numbers of one tensor are written, and read again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from protofleet.wire.codecs.streams import Reader, Stream, Writer

Floats = NDArray[np.float32]

MOST_SCALE = float(np.finfo(np.float32).max / 8)
"""Of codes of 4 bits, which go up to 7."""
MOST_VALUE = 7 * MOST_SCALE
"""Largest magnitude that is coded at all: every codec can write it, or lets ``int8`` do so."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What makes up for what coding a tensor loses.

    Attributes:
        peak: its largest magnitude.
        remembered: it is a difference, of which the sender keeps what was lost and adds it the
            next time.
        corrected: it is a difference to what an earlier blob decoded to: the next one corrects it.
    """

    peak: float
    remembered: bool
    corrected: bool


@dataclass(frozen=True, slots=True)
class TensorCodec(ABC):
    """One kind; the fields of a subclass are its settings, by the names of ``[codec]``.

    Attributes:
        name: in the federation file, in a task and in a blob's table of tensors.
        streams: that it writes.
        for_payloads: whether payloads may be coded so, too: they have no memory of what was lost.
    """

    name: ClassVar[str]
    streams: ClassVar[tuple[Stream, ...]]
    for_payloads: ClassVar[bool] = True

    @classmethod
    def of(cls, **settings: float) -> Self:
        """With those of the settings that it has.

        Raises:
            ValueError: one is out of its bounds.
        """
        return cls(**{key: settings[key] for key in cls.__dataclass_fields__ if key in settings})

    @property
    def text(self) -> str:
        """For people, with its settings."""
        return self.name

    def fits(self, tensor: Circumstances) -> bool:  # noqa: ARG002 - of those that ask
        """Whether it can code the tensor; else ``int8`` does."""
        return True

    @abstractmethod
    def write(self, values: Floats, streams: Writer) -> Floats:
        """Add a tensor's finite ``values (n,)``; returns what a reader will give for them."""

    @staticmethod
    @abstractmethod
    def read(size: int, streams: Reader) -> Floats:
        """The next tensor's values ``(size,)``, writable.

        Raises:
            RefusedError: rule ``codec``: the streams are too short, or no writer writes them.
            InputError: a number of them is not finite or out of its range.
        """
