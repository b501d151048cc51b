"""What a device's platform tells of power, network, load and heat.

Linux tells in ``/sys`` and ``/proc``; where UPower or NetworkManager run, systemd's ``busctl`` asks
them; on Android, Termux:API's commands answer in JSON. What none of them tells is None. Other
programs' texts are read as what they are, foreign: whatever is not as expected tells nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from protofleet.edge.owner.policy import Platform

ANSWER_S = 5.0
"""For a program's answer; Termux:API wakes an app."""
BUSY_SHARE = 0.25
"""Of all processors' time; with more of it used by others the device is not idle."""
_MOST_CHARS = 64 * 1024
_TERMUX = "/data/data/com.termux/files/usr/bin"
"""Where Android's programs are, also seen from a Debian within Termux."""
_PLAUSIBLE_C = range(-40, 151)
"""Sensors that are broken or not there tell 0 K, 65 535 and the like."""
_PLUGGED = {"PLUGGED_AC", "PLUGGED_USB", "PLUGGED_WIRELESS", "PLUGGED_DOCK"}
_UPOWER = ("org.freedesktop.UPower", "/org/freedesktop/UPower", "org.freedesktop.UPower")
_DISPLAY = (
    "org.freedesktop.UPower",
    "/org/freedesktop/UPower/devices/DisplayDevice",
    "org.freedesktop.UPower.Device",
)
_NETWORK = (
    "org.freedesktop.NetworkManager",
    "/org/freedesktop/NetworkManager",
    "org.freedesktop.NetworkManager",
)
_METERED = {"1": False, "2": True, "3": False, "4": True}
"""NetworkManager's NMMetered: yes, no, guessed yes, guessed no."""
_CELLULAR = ("wwan", "ppp", "rmnet")

Run = Callable[[tuple[str, ...]], str]
"""Runs a program; what it printed, or "" where it is not there, failed or took too long."""


def run_program(command: tuple[str, ...]) -> str:
    """``Run`` on this machine."""
    program = shutil.which(command[0]) or shutil.which(command[0], path=_TERMUX)
    if program is None:
        return ""
    command = (program, *command[1:])
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return "" if done.returncode else done.stdout[:_MOST_CHARS]


