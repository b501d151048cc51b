"""When readings were taken that share a stamp, or that come in packets.

A logger that writes whole seconds gives each fiftieth reading of 50 Hz a time of its own, and a
radio link stamps what it hands over together with the moment of arrival. The number of readings
between the stamps then says how fast they were taken, and they are spread evenly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

TOLERANCE = 0.2
"""By which part the readings a second may differ from those that are wanted."""

_TOGETHER = 0.5
"""Readings closer than this part of the time between two come together."""
_LEAST_SIZE = 1.25
_PAUSE = 3
"""Packets that begin this many times farther apart than most had a pause between them."""
_LEAST_PACKETS = 4
"""Begun ones, by which packets are known: the first may lack readings, the last is not whole."""
_FIRST = 16
_CLUMPED = 0.25
"""Part of the first readings that come together where packets are looked for."""


@dataclass(frozen=True, slots=True)
class Packets:
    """How readings come that have no times of their own.

    Attributes:
        size: mean number in a packet.
        rate_hz: readings a second.
        period_s: from one packet to the next.
        cut_s: a longer step begins a packet.
        is_shared: whether those of a packet share one stamp.
    """

    size: float
    rate_hz: float
    period_s: float
    cut_s: float
    is_shared: bool

    def fits(self, wanted_hz: float) -> bool:
        """Whether they are as many as are wanted, so that they can be spread evenly."""
        return abs(self.rate_hz / wanted_hz - 1) <= TOLERANCE

    @property
    def words(self) -> str:
        """What they look like."""
        how = "share" if self.is_shared else "come together"
        return f"about {self.size:.3g} readings {how} each time, {self.rate_hz:.4g} a second"


def is_known(times_s: NDArray[np.float64], wanted_hz: float, window_s: float) -> bool:
    """Whether so many times tell if readings come in packets; arguments of ``find_packets``."""
    return _telling(times_s, _TOGETHER / wanted_hz, window_s) is not None


def _telling(times_s: NDArray[np.float64], cut_s: float, window_s: float) -> int | None:
    """How many of the first times tell, however many there are; None: not yet."""
    if len(times_s) < _FIRST:
        return None
    if (np.diff(times_s[:_FIRST]) < cut_s).mean() < _CLUMPED:
        return _FIRST
    begins = _begins(times_s, cut_s)
    packet = np.searchsorted(begins, np.arange(len(times_s)), side="right") - 1
    long = times_s - times_s[begins[packet]] >= window_s
    whole = (packet >= _LEAST_PACKETS - 1) & (times_s - times_s[0] >= window_s)
    found = np.flatnonzero(long | whole)
    return int(found[0]) + 1 if len(found) else None


def find_packets(times_s: NDArray[np.float64], wanted_hz: float, window_s: float) -> Packets | None:
    """How readings come together; None where each has a time of its own.

    Args:
        times_s: ``(n,)``, finite; the first that tell are looked at.
        wanted_hz: readings a second that the bundle wants.
        window_s: the length of a window; what is as long is no packet.
    """
    cut_s = _TOGETHER / wanted_hz
    times_s = times_s[: _telling(times_s, cut_s, window_s)]
    begins = _begins(times_s, cut_s)
    sizes, periods = np.diff(begins), np.diff(times_s[begins])
    spans = times_s[begins[1:] - 1] - times_s[begins[:-1]]
    # The first packet may have begun before the recording.
    rest = slice(1 if len(sizes) > 1 else 0, None)
    usual = periods > 0
    usual[: rest.start] = False
    if not usual.any():
        return None
    usual &= periods <= _PAUSE * np.median(periods[usual])
    period_s, span_s = float(np.median(periods[usual])), float(np.median(spans[usual]))
    size = float(sizes[usual].mean())
    if size < _LEAST_SIZE or span_s > period_s / 2 or span_s >= window_s:
        return None
    rate_hz = float(sizes[usual].sum() / periods[usual].sum())
    return Packets(size, rate_hz, period_s, cut_s, bool(span_s == 0))


def _begins(times_s: NDArray[np.float64], cut_s: float) -> NDArray[np.int64]:
    return np.concatenate([[0], np.flatnonzero(np.abs(np.diff(times_s)) > cut_s) + 1])


class Spreader:
    """Times of readings that come in packets → times of their own, incrementally.

    Those of a packet are spread evenly over the time to the next. Where a packet lacks readings
    they keep the usual distance, behind its stamp or, of the first packet, before the next one's.

    Args:
        packets: what they look like.
    """

    def __init__(self, packets: Packets) -> None:
        self._packets = packets
        self._step_s = 1 / packets.rate_hz
        self._most = 4 * int(np.ceil(packets.size)) + 64
        self._waiting = np.empty(0, np.float64)
        self._is_first = True

    def push(self, times_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Take times in, give back those of the oldest readings that are known now.

        Args:
            times_s: ``(n,) float64``; NaN stays NaN.

        Returns:
            ``(m,) float64``: of the first m readings that were not given back before.
        """
        times = np.concatenate([self._waiting, times_s])
        finite = np.flatnonzero(np.isfinite(times))
        begins = finite[_begins(times[finite], self._packets.cut_s)] if len(finite) else finite
        out = times.copy()
        for begin, end in zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True):
            part = out[begin:end]
            known = np.isfinite(part)
            part[known] = self._spread(float(times[begin]), float(times[end]), int(known.sum()))
        ready = int(begins[-1]) if len(begins) else 0
        # A stamp that stays for ever must not fill the memory: what is too much for it is dropped.
        if len(times) - ready > self._most:
            ready = len(times)
        self._waiting = times[ready:]
        return out[:ready]

    def flush(self) -> NDArray[np.float64]:
        """The times of the readings that are left; the next packet is another recording's."""
        out, self._waiting = self._waiting, self._waiting[:0]
        known = np.isfinite(out)
        out[known] = np.min(out[known], initial=np.inf) + self._step_s * np.arange(known.sum())
        self._is_first = True
        return out

    def _spread(self, begin_s: float, next_s: float, count: int) -> NDArray[np.float64]:
        places, first = np.arange(count, dtype=np.float64), self._is_first
        lasts_s = next_s - begin_s
        lacking = count + 1 < (1 - TOLERANCE) * lasts_s / self._step_s
        self._is_first = lasts_s <= 0
        if lacking and first and lasts_s <= 2 * self._packets.period_s:
            return next_s - self._step_s * (count - places)
        if lacking or lasts_s <= 0:
            return begin_s + self._step_s * places
        return begin_s + lasts_s * places / count
