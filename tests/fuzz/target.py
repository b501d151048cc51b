"""A decoder of bytes from outside, and what one input may do to it."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from protofleet.errors import InputError, ProvisionError, RefusedError, UnavailableError

ALLOWED = (RefusedError, InputError, ProvisionError, UnavailableError)
"""How a decoder may end other than by returning; anything else is a crash."""

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Target:
    """One decoder.

    Attributes:
        name: of its row and of its folders.
        decode: reads the bytes; whatever it keeps in mind begins anew with each call.
        make_examples: inputs that it accepts, as the product writes them.
        max_len: longest input that the fuzzer makes, in bytes.
        per_byte: bytes of memory that one byte of input may take.
        constant: bytes of memory that any input may take besides.
        only: what may be left out of ``ALLOWED``'s classes' messages.
    """

    name: str
    decode: Callable[[bytes], object]
    make_examples: Callable[[], Iterable[bytes]]
    max_len: int = 4096
    per_byte: int = 100
    constant: int = 1 << 20

    @cached_property
    def examples(self) -> list[bytes]:
        """Inputs that the decoder accepts."""
        return list(self.make_examples())

    def run(self, data: bytes) -> bool:
        """Whether the decoder takes ``data``; anything but a refusal in one line is raised."""
        try:
            self.decode(data)
        except ALLOWED as error:
            text = str(error)
            assert "\n" not in text or "\n" in repr(data), text
            assert len(text) < 4000, text[:200]
            return False
        return True

    def peak_bytes(self, data: bytes) -> int:
        """Memory that decoding takes at most at one time, as Python and NumPy count it."""
        tracemalloc.start()
        try:
            self.run(data)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    def allowed_bytes(self, data: bytes) -> int:
        """Memory that decoding may take."""
        return self.per_byte * len(data) + self.constant

    def kept(self) -> list[bytes]:
        """The committed inputs: what the fuzzer found worth keeping, and what once crashed."""
        folders = (FOLDER / "corpus" / self.name, FOLDER / "crashes" / self.name)
        return [path.read_bytes() for folder in folders for path in sorted(folder.glob("*"))]
