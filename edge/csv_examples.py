"""Examples from a CSV, read as it comes: a pipe or a serial line predicts while it is open.

The layout follows from the columns:

- *Sensor samples*, one per row, where the bundle has windows (``rate_hz``, ``window``, ``hop``)
  and the header names its channels; ``time_s`` (or ``time``; seconds), ``time_ms`` or a column
  that the caller names says when (``sample_times``). They are readings as they come: resampled,
  cut into windows and normalised here (``intake``).
- *Examples*, one per row: the numbers of one example, in the order of the bundle's channels or of
  its input, last axis fastest.

An empty cell, ``NA`` or ``null`` is no value. A column ``label`` holds class names or numbers. True
values of other tasks stand in columns named as the bundle's targets, for examples only. Other
columns of sensor samples are passed over, unless one rises as times do and nothing else says when
or how fast.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Manifest, Preprocessing
from protofleet.edge.csv_rows import ByteStream, Row, is_gap, is_value, row_blocks
from protofleet.edge.intake import SensorIntake, Window
from protofleet.edge.predictions import NO_LABEL
from protofleet.edge.sample_times import (
    SECONDS,
    fits,
    is_date,
    median_step,
    rising_column,
    to_time,
    unit_of,
)
from protofleet.errors import InputError

_log = logging.getLogger(__name__)

_LABEL = "label"
_SENSOR = "csv"
_UNITS = "seconds stand in time_s, milliseconds in time_ms"
_RATE_SAMPLES = 16
"""Samples whose times tell a stream's rate, before any of them is used."""

_FAR_BELOW = 100
"""How many times slower than the bundle's a stream may be: so many samples are made of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Examples:
    """Examples that have arrived.

    Attributes:
        x: ``(n, *input_shape)``; readings as they come if ``raw``.
        y: ``(n,) int64`` class numbers, -1 where no label is known; of other tasks ``(n, outputs)
            float32``, NaN where it is not.
        start_s: ``(n,) float64`` time of the first sample; None for examples that are no windows of
            a stream.
        normalised: whether mean and std have been applied here, whatever the caller says of files.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    start_s: NDArray[np.float64] | None = None
    normalised: bool = False


def unknown(count: int, manifest: Manifest) -> NDArray[Any]:
    """True values of examples that have none."""
    if manifest.targets:
        return np.full((count, len(manifest.targets)), np.nan, np.float32)
    return np.full(count, NO_LABEL, np.int64)


def read_csv(
    stream: ByteStream,
    where: str,
    manifest: Manifest,
    *,
    rate_hz: float | None = None,
    time: str | None = None,
) -> Iterator[Examples]:
    """Examples from a CSV, each block as soon as its rows are there.

    Args:
        stream: its bytes; those that are there are taken at once.
        where: what to call it in a message.
        manifest: the bundle's.
        rate_hz: as in ``load_examples``.
        time: as in ``load_examples``.

    Raises:
        InputError: a row has a wrong form, the columns fit neither layout, or nothing says which
            column holds the times.
    """
    rows = row_blocks(stream, where)
    first = next(rows, None)
    if first is None:
        raise InputError(f"{where}: expected a CSV, got nothing")
    header = [cell.strip() for cell in first[0].cells]
    named = any(not is_value(cell) for cell in header)
    blocks = chain([first[1:] if named else first], rows)
    if named and _is_stream(header, manifest.preprocessing):
        if time is not None and time not in header:
            raise InputError(
                f"{where}: --time: expected one of the columns {', '.join(header)[:200]}, got "
                f"'{time}'"
            )
        table = _Table(where, header, manifest, time=time)
        return _windows(table, blocks, manifest.preprocessing, rate_hz)
    if time is not None:
        raise InputError(
            f"{where}: --time is for sensor samples, one in each row, in columns named as the "
            f"bundle's channels: {', '.join(manifest.preprocessing.channels) or 'it has none'}"
        )
    return _examples(_example_table(where, header, manifest, named=named), blocks, manifest)


def _is_stream(header: Sequence[str], preprocessing: Preprocessing) -> bool:
    channels = preprocessing.channels
    return bool(preprocessing.window and channels) and set(channels) <= set(header)


class _Labels:
    """Class names and numbers, as a column holds them."""

    def __init__(self, classes: tuple[str, ...]) -> None:
        self._classes = classes
        self._known = {str(k): k for k in range(len(classes))}
        self._known |= {name: k for k, name in enumerate(classes)}

    def index(self, text: str, where: str) -> int:
        """The class's number, -1 for none; raises InputError for what is no class."""
        found = self._known.get(text.strip())
        if found is None and is_gap(text):
            return NO_LABEL
        if found is None:
            raise InputError(
                f"{where}: expected a class as label, {', '.join(self._classes)}, or its number, "
                f"got '{text.strip()[:40]}'"
            )
        return found


