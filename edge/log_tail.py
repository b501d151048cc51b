"""The last lines of a device's log, for a coordinator that is to know why a round has failed.

Only what its owner allows is sent, and of the log only what modules say that see no data: no
losses, no scores, no numbers of examples, no samples.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from protofleet.printable import printable
from protofleet.wire.messages import MOST_LOG_CHARS

_SAYING_NO_DATA = (
    "protofleet.edge.agent",
    "protofleet.edge.current_round",
    "protofleet.edge.state.move",
    "protofleet.edge.owner.participation",
    "protofleet.edge.presence",
    "protofleet.edge.storage",
    "protofleet.edge.upgrade",
    "protofleet.wire.",
)
_MOST_LINES = 100


class LogTail(logging.Handler):
    """Keeps the last lines, each printable and without its traceback."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a record of a module that sees no data."""
        if record.name.startswith(_SAYING_NO_DATA):
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created))
            text = printable(record.getMessage()).encode("ascii", "backslashreplace").decode()
            self._lines.append(f"{stamp} {record.levelname.lower()} {text}")

    def text(self) -> str:
        """The last lines, oldest first, that ``MOST_LOG_CHARS`` has room for; ASCII."""
        kept: list[str] = []
        left = MOST_LOG_CHARS
        for line in reversed(list(self._lines)):
            left -= len(line) + 1
            if left < 0:
                break
            kept.append(line)
        return "\n".join(reversed(kept))


@contextmanager
def log_tail(*, kept: bool) -> Iterator[LogTail | None]:
    """What keeps the last lines of this package's log within the block; None if not ``kept``."""
    if not kept:
        yield None
        return
    log, tail = logging.getLogger("protofleet"), LogTail()
    log.addHandler(tail)
    try:
        yield tail
    finally:
        log.removeHandler(tail)