class PlatformReader:
    """Reads what is asked for, and nothing else.

    Args:
        root: where ``sys`` and ``proc`` are.
        run: runs programs.
        own_cpu_s: processor time that this process and its children have used.
    """

    def __init__(
        self,
        root: Path = Path("/"),
        run: Run = run_program,
        own_cpu_s: Callable[[], float] | None = None,
    ) -> None:
        self._root, self._run = root, run
        self._own_cpu_s = own_cpu_s or _own_cpu_s
        self._cpu_before: tuple[float, float, float] | None = None

    def read(self, asked: frozenset[str]) -> Platform:
        """What the platform tells of the asked conditions (words as in ``Policy.asked``)."""
        charging: bool | None = None
        battery: float | None = None
        heat: float | None = None
        if asked & {"charging", "battery"}:
            charging, battery = self._power()
        phone: dict[str, Any] = {}
        power_lacks = (charging is None and "charging" in asked) or (
            battery is None and "battery" in asked
        )
        if "temperature" in asked:
            heat = self._zones()
        if power_lacks or ("temperature" in asked and heat is None):
            phone = self._asked_phone("termux-battery-status")
        if power_lacks:
            elsewhere = self._power_of(phone) if phone else self._power_of_upower()
            charging = elsewhere[0] if charging is None else charging
            battery = elsewhere[1] if battery is None else battery
        return Platform(
            charging=charging,
            battery_percent=battery,
            temperature_c=_number(phone.get("temperature")) if heat is None else heat,
            unmetered=self._unmetered() if "network" in asked else None,
            idle=self._idle() if "idle" in asked else None,
        )

    def _power(self) -> tuple[bool | None, float | None]:
        """Whether power comes in, and the fullest battery's charge, by the kernel."""
        charging: bool | None = None
        charges: list[float] = []
        for supply in _folders(self._root / "sys/class/power_supply"):
            if _text(supply / "scope") == "Device":
                continue  # a mouse's battery, and the like
            if _text(supply / "type") == "Battery":
                status = _text(supply / "status")
                if status in {"Charging", "Full", "Not charging"}:
                    charging = True  # "Not charging" is: plugged in, and kept from being overfull
                elif status == "Discharging" and charging is None:
                    charging = False
                if (charge := _number(_text(supply / "capacity"))) is not None:
                    charges.append(charge)
            elif (online := _text(supply / "online")) in {"0", "1", "2"}:
                charging = charging or online != "0"
        return charging, max(charges, default=None)

    @staticmethod
    def _power_of(phone: dict[str, Any]) -> tuple[bool | None, float | None]:
        plugged = phone.get("plugged")
        charging = plugged in _PLUGGED if isinstance(plugged, str) else None
        return charging, _number(phone.get("percentage"))

    def _power_of_upower(self) -> tuple[bool | None, float | None]:
        on_battery = self._property(_UPOWER, "OnBattery")
        present = self._property(_DISPLAY, "IsPresent") == "true"
        charge = _number(self._property(_DISPLAY, "Percentage")) if present else None
        return {"true": False, "false": True}.get(on_battery), charge

    def _zones(self) -> float | None:
        """The hottest thermal zone in °C."""
        zones = _folders(self._root / "sys/class/thermal", "thermal_zone*")
        found = (_number(_text(zone / "temp")) for zone in zones)
        celsius = [one / 1000 for one in found if one is not None]
        return max((one for one in celsius if round(one) in _PLAUSIBLE_C and one), default=None)

    def _unmetered(self) -> bool | None:
        told = _METERED.get(self._property(_NETWORK, "Metered"))
        if told is not None:
            return told
        wifi = self._asked_phone("termux-wifi-connectioninfo")
        if wifi:
            return wifi.get("supplicant_state") == "COMPLETED"
        # A modem is metered as a rule; of cables and Wi-Fi the kernel knows nothing.
        return False if self._default_interface().startswith(_CELLULAR) else None

    def _default_interface(self) -> str:
        """Of the default route with the smallest metric."""
        rows = [line.split() for line in _text(self._root / "proc/net/route").splitlines()[1:]]
        routes = [
            (int(row[6]), row[0])
            for row in rows
            if len(row) > 7 and row[1] == "00000000" and row[7] == "00000000" and row[6].isdecimal()
        ]
        return min(routes, default=(0, ""))[1]

    def _idle(self) -> bool | None:
        """Whether others used little of the processors since the last look.

        At the first look: over the last minute, by the load.
        """
        fields = _text(self._root / "proc/stat").partition("\n")[0].split()[1:]
        try:
            ticks = [int(field) for field in fields[:8]]
        except ValueError:
            return None
        if len(ticks) < 8:
            return None
        hertz = os.sysconf("SC_CLK_TCK")
        total, rest = sum(ticks) / hertz, (ticks[3] + ticks[4]) / hertz
        now = total, total - rest, self._own_cpu_s()
        before, self._cpu_before = self._cpu_before, now
        if before is None:
            return self._idle_by_load()
        elapsed = now[0] - before[0]
        if elapsed <= 0:
            return None
        others = (now[1] - before[1]) - (now[2] - before[2])
        return others / elapsed < BUSY_SHARE

    def _idle_by_load(self) -> bool | None:
        load = _number(_text(self._root / "proc/loadavg").partition(" ")[0])
        return None if load is None else load / (os.cpu_count() or 1) < BUSY_SHARE

    def _property(self, of: tuple[str, str, str], name: str) -> str:
        """A property over D-Bus as ``busctl`` prints its value, without its type; "": untold."""
        told = self._run(("busctl", "--system", "get-property", *of, name))
        return told.strip().partition(" ")[2]

    def _asked_phone(self, command: str) -> dict[str, Any]:
        """A Termux:API command's object; empty where there is none."""
        try:
            told = json.loads(self._run((command,)) or "{}")
        except (ValueError, RecursionError):
            return {}
        return told if isinstance(told, dict) else {}


def _own_cpu_s() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def local_minute(now: time.struct_time) -> int:
    """Of the day."""
    return 60 * now.tm_hour + now.tm_min


def _folders(parent: Path, pattern: str = "*") -> Iterator[Path]:
    try:
        yield from sorted(parent.glob(pattern))
    except OSError:
        return


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if -1e9 < number < 1e9 else None
