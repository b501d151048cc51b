"""A decoder of bytes from outside, and what one input may do to it."""

from __future__ import annotations

import atexit
import base64
import shutil
import tempfile
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from protofleet.errors import InputError, ProvisionError, RefusedError, UnavailableError

REFUSALS = (RefusedError, InputError, ProvisionError, UnavailableError)

CRASHES = Path(__file__).resolve().with_name("crashes")
"""A folder for each decoder that once crashed, with the inputs that did it."""


_MEMORY = Path("/dev/shm")  # noqa: S108 - a fresh folder of its own inside it


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
        refusals: how it may end other than by returning; anything else is a crash.
    """

    name: str
    decode: Callable[[bytes], object]
    make_examples: Callable[[], Iterable[bytes]]
    max_len: int = 4096
    per_byte: int = 100
    constant: int = 1 << 20
    refusals: tuple[type[Exception], ...] = REFUSALS

    @cached_property
    def examples(self) -> list[bytes]:
        """Inputs that the decoder accepts."""
        return list(self.make_examples())

    def run(self, data: bytes) -> bool:
        """Whether the decoder takes ``data``; anything but a refusal in one line is raised."""
        try:
            self.decode(data)
        except self.refusals as error:
            if "\n" in str(error) and b"\n" not in data and b"\\" not in data:
                raise AssertionError(f"more than one line: {error}") from error
            return False
        return True

    def peak_bytes(self, data: bytes) -> int:
        """Memory that decoding takes at most at one time, as Python and NumPy count it.

        It runs twice: what is imported or made at its first use does not count.
        """
        self.run(data)
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
        crashes = [path.read_bytes() for path in sorted((CRASHES / self.name).glob("*"))]
        path = _corpus(self.name)
        lines = path.read_text().split() if path.exists() else []
        return crashes + [base64.b64decode(line) for line in lines]


@cache
def scratch() -> Path:
    """A folder of this process, in memory where there is one."""
    folder = tempfile.mkdtemp(prefix="decoders-", dir=_MEMORY if _MEMORY.is_dir() else None)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def write_corpus(name: str, inputs: Iterable[bytes]) -> None:
    """Commit these inputs of a decoder instead of what there was."""
    lines = [base64.b64encode(data).decode() + "\n" for data in inputs]
    _corpus(name).write_text("".join(lines))


def _corpus(name: str) -> Path:
    """One input a line, in base64."""
    return CRASHES.with_name("corpus") / f"{name}.txt"
