"""One sensor's readings → samples on a grid of absolute times, low-passed, incrementally.

A windowed-sinc kernel is evaluated at the true time stamps, so jitter and odd rates need no
special case. A silence ends a stretch, and so does a clock that is set back; nothing is
interpolated across.

A clock was set back where two readings that follow one another lie behind the latest by more than
a silence may last. A single one is a slip of its stamp, and a smaller step back is jitter: such
readings are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from protofleet.errors import InputError

_ZERO_CROSSINGS = 8  # kernel half-length: -60 dB with the window below
_KAISER_BETA = 6.0
_MOST_SAMPLES = 2.0**52
_BLOCK = 4096
_LEAST_MEASURED = 0.5  # of the samples that a sensor's own rate measures
_PASSBAND = 0.9  # share of the lower Nyquist frequency that is kept


@dataclass(slots=True)
class IntakeCounters:
    """What the intake discarded, and why.

    Attributes:
        not_finite: readings with NaN or infinite values.
        not_forward: readings no later than the one before.
        gaps: silences that ended a stretch.
        set_back: times that the clock was set back, which ended a stretch.
        unmatched: resampled values for which another sensor was silent too long.
        interpolated_windows: windows left out because too few of their samples had a reading.
    """

    not_finite: int = 0
    not_forward: int = 0
    gaps: int = 0
    set_back: int = 0
    unmatched: int = 0
    interpolated_windows: int = 0

    def __str__(self) -> str:
        found = [f"{count} {name}" for name, count in asdict(self).items() if count]
        return ", ".join(found).replace("_", " ") or "nothing"


@dataclass(frozen=True, slots=True)
class StepBack:
    """A clock that was set back.

    Attributes:
        from_s: the latest time before, in seconds.
        to_s: the first time after.
    """

    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class GridSamples:
    """Samples at times k / rate.

    Attributes:
        index: ``(m,) int64``, k.
        values: ``(m, channels) float64``.
        measured: ``(m,) bool``, whether a reading was taken within half a step of the grid.
        after: where a clock was set back before the first of them.
    """

    index: NDArray[np.int64]
    values: NDArray[np.float64]
    measured: NDArray[np.bool_]
    after: StepBack | None = None


class Resampler:
    """One stream → samples at times k / out_rate_hz, k integer, anti-aliased.

    y(t) = Σ h(t - t_i) Δ_i x_i / Σ h(t - t_i) Δ_i, where h is a Kaiser-windowed sinc with its
    cut-off at 0.9 of the lower Nyquist frequency and Δ_i half the time between the neighbours.

    Args:
        in_rate_hz: the sensor's nominal rate.
        out_rate_hz: rate of the output grid.
        max_gap_s: a longer silence ends a stretch, at least four readings long; nothing is
            interpolated across it. A clock that goes back by more was set back.
    """

    def __init__(self, in_rate_hz: float, out_rate_hz: float, *, max_gap_s: float = 0.2) -> None:
        if in_rate_hz <= 0 or out_rate_hz <= 0:
            raise InputError(f"sensor rate: expected > 0 Hz, got {in_rate_hz} and {out_rate_hz}")
        self._rate = out_rate_hz
        self._cutoff_hz = _PASSBAND * min(in_rate_hz, out_rate_hz) / 2
        self._reach_s = _ZERO_CROSSINGS / (2 * self._cutoff_hz)
        self._max_gap_s = max(max_gap_s, 4 / in_rate_hz)
        self.least_measured = _LEAST_MEASURED * min(1.0, in_rate_hz / out_rate_hz)
        """Part of a window's samples that need a reading, or it is made up rather than measured."""
        self._times = np.empty(0, np.float64)
        self._values = np.empty((0, 0), np.float64)
        # A reading far back, until the next one tells a slip from a clock that was set back.
        self._doubtful: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
        self._next = 0
        self._opened = False
        self.counters = IntakeCounters()

    @property
    def latest_s(self) -> float:
        """Time of the latest reading of the stretch; -inf at its start."""
        return float(self._times[-1]) if len(self._times) else -np.inf

    @property
    def is_doubtful(self) -> bool:
        """Whether the next reading tells if the clock was set back."""
        return self._doubtful is not None

    def push(self, times_s: NDArray[np.float64], values: NDArray[np.floating]) -> list[GridSamples]:
        """Take readings in, give back what is certain now.

        Args:
            times_s: ``(n,) float64``, increasing; readings that go back in time are counted and
                dropped, unless their clock was set back.
            values: ``(n, channels)``; rows with NaN or infinite values are counted and dropped.

        Returns:
            At least one: those of the stretch that was open, and then of one for each time that
            the clock was set back (``after``).
        """
        times_s, values = self._clean(np.asarray(times_s, np.float64), np.asarray(values))
        kept, starts = self._in_order(times_s, values)
        first, *more = np.split(kept, starts)
        out = [self._taken(times_s[first], values[first])]
        for run in more:
            step = StepBack(self.latest_s, float(times_s[run[0]]))
            self.counters.set_back += 1
            out[-1] = joined([out[-1], self._end()], out[-1].after)
            out.append(self._taken(times_s[run], values[run], step))
        return out

    def flush(self) -> GridSamples:
        """End the stretch: give back its last samples, and forget it."""
        if self._doubtful is not None:
            self.counters.not_forward += 1
            self._doubtful = None
        return self._end()

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
        times_s, kept = times_s[finite], values[finite].astype(np.float64)
        if self._doubtful is not None:
            times_s = np.concatenate([self._doubtful[0], times_s])
            kept = np.concatenate([self._doubtful[1], kept])
        return times_s, kept

    def _in_order(
        self, times_s: NDArray[np.float64], values: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], Sequence[int]]:
        """Which readings go forward, and at which of those the clock had been set back."""
        before = np.maximum.accumulate(np.concatenate([[self.latest_s], times_s]))[:-1]
        starts: list[int] = []
        doubtful = None
        if (times_s < before - self._max_gap_s).any():
            found, starts, doubtful = _steps(times_s.tolist(), self.latest_s, self._max_gap_s)
            kept = np.array(found, np.int64)
        else:
            kept = np.flatnonzero(times_s > before)
        self.counters.not_forward += len(times_s) - len(kept) - (doubtful is not None)
        one = slice(doubtful, (doubtful or 0) + 1)
        self._doubtful = None if doubtful is None else (times_s[one], values[one])
        return kept, starts

    def _taken(
        self,
        times_s: NDArray[np.float64],
        values: NDArray[np.float64],
        after: StepBack | None = None,
    ) -> GridSamples:
        """What readings that go forward add to the stretch; a silence begins another."""
        if not len(times_s):
            return _nothing(values.shape[1])
        previous = self._times[-1] if len(self._times) else times_s[0]
        steps = np.diff(times_s, prepend=previous)
        cuts = np.flatnonzero(steps > self._max_gap_s)
        out = []
        for part in np.split(np.arange(len(times_s)), cuts):
            if len(part) and steps[part[0]] > self._max_gap_s:
                self.counters.gaps += 1
                out.append(self._end())
            self._append(times_s[part], values[part])
            out.append(self._emit(final=False))
        return joined(out, after)

    def _end(self) -> GridSamples:
        out = self._emit(final=True)
        self._times, self._values = self._times[:0], self._values[:0]
        self._opened = False
        return out

    def _append(self, times_s: NDArray[np.float64], values: NDArray[np.float64]) -> None:
        if not self._opened and len(times_s):
            self._opened = True
            self._next = int(np.ceil(times_s[0] * self._rate - 1e-9))
            self._times, self._values = times_s, values
            return
        self._times = np.concatenate([self._times, times_s])
        self._values = np.concatenate([self._values, values])

    def _emit(self, *, final: bool) -> GridSamples:
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
        measured = np.isin(grid, np.floor(self._times * self._rate + 0.5))
        self._next = last + 1
        keep = np.searchsorted(self._times, self._next / self._rate - self._reach_s) - 1
        self._times, self._values = self._times[max(keep, 0) :], self._values[max(keep, 0) :]
        return GridSamples(grid, samples, measured)

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


