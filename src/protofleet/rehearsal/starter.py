"""A fleet file to begin with."""

from __future__ import annotations

from collections.abc import Sequence

from protofleet.errors import InputError
from protofleet.firmware_sim.world.hardware import HARDWARE, HostSpeed

_HABITS = {"phone-high": "phone", "phone-low": "phone", "watch": "watch"}
_NETWORKS = {"phone-high": "home-wifi", "phone-low": "home-wifi", "watch": "bluetooth"}
_AWAY = {"phone-high": "cellular", "phone-low": "cellular", "watch": "bluetooth"}


def fleet_toml(
    *, federation: str, data: str, kinds: Sequence[tuple[str, int]], days: float, metered: bool
) -> str:
    """The file's text.

    Args:
        federation: path of the coordinator's file.
        data: folder of the owners' data.
        kinds: kinds of device, and how many of each.
        days: to rehearse.
        metered: whether what is carried trains by a network that costs, too.

    Raises:
        InputError: an unknown kind.
    """
    for kind, _ in kinds:
        if kind not in HARDWARE:
            raise InputError(f"hardware: expected one of {', '.join(HARDWARE)}, got '{kind}'")
    groups = "".join(_group(kind, count, metered=metered) for kind, count in kinds)
    return f"""\
# What a fleet will cost and bring: protofleet rehearse THIS_FILE (docs/rehearse.md)
federation = "{federation}"   # the coordinator's: rounds, strategy, cohort, deadline, codec
data = "{data}"   # an .npz for each owner; devices get them in turn
days = {days:g}
start = "08:00"   # local time at which the coordinator starts
seed = 0   # of owners' days
# target = 0.85   # a score that is good enough: after how many days?
{groups}
# A processor of yours, measured or known; groups name it:
# [hardware.my-board]
# speed = {{low = 0.9, likely = 1.0, high = 1.2}}   # as a multiple of a Raspberry Pi 4's
# memory_mb = 1024
# train_w = {{low = 0.5, likely = 0.8, high = 1.2}}   # of a busy core
# idle_w = 1.5
# battery_wh = 20.0   # leave it out on the mains
# charge_w = 10.0

# Owners whose days you know:
# [habits.night-shift]
# charging = [{{at = "09:00", hours = 7.0, sd_minutes = 45, share = 0.95}}]
# away = [{{at = "21:00", hours = 9.0}}]
"""


def _group(kind: str, count: int, *, metered: bool) -> str:
    """Boards hang on the mains, what is carried charges at night."""
    is_carried = kind in _HABITS
    lines = [
        "\n[[groups]]",
        f'name = "{kind}"',
        f"count = {count}",
        f'hardware = "{kind}"',
        f'network = "{_NETWORKS.get(kind, "home-wifi")}"',
        f'habits = "{_HABITS.get(kind, "home-board")}"',
    ]
    if is_carried:
        lines += [
            f'away = "{_AWAY[kind]}"   # leave it out: no network there, and a radio that sleeps',
            "policy = {only_charging = true}"
            if metered
            else "policy = {only_charging = true, only_unmetered = true}",
        ]
    return "\n".join(lines) + "\n"


def hardware_toml(name: str, host: HostSpeed, memory_mb: int) -> str:
    """This machine as a kind of device; what no program can measure is left to its owner."""
    speed = host.speed
    return f"""
[hardware.{name}]
speed = {{low = {speed.low:.3g}, likely = {speed.likely:.3g}, high = {speed.high:.3g}}}
memory_mb = {memory_mb}
train_w = {{low = 0.3, likely = 1.0, high = 2.0}}   # of a busy core: not measured, yours to say
idle_w = 1.0   # not measured
source = "measured: {host.primes:.0f} passes of primes, {host.gflops:.3g} GFLOPS"
"""
