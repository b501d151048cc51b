"""Sensor intake: streams at arbitrary rates → 50 Hz → z-normalised windows, incrementally.

Each stream is low-passed and resampled in one pass (``resampler``). Every stream's output lies on
the same grid of absolute times k / rate, which is what joins them. A window leaves as soon as its
last sample is known; a gap in any stream starts windows anew, so none spans it, and so does a clock
that is set back, which the log tells at once. A window needs readings for half of the samples that
its sensor's rate gives; one that would be mostly interpolated is left out, and told.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Preprocessing
from protofleet.edge.data.resampler import GridSamples, IntakeCounters, Resampler, StepBack, joined
from protofleet.edge.log_throttle import WarningThrottle
from protofleet.errors import InputError

__all__ = ["IntakeCounters", "Resampler", "SensorIntake", "Window"]

_log = logging.getLogger(__name__)

_PATIENCE_S = 60.0  # a sensor that died must not make the others fill the memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One complete window.

    Attributes:
        x: ``(window, channels) float32``, z-normalised.
        start_s: time of its first sample.
        label: the activity that was marked throughout, or -1 where it is unknown or changed.
        labels: ``(window,) int64``, the activity of each sample, or -1.
    """

    x: NDArray[np.float32]
    start_s: float
    label: int
    labels: NDArray[np.int64]

    def steps(self, count: int) -> NDArray[np.int64]:
        """``(count,)``, the activity in the middle of each of so many equal parts, or -1."""
        middles = (np.arange(count) + 0.5) * (len(self.labels) / count)
        return self.labels[middles.astype(np.int64)]


@dataclass(slots=True)
class _Stream:
    resampler: Resampler
    blocks: list[GridSamples] = field(default_factory=list)


