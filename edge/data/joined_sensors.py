"""Windows of a recording whose sensors have a table each, with clocks and rates of their own.

Phones' loggers write a folder or a zip of such tables, named after the sensors, and often one more
of what the person has marked. Each table is read as one alone (``csv_stream``), and kept until all
are there; then they are joined on one time line as a device's sensors are (``intake``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Manifest, Preprocessing
from protofleet.edge.data.csv_rows import Row
from protofleet.edge.data.csv_stream import SENSOR, SampleStream
from protofleet.edge.data.csv_table import Table
from protofleet.edge.data.intake import IntakeCounters, SensorIntake, Window
from protofleet.edge.data.spooled_readings import SpooledReadings
from protofleet.errors import InputError

_log = logging.getLogger(__name__)

_TURN_S = 10.0
"""Sensors take turns of so long: the intake waits a minute for one that lags."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorSamples:
    """All readings of one sensor.

    Attributes:
        name: of the sensor.
        rate_hz: how fast they came.
        readings: times, and values in the bundle's units.
        marks: times from which a class, or -1 for none, is known by the table itself.
        time: the column of times, and seconds of its unit; None: it has none.
    """

    name: str
    rate_hz: float
    readings: SpooledReadings
    marks: tuple[tuple[float, int], ...]
    time: tuple[str, float] | None = None


def part_of(manifest: Manifest, channels: Sequence[str]) -> Manifest:
    """A manifest whose input has these channels alone."""
    inputs = manifest.preprocessing
    places = [inputs.channels.index(one) for one in channels]
    mean, std = (
        tuple(values[k % len(values)] for k in places) for values in (inputs.mean, inputs.std)
    )
    part = msgspec.structs.replace(inputs, channels=tuple(channels), mean=mean, std=std)
    return msgspec.structs.replace(manifest, preprocessing=part)


def read_sensor(
    name: str,
    table: Table,
    blocks: Iterator[list[Row]],
    rate_hz: float | None,
    readings: SpooledReadings,
) -> SensorSamples:
    """The readings of a sensor's table.

    Args:
        name: of the sensor.
        table: its columns.
        blocks: its rows.
        rate_hz: how fast they come; None: their times tell.
        readings: where they are to wait, empty.

    Raises:
        InputError: as of ``csv_examples.read_csv``; or there are none.
    """
    kept = _Kept(readings)

    def make(_: Preprocessing, rates: Mapping[str, float], __: str) -> _Kept:
        kept.rate_hz = rates[SENSOR]
        return kept

    stream = SampleStream(table, table.manifest.preprocessing, rate_hz, make)
    for rows in blocks:
        stream.push(rows)
    stream.flush()
    if not readings.count:
        raise InputError(f"{table.where}: expected samples, got {stream.count}")
    return SensorSamples(
        name=name,
        rate_hz=kept.rate_hz,
        readings=readings,
        marks=tuple(kept.marks),
        time=None if table.time is None else (table.time, table.unit_s or 1.0),
    )


@dataclass(slots=True)
class _Kept:
    """Takes samples and keeps them as they are."""

    readings: SpooledReadings
    rate_hz: float = 0.0
    marks: list[tuple[float, int]] = field(default_factory=list)

    @property
    def counters(self) -> Mapping[str, IntakeCounters]:
        return {SENSOR: IntakeCounters()}

    def mark(self, time_s: float, label: int) -> None:
        self.marks.append((time_s, label))

    def push(
        self, _sensor: str, times_s: NDArray[np.float64], values: NDArray[np.floating]
    ) -> list[Window]:
        known = np.isfinite(times_s)
        self.readings.add(times_s[known], values[known])
        return []

    def flush(self) -> list[Window]:
        return []


def joined_windows(
    where: str,
    sensors: Sequence[SensorSamples],
    marks: Sequence[tuple[float, int]],
    preprocessing: Preprocessing,
) -> Iterator[list[Window]]:
    """Windows of sensors that were recorded together, in the order of time.

    Args:
        where: what to call the recording.
        sensors: in the order of the bundle's channels.
        marks: from when on which class is done; -1: none that is known.
        preprocessing: the bundle's.

    Raises:
        InputError: there is no window, since the sensors never overlap for as long as one lasts.
    """
    rates = {one.name: one.rate_hz for one in sensors}
    intake = SensorIntake(preprocessing, rates, where=where)
    for time_s, label in sorted(marks):
        intake.mark(time_s, label)
    begin = min(one.readings.begin_s for one in sensors)
    turns = [_Turns(one, begin) for one in sensors]
    count = 0
    while (turn := min(one.next for one in turns)) < np.inf:
        for one in turns:
            times, values = one.of(turn)
            if len(times):
                found = intake.push(one.name, times, values)
                count += len(found)
                yield found
    found = intake.flush()
    yield found
    if not count + len(found):
        spans = "; ".join(
            f"{one.name} from {one.readings.begin_s:.1f} to {one.readings.end_s:.1f} s"
            for one in sensors
        )
        raise InputError(
            f"{where}: expected sensors that were recorded at the same time, for a window of "
            f"{preprocessing.window} samples at {preprocessing.rate_hz:g} Hz, got {spans}"
        )


class _Turns:
    """A sensor's readings in the order of time, by the turn in which they come.

    Attributes:
        next: the turn of the next reading; infinite: there is none.
    """

    def __init__(self, sensor: SensorSamples, begin: float) -> None:
        self.name, self._begin = sensor.name, begin
        self._blocks = sensor.readings.blocks()
        self._load()

    def _load(self) -> None:
        """The next block."""
        self._times, self._values = next(self._blocks, (np.empty(0), np.empty(0)))
        self._numbers = np.floor((self._times - self._begin) / _TURN_S)
        self.next = float(self._numbers[0]) if len(self._numbers) else np.inf

    def of(self, turn: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Times and values of a turn, which is ``next`` or before it."""
        times, values = [self._times[:0]], [self._values[:0]]
        while self.next == turn:
            after = int(np.searchsorted(self._numbers, turn, "right"))
            times.append(self._times[:after])
            values.append(self._values[:after])
            if after == len(self._numbers):
                self._load()
                continue
            self._times, self._values = self._times[after:], self._values[after:]
            self._numbers = self._numbers[after:]
            self.next = float(self._numbers[0])
        return np.concatenate(times[1:] or times), np.concatenate(values[1:] or values)
