"""A table of what a person has marked: from when on, or from when to when, which activity."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Manifest
from protofleet.edge.data.columns import seconds_in, words_in
from protofleet.edge.data.csv_rows import Row
from protofleet.edge.data.csv_table import Labels
from protofleet.edge.data.joined_sensors import SensorSamples
from protofleet.edge.data.sample_times import to_time
from protofleet.edge.predictions import NO_LABEL
from protofleet.errors import InputError

_log = logging.getLogger(__name__)

_TEXTS = frozenset({"text", "label", "activity", "annotation", "marker", "event", "tag"})
_STARTS = ("start", "begin", "from", "onset", "time", "timestamp")
_ENDS = ("end", "stop", "to", "until", "offset")
_UNITS = {"seconds": 1.0, "milliseconds": 1e-3, "microseconds": 1e-6, "nanoseconds": 1e-9}
_NEAR_S = 60.0
"""A mark is set so long before or after the samples at most."""

Marks = list[tuple[float, int]]
"""Times in seconds, and the class that is done from then on; -1: none that is known."""


class AnnotationTable:
    """The columns of a table of marks.

    Args:
        header: as the table has them.

    Raises:
        InputError: it has none.
    """

    def __init__(self, header: Sequence[str]) -> None:
        texts = [k for k, name in enumerate(header) if words_in(name) & _TEXTS]
        starts = _places(header, _STARTS)
        if not texts or not starts:
            raise InputError("expected a column of times and one of labels")
        self._text, self._start = texts[0], starts[0]
        self._name = header[self._start]
        self._end = next(iter(_places(header, _ENDS)), None)

    def marks(
        self,
        rows: Sequence[Row],
        manifest: Manifest,
        where: str,
        sensors: Sequence[SensorSamples],
    ) -> Marks:
        """What the rows say.

        Args:
            rows: of the table, at least one.
            manifest: the bundle's.
            where: what to call the table.
            sensors: on whose clock the times are.

        Raises:
            InputError: a time is none, or none of them is near the samples.
        """
        labels = Labels(manifest.classes, where)
        times = np.array([self._when(row, self._start, where) for row in rows])
        unit_s, since_s = self._clock(times, sensors, where)
        found: Marks = []
        for row, time in zip(rows, times.tolist(), strict=True):
            label = labels.index(_cell(row, self._text), row.line)
            found.append((since_s + unit_s * time, label))
            # Of what nobody ended the next mark is the end.
            if self._end is not None and _cell(row, self._end):
                end_s = since_s + unit_s * self._when(row, self._end, where)
                found.append((end_s, NO_LABEL))
        # Where one ends and the next begins at once, it is the next.
        return sorted(found, key=lambda one: (one[0], one[1] != NO_LABEL))

    def _clock(
        self, times: NDArray[np.float64], sensors: Sequence[SensorSamples], where: str
    ) -> tuple[float, float]:
        """Seconds of the unit of times, and when they count from.

        The unit is what their name says, that of the samples' column of the same name, or what
        fits; they count as the samples' do, or else from the beginning of the recording.
        """
        begin = min(one.readings.begin_s for one in sensors)
        end = max(one.readings.end_s for one in sensors)

        def near(unit_s: float, since_s: float = 0.0) -> int:
            found = since_s + unit_s * times
            return int(((found >= begin - _NEAR_S) & (found <= end + _NEAR_S)).sum())

        known = seconds_in(self._name)
        for one in sensors if known is None else ():
            if one.time is not None and one.time[0] == self._name:
                known = one.time[1]
        if known is None:
            name = max(_UNITS, key=lambda unit: near(_UNITS[unit]))
            known = _UNITS[name]
            _log.warning("%s: times in '%s' taken as %s", where, self._name, name)
        if near(known):
            return known, 0.0
        if near(known, begin):
            _log.warning(
                "%s: times in '%s' taken from the beginning of the recording", where, self._name
            )
            return known, begin
        raise InputError(
            f"{where}: expected times of the samples' clock, {begin:.1f} to {end:.1f} s, got "
            f"{known * times.min():g} to {known * times.max():g} s"
        )

    @staticmethod
    def _when(row: Row, column: int, where: str) -> float:
        text = _cell(row, column)
        try:
            time = to_time(text)
        except (ValueError, OverflowError):
            time = math.nan
        if not math.isfinite(time):
            raise InputError(f"{where}, line {row.line}: expected a time, got '{text[:40]}'")
        return time


def _cell(row: Row, column: int) -> str:
    """What a row has there; '' where it ends before."""
    return row.cells[column].strip() if column < len(row.cells) else ""


def _places(header: Sequence[str], wanted: Sequence[str]) -> list[int]:
    """Columns with such words in their names, those of the first words first."""
    return [k for word in wanted for k, name in enumerate(header) if word in words_in(name)]
