"""Sensor intake: streams at arbitrary rates → 50 Hz → z-normalised windows, incrementally.

Each stream is low-passed and resampled in one pass by a windowed-sinc kernel evaluated at the true
time stamps, so jitter and odd rates need no special case. Every stream's output lies on the same
grid of absolute times k / rate, which is what joins them. A window leaves as soon as its last
sample is known; a gap in any stream starts windows anew, so none spans it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Preprocessing
from protofleet.errors import InputError

_log = logging.getLogger(__name__)

_ZERO_CROSSINGS = 8  # kernel half-length: -60 dB with the window below
_KAISER_BETA = 6.0
_MOST_SAMPLES = 2.0**52
_BLOCK = 4096
_PASSBAND = 0.9  # share of the lower Nyquist frequency that is kept
_PATIENCE_S = 60.0  # a sensor that died must not make the others fill the memory


@dataclass(slots=True)
class IntakeCounters:
    """What the intake discarded, and why.

    Attributes:
        not_finite: readings with NaN or infinite values.
        not_forward: readings no later than the one before.
        gaps: silences that ended a segment.
        unmatched: resampled values for which another sensor was silent too long.
    """

    not_finite: int = 0
    not_forward: int = 0
    gaps: int = 0
    unmatched: int = 0

    def __str__(self) -> str:
        found = [f"{count} {name}" for name, count in asdict(self).items() if count]
        return ", ".join(found).replace("_", " ") or "nothing"


class Resampler:
    """One stream → samples at times k / out_rate_hz, k integer, anti-aliased.

    y(t) = Σ h(t - t_i) Δ_i x_i / Σ h(t - t_i) Δ_i, where h is a Kaiser-windowed sinc with its
    cut-off at 0.9 of the lower Nyquist frequency and Δ_i half the time between the neighbours.

    Args:
        in_rate_hz: the sensor's nominal rate.
        out_rate_hz: rate of the output grid.
        max_gap_s: a longer silence ends a segment; nothing is interpolated across it.
    """

    def __init__(self, in_rate_hz: float, out_rate_hz: float, *, max_gap_s: float = 0.2) -> None:
        if in_rate_hz <= 0 or out_rate_hz <= 0:
            raise InputError(f"sensor rate: expected > 0 Hz, got {in_rate_hz} and {out_rate_hz}")
        self._rate = out_rate_hz
        self._cutoff_hz = _PASSBAND * min(in_rate_hz, out_rate_hz) / 2
        self._reach_s = _ZERO_CROSSINGS / (2 * self._cutoff_hz)
        self._max_gap_s = max(max_gap_s, 4 / in_rate_hz)
        self._times = np.empty(0, np.float64)
        self._values = np.empty((0, 0), np.float64)
        self._next = 0
        self._opened = False
        self.counters = IntakeCounters()

    def push(
        self, times_s: NDArray[np.float64], values: NDArray[np.floating]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Take readings in, give back what is certain now.

        Args:
            times_s: ``(n,) float64``, increasing; readings that go back in time are counted and
                dropped.
            values: ``(n, channels)``; rows with NaN or infinite values are counted and dropped.

        Returns:
            Grid indices k, ``(m,) int64``, and samples, ``(m, channels) float64``.
        """
        times_s, values = self._clean(np.asarray(times_s, np.float64), np.asarray(values))
        if not len(times_s):
            return _nothing(values.shape[1])
        previous = self._times[-1] if len(self._times) else times_s[0]
        steps = np.diff(times_s, prepend=previous)
        cuts = np.flatnonzero(steps > self._max_gap_s)
        out = []
        for part in np.split(np.arange(len(times_s)), cuts):
            if len(part) and steps[part[0]] > self._max_gap_s:
                self.counters.gaps += 1
                out.append(self.flush())
            self._append(times_s[part], values[part])
            out.append(self._emit(final=False))
        return _joined(out)

    def flush(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """End the segment: give back its last samples, as ``push`` does, and forget it."""
        out = self._emit(final=True)
        self._times, self._values = self._times[:0], self._values[:0]
        self._opened = False
        return out

    def _clean(
        self, times_s: NDArray[np.float64], values: NDArray[np.floating]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        if values.ndim != 2 or times_s.shape != values.shape[:1]:
            raise InputError(
                f"readings: expected times (n,) and values (n, channels), "
                f"got {times_s.shape} and {values.shape}"
            )
        # Beyond, neighbours on the grid have the same time.
        finite = np.isfinite(values).all(axis=1) & (np.abs(times_s) < _MOST_SAMPLES / self._rate)
        self.counters.not_finite += int((~finite).sum())
        times_s, values = times_s[finite], values[finite]
        latest = self._times[-1] if len(self._times) else -np.inf
        before = np.maximum.accumulate(np.concatenate([[latest], times_s]))[:-1]
        forward = times_s > before
        self.counters.not_forward += int((~forward).sum())
        return times_s[forward], values[forward].astype(np.float64)

    def _append(self, times_s: NDArray[np.float64], values: NDArray[np.float64]) -> None:
        if not self._opened and len(times_s):
            self._opened = True
            self._next = int(np.ceil(times_s[0] * self._rate - 1e-9))
            self._times, self._values = times_s, values
            return
        self._times = np.concatenate([self._times, times_s])
        self._values = np.concatenate([self._values, values])

    def _emit(self, *, final: bool) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        channels = self._values.shape[1]
        if len(self._times) < 2:
            return _nothing(channels)
        # The newest reading's Δ is known only with its successor, so it waits as a neighbour.
        horizon = self._times[-1] if final else self._times[-2] - self._reach_s
        last = int(np.floor(horizon * self._rate + 1e-9))
        grid = np.arange(self._next, last + 1, dtype=np.int64)
        if not len(grid):
            return _nothing(channels)
        samples = self._interpolate(grid / self._rate)
        self._next = last + 1
        keep = np.searchsorted(self._times, self._next / self._rate - self._reach_s) - 1
        self._times, self._values = self._times[max(keep, 0) :], self._values[max(keep, 0) :]
        return grid, samples

    def _interpolate(self, at_s: NDArray[np.float64]) -> NDArray[np.float64]:
        parts = np.split(at_s, range(_BLOCK, len(at_s), _BLOCK))
        return np.concatenate([self._interpolate_block(part) for part in parts])

    def _interpolate_block(self, at_s: NDArray[np.float64]) -> NDArray[np.float64]:
        gaps = np.diff(self._times)
        spacing = (np.concatenate([gaps[:1], gaps]) + np.concatenate([gaps, gaps[-1:]])) / 2
        first = np.searchsorted(self._times, at_s - self._reach_s)
        count = np.searchsorted(self._times, at_s + self._reach_s) - first
        offsets = np.arange(count.max())
        index = np.minimum(first[:, np.newaxis] + offsets, len(self._times) - 1)
        weights = self._kernel(at_s[:, np.newaxis] - self._times[index]) * spacing[index]
        weights[offsets >= count[:, np.newaxis]] = 0.0
        total = np.zeros((len(at_s), 1))
        summed = np.zeros((len(at_s), self._values.shape[1]))
        # One reading after the other: the sum's order, and so its bits, depend on no block size.
        for k in range(len(offsets)):
            total += weights[:, k, np.newaxis]
            summed += weights[:, k, np.newaxis] * self._values[index[:, k]]
        return summed / total

    def _kernel(self, lag_s: NDArray[np.float64]) -> NDArray[np.float64]:
        inside = np.clip(1 - (lag_s / self._reach_s) ** 2, 0, None)
        taper = np.i0(_KAISER_BETA * np.sqrt(inside)) / np.i0(_KAISER_BETA)
        shaped: NDArray[np.float64] = np.sinc(2 * self._cutoff_hz * lag_s) * taper
        return shaped


def _nothing(channels: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    return np.empty(0, np.int64), np.empty((0, channels))


def _joined(
    parts: list[tuple[NDArray[np.int64], NDArray[np.float64]]],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    filled = [part for part in parts if len(part[0])]
    if not filled:
        return parts[-1]
    return np.concatenate([p[0] for p in filled]), np.concatenate([p[1] for p in filled])


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One complete window.

    Attributes:
        x: ``(window, channels) float32``, z-normalised.
        start_s: time of its first sample.
        label: the activity that was marked throughout, or -1 where it is unknown or changed.
    """

    x: NDArray[np.float32]
    start_s: float
    label: int


@dataclass(slots=True)
class _Stream:
    resampler: Resampler
    index: list[NDArray[np.int64]] = field(default_factory=list)
    values: list[NDArray[np.float64]] = field(default_factory=list)


class SensorIntake:
    """Several sensors' readings → windows as a bundle's preprocessing describes them.

    Readings of several sensors are to come side by side: what waits a minute for another sensor is
    counted and dropped.

    Args:
        preprocessing: rate, window, hop, and mean and std per channel.
        sensors: nominal rate in Hz of each sensor, in the order of the bundle's channels.

    Raises:
        InputError: the bundle's input is no time series.
    """

    def __init__(self, preprocessing: Preprocessing, sensors: Mapping[str, float]) -> None:
        if not (preprocessing.rate_hz and preprocessing.window and preprocessing.hop):
            raise InputError("sensor intake: the bundle's input is not a series of windows")
        self._rate = preprocessing.rate_hz
        self._window, self._hop = preprocessing.window, preprocessing.hop
        self._mean = np.asarray(preprocessing.mean)
        self._std = np.asarray(preprocessing.std)
        self._streams = {
            name: _Stream(Resampler(rate_hz, self._rate)) for name, rate_hz in sensors.items()
        }
        self._marks: list[tuple[float, int]] = [(-np.inf, -1)]
        self._start: int | None = None
        self._rows = np.empty((0, len(preprocessing.channels)))

    @property
    def counters(self) -> dict[str, IntakeCounters]:
        """What was discarded, by sensor."""
        return {name: stream.resampler.counters for name, stream in self._streams.items()}

    def mark(self, time_s: float, label: int) -> None:
        """From ``time_s`` on the owner does activity ``label`` (-1: unknown)."""
        self._marks.append((time_s, label))

    def push(
        self, sensor: str, times_s: NDArray[np.float64], values: NDArray[np.floating]
    ) -> list[Window]:
        """Take one sensor's readings, give back the windows that are complete now.

        Args:
            sensor: its name.
            times_s: ``(n,) float64``, increasing.
            values: ``(n, channels)``; what cannot be used is counted (``counters``).

        Raises:
            InputError: unknown sensor, or arrays of a wrong shape.
        """
        if sensor not in self._streams:
            raise InputError(f"sensor '{sensor}': expected one of {', '.join(self._streams)}")
        stream = self._streams[sensor]
        self._store(stream, stream.resampler.push(times_s, values))
        return self._windows()

    def flush(self) -> list[Window]:
        """The recording is over: give back what its last readings complete, log ``counters``."""
        for name, stream in self._streams.items():
            self._store(stream, stream.resampler.flush())
            _log.info("sensor '%s' lost so far: %s", name, stream.resampler.counters)
        return self._windows()

    def _store(self, stream: _Stream, out: tuple[NDArray[np.int64], NDArray[np.float64]]) -> None:
        if not len(out[0]):
            return
        stream.index.append(out[0])
        stream.values.append(out[1])
        oldest = out[0][-1] - _PATIENCE_S * self._rate
        while stream.index[0][-1] < oldest:
            stream.resampler.counters.unmatched += len(stream.index.pop(0))
            stream.values.pop(0)

    def _windows(self) -> list[Window]:
        grid, rows = self._join()
        windows = []
        # A jump in the grid means a gap in some stream: the window begun before it is dropped.
        for part in np.split(np.arange(len(grid)), np.flatnonzero(np.diff(grid) != 1) + 1):
            if len(part):
                windows += self._extend(int(grid[part[0]]), rows[part])
        return windows

    def _join(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        streams = list(self._streams.values())
        if not all(stream.index for stream in streams):
            return np.empty(0, np.int64), self._rows[:0]
        indices = [np.concatenate(stream.index) for stream in streams]
        values = [np.concatenate(stream.values) for stream in streams]
        horizon = min(index[-1] for index in indices)
        common = indices[0][indices[0] <= horizon]
        for index in indices[1:]:
            common = common[np.isin(common, index)]
        rows = [
            value[np.searchsorted(index, common)]
            for index, value in zip(indices, values, strict=True)
        ]
        for stream, index, value in zip(streams, indices, values, strict=True):
            later = index > horizon
            stream.index = [index[later]] if later.any() else []
            stream.values = [value[later]] if later.any() else []
        return common, np.concatenate(rows, axis=1)

    def _extend(self, first: int, rows: NDArray[np.float64]) -> list[Window]:
        if rows.shape[1] != self._rows.shape[1]:
            raise InputError(
                f"sensor intake: expected {self._rows.shape[1]} channels in all, "
                f"got {rows.shape[1]}"
            )
        if self._start is None or first != self._start + len(self._rows):
            self._start, self._rows = first, rows
        else:
            self._rows = np.concatenate([self._rows, rows])
        windows = []
        while len(self._rows) >= self._window:
            windows.append(self._cut(self._rows[: self._window], self._start))
            self._rows = self._rows[self._hop :]
            self._start += self._hop
        return windows

    def _cut(self, rows: NDArray[np.float64], start: int) -> Window:
        normalised = (rows - self._mean) / self._std
        begin_s, end_s = start / self._rate, (start + self._window - 1) / self._rate
        return Window(
            x=normalised.astype(np.float32), start_s=begin_s, label=self._label(begin_s, end_s)
        )

    def _label(self, begin_s: float, end_s: float) -> int:
        while len(self._marks) > 1 and self._marks[1][0] <= begin_s:
            self._marks.pop(0)
        seen = {label for time_s, label in self._marks if time_s <= end_s}
        return seen.pop() if len(seen) == 1 else -1
