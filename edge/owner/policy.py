"""When a device may take part: what its owner asks for, against what the platform tells.

The words of the conditions are those that travel (``held`` of a presence, docs/protocol.md).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from protofleet.errors import InputError
from protofleet.settings import explain, read_toml

POLICY_FILE = "policy.toml"
"""In a device's store; it is the owner's, and stays when the store begins anew."""
ASKABLE = frozenset({"charging", "network", "idle", "battery", "temperature"})
"""Conditions that a platform is asked about."""
MB = 1_000_000
Use = Literal["auto", "personal", "head", "bundle"]
"""Which model an owner is served; ``auto``: the gate says."""
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
_MINUTES_A_DAY = 24 * 60


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``policy.toml`` in a device's store; every key may be left out.

    Attributes:
        only_charging: train only while external power is there.
        only_unmetered: transfer and train only in a network that costs nothing by volume.
        only_idle: train only while other programs leave the processor alone.
        least_battery_percent: charge below which nothing is trained.
        most_temperature_c: temperature in °C above which nothing is trained.
        quiet_hours: ``HH:MM-HH:MM`` of local time in which nothing is trained; may pass midnight.
        data_per_day_mb, data_per_month_mb: megabytes (10⁶) in both directions, headers included,
            by the device's own calendar.
        unknown: whether a condition that the platform does not tell allows or forbids.
        use: the model that answers, whatever helps; ``auto``: what does
            (``federation.outcomes.gate``). Training is the same.
    """

    only_charging: bool = False
    only_unmetered: bool = False
    only_idle: bool = False
    least_battery_percent: float | None = None
    most_temperature_c: float | None = None
    quiet_hours: tuple[str, ...] = ()
    data_per_day_mb: float | None = None
    data_per_month_mb: float | None = None
    unknown: Literal["allow", "forbid"] = "allow"
    use: Use = "auto"

    def __post_init__(self) -> None:
        ranges = {
            "least_battery_percent": (0, 100, "0 to 100 per cent"),
            "most_temperature_c": (-40, 150, "-40 to 150 °C"),
            "data_per_day_mb": (0, 1e9, "megabytes from 0"),
            "data_per_month_mb": (0, 1e9, "megabytes from 0"),
        }
        for name, (low, high, expected) in ranges.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ValueError(f"`{name}`: expected {expected}, got {value!r}")
        for text in self.quiet_hours:
            _span(text)

    @property
    def asked(self) -> frozenset[str]:
        """Conditions that the platform is asked about."""
        asked = {
            "charging": self.only_charging,
            "network": self.only_unmetered,
            "idle": self.only_idle,
            "battery": self.least_battery_percent is not None,
            "temperature": self.most_temperature_c is not None,
        }
        return frozenset(name for name, wanted in asked.items() if wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """What the platform tells; None: it does not.

    Attributes:
        charging: whether external power is there.
        unmetered: whether the network costs nothing by volume.
        idle: whether other programs leave the processor alone.
        battery_percent: charge.
        temperature_c: of the hottest part that is measured.
    """

    charging: bool | None = None
    unmetered: bool | None = None
    idle: bool | None = None
    battery_percent: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The device's own figures at a moment.

    Attributes:
        minute: of the local day.
        day_bytes, month_bytes: what was sent and received in the local day and month.
        round_bytes: what a round more is expected to take.
    """

    minute: int = 0
    day_bytes: int = 0
    month_bytes: int = 0
    round_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Unmet:
    """A condition that holds the device: its word, and a sentence for the owner."""

    condition: str
    reason: str


NO_TRANSFER = frozenset({"network", "data-per-day", "data-per-month"})
"""Conditions under which nothing is sent or fetched either, not even what is finished."""


def unmet_conditions(policy: Policy, platform: Platform, moment: Moment) -> tuple[Unmet, ...]:
    """What forbids that the device takes part now, in a fixed order; empty: it may."""
    found = [*_of_platform(policy, platform), *_of_data(policy, moment)]
    for text in policy.quiet_hours:
        if _within(_span(text), moment.minute):
            found.append(Unmet("quiet-hours", f"quiet hours {text}"))
            break
    return tuple(found)


def untold(policy: Policy, platform: Platform) -> tuple[str, ...]:
    """Conditions that are asked for and that the platform does not tell, in ascending order."""
    told = {
        "charging": platform.charging,
        "network": platform.unmetered,
        "idle": platform.idle,
        "battery": platform.battery_percent,
        "temperature": platform.temperature_c,
    }
    return tuple(sorted(name for name in policy.asked if told[name] is None))


def _of_platform(policy: Policy, platform: Platform) -> list[Unmet]:
    charge, heat = platform.battery_percent, platform.temperature_c
    least, most = policy.least_battery_percent, policy.most_temperature_c
    checks: dict[str, tuple[bool | None, str]] = {
        "charging": (platform.charging, "not charging"),
        "network": (platform.unmetered, "the network is metered"),
        "battery": (
            None if charge is None or least is None else charge >= least,
            f"battery at {_number(charge)} %, at least {_number(least)} % are asked for",
        ),
        "temperature": (
            None if heat is None or most is None else heat <= most,
            f"{_number(heat)} °C, at most {_number(most)} °C are allowed",
        ),
        "idle": (platform.idle, "other programs use the processor"),
    }
    found = []
    for name, (met, reason) in checks.items():
        if name not in policy.asked or met or (met is None and policy.unknown == "allow"):
            continue
        text = (
            reason if met is False else f"the platform does not tell '{name}', which is asked for"
        )
        found.append(Unmet(name, text))
    return found


def _of_data(policy: Policy, moment: Moment) -> list[Unmet]:
    limits = (
        ("data-per-day", policy.data_per_day_mb, moment.day_bytes, "today"),
        ("data-per-month", policy.data_per_month_mb, moment.month_bytes, "this month"),
    )
    return [
        Unmet(
            name,
            f"{used / MB:.1f} of {limit:g} MB are used {when}, a round takes "
            f"{moment.round_bytes / MB:.1f} MB",
        )
        for name, limit, used, when in limits
        if limit is not None and (used >= limit * MB or used + moment.round_bytes > limit * MB)
    ]


def _span(text: str) -> tuple[int, int]:
    matched = _HOURS.fullmatch(text)
    if matched is None:
        raise ValueError(f"`quiet_hours`: expected hours as 22:00-07:00, got {text!r}")
    hours, minutes, end_hours, end_minutes = map(int, matched.groups())
    start, end = 60 * hours + minutes, 60 * end_hours + end_minutes
    if start == end:
        raise ValueError(f"`quiet_hours`: expected two different times, got {text!r}")
    return start, end


def _within(span: tuple[int, int], minute: int) -> bool:
    start, end = span
    return (minute - start) % _MINUTES_A_DAY < (end - start) % _MINUTES_A_DAY


def _number(value: float | None) -> str:
    return "?" if value is None or not math.isfinite(value) else f"{value:g}"


def read_policy(path: Path, over: Mapping[str, Any]) -> Policy:
    """The policy in a file, if it is there, with what a command line says in its place.

    Raises:
        InputError: not readable, not TOML, an unknown key, or a value that cannot be.
    """
    try:
        values = read_toml(path) if path.exists() else {}
        return msgspec.convert({**values, **over}, Policy)
    except OSError as error:
        raise InputError(f"policy '{path}': {error.strerror}") from error
    except msgspec.ValidationError as error:
        wrong = explain(error, Policy, {**values, **over})
        raise InputError(f"policy '{path}': {wrong}; see docs/device.md") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InputError(f"policy '{path}': {error}; see docs/device.md") from error
