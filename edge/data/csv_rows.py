"""Rows of a text file from bytes as they come, however its writer separates and encodes them.

A first look settles that, at the lines that come first: the encoding (UTF-8, UTF-16, else
Windows-1252), lines before the table (a logger's, or comments), and what stands between cells:
tabs, semicolons, commas, bars or blanks. Where it is not a comma, numbers may have decimal commas.
Behind names the first look waits for the row below them; from there a stream is read as it comes.
"""

from __future__ import annotations

import codecs
import csv
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from protofleet.edge.data.sample_times import to_time
from protofleet.errors import InputError

_log = logging.getLogger(__name__)

_BLOCK_BYTES = 1 << 16
_GAPS = frozenset({"", "na", "null"})
_COMMENTS = ("#", "%", "//")
_SEPARATORS = "\t;,|"
"""In the order in which they are looked for: a comma may be a decimal one."""
_LOOK_LINES = 40
"""Lines of which the table's first must be one."""
_DECIMAL_COMMA = re.compile(r"\s*([+-]?(?:\d{1,3}(?:\.\d{3})+|\d*)),(\d+(?:[eE][+-]?\d+)?)\s*")
_UTF_16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_OTHER = "windows-1252"


class ByteStream(Protocol):
    """A binary file that gives what is there without waiting for more."""

    def read1(self, size: int, /) -> bytes:
        """At most ``size`` bytes, at least one unless the stream is over."""


class PiecedStream:
    """Pieces of text as a stream of bytes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, b""

    def read1(self, size: int, /) -> bytes:
        """As of ``ByteStream``."""
        found, count = [self._rest], len(self._rest)
        while count < size and (piece := next(self._pieces, b"")):
            found.append(piece)
            count += len(piece)
        text = b"".join(found)
        self._rest = text[size:]
        return text[:size]


@dataclass(frozen=True, slots=True)
class Row:
    """Cells of a row, and its line, from 1."""

    line: int
    cells: list[str]


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    text: str
    whole: bool
    """Whether a newline ends it."""


def is_gap(text: str) -> bool:
    """Whether a cell says that there is no value: empty, or ``NA`` (R) or ``null`` (SQL)."""
    return text.strip().lower() in _GAPS


def is_value(text: str) -> bool:
    """Whether a cell of a first row is no name; an empty one is, as that of a table's index."""
    if not text or is_gap(text):
        return bool(text)
    try:
        to_time(text)
    except (ValueError, OverflowError):
        return False
    return True


def row_blocks(stream: ByteStream, where: str) -> Iterator[list[Row]]:
    """Whole rows as they come; blank lines, comments and lines before the table are left out.

    Args:
        stream: its bytes.
        where: what to call it in a message.

    Raises:
        InputError: a quote that does not close, or bytes that are no text.
    """
    waiting: list[_Line] = []
    table: _Table | None = None
    sniffer = _Sniffer(where)
    for lines, over in _line_blocks(stream, where):
        waiting += [one for one in lines if one.text.strip() and not _is_comment(one.text)]
        table = table or sniffer.table(waiting, over=over)
        if table is None:
            continue
        found = [row for row in map(table.row, waiting) if row is not None]
        waiting = []
        if found:
            yield found


def _is_comment(text: str) -> bool:
    return text.lstrip().startswith(_COMMENTS)


class _Table:
    """How a text file writes its rows.

    Args:
        where: what to call it.
        separator: between cells; a blank stands for any number of them.
        first: number of the line with which it begins; those before are none of its.
    """

    def __init__(self, where: str, separator: str, first: int) -> None:
        self._where, self._separator, self._first = where, separator, first
        self._columns: int | None = None

    def row(self, line: _Line) -> Row | None:
        """The row of a line; None: it is none of the table, or was cut off."""
        if line.number < self._first:
            return None
        cells = cells_of(line.text, self._separator, f"{self._where}, line {line.number}")
        if self._columns is None:
            # A separator behind the last name, which then stands behind the last value, too.
            cells = _opened(cells)
            self._columns = len(cells)
            return Row(line.number, cells)
        if len(cells) == self._columns + 1 and not cells[-1].strip():
            cells = cells[:-1]
        if len(cells) < self._columns and not line.whole:
            _log.warning(
                "%s, line %d: the last row is cut off and left out", self._where, line.number
            )
            return None
        return Row(line.number, cells)


