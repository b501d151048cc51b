"""A CSV's sensor samples into the intake, from when their rate is known."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Preprocessing
from protofleet.edge.data.csv_rows import Row
from protofleet.edge.data.csv_table import Table
from protofleet.edge.data.intake import IntakeCounters, SensorIntake, Window
from protofleet.edge.data.packets import TOLERANCE, Packets, Spreader, find_packets, is_known
from protofleet.edge.data.sample_times import fits, is_too_slow, median_step, unit_hint
from protofleet.edge.predictions import NO_LABEL
from protofleet.errors import InputError

_log = logging.getLogger(__name__)

SENSOR = "csv"
_RATE_SAMPLES = 16
"""Samples whose times tell a stream's rate, before any of them is used."""

_STAMPS = 4
"""Different times by which the unit of times is known that several samples share."""

_MOST_WAITING_S = 600.0
"""Samples of so long, at the bundle's rate, may wait for times that tell their rate."""

_QUIET_S = 10.0
"""Samples of so long may wait without a word."""


class SampleSink(Protocol):
    """Takes samples; ``SensorIntake`` is one."""

    @property
    def counters(self) -> Mapping[str, IntakeCounters]:
        """What was discarded, by sensor."""
        ...

    def mark(self, time_s: float, label: int) -> None:
        """From ``time_s`` on the owner does activity ``label``."""
        ...

    def push(
        self, sensor: str, times_s: NDArray[np.float64], values: NDArray[np.floating]
    ) -> list[Window]:
        """Take readings, give back the windows that are complete now."""
        ...

    def flush(self) -> list[Window]:
        """The recording is over."""
        ...


MakeSink = Callable[[Preprocessing, Mapping[str, float], str], SampleSink]
"""From preprocessing, rates by sensor, and what to call the source."""


def _intake(preprocessing: Preprocessing, rates: Mapping[str, float], where: str) -> SampleSink:
    return SensorIntake(preprocessing, rates, where=where)


