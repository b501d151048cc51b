"""Numbers of coded tensors, those of each kind behind one another: what is written into a blob."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from protofleet.errors import RefusedError
from protofleet.kernels import shuffle_decode, shuffle_encode
from protofleet.tensors import Tensors

PREFIX = "codec/"
"""Of the streams' names in a blob."""


@dataclass(frozen=True, slots=True)
class Stream:
    """One array of a blob, in the order of the tensors whose numbers it has.

    Attributes:
        name: behind ``PREFIX``.
        dtype: of its numbers.
        planes: whether it travels as bytes, the first of all numbers before the second of all.
    """

    name: str
    dtype: DTypeLike
    planes: bool = False

    @property
    def carried(self) -> np.dtype[Any]:
        """How it stands in the blob."""
        return np.dtype(np.uint8 if self.planes else self.dtype)


class Writer:
    """Takes tensor after tensor."""

    def __init__(self) -> None:
        self._parts: dict[Stream, list[NDArray[Any]]] = {}

    def append(self, stream: Stream, values: NDArray[Any]) -> None:
        """Add a tensor's numbers to a stream."""
        self._parts.setdefault(stream, []).append(values)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The streams as they stand in the blob; empty ones are left out."""
        found = {}
        for stream, parts in self._parts.items():
            whole = np.concatenate(parts)
            found[PREFIX + stream.name] = shuffle_encode(whole) if stream.planes else whole
        return found


class Reader:
    """Gives tensor after tensor, from streams that came from outside.

    Args:
        tensors: of the blob.
        known: the streams that there may be.

    Raises:
        RefusedError: rule ``codec``: a stream that no writer knows, of another dtype or more than
            one axis.
        InputError: bytes in planes that are no whole numbers.
    """

    def __init__(self, tensors: Tensors, known: Iterable[Stream]) -> None:
        streams = {PREFIX + stream.name: stream for stream in known}
        for name in tensors:
            if name.startswith(PREFIX) and name not in streams:
                raise refused(f"tensor '{name[:64]}': no such stream")
        self._left = {
            stream: _numbers(stream, tensors[name])
            for name, stream in streams.items()
            if name in tensors
        }

    def take(self, stream: Stream, size: int) -> NDArray[Any]:
        """The next ``size`` numbers of a stream.

        Raises:
            RefusedError: rule ``codec``: there are fewer.
        """
        left = self._left.get(stream, np.empty(0, stream.dtype))
        if len(left) < size:
            raise refused(f"{stream.name}: expected {size} more numbers, got {len(left)}")
        self._left[stream] = left[size:]
        return left[:size]

    def finish(self) -> None:
        """Raise RefusedError if a stream has more than its tensors."""
        for stream, left in self._left.items():
            if len(left):
                raise refused(f"{stream.name}: {len(left)} numbers belong to no tensor")


def refused(text: str) -> RefusedError:
    """What no encoder writes."""
    return RefusedError("codec", f"codec: {text}")


def _numbers(stream: Stream, found: NDArray[Any]) -> NDArray[Any]:
    if found.dtype != stream.carried or found.ndim != 1:
        raise refused(
            f"{stream.name}: expected one axis of {stream.carried}, got {found.shape} {found.dtype}"
        )
    return shuffle_decode(found, stream.dtype) if stream.planes else found