def _steps(
    times_s: Sequence[float], latest: float, far_s: float
) -> tuple[list[int], list[int], int | None]:
    """Which readings go forward, at which of those a clock had been set back, and a last doubt."""
    kept: list[int] = []
    starts: list[int] = []
    doubtful = None
    for k, time_s in enumerate(times_s):
        if time_s > latest:
            doubtful = None
        elif time_s >= latest - far_s:
            doubtful = None
            continue
        elif doubtful is not None and time_s == times_s[doubtful]:
            continue
        elif doubtful is None or not 0 < time_s - times_s[doubtful] <= far_s:
            doubtful = k
            continue
        else:
            starts.append(len(kept))
            kept.append(doubtful)
            doubtful = None
        kept.append(k)
        latest = time_s
    return kept, starts, doubtful


def _nothing(channels: int) -> GridSamples:
    return GridSamples(np.empty(0, np.int64), np.empty((0, channels)), np.empty(0, np.bool_))


def joined(parts: Sequence[GridSamples], after: StepBack | None = None) -> GridSamples:
    """All samples of at least one block, one after the other."""
    filled = [part for part in parts if len(part.index)] or parts[-1:]
    return GridSamples(
        np.concatenate([part.index for part in filled]),
        np.concatenate([part.values for part in filled]),
        np.concatenate([part.measured for part in filled]),
        after,
    )
