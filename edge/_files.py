"""Writing files so that a reader sees the old content or the new one, whatever is killed when."""

from __future__ import annotations

import os
from pathlib import Path

TEMPORARY = ".tmp"


def write_whole(path: Path, data: bytes) -> None:
    """Replace ``path`` by ``data`` atomically; its name is durable after ``sync_folder``."""
    temporary = path.with_name(path.name + TEMPORARY)
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def sync_folder(folder: Path) -> None:
    """Make the names inside ``folder`` survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
