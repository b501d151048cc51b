"""Sensor Logger's JSON as tables: the same as the app writes into its zip of CSV tables.

It is one list with an object for each reading, those of all sensors one after the other
(https://github.com/tszheichoi/awesome-sensor-logger)::

    [{"sensor": "Metadata", "version": "3", "platform": "android"},
     {"sensor": "Accelerometer", "time": "1698501144401833200", "seconds_elapsed": "0.105",
      "z": "0.02", "y": "-0.01", "x": "0.3"},
     {"sensor": "Annotation", "time": "1698501150000000000", "text": "walking"}]

A sensor's table is written as it is read, in a pass of its own, so that none has to be kept.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from protofleet.edge.data.csv_rows import ByteStream, PiecedStream
from protofleet.errors import InputError

_BLOCK_BYTES = 1 << 16
_MOST_LETTERS = 1 << 20
"""Of one object."""
_MOST_NAME = 200
_MOST_NAMES = 1000
"""Sensors, and columns of one."""
_ROWS = 256
"""That are written at a time."""
_TIMES = ("time", "seconds_elapsed")
_BLANKS = re.compile(r"[ \t\r\n]*")
_BREAKS = re.compile(r"[\r\n]+")
# Numbers stay as they are written: the reader of tables has its own word on those that are none.
_DECODER = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedTable:
    """The readings of one sensor, or what the person has marked.

    Attributes:
        name: of the sensor.
        header: names of its columns.
        where: what to call the file in a message.
    """

    name: str
    header: tuple[str, ...]
    where: str

    def stream(self, source: ByteStream) -> ByteStream:
        """The table as text, from the whole file's bytes; errors as of ``logged_tables``."""
        return PiecedStream(self._pieces(source))

    def _pieces(self, source: ByteStream) -> Iterator[bytes]:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.header)
        count = 0
        for sensor, said in _readings(source, self.where):
            if sensor != self.name:
                continue
            writer.writerow([_cell(said.get(name)) for name in self.header])
            count += 1
            if count % _ROWS == 0:
                yield _taken(text)
        yield _taken(text)


def logged_tables(stream: ByteStream, where: str) -> list[LoggedTable]:
    """The tables in a file, in the order of their names.

    Args:
        stream: its bytes.
        where: what to call it in a message.

    Raises:
        InputError: it is no list of objects with a sensor each, has none, ends within it, or has an
            object that is too large or too deep.
    """
    found: dict[str, dict[str, None]] = {}
    for sensor, said in _readings(stream, where):
        columns = found.setdefault(sensor, {})
        if not said.keys() <= columns.keys():
            columns |= dict.fromkeys(name for name in said if len(name) <= _MOST_NAME)
        if max(len(found), len(columns)) > _MOST_NAMES:
            raise InputError(
                f"{where}: expected at most {_MOST_NAMES} sensors, and columns of one, got more"
            )
    tables = [
        LoggedTable(name=name, header=_ordered(columns), where=where)
        for name, columns in sorted(found.items())
        if columns
    ]
    if not tables:
        raise InputError(f"{where}: expected readings of sensors, got none")
    return tables


def is_logged(stream: ByteStream) -> bool:
    """Whether a file begins as Sensor Logger's does; one of another program may be any JSON."""
    try:
        return next(_readings(stream, ""), None) is not None
    except InputError:
        return False


def _ordered(columns: dict[str, None]) -> tuple[str, ...]:
    """Times first: a line that begins with a number is no comment."""
    times = [name for name in _TIMES if name in columns]
    return (*times, *(name for name in columns if name not in _TIMES))


def _cell(value: Any) -> str:
    """A value as a cell; what is none, such as a list, is empty."""
    return _BREAKS.sub(" ", value) if isinstance(value, str) else ""


def _taken(text: io.StringIO) -> bytes:
    """What has been written, and no longer in there."""
    found = text.getvalue().encode("utf-8", "replace")
    text.seek(0)
    text.truncate()
    return found


def _readings(stream: ByteStream, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The sensor of each object, and what else it says."""
    for number, one in enumerate(_objects(stream, where), 1):
        sensor = one.pop("sensor", None)
        if not isinstance(sensor, str) or not 0 < len(sensor) <= _MOST_NAME:
            raise InputError(
                f"{where}, object {number}: expected its 'sensor', a name, as Sensor Logger writes "
                "it; of other programs save a CSV"
            )
        yield sensor.encode("utf-8", "replace").decode(), one


def _objects(stream: ByteStream, where: str) -> Iterator[dict[str, Any]]:
    """The objects of a list as its text comes."""
    decode = codecs.getincrementaldecoder("utf-8-sig")().decode
    found = _List(where)
    over = False
    while not over:
        block = stream.read1(_BLOCK_BYTES)
        over = not block
        try:
            text = decode(block, over)
        except UnicodeDecodeError as error:
            raise InputError(f"{where}: expected JSON in UTF-8 ({error.reason})") from error
        yield from found.objects(text)
    found.end()


class _List:
    """A JSON list of objects, of which text comes in pieces."""

    def __init__(self, where: str) -> None:
        self._where, self._text = where, ""
        self._wanted = "["
        """What may come next: ``[``, ``{`` of an object, ``]`` or both, ``,`` or ``]``; none."""
        self._count = 0

    def objects(self, text: str) -> Iterator[dict[str, Any]]:
        """Those that are whole now."""
        self._text, place = self._text + text, 0
        while (place := _end_of(_BLANKS, self._text, place)) < len(self._text):
            mark = self._text[place]
            if mark not in self._wanted:
                raise self._refused(f"got {self._text[place : place + 20]!r}")
            if mark == "{":
                one = self._object(place)
                if one is None:
                    break
                said, place = one
                self._count, self._wanted = self._count + 1, ",]"
                yield said
            else:
                self._wanted = {"[": "{]", ",": "{", "]": ""}[mark]
                place += 1
        self._text = self._text[place:]

    def end(self) -> None:
        """Raise InputError unless the list has ended."""
        if self._wanted:
            raise self._refused("its end is missing; export it again")

    def _object(self, place: int) -> tuple[dict[str, Any], int] | None:
        """The object that begins there, and where it ends; None: more text has to come."""
        try:
            return _DECODER.raw_decode(self._text, place)
        except RecursionError as error:
            raise self._refused("one is too deep") from error
        except ValueError as error:
            if len(self._text) - place > _MOST_LETTERS:
                raise self._refused(f"one has no end within {_MOST_LETTERS} letters") from error
            return None

    def _refused(self, why: str) -> InputError:
        return InputError(
            f"{self._where}: expected Sensor Logger's JSON, a list of objects with a sensor each; "
            f"behind {self._count} of them {why}"
        )


def _end_of(pattern: re.Pattern[str], text: str, place: int) -> int:
    found = pattern.match(text, place)
    return place if found is None else found.end()
