"""Large comma-separated tables in bounded memory: only the named columns, a chunk at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError

_CHUNK_LINES = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """Consecutive lines of a table.

    Attributes:
        rows: ``(n,)`` structured array with the wanted columns.
        name: what the table is called in messages.
        first_line: number of the first line in the file, from 1.
        lines: the text; blank lines have no row.
    """

    rows: NDArray[Any]
    name: str
    first_line: int
    lines: list[str]

    def require(self, good: NDArray[np.bool_], expected: str) -> None:
        """Raise InputError with the line of the first row that is not good.

        Args:
            good: ``(n,) bool`` per row.
            expected: what every row should be.
        """
        if not good.all():
            position = int(np.flatnonzero(~good)[0])
            written = [number for number, line in enumerate(self.lines) if line.strip()]
            refuse_line(self.name, self.first_line, self.lines, written[position], expected)


def read_table(
    lines: Iterable[str], *, name: str, columns: Mapping[str, str], empty_is_nan: bool = False
) -> Iterator[TableRows]:
    """Read a table with a header line.

    Args:
        lines: text lines; the first names the columns.
        name: the file, for messages.
        columns: wanted columns and their numpy types; texts as ``"S<bytes>"``.
        empty_is_nan: an empty field is a missing value rather than an error.

    Raises:
        InputError: a column is not in the header, or a line lacks a field or holds another type.
    """
    lines = iter(lines)
    header = [field.strip().strip('"') for field in next(lines, "").lstrip("\ufeff").split(",")]
    for column in columns:
        if column not in header:
            raise InputError(
                f"'{name}' line 1: expected a column '{column}', got {','.join(header)}"
            )
    fields = np.dtype(list(columns.items()))
    places = tuple(header.index(column) for column in columns)
    first_line = 2
    while chunk := list(islice(lines, _CHUNK_LINES)):
        text = _with_nans(chunk) if empty_is_nan else chunk
        if any(line.strip() for line in text):
            rows = _parse(text, fields, places)
            if rows is None:
                bad = _first_bad(text, fields, places)
                kinds = ", ".join(f"{key} ({_kind(value)})" for key, value in columns.items())
                refuse_line(name, first_line, chunk, bad, f"the fields {kinds}")
            yield TableRows(rows=rows, name=name, first_line=first_line, lines=chunk)
        first_line += len(chunk)


def refuse_line(
    name: str, first_line: int, lines: list[str], position: int, expected: str
) -> NoReturn:
    """Raise InputError that quotes the line at ``position`` and gives its number in the file."""
    quoted = lines[position].strip()[:80]
    raise InputError(f"'{name}' line {first_line + position}: expected {expected}, got '{quoted}'")


def _parse(lines: list[str], fields: np.dtype[Any], places: tuple[int, ...]) -> NDArray[Any] | None:
    try:
        return np.loadtxt(
            lines, dtype=fields, usecols=places, delimiter=",", comments=None, ndmin=1
        )
    except ValueError:
        return None


def _first_bad(lines: list[str], fields: np.dtype[Any], places: tuple[int, ...]) -> int:
    low, high = 0, len(lines)
    while high - low > 1:
        middle = (low + high) // 2
        part = lines[low:middle]
        if not any(map(str.strip, part)) or _parse(part, fields, places) is not None:
            low = middle
        else:
            high = middle
    return low


def _with_nans(lines: list[str]) -> list[str]:
    text = "\n" + "".join(lines) + "\n"
    # Twice, because the comma between two empty fields belongs to both.
    text = text.replace(",,", ",nan,").replace(",,", ",nan,")
    text = text.replace(",\n", ",nan\n").replace("\n,", "\nnan,")
    return text[1:].split("\n")[: len(lines)]


def _kind(dtype: str) -> str:
    return "text" if dtype.startswith("S") else "number"
