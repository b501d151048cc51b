"""An owner's day: when a device is on its charger, elsewhere, in use, offline or switched off.

Each window is drawn for each day and device from a seed; who is late is so on most days.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import numpy as np

from protofleet.errors import InputError

DAY_S, HOUR_S, MINUTE_S = 86_400.0, 3600.0, 60.0
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")


class Condition(StrEnum):
    """What is so within a window."""

    CHARGING = "charging"
    AWAY = "away"
    BUSY = "busy"
    OFFLINE = "offline"
    OFF = "off"


class Window(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of the day in which something is so.

    Attributes:
        at: local time of its begin, ``HH:MM``.
        hours: how long.
        sd_minutes: by how much begin and end vary from owner to owner, and half as much from day
            to day (standard deviation).
        share: of the days on which it is so.
    """

    at: str
    hours: float
    sd_minutes: float = 0.0
    share: float = 1.0

    def __post_init__(self) -> None:
        if not _CLOCK.fullmatch(self.at):
            raise InputError(f"at: expected a time as 22:30, got {self.at!r}")
        if not 0 < self.hours <= 24:
            raise InputError(f"hours: expected more than 0 and at most 24, got {self.hours:g}")
        if self.sd_minutes < 0:
            raise InputError(f"sd_minutes: expected 0 or more, got {self.sd_minutes:g}")
        if not 0 <= self.share <= 1:
            raise InputError(f"share: expected 0 to 1, got {self.share:g}")

    @property
    def start_s(self) -> float:
        """Its begin, in seconds of the day."""
        hours, minutes = self.at.split(":")
        return int(hours) * HOUR_S + int(minutes) * MINUTE_S


class Habits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The windows of an owner's days.

    Attributes:
        charging: on the charger. A device that hangs on the mains needs none.
        away: in its network for elsewhere.
        busy: its owner uses it, so that it is not idle.
        offline: no network at all.
        off: switched off.
    """

    charging: tuple[Window, ...] = ()
    away: tuple[Window, ...] = ()
    busy: tuple[Window, ...] = ()
    offline: tuple[Window, ...] = ()
    off: tuple[Window, ...] = ()


class Change(NamedTuple):
    """A condition begins or ends."""

    at_s: float
    condition: Condition
    begins: bool


def changes(
    habits: Habits,
    days: int,
    seed: tuple[int, ...],
    there_s: tuple[float, float] = (0.0, math.inf),
) -> Iterator[Change]:
    """What changes in so many days, in its order; windows that overlap count as often as they do.

    Args:
        habits: of the owner.
        days: how many, from midnight on; what has begun on the day before is there already.
        seed: of this owner.
        there_s: from when to when the owner takes part at all.
    """
    found = list(_absent(*there_s))
    for number, (condition, window) in enumerate(_windows(habits)):
        rng = np.random.default_rng((*seed, number))
        own = rng.normal(0, 1, 2) * window.sd_minutes * MINUTE_S
        for day in range(-1, days):
            varied = own + rng.normal(0, 1, 2) * window.sd_minutes * MINUTE_S / 2
            begin, end = varied.tolist()
            is_so = rng.random() < window.share
            start = day * DAY_S + window.start_s + begin
            stop = max(start + MINUTE_S, start - begin + window.hours * HOUR_S + end)
            if is_so and stop > 0:
                found.append(Change(max(0.0, start), condition, begins=True))
                found.append(Change(stop, condition, begins=False))
    yield from sorted(found)


def _absent(joins_s: float, leaves_s: float) -> Iterator[Change]:
    """Switched off before an owner joins, and from when they leave."""
    if joins_s > 0:
        yield Change(0.0, Condition.OFF, begins=True)
        yield Change(joins_s, Condition.OFF, begins=False)
    if leaves_s < math.inf:
        yield Change(leaves_s, Condition.OFF, begins=True)


def _windows(habits: Habits) -> Iterator[tuple[Condition, Window]]:
    for condition in Condition:
        for window in getattr(habits, condition.value):
            yield condition, window


_NIGHT = Window(at="22:30", hours=8.25, sd_minutes=60, share=0.92)
_WORK = Window(at="08:15", hours=9.5, sd_minutes=45, share=5 / 7)

HABITS: Mapping[str, Habits] = MappingProxyType(
    {
        "always-on": Habits(),
        "home-board": Habits(
            offline=(Window(at="03:00", hours=0.5, sd_minutes=120, share=0.1),),
            off=(Window(at="10:00", hours=1.0, sd_minutes=180, share=0.03),),
        ),
        "phone": Habits(
            charging=(_NIGHT, Window(at="17:00", hours=1.0, sd_minutes=90, share=0.3)),
            away=(_WORK,),
            busy=(
                Window(at="07:00", hours=0.75, sd_minutes=30),
                Window(at="12:15", hours=0.5, sd_minutes=30),
                Window(at="18:30", hours=2.5, sd_minutes=60),
            ),
            offline=(Window(at="09:00", hours=1.0, sd_minutes=240, share=0.2),),
            off=(Window(at="23:30", hours=7.0, sd_minutes=30, share=0.05),),
        ),
        "watch": Habits(
            charging=(Window(at="21:00", hours=1.5, sd_minutes=60, share=0.95),),
            away=(_WORK,),
            offline=(Window(at="17:45", hours=1.0, sd_minutes=60, share=0.3),),
        ),
    }
)
"""Assumed, not measured: a fleet file says its own where they are known."""
