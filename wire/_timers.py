"""Due times of many transfers: the earliest in logarithmic time."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Timers(Generic[K]):
    """One due time per key. Moving a time later is free; the heap learns of it when it pops."""

    def __init__(self) -> None:
        self._due: dict[K, float] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._queued: dict[K, float] = {}
        self._serial = 0

    def set(self, key: K, due: float) -> None:
        """``key`` is due at ``due``, whatever was set before."""
        self._due[key] = due
        if due < self._queued.get(key, float("inf")):
            self._push(key, due)

    def drop(self, key: K) -> None:
        """``key`` is never due."""
        self._due.pop(key, None)
        self._queued.pop(key, None)

    def expired(self, now: float) -> Iterator[K]:
        """Every key due by ``now``; each is dropped before it is given out."""
        while self._heap and self._heap[0][0] <= now:
            queued, _, key = heapq.heappop(self._heap)
            if self._queued.get(key) != queued:
                continue
            del self._queued[key]
            if self._due[key] <= now:
                del self._due[key]
                yield key
            elif self._due[key] < float("inf"):
                self._push(key, self._due[key])

    def next(self) -> float | None:
        """A time not later than the earliest due time; None if nothing is."""
        return self._heap[0][0] if self._heap else None

    def _push(self, key: K, due: float) -> None:
        self._serial += 1
        self._queued[key] = due
        heapq.heappush(self._heap, (due, self._serial, key))
