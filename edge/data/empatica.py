"""Tables of Empatica's E4 as tables with names and times.

A sensor's table has neither: its first row is when the recording began, seconds since 1970, the
second how many readings a second follow, both once in each column; accelerations are in 1/64 g
(Empatica, "E4 data: CSV files", in the info.txt of each session). Read so, they go the way of all
others.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator

from protofleet.edge.data.csv_rows import ByteStream, PiecedStream

_NAMES = {
    "ACC": ("x [g]", "y [g]", "z [g]"),
    "BVP": ("bvp",),
    "EDA": ("eda",),
    "HR": ("hr",),
    "TEMP": ("temperature",),
}
"""Columns by the last word of a file's name."""
_PER_G = 64
_SINCE_S = 1e9
_MOST_HZ = 1000.0
_BLOCK_BYTES = 1 << 16


def with_times(stream: ByteStream, name: str) -> ByteStream:
    """The table of a sensor with a row of names and a column of times; any other as it is.

    Args:
        stream: its bytes.
        name: of the file, without its ending.
    """
    columns = _NAMES.get(re.split(r"[\W_]+", name)[-1].upper())
    if columns is None:
        return stream
    lines = _Lines(stream)
    first, second = lines.peek(), lines.peek()
    begun, rate_hz = _same(first, len(columns)), _same(second, len(columns))
    if begun is None or rate_hz is None or begun < _SINCE_S or not 0 < rate_hz <= _MOST_HZ:
        return lines.whole()
    scale = _PER_G if columns[0].endswith("[g]") else 1
    return PiecedStream(_timed(lines, columns, begun, rate_hz, scale))


def _same(line: bytes, count: int) -> float | None:
    """The number that stands in each of so many cells; None: none does."""
    try:
        found = {float(cell) for cell in line.decode("ascii").split(",")}
    except ValueError:
        return None
    return found.pop() if len(found) == 1 and line.count(b",") == count - 1 else None


def _timed(
    lines: _Lines, columns: tuple[str, ...], begun: float, rate_hz: float, scale: float
) -> Iterator[bytes]:
    yield f"time_s,{','.join(columns)}\n".encode()
    for k, line in enumerate(lines):
        cells = line.decode("ascii", "replace").strip()
        if scale != 1:
            cells = ",".join(_divided(cell, scale) for cell in cells.split(","))
        yield f"{begun + k / rate_hz:.6f},{cells}\n".encode()


def _divided(cell: str, scale: float) -> str:
    """A number divided; what is none is the reader's to refuse."""
    try:
        return f"{float(cell) / scale:.6f}"
    except ValueError:
        return cell


class _Lines:
    """The lines of a stream that are not blank; some may be looked at before."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream, self._seen = stream, b""
        self._lines: deque[bytes] = deque()
        self._rest = b""

    def peek(self) -> bytes:
        """The next line, which ``whole`` has again; empty: there is none."""
        line = self._next()
        self._seen += line
        return line

    def whole(self) -> ByteStream:
        """The stream as it was."""
        return PiecedStream(self._again())

    def __iter__(self) -> Iterator[bytes]:
        while line := self._next():
            if line.strip():
                yield line

    def _next(self) -> bytes:
        while not self._lines:
            block = self._stream.read1(_BLOCK_BYTES)
            if not block:
                line, self._rest = self._rest, b""
                return line
            *lines, self._rest = (self._rest + block).split(b"\n")
            self._lines.extend(line + b"\n" for line in lines)
        return self._lines.popleft()

    def _again(self) -> Iterator[bytes]:
        yield self._seen + b"".join(self._lines) + self._rest
        while block := self._stream.read1(_BLOCK_BYTES):
            yield block
