"""Numbers as people read them."""

from __future__ import annotations

import time
from collections.abc import Iterable

NOTHING = "-"
_PREFIXES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def unit_of(largest: float) -> tuple[str, float]:
    """Unit and bytes per unit in which ``largest`` bytes is a short number."""
    return next(((unit, size) for unit, size in _PREFIXES if largest >= size), ("B", 1.0))


def byte_text(count: float) -> str:
    """``1234567`` → ``1.23 MB``."""
    unit, size = unit_of(count)
    value = count / size
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:,.0f} {unit}"


def ms_text(value: float | None) -> str:
    """Milliseconds with three significant digits."""
    if value is None:
        return NOTHING
    return f"{value:#.3g}".rstrip(".") if value < 999.5 else f"{value:,.0f}"


def duration_text(seconds: float) -> str:
    """``75.2`` → ``1 min 15 s``."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def clock_text(seconds: float) -> str:
    """Seconds since 1970 as date and time here."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def median(values: Iterable[float | None]) -> float | None:
    """Median of the values that are there."""
    present = sorted(value for value in values if value is not None)
    if not present:
        return None
    middle = len(present) // 2
    return present[middle] if len(present) % 2 else (present[middle - 1] + present[middle]) / 2
