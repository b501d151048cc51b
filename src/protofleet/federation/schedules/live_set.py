"""The devices that are present, as a value: one more or less without a copy of all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Self

_PARTS = 256
_NOBODY: frozenset[str] = frozenset()


class LiveSet(AbstractSet[str]):
    """A frozen set of device ids; ``including`` and ``excluding`` copy a 256th of it.

    A frozenset copied at each presence makes the start of a large federation quadratic.

    Args:
        device_ids: its members.
    """

    __slots__ = ("_parts", "_size")

    def __init__(self, device_ids: Iterable[str] = ()) -> None:
        parts: list[set[str]] = [set() for _ in range(_PARTS)]
        for device_id in device_ids:
            parts[hash(device_id) % _PARTS].add(device_id)
        self._parts = tuple(frozenset(part) if part else _NOBODY for part in parts)
        self._size = sum(map(len, self._parts))

    def including(self, device_id: str) -> Self:
        """With this device."""
        return self if device_id in self else self._changed(device_id, 1)

    def excluding(self, device_id: str) -> Self:
        """Without this device."""
        return self._changed(device_id, -1) if device_id in self else self

    def __contains__(self, device_id: object) -> bool:
        return device_id in self._parts[hash(device_id) % _PARTS]

    def __iter__(self) -> Iterator[str]:
        for part in self._parts:
            yield from part

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"LiveSet({sorted(self)})"

    def _changed(self, device_id: str, change: int) -> Self:
        place = hash(device_id) % _PARTS
        parts = list(self._parts)
        parts[place] = parts[place] ^ {device_id}
        other = object.__new__(type(self))
        other._parts, other._size = tuple(parts), self._size + change
        return other
