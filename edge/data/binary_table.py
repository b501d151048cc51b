"""A table of a recording in a binary format, and how it becomes the text that all others are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.edge.data.csv_rows import ByteStream, PiecedStream

_ROWS = 4096
"""That are written at a time."""
_MARKS = ("start_s", "end_s", "label")


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryTable:
    """Columns of one length.

    Attributes:
        name: of the table; it may be that of a sensor.
        header: names of the columns, with units in brackets.
        columns: numbers, or texts.
        is_marks: whether it holds what a person has marked.
    """

    name: str
    header: tuple[str, ...]
    columns: tuple[NDArray[Any], ...]
    is_marks: bool = False

    def stream(self) -> ByteStream:
        """The table as text."""
        return PiecedStream(self._pieces())

    def _pieces(self) -> Iterator[bytes]:
        yield _line(self.header)
        for begin in range(0, len(self.columns[0]), _ROWS):
            rows = zip(*(one[begin : begin + _ROWS].tolist() for one in self.columns), strict=True)
            yield b"".join(map(_line, rows))


def _line(cells: Sequence[Any]) -> bytes:
    texts = ("" if one != one else str(one) for one in cells)  # noqa: PLR0124 - a NaN is no value
    plain = (one.replace("\n", " ").replace('"', "'") for one in texts)
    return (",".join(f'"{one}"' if "," in one else one for one in plain) + "\n").encode()


def marks_table(
    starts: NDArray[np.float64], lasts: NDArray[np.float64], texts: Sequence[str]
) -> BinaryTable:
    """What a person has marked; one that does not last holds up to the next."""
    ends = np.where(lasts > 0, starts + lasts, np.nan)
    said = np.array(list(map(str, texts)), object)
    return BinaryTable(name="marks", header=_MARKS, columns=(starts, ends, said), is_marks=True)


def column(label: str, unit: str = "") -> str:
    """The name of a column, with its unit."""
    name = label.replace(",", " ")
    return f"{name} [{unit}]" if unit else name
