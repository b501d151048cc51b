"""Reads the events that another process writes, while it writes them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec


class Tail:
    """Whole lines of a growing file of JSON events.

    Args:
        path: the file.
        position: where to begin, in bytes.
    """

    def __init__(self, path: Path, position: int) -> None:
        self.path = path
        self._position = position

    def read(self) -> Iterator[dict[str, Any]]:
        """Events written since the last call."""
        with self.path.open("rb") as file:
            file.seek(self._position)
            written = file.read()
        whole = written[: written.rfind(b"\n") + 1]
        self._position += len(whole)
        yield from map(msgspec.json.decode, whole.splitlines())