class SampleStream:
    """Rows of samples into the intake, from when the stream's rate is known.

    Args:
        table: whose rows they are.
        preprocessing: of its channels.
        rate_hz: how fast they come; None: their times tell.
        make: what takes the samples.
    """

    def __init__(
        self,
        table: Table,
        preprocessing: Preprocessing,
        rate_hz: float | None,
        make: MakeSink = _intake,
    ) -> None:
        self._table, self._preprocessing, self._make = table, preprocessing, make
        self._rate_hz = rate_hz
        self._wanted_hz = rate_hz or preprocessing.rate_hz
        # Before the first samples are used, those that wait tell rate, unit, or what is amiss.
        known = None if table.time else rate_hz
        if not (known or table.time or table.has_others):
            known = self._untimed()
        self._intake = self._made(known) if known else None
        self._spreader: Spreader | None = None
        self._waiting: list[Row] = []
        self._times = np.empty(0, np.float64)
        self._timed = self.count = 0
        self._label = NO_LABEL
        self._from_s, self._to_s = np.inf, -np.inf
        self._is_told = False

    @property
    def lasted(self) -> str:
        """How long enough samples lasted by their times, and what was amiss; or ''."""
        seconds = self._to_s - self._from_s
        if self.count < (self._preprocessing.window or 0) or seconds <= 0:
            return ""
        hint = unit_hint(self._table.time or "", self.count / seconds, self._wanted_hz or 1.0)
        lost = f"; not used: {self._lost}" if self._lost else ""
        return f" in {seconds:.4g} s by '{self._table.time}'{hint}{lost}"

    @property
    def _lost(self) -> str:
        """What the intake could not use; ''. Set back clocks were told of when they were."""
        if self._intake is None:
            return ""
        counters = replace(self._intake.counters[SENSOR], set_back=0)
        return str(counters) if counters != IntakeCounters() else ""

    def push(self, rows: Sequence[Row]) -> list[Window]:
        """The windows that are complete now."""
        self.count += len(rows)
        if self._intake is not None:
            return self._pushed(rows)
        self._waiting += rows
        if (times := self._table.times_s(rows)) is not None:
            self._times = np.concatenate([self._times, times])
        return self._begun() if self._is_ready() else []

    def flush(self) -> list[Window]:
        """The stream is over: what its last samples complete."""
        found = []
        if self._intake is None:
            if len(self._waiting) < 2:
                return []
            self._find_unit()
            found = self._begun()
        if self._spreader is not None:
            rows, self._waiting = self._waiting, []
            found += self._taken(rows, self._spreader.flush())
        if self._intake is None:
            return found
        found += self._intake.flush()
        if self._lost:
            _log.warning("%s: samples that were not used: %s", self._table.where, self._lost)
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

    def _is_ready(self) -> bool:
        """Whether the samples that wait tell how fast they come, and in packets or not."""
        if len(self._waiting) < _RATE_SAMPLES:
            return False
        wanted_hz, times = self._wanted_hz, self._times[np.isfinite(self._times)]
        if self._table.time is None or wanted_hz is None:
            return True
        if len(self._waiting) > _MOST_WAITING_S * wanted_hz:
            self._find_unit()
            return True
        stamps = 1 + (np.diff(times) > 0).sum()
        if stamps < _STAMPS and len(self._waiting) > _QUIET_S * wanted_hz and not self._is_told:
            self._is_told = True
            _log.warning(
                "%s: the first %d readings have %d different times in '%s'; they are used once "
                "more of them tell how fast they come",
                self._table.where,
                len(self._waiting),
                stamps,
                self._table.time,
            )
        if self._table.unit_s is None and 2 * stamps < len(times) and stamps < _STAMPS:
            return False
        self._find_unit()
        return is_known(self._times[np.isfinite(self._times)], wanted_hz, self._window_s)

    @property
    def _window_s(self) -> float:
        return (self._preprocessing.window or 0) / (self._preprocessing.rate_hz or 1.0)

    def _find_unit(self) -> None:
        """Take the unit of the times, if nothing says it, by the samples that wait."""
        step = median_step(self._times)
        if self._table.unit_s is not None or self._table.time is None or step is None:
            return
        forward = np.flatnonzero(np.diff(self._times) > 0)
        if 2 * len(forward) < len(self._times):
            # Of stamps that are shared, their readings tell; the first may have had more.
            begin, end = forward[0] + 1, forward[-1] + 1
            whole = end > begin
            lasts = self._times[end] - self._times[begin] if whole else step
            step = float(lasts) / (int(end - begin) if whole else len(self._times))
        self._table.find_unit(self._waiting, step, self._wanted_hz)
        self._times *= self._table.unit_s or 1.0

    def _begun(self) -> list[Window]:
        rows, self._waiting = self._waiting, []
        self._rate_hz = self._found_rate(rows)
        self._intake = self._made(self._rate_hz)
        return self._pushed(rows)

    def _found_rate(self, rows: Sequence[Row]) -> float:
        """How fast samples come, by their times."""
        where, column = self._table.where, self._table.time
        if column is None:
            if name := self._table.unused_times(rows):
                raise InputError(
                    f"{where}: column '{name}' rises as times do, and is not used; "
                    f"--time {shlex.quote(name)} if it tells when each sample was taken, else "
                    "--rate HZ"
                )
            return self._untimed()
        times = self._times[np.isfinite(self._times)]
        step = median_step(times)
        if step is None:
            raise InputError(
                f"{where}: expected times that ascend, {_still(times, column)}{self._table.guessed}"
            )
        if self._wanted_hz and (packets := find_packets(times, self._wanted_hz, self._window_s)):
            if packets.fits(self._wanted_hz):
                return self._spread(packets, column)
            self._refuse_few(packets, self._wanted_hz, column)
        self._check_rate(1 / step)
        return min(self._rate_hz or np.inf, 1 / step)

    def _spread(self, packets: Packets, column: str) -> float:
        _log.warning(
            "%s: %s by '%s': spread evenly over the time to the next",
            self._table.where,
            packets.words,
            column,
        )
        self._spreader = Spreader(packets)
        return self._rate_hz or packets.rate_hz

    def _refuse_few(self, packets: Packets, wanted_hz: float, column: str) -> None:
        """Refuse packets that come too seldom to be taken as one reading each."""
        if packets.period_s * wanted_hz * (1 - TOLERANCE) <= 1:
            return
        self._check_rate(packets.rate_hz)
        raise InputError(
            f"{self._table.where}: expected about {wanted_hz:g} readings a second with a time of "
            f"their own; by '{column}' {packets.words}: --rate {packets.rate_hz:.4g} if a sensor "
            "took them evenly, --time COLUMN if another column tells when"
        )

    def _check_rate(self, rate_hz: float) -> None:
        """Refuse times that make most samples of none, and doubt those of another unit."""
        _log.info("sensor samples at %.4g Hz", rate_hz)
        wanted = self._preprocessing.rate_hz or rate_hz
        hint = unit_hint(self._table.time or "", rate_hz, wanted)
        if is_too_slow(rate_hz, wanted):
            raise InputError(
                f"{self._table.where}: expected about {wanted:g} samples a second, at least a "
                f"quarter, got {rate_hz:.4g} by its column '{self._table.time}'"
                f"{hint or '; a sensor as slow as that needs a bundle of a lower rate_hz'}"
            )
        if not fits(rate_hz, wanted):
            told = f"{rate_hz:.4g} samples a second by its column '{self._table.time}'"
            _log.warning("%s: %s, the bundle wants %g%s", self._table.where, told, wanted, hint)

    def _made(self, rate_hz: float) -> SampleSink:
        return self._make(self._preprocessing, {SENSOR: rate_hz}, self._table.where)

    def _pushed(self, rows: Sequence[Row]) -> list[Window]:
        times = self._table.times_s(rows)
        if times is None:
            times = (self._timed + np.arange(len(rows))) / (self._rate_hz or 1.0)
        else:
            self._from_s = np.fmin.reduce(times, initial=self._from_s)
            self._to_s = np.fmax.reduce(times, initial=self._to_s)
        self._timed += len(rows)
        if self._spreader is not None:
            times = self._spreader.push(times)
            self._waiting += rows
            rows, self._waiting = self._waiting[: len(times)], self._waiting[len(times) :]
        return self._taken(rows, times)

    def _taken(self, rows: Sequence[Row], times: NDArray[np.float64]) -> list[Window]:
        if self._intake is None or not rows:
            return []
        values, labels = self._table.values(rows), self._table.labels(rows)
        found = []
        for run in np.split(np.arange(len(rows)), np.flatnonzero(np.diff(labels)) + 1):
            found += self._marked(self._intake, times[run], values[run], int(labels[run[0]]))
        return found

    def _marked(
        self,
        intake: SampleSink,
        times: NDArray[np.float64],
        values: NDArray[np.float64],
        label: int,
    ) -> list[Window]:
        """The windows that readings with one label complete."""
        if label == self._label or not np.isfinite(times).any():
            return intake.push(SENSOR, times, values)
        intake.mark(float(times[np.isfinite(times).argmax()]), label)
        self._label = label
        # By the first reading the intake knows the mark from those after a later step back.
        first = int((np.isfinite(times) & np.isfinite(values).all(axis=1)).argmax()) + 1
        found = intake.push(SENSOR, times[:first], values[:first])
        return found + intake.push(SENSOR, times[first:], values[first:])


def _still(times: NDArray[np.float64], column: str) -> str:
    """What times that never go forward are, and what to do."""
    if len(times) and (times == times[0]).all():
        return (
            f"got {times[0]:g} in all rows; without its column '{column}' they are taken as evenly "
            "spaced"
        )
    got = ", ".join(f"{time:g}" for time in times[:4])
    return f"got {got}, …; sort the rows by '{column}'"
