"""A sensor's readings that wait for those of others, in a temporary file where they are many."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError

_MOST_IN_MEMORY = 8 << 20
_ROWS = 4096
"""That are read at a time."""


class SpooledReadings:
    """Times and values of a sensor, until it is closed.

    Args:
        channels: numbers of a reading.

    Attributes:
        count: how many there are.
        begin_s: the first of all times.
        end_s: the last of all times.
    """

    def __init__(self, channels: int) -> None:
        self._columns = 1 + channels
        self._file = tempfile.SpooledTemporaryFile(_MOST_IN_MEMORY)  # noqa: SIM115 - ``close``
        self.count = 0
        self.begin_s, self.end_s = np.inf, -np.inf
        self._last_s, self._ascend = -np.inf, True

    def add(self, times_s: NDArray[np.float64], values: NDArray[np.floating]) -> None:
        """Take readings.

        Args:
            times_s: ``(n,)``, finite.
            values: ``(n, channels)``.

        Raises:
            InputError: the disk is full.
        """
        if not len(times_s):
            return
        try:
            self._file.write(np.column_stack([times_s, values]).astype(np.float64).tobytes())
        except OSError as error:
            raise InputError(
                f"recording: its sensors' readings cannot wait in '{tempfile.gettempdir()}' "
                f"({error.strerror}); TMPDIR names another folder"
            ) from error
        self.count += len(times_s)
        self.begin_s = min(self.begin_s, float(times_s.min()))
        self.end_s = max(self.end_s, float(times_s.max()))
        self._ascend = self._ascend and bool((np.diff(times_s, prepend=self._last_s) >= 0).all())
        self._last_s = float(times_s[-1])

    def blocks(self) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Times and values in the order of time; where they came in another, all at once."""
        rows = _ROWS if self._ascend else self.count
        row_bytes = self._columns * np.dtype(np.float64).itemsize
        for begin in range(0, self.count, rows):
            self._file.seek(begin * row_bytes)
            found = np.frombuffer(self._file.read(rows * row_bytes)).reshape(-1, self._columns)
            if not self._ascend:
                found = found[np.argsort(found[:, 0], kind="stable")]
            # Of its own, and in one piece, as its reader had them from memory.
            yield found[:, 0].copy(), found[:, 1:].copy()

    def close(self) -> None:
        """Forget them."""
        self._file.close()
