"""What a device has sent and received since it joined."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from protofleet.private_files import opener


class ByteCounters:
    """Two totals in a mapped file: a killed process loses none of what it has counted."""

    _FORMAT = struct.Struct("@QQ")  # native: each total is stored by one machine instruction

    def __init__(self, path: Path) -> None:
        with open(path, "a+b", opener=opener) as file:
            if file.seek(0, 2) < self._FORMAT.size:
                file.write(bytes(self._FORMAT.size))
                file.flush()
            self._map = mmap.mmap(file.fileno(), self._FORMAT.size)
        self._start_up, self._start_down = self.totals

    @property
    def totals(self) -> tuple[int, int]:
        """Bytes up and down over all runs of this device."""
        up, down = self._FORMAT.unpack_from(self._map)
        return up, down

    def record(self, bytes_up: int, bytes_down: int) -> None:
        """Set what this run has sent and received so far, at the socket."""
        totals = self._start_up + bytes_up, self._start_down + bytes_down
        self._FORMAT.pack_into(self._map, 0, *totals)

    def close(self) -> None:
        """Write the totals through to the disk."""
        self._map.flush()
        self._map.close()
