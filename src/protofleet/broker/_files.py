"""Files of a broker's folder: private, whole or absent, owned by the folder's owner."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protofleet.durable import TEMPORARY, sync_folder


def write_private(path: Path, data: bytes | str, *, mode: int = 0o600) -> None:
    """Replace ``path`` by ``data``, atomically and durably, readable by its owner alone.

    Written by root into another user's folder (``sudo``), it belongs to that user: the broker must
    be able to read it.

    Args:
        path: the file.
        data: its content; text as UTF-8.
        mode: permissions, as of ``chmod``.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), mode)
        _give_to_owner(file.fileno(), path.parent)
        file.write(data.encode() if isinstance(data, str) else data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Nobody else changes the folder's accounts meanwhile; waits for its turn."""
    with (folder / ".lock").open("ab") as file:
        _give_to_owner(file.fileno(), folder)
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _give_to_owner(descriptor: int, folder: Path) -> None:
    if os.geteuid() == 0:
        owner = folder.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
