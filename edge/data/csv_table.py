"""Columns of a CSV by name: numbers, labels and times from its rows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Manifest
from protofleet.edge.data.columns import LABEL, Columns, Gravity
from protofleet.edge.data.csv_rows import Row, is_gap
from protofleet.edge.data.sample_times import (
    SECONDS,
    UNITS,
    is_date,
    rising_column,
    to_time,
    unit_of,
)
from protofleet.edge.predictions import NO_LABEL
from protofleet.errors import InputError

_log = logging.getLogger(__name__)

_MOST_TOLD = 10
"""Labels that are no classes."""


def unknown(count: int, manifest: Manifest) -> NDArray[Any]:
    """True values of examples that have none."""
    if manifest.targets:
        return np.full((count, len(manifest.targets)), np.nan, np.float32)
    return np.full(count, NO_LABEL, np.int64)


class Labels:
    """Class names and numbers, as a column holds them; in other letters where that is one class.

    Args:
        classes: the bundle's.
        where: what to call the table.
    """

    def __init__(self, classes: tuple[str, ...], where: str) -> None:
        self._classes, self._where = classes, where
        self._known = {str(k): k for k in range(len(classes))}
        self._known |= {name: k for k, name in enumerate(classes)}
        small = [name.lower() for name in classes]
        self._small = {name: k for k, name in enumerate(small) if small.count(name) == 1}
        self._told: set[str] = set()

    def index(self, text: str, line: int) -> int:
        """The class's number, -1 for none; a name that is no class is told once."""
        name = text.strip()
        found = self._known.get(name)
        if found is None and not is_gap(name):
            found = self._small.get(name.lower())
        if found is not None:
            return found
        if not is_gap(name) and name not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(name)
            _log.warning(
                "%s, line %d: label '%s' is none of the classes %s; what has it counts as without "
                "a label",
                self._where,
                line,
                name[:40],
                ", ".join(self._classes),
            )
        return NO_LABEL


class Table:
    """Columns of a CSV by name, and numbers from its rows.

    Args:
        where: what to call it.
        columns: what they are.
        manifest: the bundle's.
        values: names of the columns that hold numbers of the model's input; None: its channels.
        label: the class of all rows, where no column says it.
    """

    def __init__(
        self,
        where: str,
        columns: Columns,
        manifest: Manifest,
        values: Sequence[str] | None = None,
        *,
        label: str | None = None,
    ) -> None:
        header, time = columns.names, columns.time
        self.where = where
        self._header = header
        names = manifest.preprocessing.channels if values is None else values
        used = {*names, LABEL, *manifest.targets, *SECONDS, *([time.name] if time else [])}
        if twice := sorted(name for name in used if header.count(name) > 1):
            raise InputError(f"{where}: expected one column '{twice[0]}', got several")
        self.columns = [header.index(name) for name in names]
        self._factors = np.array([columns.factors.get(name, 1.0) for name in names])
        self._gravity = columns.gravity if values is None else None
        self._label = header.index(LABEL) if LABEL in header else None
        self._same = NO_LABEL if label is None else manifest.classes.index(label)
        self._labels = Labels(manifest.classes, where)
        self.manifest = manifest
        told = manifest.targets and set(manifest.targets) <= set(header)
        self._targets = [header.index(name) for name in manifest.targets] if told else []
        self.time = time.name if time else None
        self._time = header.index(time.name) if time else None
        self._is_sure = time is None or time.is_given
        self.unit_s = time.unit_s if time else None
        """Seconds of a unit of ``time``; None: its steps tell."""
        self._others = {name: k for k, name in enumerate(header) if name not in used}

    def values(self, rows: Sequence[Row]) -> NDArray[np.float64]:
        """``(rows, columns)``; a cell without a value is NaN."""
        made = [[self._number(row, column) for column in self.columns] for row in rows]
        found: NDArray[np.float64] = np.array(made, np.float64).reshape(
            len(rows), len(self.columns)
        )
        if self._gravity is not None:
            self._scale(self._gravity, list(self.manifest.preprocessing.channels), found)
        found *= self._factors
        return found

    def _scale(self, gravity: Gravity, channels: list[str], found: NDArray[np.float64]) -> None:
        """Take the unit of accelerations from the first that are there, and tell of another."""
        places = [channels.index(one) for one in gravity.channels]
        vectors = found[:, places]
        vectors = vectors[np.isfinite(vectors).all(axis=1)]
        if not len(vectors):
            return
        self._gravity = None
        other = gravity.factor(vectors)
        if other is not None:
            unit, factor = other
            self._factors[places] *= factor
            _log.warning(
                "%s: %s look like %s by their length: taken times %.5g, as the bundle's; a unit in "
                "the columns' names, as 'acc_x [g]', settles it",
                self.where,
                ", ".join(gravity.channels),
                unit,
                factor,
            )

    def true_values(self, rows: Sequence[Row]) -> NDArray[Any]:
        """``y`` as in ``Examples``."""
        if self._targets:
            made = [[self._number(row, column) for column in self._targets] for row in rows]
            return np.array(made, np.float32)
        return self.labels(rows) if self.manifest.classes else unknown(len(rows), self.manifest)

    def labels(self, rows: Sequence[Row]) -> NDArray[np.int64]:
        """``(rows,)``, -1 for none."""
        if self._label is None or not self.manifest.classes:
            return np.full(len(rows), self._same, np.int64)
        found = [self._labels.index(self._cell(row, self._label), row.line) for row in rows]
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
                name, self.unit_s = unit_of(step, rate_hz, sure=self._is_sure)
            except ValueError as error:
                raise InputError(f"{self.where}: column '{self.time}': {error}") from error
        level = (
            logging.INFO if self._is_sure or (name == "seconds" and not dated) else logging.WARNING
        )
        _log.log(level, "times in '%s': %s", self.time, "dates" if dated else name)

    def unused_times(self, rows: Sequence[Row]) -> str | None:
        """A column that rises as times do and that nothing uses; None if there is none."""
        return rising_column(
            self._others, lambda name: [self._value(row, self._others[name]) for row in rows]
        )

    @property
    def guessed(self) -> str:
        """What to do where the column of times was taken by its name and holds none; or ''."""
        if self._is_sure or self.time in SECONDS:
            return ""
        return f"; --rate HZ if '{self.time}' holds no times, --time COLUMN if another one does"

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
                f"'{text[:40]}'; {UNITS}{self.guessed}"
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
