"""When the rows of a recording were sampled: by a column of numbers or dates, in which unit.

A column that is called ``time_s``, ``time`` (both seconds) or ``time_ms`` is known. Of another one,
which its reader names, the unit is the one of seconds, milliseconds, microseconds and nanoseconds
by which the rate fits the bundle's: they are a thousand times apart, and rates that fit at most
four hundred. Dates are those of ISO 8601, or day and month before the year; without a zone they
count as UTC, since only their differences matter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

SECONDS: Mapping[str, float | None] = {"time_s": 1.0, "time": None, "time_ms": 1e-3}
"""Known columns, and how many seconds one of their units has; None: most often seconds."""

UNITS = "seconds stand in time_s, milliseconds in time_ms"
"""What a column of times has to hold."""

_UNITS = {
    "seconds": 1.0,
    "milliseconds": 1e-3,
    "microseconds": 1e-6,
    "nanoseconds": 1e-9,
    "days": 86_400.0,
}
_LEAST_ROWS = 3
_MONTHS = 12
_FAR_BELOW, _FAR_ABOVE = 4, 100
"""Factors by which a stream's rate may differ from the bundle's before its times are doubted."""


_OTHER_DATE = re.compile(
    r"(\d{1,2})([/.])(\d{1,2})\2(\d{4})[ T]+(\d{1,2}):(\d\d)(?::(\d\d)(?:[.,](\d{1,9}))?)?"
    r"(?: ?([AaPp])[Mm])?"
)
"""Day and month before the year: the month first between slashes, unless it cannot be one."""


def to_time(text: str) -> float:
    """A number, or the seconds since 1970 of a date; an empty cell is NaN.

    Raises:
        ValueError: neither.
    """
    if not text:
        return math.nan
    try:
        return float(text)
    except ValueError:
        found = _OTHER_DATE.fullmatch(text.strip())
        moment = datetime.fromisoformat(text if found is None else _iso(found))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _iso(found: re.Match[str]) -> str:
    one, mark, other, year, hours, minutes, seconds, fraction, half = found.groups()
    day, month = (one, other) if mark == "." or int(one) > _MONTHS else (other, one)
    hour = int(hours)
    if half:
        hour = hour % 12 + (12 if half in "pP" else 0)
    whole = f"{year}-{int(month):02d}-{int(day):02d}T{hour:02d}:{minutes}:{seconds or '00'}"
    return f"{whole}.{(fraction or '')[:6]:0<6}"


def is_date(text: str) -> bool:
    """Whether a cell holds a date rather than a number."""
    try:
        float(text)
    except ValueError:
        return True
    return False


def median_step(times: NDArray[np.float64]) -> float | None:
    """The median of the steps forward; None if there is none."""
    steps = np.diff(times)
    steps = steps[np.isfinite(steps) & (steps > 0)]
    return float(np.median(steps)) if len(steps) else None


def fits(rate_hz: float, wanted_hz: float) -> bool:
    """Whether a stream's rate is one that can be meant where another is wanted."""
    return wanted_hz / _FAR_BELOW <= rate_hz <= wanted_hz * _FAR_ABOVE


def is_too_slow(rate_hz: float, wanted_hz: float) -> bool:
    """Whether samples at a rate are too few to make a bundle's of them."""
    return rate_hz * _FAR_BELOW < wanted_hz


def unit_hint(column: str, rate_hz: float, wanted_hz: float) -> str:
    """What to do where another unit of a known column's times gives the rate; else ''."""
    unit_s = SECONDS.get(column) or (1.0 if column == "time" else None)
    for name, other_s in _UNITS.items():
        rate = rate_hz * (unit_s or 0) / other_s
        if other_s == unit_s or not wanted_hz / _FAR_BELOW <= rate <= wanted_hz * _FAR_BELOW:
            continue
        known = next((known for known, one_s in SECONDS.items() if one_s == other_s), None)
        what = f"rename it {known}" if known else "rename it and name it with --time"
        return f"; if it holds {name}, {what}"
    return ""


def unit_of(step: float, wanted_hz: float, *, sure: bool) -> tuple[str, float]:
    """Name and length in seconds of the unit in which samples so far apart fit a rate.

    Args:
        step: between two samples.
        wanted_hz: the rate.
        sure: whether a person has said that these are times; if not, another unit than seconds is
            taken only where seconds cannot be meant, and the rate comes near.

    Raises:
        ValueError: none; says what their rate would be.
    """
    if not sure:
        return _likely_unit(step, wanted_hz)
    for name, unit_s in _UNITS.items():
        if fits(1 / (step * unit_s), wanted_hz):
            return name, unit_s
    rates = ", ".join(f"{1 / (step * unit_s):.4g} in {name}" for name, unit_s in _UNITS.items())
    raise ValueError(f"expected about {wanted_hz:g} samples a second, got {rates}")


def _likely_unit(step: float, wanted_hz: float) -> tuple[str, float]:
    if is_too_slow(1 / step, wanted_hz) or not fits(1 / step, wanted_hz):
        for name, unit_s in _UNITS.items():
            if wanted_hz / _FAR_BELOW <= 1 / (step * unit_s) <= wanted_hz * _FAR_BELOW:
                return name, unit_s
    return "seconds", 1.0


def rising_column(names: Iterable[str], column: Callable[[str], Sequence[str]]) -> str | None:
    """The first column whose numbers or dates rise as times do; None if none does.

    Args:
        names: of the columns that nothing else uses.
        column: the cells of one.
    """
    return next((name for name in names if _rises(column(name), named=bool(name))), None)


def _rises(cells: Sequence[str], *, named: bool) -> bool:
    """Never back, and forward in at least every other row: samples may share a clock's tick.

    A column without a name that counts is the index of a table.
    """
    try:
        steps = np.diff([to_time(cell.strip()) for cell in cells])
    except (ValueError, OverflowError):
        return False
    if not named and np.all(steps == 1):
        return False
    return (
        len(cells) >= _LEAST_ROWS
        and bool(np.all(steps >= 0))
        and 2 * (steps > 0).sum() >= len(steps)
    )