class _Table:
    """Columns of a CSV by name, and numbers from its rows.

    Args:
        where: what to call it.
        header: names of all columns.
        manifest: the bundle's.
        values: names of the columns that hold numbers of the model's input; None: its channels.
        time: the column of times, whatever it is called; None: one of a known name.
    """

    def __init__(
        self,
        where: str,
        header: Sequence[str],
        manifest: Manifest,
        values: Sequence[str] | None = None,
        *,
        time: str | None = None,
    ) -> None:
        self.where = where
        self._header = header
        names = manifest.preprocessing.channels if values is None else values
        used = {*names, _LABEL, *manifest.targets, *SECONDS, *([time] if time else [])}
        if twice := sorted(name for name in used if header.count(name) > 1):
            raise InputError(f"{where}: expected one column '{twice[0]}', got several")
        self.columns = [header.index(name) for name in names]
        self._label = header.index(_LABEL) if _LABEL in header else None
        self._labels = _Labels(manifest.classes)
        self.manifest = manifest
        told = manifest.targets and set(manifest.targets) <= set(header)
        self._targets = [header.index(name) for name in manifest.targets] if told else []
        self.time = time or next((name for name in SECONDS if name in header), None)
        self._time = header.index(self.time) if self.time else None
        self.unit_s = SECONDS.get(self.time or "")
        """Seconds of a unit of ``time``; None: its steps tell."""
        self._others = {name: k for k, name in enumerate(header) if name not in used}

    def values(self, rows: Sequence[Row]) -> NDArray[np.float64]:
        """``(rows, columns)``; a cell without a value is NaN."""
        made = [[self._number(row, column) for column in self.columns] for row in rows]
        return np.array(made, np.float64).reshape(len(rows), len(self.columns))

    def true_values(self, rows: Sequence[Row]) -> NDArray[Any]:
        """``y`` as in ``Examples``."""
        if self._targets:
            made = [[self._number(row, column) for column in self._targets] for row in rows]
            return np.array(made, np.float32)
        return self.labels(rows) if self.manifest.classes else unknown(len(rows), self.manifest)

    def labels(self, rows: Sequence[Row]) -> NDArray[np.int64]:
        """``(rows,)``, -1 for none."""
        if self._label is None or not self.manifest.classes:
            return np.full(len(rows), NO_LABEL, np.int64)
        found = [
            self._labels.index(self._cell(row, self._label), f"{self.where}, line {row.line}")
            for row in rows
        ]
        return np.array(found, np.int64)

    def times_s(self, rows: Sequence[Row]) -> NDArray[np.float64] | None:
        """``(rows,)`` seconds; None without a column of times."""
        if self.time is None or self._time is None:
            return None
        return (self.unit_s or 1.0) * np.array([self._when(row, self._time) for row in rows])

    def find_unit(self, rows: Sequence[Row], step: float, rate_hz: float | None) -> None:
        """Take the unit by which the times of these rows, so far apart, fit a rate."""
        told = "" if self._time is None else self._first_value(rows, self._time)
        dated = bool(told) and is_date(told)
        name, self.unit_s = "seconds", 1.0
        if rate_hz and not dated:
            try:
                name, self.unit_s = unit_of(step, rate_hz)
            except ValueError as error:
                raise InputError(f"{self.where}: column '{self.time}': {error}") from error
        _log.info("times in '%s': %s", self.time, "dates" if dated else name)

    def unused_times(self, rows: Sequence[Row]) -> str | None:
        """A column that rises as times do and that nothing uses; None if there is none."""
        return rising_column(
            self._others, lambda name: [self._value(row, self._others[name]) for row in rows]
        )

    @property
    def has_others(self) -> bool:
        """Whether there are columns that nothing uses."""
        return bool(self._others)

    def _when(self, row: Row, column: int) -> float:
        text = self._value(row, column)
        try:
            return to_time(text)
        except (ValueError, OverflowError) as error:
            raise InputError(
                f"{self.where}, line {row.line}, column '{self.time}': expected a number, got "
                f"'{text[:40]}'; {_UNITS}"
            ) from error

    def _number(self, row: Row, column: int) -> float:
        text = self._value(row, column)
        try:
            return float(text) if text else float("nan")
        except ValueError as error:
            raise InputError(
                f"{self.place(row, column)}: expected a number, got '{text[:40]}'"
            ) from error

    def _cell(self, row: Row, column: int) -> str:
        if len(row.cells) != len(self._header):
            raise InputError(
                f"{self.where}, line {row.line}: expected {len(self._header)} columns as in the "
                f"first row, got {len(row.cells)}"
            )
        return row.cells[column]

    def _value(self, row: Row, column: int) -> str:
        """A cell that holds no name; '' for none."""
        text = self._cell(row, column).strip()
        return "" if is_gap(text) else text

    def _first_value(self, rows: Sequence[Row], column: int) -> str:
        return next(filter(None, (self._value(row, column) for row in rows)), "")

    def place(self, row: Row, column: int) -> str:
        """What messages call a cell."""
        return f"{self.where}, line {row.line}, {_column(column, self._header[column])}"


