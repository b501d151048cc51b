"""Telling of repeated things without filling a disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

_MOST = 10_000


class Sparing:
    """Lets the 1st, 2nd, 4th, 8th … of equal things pass: a flood from a device fills no log."""

    def __init__(self) -> None:
        self._seen: Counter[Hashable] = Counter()

    def passes(self, thing: Hashable) -> bool:
        """Whether to tell of ``thing`` this time."""
        if len(self._seen) >= _MOST:
            self._seen.clear()
        self._seen[thing] += 1
        count = self._seen[thing]
        return count & (count - 1) == 0
