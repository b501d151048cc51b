"""Rows of a CSV from bytes as they come."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from protofleet.errors import InputError

_BLOCK_BYTES = 1 << 16
_GAPS = frozenset({"", "na", "null"})


class ByteStream(Protocol):
    """A binary file that gives what is there without waiting for more."""

    def read1(self, size: int, /) -> bytes:
        """At most ``size`` bytes, at least one unless the stream is over."""


@dataclass(frozen=True, slots=True)
class Row:
    """Cells of a row, and its line, from 1."""

    line: int
    cells: list[str]


def is_gap(text: str) -> bool:
    """Whether a cell says that there is no value: empty, or ``NA`` (R) or ``null`` (SQL)."""
    return text.strip().lower() in _GAPS


def is_value(text: str) -> bool:
    """Whether a cell of a first row is no name; an empty one is, as that of a table's index."""
    try:
        float(text)
    except ValueError:
        return bool(text) and is_gap(text)
    return True


def row_blocks(stream: ByteStream, where: str) -> Iterator[list[Row]]:
    """Whole rows as they come, blank lines left out."""
    rest, line = b"", 0
    while True:
        block = stream.read1(_BLOCK_BYTES)
        *lines, rest = (rest + block).split(b"\n") if block else (rest, b"")
        try:
            texts = [one.decode("utf-8-sig" if line == 0 else "utf-8") for one in lines]
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            raise InputError(
                f"{where}: expected text in UTF-8, got the byte 0x{byte:02x}; save it as a CSV in "
                "UTF-8"
            ) from error
        found = []
        for text in texts:
            line += 1
            if text.strip():
                found.append(Row(line, _cells(text, f"{where}, line {line}")))
        if found:
            yield found
        if not block:
            return


def _cells(text: str, where: str) -> list[str]:
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as error:
        what, *_ = str(error).split(" - ")
        raise InputError(
            f"{where}: not a row of a CSV ({what}); expected a newline after each row, and quotes "
            "that close in it"
        ) from error