def _column(index: int, name: str) -> str:
    """A column by its number, from 1, and its name where the file has one."""
    number = f"column {index + 1}"
    return number if name == number else f"{number} ('{name[:40]}')"


def _example_table(where: str, header: Sequence[str], manifest: Manifest, *, named: bool) -> _Table:
    """The columns of examples, one per row."""
    preprocessing = manifest.preprocessing
    size = int(np.prod(preprocessing.input_shape))
    names = list(header) if named else [f"column {k + 1}" for k in range(len(header))]
    told = {_LABEL, *manifest.targets}
    values = [name for name in names if name not in told]
    channels = preprocessing.channels
    if named and len(channels) == size and set(channels) <= set(values):
        return _Table(where, names, manifest, channels)
    if len(values) != size or (named and len(channels) == size):
        by_name = f"a first row that names the columns {', '.join(channels)} of sensor samples, or "
        shape = f"channels {', '.join(channels)}" if channels else "input"
        raise InputError(
            f"{where}: expected {by_name if channels and preprocessing.window else ''}{size} "
            f"numbers of an example in each row ({shape} {preprocessing.input_shape}), got the "
            f"columns {', '.join(values)[:200]}{_near_miss(names, channels)}"
        )
    return _Table(where, names, manifest, values)


def _near_miss(names: Sequence[str], channels: Sequence[str]) -> str:
    """What may be wrong with a first row that does not name the channels; '' if nobody can say."""
    lacking = [name for name in channels if name not in names]
    alike = {name.strip().lower() for name in names} >= {name.lower() for name in channels}
    if len(names) == 1 and any(mark in names[0] for mark in ";\t"):
        return "; expected commas between them"
    if lacking and alike:
        return "; small and capital letters differ"
    if 0 < len(lacking) < len(channels):
        return f"; it lacks {', '.join(lacking)}"
    return ""


def _examples(table: _Table, blocks: Iterator[list[Row]], manifest: Manifest) -> Iterator[Examples]:
    shape = manifest.preprocessing.input_shape
    for rows in blocks:
        if rows:
            x = table.values(rows).reshape(len(rows), *shape)
            _check_finite(table, rows, x)
            yield Examples(x=x, y=table.true_values(rows))


def _check_finite(table: _Table, rows: Sequence[Row], x: NDArray[np.float64]) -> None:
    broken = np.argwhere(~np.isfinite(x).reshape(len(x), -1))
    if len(broken):
        k, column = broken[0]
        row, place = rows[k], table.columns[column]
        got = row.cells[place].strip()[:40] or "an empty cell"
        raise InputError(f"{table.place(row, place)}: expected a number, got {got}")


def _windows(
    table: _Table,
    blocks: Iterator[list[Row]],
    preprocessing: Preprocessing,
    rate_hz: float | None,
) -> Iterator[Examples]:
    """Windows of sensor samples, each block as soon as it is complete."""
    stream, count = _SampleStream(table, preprocessing, rate_hz), 0
    for rows in blocks:
        found = stream.push(rows)
        count += len(found)
        yield from _joined(found, table.manifest)
    found = stream.flush()
    yield from _joined(found, table.manifest)
    if not count + len(found):
        raise InputError(
            f"{table.where}: expected samples for a window, {preprocessing.window} at "
            f"{preprocessing.rate_hz:g} Hz, got {stream.count}{stream.lasted}"
        )


