"""A CSV's sensor samples into the intake, from when their rate is known."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Preprocessing
from protofleet.edge.csv_rows import Row
from protofleet.edge.csv_table import Table
from protofleet.edge.intake import SensorIntake, Window
from protofleet.edge.predictions import NO_LABEL
from protofleet.edge.sample_times import UNITS, fits, median_step
from protofleet.errors import InputError

_log = logging.getLogger(__name__)

_SENSOR = "csv"
_RATE_SAMPLES = 16
"""Samples whose times tell a stream's rate, before any of them is used."""

_FAR_BELOW = 100
"""How many times slower than the bundle's a stream may be: so many samples are made of one."""


class SampleStream:
    """Rows of samples into the intake, from when the stream's rate is known."""

    def __init__(self, table: Table, preprocessing: Preprocessing, rate_hz: float | None) -> None:
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
        return f" in {seconds:.4g} s by '{self._table.time}'; {UNITS}" if enough else ""

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
        lost = str(replace(self._intake.counters[_SENSOR], set_back=0))  # told when it happened
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
                f"{rate_hz:.4g} by its column '{self._table.time}'; {UNITS}: rename the "
                "column"
            )
        if not fits(rate_hz, wanted):
            told = f"{rate_hz:.4g} samples a second by its column '{self._table.time}'"
            _log.warning("%s: %s, the bundle wants %g: %s", self._table.where, told, wanted, UNITS)

    def _made(self, rate_hz: float) -> SensorIntake:
        return SensorIntake(self._preprocessing, {_SENSOR: rate_hz}, where=self._table.where)

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
        values, labels = self._table.values(rows), self._table.labels(rows)
        found = []
        for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(labels)) + 1):
            found += self._marked(self._intake, times[run], values[run], int(labels[run[0]]))
        return found

    def _marked(
        self,
        intake: SensorIntake,
        times: NDArray[np.float64],
        values: NDArray[np.float64],
        label: int,
    ) -> list[Window]:
        """The windows that readings with one label complete."""
        if label == self._label or not np.isfinite(times).any():
            return intake.push(_SENSOR, times, values)
        intake.mark(float(times[np.isfinite(times).argmax()]), label)
        self._label = label
        # By the first reading the intake knows the mark from those after a later step back.
        first = int((np.isfinite(times) & np.isfinite(values).all(axis=1)).argmax()) + 1
        found = intake.push(_SENSOR, times[:first], values[:first])
        return found + intake.push(_SENSOR, times[first:], values[first:])