class _Sniffer:
    """Finds how a table is written, by its first two rows.

    Lines before it have another number of cells than the two that follow, of which the second has
    numbers; one of names is wanted behind them, since two lines of numbers may well be a table with
    a row that is wrong. Each line is looked at once, however they come.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._next = 0
        self._begun = False

    def table(self, lines: Sequence[_Line], *, over: bool) -> _Table | None:
        """The table in the lines that have come; None: more have to."""
        looked = lines[:_LOOK_LINES]
        if looked and not self._begun:
            self._begun = True
            if _has_values(looked[0], self._where):
                return self._from(looked[0])
        while self._next + 1 < len(looked):
            place, self._next = self._next, self._next + 1
            if not _is_head(looked[place].text, looked[place + 1].text):
                continue
            if place and _has_values(looked[place], self._where):
                return self._from(looked[0])
            if place:
                _log.info("%s: %d lines before the table are passed over", self._where, place)
            return self._from(looked[place])
        if not over and len(lines) < _LOOK_LINES:
            return None
        return self._from(looked[0] if looked else _Line(1, "", whole=True))

    def _from(self, line: _Line) -> _Table:
        separator = _separator_of(line.text)
        if separator != ",":
            name = {"\t": "tabs", ";": "semicolons", "|": "bars", " ": "blanks"}[separator]
            _log.info("%s: cells between %s, decimal commas or points", self._where, name)
        return _Table(self._where, separator, line.number)


def _is_head(text: str, below: str) -> bool:
    """Whether a line may name the columns of the row below it."""
    separator = _separator_of(text)
    found, cells = len(_cells_or_none(text, separator)), _cells_or_none(below, separator)
    numbers = sum(_is_number(cell) for cell in cells)
    # Between the words of a sentence are blanks, too.
    enough = 2 * numbers >= len(cells) if separator == " " else numbers > 0
    return found > 1 and found == len(cells) and enough


def _has_values(line: _Line, where: str) -> bool:
    """Whether a row has no names."""
    cells = cells_of(line.text, _separator_of(line.text), f"{where}, line {line.number}")
    return all(is_value(cell.strip()) for cell in cells)


def _separator_of(text: str) -> str:
    """What stands between the cells of a row; a comma if nothing does."""
    bare = re.sub(r'"[^"]*"', "", text)
    found = next((one for one in _SEPARATORS if one in bare), None)
    if found is not None:
        return found
    return " " if len(bare.split()) > 1 and '"' not in text else ","


def _cells_or_none(text: str, separator: str) -> list[str]:
    """Cells of a row, without an empty one at its end; none if it is no row."""
    try:
        return _opened(cells_of(text, separator, ""))
    except InputError:
        return []


def _opened(cells: list[str]) -> list[str]:
    """Without the empty cell that a separator at the end of a row makes."""
    return cells[:-1] if len(cells) > 1 and not cells[-1].strip() else cells


def _is_number(cell: str) -> bool:
    return is_value(cell.strip()) and not is_gap(cell)


def cells_of(text: str, separator: str, where: str) -> list[str]:
    """The cells of a row, numbers with decimal points.

    Raises:
        InputError: a quote in it does not close.
    """
    if separator == " ":
        return [_with_point(cell) for cell in text.split()]
    try:
        cells = next(csv.reader([text], strict=True, delimiter=separator))
    except csv.Error as error:
        what, *_ = str(error).split(" - ")
        raise InputError(
            f"{where}: not a row of a CSV ({what}); expected a newline after each row, and quotes "
            "that close in it"
        ) from error
    return cells if separator == "," else [_with_point(cell) for cell in cells]


def _with_point(cell: str) -> str:
    """A number with a decimal comma as one with a point; other text as it is."""
    found = _DECIMAL_COMMA.fullmatch(cell)
    return f"{found[1].replace('.', '')}.{found[2]}" if found else cell


def _line_blocks(stream: ByteStream, where: str) -> Iterator[tuple[list[_Line], bool]]:
    """Lines as they come, at least once, and whether those are the last."""
    decode: Callable[[bytes, bool], str] | None = None
    rest, number = "", 0
    while True:
        block = stream.read1(_BLOCK_BYTES)
        decode = decode or _decoder(block, where)
        text = rest + decode(block, not block)
        *texts, rest = text.split("\n")
        if not block and rest:
            texts, rest = [*texts, rest], ""
        lines = []
        for k, one in enumerate(texts):
            number += 1
            whole = k < len(texts) - 1 or bool(block) or text.endswith("\n")
            lines.append(_Line(number, one, whole))
        yield lines, not block
        if not block:
            return


def _decoder(first: bytes, where: str) -> Callable[[bytes, bool], str]:
    """Makes text of a file's bytes, as they come; the mark at its beginning is left out."""
    for mark, name in _UTF_16.items():
        if first.startswith(mark):
            found = codecs.getincrementaldecoder(name)("strict")
            return _Marked(found, where).decode
    return _Marked(codecs.getincrementaldecoder("utf-8")("strict"), where).decode


class _Marked:
    """A decoder whose first character may be a byte order mark, and that has another to turn to.

    What is no UTF-8 is taken as Windows-1252, as spreadsheets of the West write it.
    """

    def __init__(self, decoder: codecs.IncrementalDecoder, where: str) -> None:
        self._decoder, self._where = decoder, where
        self._begun = self._turned = False

    def decode(self, block: bytes, final: bool) -> str:  # noqa: FBT001 - as of ``codecs``
        """The text of more bytes."""
        pending, _ = self._decoder.getstate()
        try:
            text = self._decoder.decode(block, final)
        except UnicodeDecodeError as error:
            text = self._other(pending + block, final, error)
        if text and not self._begun:
            self._begun = True
            text = text.removeprefix("\ufeff")
        return text

    def _other(self, data: bytes, final: bool, error: UnicodeDecodeError) -> str:  # noqa: FBT001
        byte = error.object[error.start] if error.start < len(error.object) else 0
        refused = InputError(
            f"{self._where}: expected text in UTF-8, got the byte 0x{byte:02x}; save it as a CSV "
            "in UTF-8"
        )
        if self._turned or b"\0" in data:
            raise refused from error
        self._turned = True
        _log.warning(
            "%s: not UTF-8 (the byte 0x%02x); taken as %s: names and labels with other letters "
            "than English ones may be wrong",
            self._where,
            byte,
            _OTHER,
        )
        self._decoder = codecs.getincrementaldecoder(_OTHER)("replace")
        return self._decoder.decode(data, final)
