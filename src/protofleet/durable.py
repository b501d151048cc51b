"""Files that keep their promise whatever is killed when: whole or absent, owned by one process.

They are their user's alone unless they are said to be ``shared``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

from protofleet.errors import UnavailableError
from protofleet.private_files import opener

TEMPORARY = ".tmp"
"""Suffix of a file that is being written; what a crash leaves under it may be removed."""
_NO_WRITES = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EIO,
}
_NO_WRITES_SQLITE = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
}
_AGAIN_S = 0.05
_AT_ONCE = 16


def write_whole(path: Path, data: bytes, *, shared: bool = False) -> None:
    """Replace ``path`` by ``data`` atomically; its name is durable after ``sync_folder``."""
    write_whole_parts(path, [data], shared=shared)


def write_whole_parts(
    path: Path, parts: Iterable[bytes | memoryview], *, shared: bool = False
) -> None:
    """As ``write_whole`` for data in parts, which are never together in memory."""
    temporary = path.with_name(path.name + TEMPORARY)
    write_synced(temporary, parts, shared=shared)
    temporary.replace(path)


def erase(path: Path) -> None:
    """Overwrite a file and remove it; a journal or a flash controller may still have copies."""
    write_synced(path, [bytes(path.stat().st_size)])
    path.unlink()
    sync_folder(path.parent)


def replace_whole(path: Path, data: bytes, *, shared: bool = False) -> None:
    """Replace ``path`` by ``data`` for readers, not against power loss: it can be made again."""
    replace_by_parts(path, [data], shared=shared)


def replace_by_parts(path: Path, parts: Iterable[bytes], *, shared: bool = False) -> None:
    """As ``replace_whole``, for what need not be in memory as a whole."""
    temporary = path.with_name(path.name + TEMPORARY)
    with open(temporary, "wb", opener=None if shared else opener) as file:
        file.writelines(parts)
    temporary.replace(path)


def move_whole(source: Path, target: Path) -> None:
    """Make ``source`` durable under the name ``target``, on the same file system."""
    _sync_file(source)
    source.replace(target)
    sync_folder(target.parent)


def move_all(moves: Mapping[Path, Path]) -> None:
    """As ``move_whole`` for many files at once, for little more than the time of one.

    Args:
        moves: target by source.
    """
    # A journalling file system makes durable together what is asked for together.
    with ThreadPoolExecutor(min(_AT_ONCE, max(len(moves), 1))) as pool:
        list(pool.map(_sync_file, moves))
    for source, target in moves.items():
        source.replace(target)
    for folder in {target.parent for target in moves.values()}:
        sync_folder(folder)


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


class Remover:
    """Removes folders with all that is in them beside other work, in a thread of its own.

    Freeing the blocks of thousands of files can take a disk seconds.

    Args:
        place: folder on their file system, empty but for what an earlier process has left; that is
            removed now.
    """

    def __init__(self, place: Path) -> None:
        self._place, self._count = place, 0
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="protofleet-remover")
        for left in place.iterdir():
            shutil.rmtree(left, ignore_errors=True)

    def remove(self, folder: Path) -> None:
        """The folder is gone from its place at once, and from the disk soon."""
        self._count += 1
        gone = self._place / f"{self._count}"
        folder.replace(gone)
        self._pool.submit(shutil.rmtree, gone, ignore_errors=True)

    def close(self) -> None:
        """Wait until the last one is gone."""
        self._pool.shutdown()


def write_synced(path: Path, parts: Iterable[bytes | memoryview], *, shared: bool = False) -> None:
    """Write ``parts`` to ``path`` itself; its content is durable when this returns."""
    with open(path, "wb", opener=None if shared else opener) as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names inside ``folder`` survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(path: Path, *, taken: str, patience_s: float = 0.0) -> IO[bytes]:
    """Own ``path``, made if absent, until the returned file is closed or the process ends.

    Another process's end is waited for up to ``patience_s``.

    Raises:
        UnavailableError: with the message ``taken``: another process owns it.
        OSError: it cannot be made.
    """
    file = open(path, "ab", opener=opener)  # noqa: SIM115 - the caller closes it
    until = time.monotonic() + patience_s
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise
                time.sleep(_AGAIN_S)
            else:
                return file
    except OSError as error:
        file.close()
        raise UnavailableError(taken) from error
    except BaseException:
        file.close()
        raise


def takes_no_writes(error: BaseException | None) -> bool:
    """Whether an error says that a disk is full, read-only or failing, which may pass.

    A file or folder that is missing does not come back by itself.
    """
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF in _NO_WRITES_SQLITE
    return isinstance(error, OSError) and error.errno in _NO_WRITES