class _SampleStream:
    """Rows of samples into the intake, from when the stream's rate is known."""

    def __init__(self, table: _Table, preprocessing: Preprocessing, rate_hz: float | None) -> None:
        self._table, self._preprocessing = table, preprocessing
        self._rate_hz = rate_hz
        # Before the first samples are used, those that wait tell rate, unit, or what is amiss.
        unclear = table.unit_s is None if table.time else table.has_others
        known = rate_hz if rate_hz and not (table.time and unclear) else None
        if not (known or table.time or unclear):
            known = self._untimed()
        self._intake = self._made(known) if known else None
        self._waiting: list[Row] = []
        self._timed = self.count = 0
        self._label = NO_LABEL
        self._from_s, self._to_s = np.inf, -np.inf

    @property
    def lasted(self) -> str:
        """How long enough samples lasted by their column of times, behind an error; or empty."""
        seconds = self._to_s - self._from_s
        enough = self.count >= (self._preprocessing.window or 0) and seconds >= 0
        return f" in {seconds:.4g} s by '{self._table.time}'; {_UNITS}" if enough else ""

    def push(self, rows: Sequence[Row]) -> list[Window]:
        """The windows that are complete now."""
        self.count += len(rows)
        if self._intake is None:
            self._waiting += rows
            if len(self._waiting) < _RATE_SAMPLES:
                return []
            rows = self._waiting
            self._begin(rows)
        return self._pushed(rows)

    def flush(self) -> list[Window]:
        """The stream is over: what its last samples complete."""
        found = []
        if self._intake is None:
            if len(self._waiting) < 2:
                return []
            self._begin(self._waiting)
            found = self._pushed(self._waiting)
        if self._intake is None:
            return found
        found += self._intake.flush()
        lost = str(self._intake.counters[_SENSOR])
        if lost != "nothing":
            _log.warning("%s: samples that were not used: %s", self._table.where, lost)
        return found

    def _untimed(self) -> float:
        """The rate of samples of which nothing tells when they were taken: the bundle's."""
        self._rate_hz = self._preprocessing.rate_hz
        if self._rate_hz is None:
            raise InputError(f"{self._table.where}: no column of times; give --time or --rate HZ")
        _log.warning(
            "%s: no column of times; taken as %g samples a second, as the bundle's; --rate HZ says "
            "another rate, --time COLUMN where the times are",
            self._table.where,
            self._rate_hz,
        )
        return self._rate_hz

    def _begin(self, rows: Sequence[Row]) -> None:
        times = self._table.times_s(rows)
        if times is None:
            if name := self._table.unused_times(rows):
                raise InputError(
                    f"{self._table.where}: column '{name}' rises as times do, and is not used; "
                    f"--time {shlex.quote(name)} if it tells when each sample was taken, else "
                    "--rate HZ"
                )
            self._intake = self._made(self._untimed())
            return
        step = median_step(times)
        if step is None:
            got = ", ".join(f"{time:g}" for time in times[:4])
            raise InputError(
                f"{self._table.where}: expected times that ascend, got {got}, …; sort the rows by "
                f"'{self._table.time}'"
            )
        if self._table.unit_s is None:
            self._table.find_unit(rows, step, self._rate_hz or self._preprocessing.rate_hz)
            step *= self._table.unit_s or 1.0
        self._check_rate(1 / step)
        self._rate_hz = self._rate_hz or 1 / step
        self._intake = self._made(self._rate_hz)

    def _check_rate(self, rate_hz: float) -> None:
        """Refuse times that make thousands of samples of each, and doubt those of another unit."""
        _log.info("sensor samples at %.4g Hz", rate_hz)
        wanted = self._preprocessing.rate_hz or rate_hz
        if rate_hz * _FAR_BELOW < wanted:
            raise InputError(
                f"{self._table.where}: expected about {wanted:g} samples a second, got "
                f"{rate_hz:.4g} by its column '{self._table.time}'; {_UNITS}: rename the "
                "column"
            )
        if not fits(rate_hz, wanted):
            told = f"{rate_hz:.4g} samples a second by its column '{self._table.time}'"
            _log.warning("%s: %s, the bundle wants %g: %s", self._table.where, told, wanted, _UNITS)

    def _made(self, rate_hz: float) -> SensorIntake:
        return SensorIntake(self._preprocessing, {_SENSOR: rate_hz})

    def _pushed(self, rows: Sequence[Row]) -> list[Window]:
        if self._intake is None or self._rate_hz is None or not rows:
            return []
        times = self._table.times_s(rows)
        if times is None:
            times = (self._timed + np.arange(len(rows))) / self._rate_hz
        else:
            self._from_s = np.fmin.reduce(times, initial=self._from_s)
            self._to_s = np.fmax.reduce(times, initial=self._to_s)
        self._timed += len(rows)
        for time_s, label in zip(times.tolist(), self._table.labels(rows).tolist(), strict=True):
            if label != self._label and np.isfinite(time_s):
                self._intake.mark(time_s, label)
                self._label = label
        return self._intake.push(_SENSOR, times, self._table.values(rows))


def _joined(windows: Sequence[Window], manifest: Manifest) -> Iterator[Examples]:
    if windows:
        labels = np.array([window.label for window in windows], np.int64)
        yield Examples(
            x=np.stack([window.x for window in windows]),
            y=labels if manifest.classes else unknown(len(windows), manifest),
            start_s=np.array([window.start_s for window in windows]),
            normalised=True,
        )
