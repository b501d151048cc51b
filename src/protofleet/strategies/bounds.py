"""Bounds of settings, in their types: ``mu: Weight = 0.01``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

import msgspec

from protofleet.errors import InputError

MOST = 1e9
"""Of a setting without a bound of its own: beyond, it is a slip or an attack."""
MOST_PASSES = 100_000
"""Of passes over a client's examples, and of iterations."""
MOST_BATCH = 1 << 20
"""Examples per step."""
MOST_LR = 1e6


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the largest number that a setting may be, both included."""

    low: float
    high: float = MOST


Weight = Annotated[float, Bounds(0)]
"""Of a term, from 0."""
Share = Annotated[float, Bounds(0, 1)]
"""A part of a whole."""
LearningRate = Annotated[float, Bounds(0, MOST_LR)]
Count = Annotated[int, Bounds(1)]
"""A whole number from 1."""
Passes = Annotated[int, Bounds(1, MOST_PASSES)]


class Bounded(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record whose numbers are checked by the ``Bounds`` in their types; None has none.

    A table inside another says by ``place`` where it stands, for messages.

    Raises:
        InputError: a number outside its bounds.
    """

    place: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for name, bounds in bounds_of(type(self)).items():
            value = getattr(self, name)
            if value is not None:
                check_range(self.place + name, value, low=bounds.low, high=bounds.high)


@cache
def bounds_of(kind: type[msgspec.Struct]) -> dict[str, Bounds]:
    """The bounds of a record's fields, by name."""
    found: dict[str, Bounds] = {}
    # A record that only gives a field another default keeps its bounds.
    for base in reversed(kind.__mro__[:-1]):
        hints = get_type_hints(base, include_extras=True)
        found |= {name: bounds for name, hint in hints.items() for bounds in _declared(hint)}
    return found


def _declared(hint: Any) -> Iterator[Bounds]:
    for one in get_args(hint):
        if isinstance(one, Bounds):
            yield one
        else:
            yield from _declared(one)


def check_range(name: str, value: float, *, low: float, high: float = MOST) -> None:
    """Raise InputError unless ``low <= value <= high``."""
    if not low <= value <= high:
        huge = isinstance(value, int) and abs(value) >= 2**64
        got = "more than 64 bits" if huge else f"{value}"
        raise InputError(
            f"setting '{name}': expected a number between {low:g} and {high:g}, got {got}"
        )
