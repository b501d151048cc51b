"""Apple Health's export: a table for each quantity, with workouts and sleep as marks.

The phone shares ``export.zip``; its ``export.xml`` has an element ``Record`` for each reading,
which names its type, unit, begin and value, and ``Workout`` for what its owner did. They come in no
order of time.
"""

from __future__ import annotations

import datetime as dt
from array import array
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

import numpy as np

from protofleet.edge.data.binary_table import BinaryTable, column, marks_table
from protofleet.errors import InputError

_QUANTITY = "HKQuantityTypeIdentifier"
_SLEEP, _SLEEPS = "HKCategoryTypeIdentifierSleepAnalysis", "HKCategoryValueSleepAnalysis"
_WORKOUT = "HKWorkoutActivityType"
_UNITS = {"count/min": "bpm", "degC": "°C"}
_LEAST = 2
"""Readings of a quantity that is a table."""


class _Export:
    """What the elements of an export tell."""

    def __init__(self) -> None:
        self.readings: dict[tuple[str, str], tuple[array[float], array[float]]] = defaultdict(
            lambda: (array("d"), array("d"))
        )
        self.marks: list[tuple[float, float, str]] = []

    def element(self, name: str, about: Mapping[str, str]) -> None:
        """One that begins."""
        if name == "Record":
            self._record(about)
        elif name == "Workout":
            self._mark(about, about["workoutActivityType"].removeprefix(_WORKOUT))

    def _record(self, about: Mapping[str, str]) -> None:
        kind = about["type"]
        if kind == _SLEEP:
            self._mark(about, about["value"].removeprefix(_SLEEPS))
        elif kind.startswith(_QUANTITY):
            unit = about.get("unit", "")
            times, values = self.readings[kind.removeprefix(_QUANTITY), _UNITS.get(unit, unit)]
            times.append(_seconds(about["startDate"]))
            values.append(float(about["value"]))

    def _mark(self, about: Mapping[str, str], label: str) -> None:
        self.marks.append((_seconds(about["startDate"]), _seconds(about["endDate"]), label))


def tables(path: Path) -> list[BinaryTable]:
    """The tables of ``export.xml``, those with most readings first.

    Raises:
        InputError: it declares entities, which no export does.
    """
    export = _Export()
    parser = expat.ParserCreate()
    parser.StartElementHandler = export.element
    parser.EntityDeclHandler = _refuse
    with path.open("rb") as file:
        parser.ParseFile(file)
    found = [
        _table(kind, unit, np.array(times), np.array(values))
        for (kind, unit), (times, values) in export.readings.items()
        if len(times) >= _LEAST
    ]
    found.sort(key=lambda one: -len(one.columns[0]))
    if export.marks:
        starts, ends, said = zip(*sorted(export.marks), strict=True)
        begins = np.array(starts)
        found.append(marks_table(begins, np.array(ends) - begins, said))
    return found


def _table(kind: str, unit: str, times: np.ndarray, values: np.ndarray) -> BinaryTable:
    order = np.argsort(times, kind="stable")
    return BinaryTable(
        name=kind, header=("time_s", column(kind, unit)), columns=(times[order], values[order])
    )


def _seconds(text: str) -> float:
    """``2024-05-01 12:00:00 +0200`` in seconds since 1970."""
    return dt.datetime.fromisoformat(text[:19] + text[20:]).timestamp()


def _refuse(*_about: object) -> NoReturn:
    raise InputError("it declares an entity, which no export does")
