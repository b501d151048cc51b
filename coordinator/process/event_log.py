"""The run folder's event stream, ``events.jsonl``: each event of the coordinator as a line of JSON.

For who looks at the run from another process. The ledger knows all that counts; a lost line is no
harm, so lines are not synced, and a disk that takes none holds nothing up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from protofleet.coordinator import events
from protofleet.private_files import opener

EVENTS, FORMER_EVENTS = "events.jsonl", "events.former.jsonl"
MAX_BYTES = 8 << 20
"""Of ``events.jsonl``; then it becomes ``events.former.jsonl``, in whose place it is."""


class EventLog:
    """Appends events to the stream of a run folder.

    Args:
        folder: of the run.
        sink: told each event as well.
        clock: Unix seconds.
    """

    def __init__(
        self, folder: Path, sink: events.Sink, clock: Callable[[], float] = time.time
    ) -> None:
        self._path, self._former = folder / EVENTS, folder / FORMER_EVENTS
        self._sink, self._clock = sink, clock

    def __call__(self, report: events.CoordinatorEvent) -> None:
        """Append one event, and pass it on."""
        line = events.to_line(report, round(self._clock(), 3)) + "\n"
        with suppress(OSError):
            self._append(line.encode())
        self._sink(report)

    def _append(self, line: bytes) -> None:
        file = opener(str(self._path), os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        try:
            size = os.fstat(file).st_size
            os.write(file, line)
        finally:
            os.close(file)
        if size + len(line) > MAX_BYTES:
            self._path.replace(self._former)
