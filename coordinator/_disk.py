"""Files that are whole or absent after a crash."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data``, durably: write beside it, fsync, rename, fsync the folder."""
    temporary = path.with_name(path.name + ".part")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def replace_whole(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data`` for readers, not against power loss: it can be made again."""
    temporary = path.with_name(path.name + ".part")
    temporary.write_bytes(data)
    temporary.replace(path)


def move_whole(source: Path, target: Path) -> None:
    """Make ``source`` durable under the name ``target``, on the same file system."""
    with source.open("rb") as file:
        os.fsync(file.fileno())
    source.replace(target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
