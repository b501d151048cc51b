"""The file of a rehearsal: which devices there are, with whom they live, and what they join."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from protofleet.edge.owner.policy import Policy
from protofleet.errors import InputError
from protofleet.firmware_sim.world.habits import DAY_S, HABITS, HOUR_S, MINUTE_S, Habits
from protofleet.firmware_sim.world.hardware import HARDWARE, Hardware
from protofleet.firmware_sim.world.network import NETWORKS, Network
from protofleet.settings import explain, read_toml

_T = TypeVar("_T")
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
_MOST_DEVICES, _MOST_DAYS = 100_000, 366
_PAGE = "docs/rehearse.md"


class DeviceGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Devices of a kind; their owners differ.

    Attributes:
        name: of the group, and with a number behind it of its devices.
        count: how many.
        hardware: key of ``[hardware]``, or one of ours.
        network: where it is at home: key of ``[networks]``, or one of ours.
        away: elsewhere; empty: no network there.
        habits: key of ``[habits]``, or one of ours.
        policy: its owners' conditions, as in a device's ``policy.toml``.
        keepalive_s: MQTT keep-alive: after so long an idle connection is used.
        joins_d: first and last day on which one of them joins; days count from the start.
        leaves_d: first and last day on which one stops for good; absent: none does.
        wrong_labels: share of each owner's training labels that are drawn at random.
    """

    name: str
    count: int
    hardware: str
    network: str = "home-wifi"
    away: str = ""
    habits: str = "always-on"
    policy: Policy = Policy()
    keepalive_s: float = 30.0
    joins_d: tuple[float, float] = (0.0, 0.0)
    leaves_d: tuple[float, float] | None = None
    wrong_labels: float = 0.0

    def __post_init__(self) -> None:
        for name in ("joins_d", "leaves_d"):
            days = getattr(self, name)
            if days is not None and not 0 <= days[0] <= days[1]:
                raise InputError(f"{name}: expected days that ascend from 0, got {list(days)}")
        if not 0 <= self.wrong_labels <= 1:
            raise InputError(f"wrong_labels: expected 0 to 1, got {self.wrong_labels:g}")
        if not 1 <= self.keepalive_s <= 65_535:
            raise InputError(f"keepalive_s: expected 1 to 65535, got {self.keepalive_s:g}")
        if not 1 <= self.count <= _MOST_DEVICES:
            raise InputError(f"count: expected 1 to {_MOST_DEVICES}, got {self.count}")


class RehearsalFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fleet to rehearse.

    Attributes:
        federation: the coordinator's file: rounds, strategy, cohort, deadline, codec.
        data: folder with an ``.npz`` for each owner; devices get them in turn.
        groups: the devices.
        days: how long.
        start: local time at which the coordinator starts, ``HH:MM``.
        seed: of owners' days.
        target: score that counts as good enough (as ``stop.target``); None: none does.
        step_s: what an example costs this machine in a local round (seconds); None: measured.
        hardware, networks, habits: further kinds, by the names that groups give them.
    """

    federation: Path
    data: Path
    groups: tuple[DeviceGroup, ...]
    days: float = 14.0
    start: str = "08:00"
    seed: int = 0
    target: float | None = None
    step_s: float | None = None
    hardware: dict[str, Hardware] = {}
    networks: dict[str, Network] = {}
    habits: dict[str, Habits] = {}

    def __post_init__(self) -> None:
        if not 0 < self.days <= _MOST_DAYS:
            raise InputError(f"days: expected more than 0 up to {_MOST_DAYS}, got {self.days:g}")
        if not _CLOCK.fullmatch(self.start):
            raise InputError(f"start: expected a time as 08:00, got {self.start!r}")
        if self.step_s is not None and self.step_s <= 0:
            raise InputError(f"step_s: expected seconds above 0, got {self.step_s:g}")
        if not self.groups:
            raise InputError("groups: expected at least one, got none")
        names = [group.name for group in self.groups]
        for group in self.groups:
            if names.count(group.name) > 1:
                raise InputError(f"groups: the name '{group.name}' occurs twice")
            self.hardware_of(group)
            self.network_named(group.network)
            self.network_named(group.away)
            self.habits_of(group)
        if (total := sum(group.count for group in self.groups)) > _MOST_DEVICES:
            raise InputError(f"groups: expected at most {_MOST_DEVICES} devices, got {total}")

    def hardware_of(self, group: DeviceGroup) -> Hardware:
        """The group's kind of device."""
        return _named("hardware", group.hardware, {**HARDWARE, **self.hardware})

    def network_named(self, name: str) -> Network | None:
        """A network; None for the empty name."""
        return _named("network", name, {**NETWORKS, **self.networks}) if name else None

    def habits_of(self, group: DeviceGroup) -> Habits:
        """How the group's owners live."""
        return _named("habits", group.habits, {**HABITS, **self.habits})

    @property
    def start_s(self) -> float:
        """Seconds from midnight to the start."""
        hours, minutes = self.start.split(":")
        return int(hours) * HOUR_S + int(minutes) * MINUTE_S

    @property
    def end_s(self) -> float:
        """Seconds from that midnight to the end."""
        return self.start_s + self.days * DAY_S

    def devices(self) -> dict[str, DeviceGroup]:
        """Each device's group, by the device's name."""
        return {
            f"{group.name}-{number:0{len(str(group.count))}}": group
            for group in self.groups
            for number in range(1, group.count + 1)
        }


def _named(what: str, name: str, known: Mapping[str, _T]) -> _T:
    if name not in known:
        raise InputError(f"{what}: expected one of {', '.join(sorted(known))}, got '{name}'")
    return known[name]


def load_rehearsal(path: Path) -> RehearsalFile:
    """Read the file; relative paths in it start at its own folder.

    Raises:
        InputError: not readable, not TOML, an unknown key, or a value that cannot be.
    """
    folder = path.resolve().parent

    def to_path(kind: type, value: Any) -> Any:
        if kind is Path and isinstance(value, str):
            return folder / value
        raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")

    try:
        values = read_toml(path)
        return msgspec.convert(values, RehearsalFile, dec_hook=to_path)
    except FileNotFoundError as error:
        raise InputError(
            f"fleet file {path}: {error.strerror}; 'protofleet fleet init' writes one"
        ) from error
    except OSError as error:
        raise InputError(f"fleet file {path}: {error.strerror}") from error
    except msgspec.ValidationError as error:
        wrong = explain(error, RehearsalFile, values)
        raise InputError(f"fleet file {path}: {wrong}; see {_PAGE}") from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InputError(f"fleet file {path}: {error}; see {_PAGE}") from error
    except InputError as error:
        raise InputError(f"fleet file {path}: {error}; see {_PAGE}") from error


def owners_of(file: RehearsalFile) -> dict[str, Path]:
    """Each device's data.

    Raises:
        InputError: the folder has none.
    """
    found = sorted(file.data.glob("*.npz")) if file.data.is_dir() else []
    found = [path for path in found if path.name != "pooled.npz"]
    if not found:
        raise InputError(
            f"data '{file.data}': expected a folder with an .npz for each owner, as 'protofleet "
            "device prepare' writes them, found none"
        )
    return {name: found[number % len(found)] for number, name in enumerate(file.devices())}
