"""Gives memory back to the system that was needed only to get ready."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) [0-9a-f]+ \S+ (\d+)")
_SMAPS = Path("/proc/self/smaps")
_DONTNEED = 4  # madvise(2), the same on every architecture of Linux
_MMAP_THRESHOLD = -3  # mallopt(3)
_LARGE = 1 << 20


def return_large_blocks() -> None:
    """Let free() give every block of a mebibyte or more back at once.

    By default glibc keeps blocks as large as the largest that was ever freed. A device that
    replaces a model's tensors would so keep the holes between them.
    """
    libc = _libc()
    if sys.platform == "linux" and hasattr(libc, "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, _LARGE)


def release() -> None:
    """Return free heap, and pages of code and constants that their files still hold.

    Opening a program runs most of a compiler: optimisers, parsers, LLVM. What ran once stays in
    memory until the system wants it; what runs again is read back from the page cache, a
    microsecond a page. Does what the system allows: nothing where there is no Linux.
    """
    if sys.platform != "linux":
        return
    libc = _libc()
    if hasattr(libc, "malloc_trim"):  # musl has none
        libc.malloc_trim(0)
    for start, stop in _unwritten():
        libc.madvise(start, stop - start, _DONTNEED)


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return libc


def _unwritten() -> Iterator[tuple[int, int]]:
    """Read-only mappings of files, without pages that differ from the file.

    A linker writes addresses into some of them before it makes them read-only: those pages count
    as anonymous, and would be lost.
    """
    start = stop = 0
    try:
        lines = _SMAPS.read_text().splitlines()
    except OSError:  # a kernel or a container without it
        return
    for line in lines:
        if found := _MAPPING.match(line):
            inode, writable = int(found[4]), "w" in found[3] or found[3][3] == "s"
            start, stop = int(found[1], 16), int(found[2], 16)
            if not inode or writable:
                stop = start
        elif line.startswith("Anonymous:") and stop > start and int(line.split()[1]) == 0:
            yield start, stop