class SensorIntake:
    """Several sensors' readings → windows as a bundle's preprocessing describes them.

    Readings of several sensors are to come side by side: what waits a minute for another sensor is
    counted and dropped.

    Args:
        preprocessing: rate, window, hop, and mean and std per channel.
        sensors: nominal rate in Hz of each sensor, in the order of the bundle's channels.
        where: what to call their source in the log; None: the sensors' names.

    Raises:
        InputError: the bundle's input is no time series.
    """

    def __init__(
        self,
        preprocessing: Preprocessing,
        sensors: Mapping[str, float],
        *,
        where: str | None = None,
    ) -> None:
        if not (preprocessing.rate_hz and preprocessing.window and preprocessing.hop):
            raise InputError("sensor intake: the bundle's input is not a series of windows")
        self._rate = preprocessing.rate_hz
        self._window, self._hop = preprocessing.window, preprocessing.hop
        self._mean = np.asarray(preprocessing.mean)
        self._std = np.asarray(preprocessing.std)
        self._streams = {
            name: _Stream(Resampler(rate_hz, self._rate)) for name, rate_hz in sensors.items()
        }
        self._where = where
        self._throttle = WarningThrottle(_log)
        self._marks: list[tuple[float, int]] = [(-np.inf, -1)]
        # Those since readings came in, which may tell of times before or after a step back.
        self._new_marks = 0
        self._set_back = 0
        self._start: int | None = None
        self._rows = np.empty((0, len(preprocessing.channels)))
        self._measured = np.empty((0, len(sensors)), np.bool_)

    @property
    def counters(self) -> dict[str, IntakeCounters]:
        """What was discarded, by sensor."""
        return {name: stream.resampler.counters for name, stream in self._streams.items()}

    def mark(self, time_s: float, label: int) -> None:
        """From ``time_s`` on the owner does activity ``label`` (-1: unknown)."""
        self._marks.append((time_s, label))
        self._new_marks += 1

    def push(
        self, sensor: str, times_s: NDArray[np.float64], values: NDArray[np.floating]
    ) -> list[Window]:
        """Take one sensor's readings, give back the windows that are complete now.

        Args:
            sensor: its name.
            times_s: ``(n,) float64``, increasing; where its clock was set back by more than 0.2 s
                (four readings, if those take longer), windows and labels go on by the new times.
            values: ``(n, channels)``; what cannot be used is counted (``counters``).

        Raises:
            InputError: unknown sensor, or arrays of a wrong shape.
        """
        if sensor not in self._streams:
            raise InputError(f"sensor '{sensor}': expected one of {', '.join(self._streams)}")
        stream = self._streams[sensor]
        latest_s, windows = stream.resampler.latest_s, []
        for part in stream.resampler.push(times_s, values):
            if part.after is not None:
                self._restart(sensor, part.after)
            self._store(stream, part)
            windows += self._windows()
        if stream.resampler.latest_s != latest_s and not stream.resampler.is_doubtful:
            self._new_marks = 0
        return windows

    def flush(self) -> list[Window]:
        """The recording is over: give back what its last readings complete, log ``counters``."""
        for name, stream in self._streams.items():
            self._store(stream, stream.resampler.flush())
            _log.info("sensor '%s' lost so far: %s", name, stream.resampler.counters)
        return self._windows()

    def _restart(self, sensor: str, step: StepBack) -> None:
        """Forget what waits of a sensor whose clock was set back, and its window's beginning."""
        where = self._where or f"sensor '{sensor}'"
        self._throttle.warning(
            "%s: the clock was set back by %.6g s at %.2f: a new stretch begins, and no window "
            "spans both",
            where,
            step.from_s - step.to_s,
            step.from_s,
        )
        stream = self._streams[sensor]
        counters = stream.resampler.counters
        counters.unmatched += sum(len(block.index) for block in stream.blocks)
        stream.blocks = []
        self._start = None
        # Of several sensors on one clock, the first to be set back moves the marks for all.
        if counters.set_back > self._set_back:
            self._set_back += 1
            self._move_marks(step)

    def _move_marks(self, step: StepBack) -> None:
        """What the owner did last goes on; marks that came since, by the new times, hold, too."""
        settled = max(len(self._marks) - self._new_marks, 0)
        earlier = self._marks[:settled]
        later: list[tuple[float, int]] = []
        for mark in self._marks[settled:]:
            is_later = abs(mark[0] - step.to_s) < abs(mark[0] - step.from_s)
            (later if is_later else earlier).append(mark)
        self._marks = [(-np.inf, earlier[-1][1] if earlier else -1), *later]

    def _store(self, stream: _Stream, samples: GridSamples) -> None:
        if not len(samples.index):
            return
        stream.blocks.append(samples)
        oldest = samples.index[-1] - _PATIENCE_S * self._rate
        while stream.blocks[0].index[-1] < oldest:
            stream.resampler.counters.unmatched += len(stream.blocks.pop(0).index)

    def _windows(self) -> list[Window]:
        found = self._join()
        windows = []
        # A jump in the grid means a gap in some stream: the window begun before it is dropped.
        cuts = np.flatnonzero(np.diff(found.index) != 1) + 1
        for part in np.split(np.arange(len(found.index)), cuts):
            if len(part):
                start = int(found.index[part[0]])
                windows += self._extend(start, found.values[part], found.measured[part])
        return windows

    def _join(self) -> GridSamples:
        """The channels of all sensors, and in each row which of them measured it."""
        streams = list(self._streams.values())
        if not all(stream.blocks for stream in streams):
            return GridSamples(np.empty(0, np.int64), self._rows[:0], self._measured[:0])
        found = [joined(stream.blocks) for stream in streams]
        horizon = min(one.index[-1] for one in found)
        common = found[0].index[found[0].index <= horizon]
        for one in found[1:]:
            common = common[np.isin(common, one.index)]
        places = [np.searchsorted(one.index, common) for one in found]
        rows = [one.values[place] for one, place in zip(found, places, strict=True)]
        measured = [one.measured[place] for one, place in zip(found, places, strict=True)]
        for stream, one in zip(streams, found, strict=True):
            later = one.index > horizon
            rest = GridSamples(one.index[later], one.values[later], one.measured[later])
            stream.blocks = [rest] if later.any() else []
        return GridSamples(common, np.concatenate(rows, axis=1), np.stack(measured, axis=1))

    def _extend(
        self, first: int, rows: NDArray[np.float64], measured: NDArray[np.bool_]
    ) -> list[Window]:
        if rows.shape[1] != self._rows.shape[1]:
            raise InputError(
                f"sensor intake: expected {self._rows.shape[1]} channels in all, "
                f"got {rows.shape[1]}"
            )
        if self._start is None or first != self._start + len(self._rows):
            self._start, self._rows, self._measured = first, rows, measured
        else:
            self._rows = np.concatenate([self._rows, rows])
            self._measured = np.concatenate([self._measured, measured])
        windows = []
        while len(self._rows) >= self._window:
            if self._is_measured(self._measured[: self._window], self._start):
                windows.append(self._cut(self._rows[: self._window], self._start))
            self._rows, self._measured = self._rows[self._hop :], self._measured[self._hop :]
            self._start += self._hop
        return windows

    def _is_measured(self, measured: NDArray[np.bool_], start: int) -> bool:
        """Whether each sensor has enough readings in a window; tells of one that has not."""
        enough = True
        for name, stream, count in zip(
            self._streams, self._streams.values(), measured.sum(axis=0).tolist(), strict=True
        ):
            least = stream.resampler.least_measured * self._window
            if count < least:
                enough = False
                stream.resampler.counters.interpolated_windows += 1
                self._throttle.warning(
                    "%s: the window at %.2f is left out: expected readings for %.0f of its %d "
                    "samples, got %d; the others would be interpolated",
                    self._where or f"sensor '{name}'",
                    start / self._rate,
                    np.ceil(least),
                    self._window,
                    count,
                )
        return enough

    def _cut(self, rows: NDArray[np.float64], start: int) -> Window:
        normalised = (rows - self._mean) / self._std
        begin_s, end_s = start / self._rate, (start + self._window - 1) / self._rate
        label = self._label(begin_s, end_s)
        times_s = np.arange(start, start + self._window) / self._rate
        labels = np.full(self._window, -1, np.int64)
        for time_s, marked in self._marks:
            if time_s <= end_s:
                labels[times_s >= time_s] = marked
        return Window(x=normalised.astype(np.float32), start_s=begin_s, label=label, labels=labels)

    def _label(self, begin_s: float, end_s: float) -> int:
        while len(self._marks) > 1 and self._marks[1][0] <= begin_s:
            self._marks.pop(0)
        seen = {label for time_s, label in self._marks if time_s <= end_s}
        return seen.pop() if len(seen) == 1 else -1
