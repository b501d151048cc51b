"""Memory that the processes of a run share: files without a name, one that each process adds to.

Nothing can be left behind: such a file is gone with the last process that has it open, however the
processes end.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import NamedTuple, Self

_ALIGNMENT = 64
_LEAST_SLACK = 1024
_ADDRESSES = 1 << 45


class Span(NamedTuple):
    """A place in shared memory.

    Attributes:
        file: number of its file.
        start: where in the file.
        size: bytes that were written there.
        room: bytes that may be.
    """

    file: int
    start: int
    size: int
    room: int


class SharedMemory:
    """The files of all processes, as one of them sees them.

    Each is mapped once, larger than it will ever be: what nobody writes takes no memory.

    Args:
        descriptors: of the files; ``create`` makes them.
        own: number of the file that this process adds to.

    Attributes:
        descriptors: as given.
        end: of what this process has added; set back, what lies behind is needed no more.
    """

    def __init__(self, descriptors: Sequence[int], own: int) -> None:
        self.descriptors = tuple(descriptors)
        self._own, self.end = own, 0
        self._bytes = [
            memoryview(mmap.mmap(one, os.fstat(one).st_size)) for one in self.descriptors
        ]

    @classmethod
    def create(cls, count: int) -> Self:
        """So many empty files; the first is this process's."""
        descriptors = [_unnamed_file() for _ in range(count)]
        for one in descriptors:
            os.ftruncate(one, _most_bytes(count))
        return cls(descriptors, 0)

    def read(self, span: Span) -> memoryview:
        """What was written there; it changes when something else is."""
        return self._bytes[span.file][span.start : span.start + span.size].toreadonly()

    def write(self, parts: Sequence[bytes | memoryview], place: Span | None = None) -> Span:
        """Write the parts one behind the other.

        Args:
            parts: bytes.
            place: where, if there is room enough; else, or None, behind all that this process has
                added.
        """
        size = sum(map(len, parts))
        if place is None or size > place.room:
            place = self._add(size)
        target, at = self._bytes[place.file], place.start
        for part in parts:
            target[at : at + len(part)] = part
            at += len(part)
        return place._replace(size=size)

    def _add(self, size: int) -> Span:
        room = size + max(size // 8, _LEAST_SLACK)  # the next content may be a little longer
        room += -room % _ALIGNMENT
        place = Span(self._own, self.end, size, room)
        self.end += room
        return place

    def clear(self) -> None:
        """Give all memory back; no process may be using any of it."""
        for one in self.descriptors:
            size = os.fstat(one).st_size
            os.ftruncate(one, 0)
            os.ftruncate(one, size)

    def close(self) -> None:
        """Close the files; what is still looked at stays as long as it is."""
        self._bytes.clear()
        for one in self.descriptors:
            os.close(one)


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("protofleet")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _most_bytes(files: int) -> int:
    """Of a file: more than a run can fill, and so little that all files fit the address space."""
    page = os.sysconf("SC_PAGE_SIZE")
    most = min(2 * os.sysconf("SC_PHYS_PAGES") * page, _ADDRESSES // files)
    return most - most % page
