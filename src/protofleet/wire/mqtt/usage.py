"""What a device tells of itself with every heartbeat: each figure is declared here, and only here.

From the declaration follow the heartbeat's field and the bounds that it is refused by, the columns
of the ledger and of the sightings, how a later value joins an earlier one, and its place in the
results, on the dashboard and in the report. A figure that is added later is optional
(``float | None = None``): a device of an earlier version does not tell it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_type_hints

import msgspec
from msgspec import inspect

from protofleet.units import NOTHING, byte_text

COUNTER_MAX = 2**44
"""16 TiB: more than a device exchanges, or has as memory, in its life."""

Count = Annotated[int, msgspec.Meta(ge=0, le=COUNTER_MAX)]
Merge = Literal["counter", "largest", "last"]


@dataclass(frozen=True, slots=True)
class Shown:
    """How a figure is kept and shown.

    Attributes:
        label: heading, in the words of who reads a table.
        unit: ``bytes``, or the unit as it is written behind the number.
        merge: of an earlier and a later value: ``counter`` never falls, and grows no faster than a
            network carries; of ``largest`` and ``last`` stays what the words say.
    """

    label: str
    unit: str
    merge: Merge


class DeviceUsage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a device has used in all: at its socket since it joined, and of its memory."""

    bytes_up: Annotated[Count, Shown("Sent", "bytes", "counter")]
    bytes_down: Annotated[Count, Shown("Received", "bytes", "counter")]
    peak_rss_bytes: Annotated[Count, Shown("Peak memory", "bytes", "largest")]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFigure:
    """A field of ``DeviceUsage`` as everything that handles all of them alike sees it.

    Attributes:
        name: of the field, and of columns.
        shown: how it is kept and shown.
        whole: whether it is a whole number.
        optional: whether a device may leave it out.
    """

    name: str
    shown: Shown
    whole: bool
    optional: bool

    def of(self, usage: DeviceUsage) -> float | None:
        """Its value; None: not told."""
        value: float | None = getattr(usage, self.name)
        return value

    def counted(self, usage: DeviceUsage) -> float | None:
        """Its value; None: not told, or no byte was counted (browsers do not know their memory)."""
        return (self.of(usage) or None) if self.shown.unit == "bytes" else self.of(usage)

    def text(self, usage: DeviceUsage) -> str:
        """As people read it; ``-`` where nothing was told or counted."""
        value = self.counted(usage)
        if value is None:
            return NOTHING
        return byte_text(value) if self.shown.unit == "bytes" else f"{value:.3g} {self.shown.unit}"

    def merged(self, earlier: float | None, later: float | None) -> float | None:
        """What holds after both."""
        if earlier is None or later is None:
            return later if earlier is None else earlier
        return later if self.shown.merge == "last" else max(earlier, later)


def _figure(name: str, declared: Any) -> UsageFigure:
    told = inspect.type_info(declared)
    kinds = told.types if isinstance(told, inspect.UnionType) else (told,)
    return UsageFigure(
        name=name,
        shown=next(one for one in declared.__metadata__ if isinstance(one, Shown)),
        whole=any(isinstance(kind, inspect.IntType) for kind in kinds),
        optional=any(isinstance(kind, inspect.NoneType) for kind in kinds),
    )


FIGURES = tuple(
    _figure(name, declared)
    for name, declared in get_type_hints(DeviceUsage, include_extras=True).items()
)
"""Of ``DeviceUsage``, in its order."""
_NOTHING: dict[str, Any] = {one.name: None if one.optional else 0 for one in FIGURES}
NO_USAGE = DeviceUsage(**_NOTHING)


def merged(earlier: DeviceUsage, later: DeviceUsage) -> DeviceUsage:
    """What a device has used, as of two reports of it."""
    both: dict[str, Any] = {one.name: one.merged(one.of(earlier), one.of(later)) for one in FIGURES}
    return DeviceUsage(**both)


def usage_of(record: DeviceUsage) -> DeviceUsage:
    """Of a record that has these figures among others, these alone."""
    return DeviceUsage(**{one.name: getattr(record, one.name) for one in FIGURES})
