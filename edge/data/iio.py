"""Sensors that the Linux kernel drives, by its Industrial I/O files, read at a rate.

``/sys/bus/iio/devices/iio:device0/in_accel_x_raw`` and its like; value = (raw + offset) · scale, in
the units of the kernel's Documentation/ABI/testing/sysfs-bus-iio. A mounting matrix, where there is
one, turns the axes of the part into those of the board.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protofleet.edge.data.termux import Reading
from protofleet.errors import InputError, MissingDataError

ROOT = Path("/sys/bus/iio/devices")
_VALUE = re.compile(r"in_(?P<kind>[a-z]+\d*?)(?:_(?P<axis>[xyz]))?_(?P<form>raw|input)")
_AXES = ("x", "y", "z")
_UNITS: Mapping[str, tuple[str, float]] = {
    "accel": ("m/s²", 1.0),
    "anglvel": ("rad/s", 1.0),
    "magn": ("G", 1.0),
    "temp": ("°C", 1e-3),
    "humidityrelative": ("%", 1e-3),
    "pressure": ("kPa", 1.0),
    "illuminance": ("lux", 1.0),
    "proximity": ("", 1.0),
}
"""By kind: the unit that is told, and how many of it the kernel's is."""
_MOST_FAILURES = 100
"""Readings in a row that a bus may fail to give."""


@dataclass(frozen=True, slots=True)
class _File:
    """A value, and how to read it."""

    path: Path
    offset: float
    scale: float

    def read(self) -> float:
        """Raise OSError where the sensor does not answer, ValueError where that is no number."""
        return (float(self.path.read_text()) + self.offset) * self.scale


@dataclass(frozen=True, slots=True)
class IioSensor:
    """Values that belong together.

    Attributes:
        name: as a person asks for it: ``accel``, or with its device ``lsm6ds3_accel:accel``.
        unit: of the values; '': none is known.
        axes: a name for each value; '' of the only one.
    """

    name: str
    unit: str
    axes: tuple[str, ...]
    _files: tuple[_File, ...]
    _matrix: NDArray[np.float64] | None = None

    def read(self) -> tuple[float, ...]:
        """Its values now; raises as ``_File.read``."""
        values = [one.read() for one in self._files]
        if self._matrix is not None and len(values) == len(_AXES):
            values = (self._matrix @ values).tolist()
        return tuple(values)


def iio_sensors(root: Path) -> dict[str, IioSensor]:
    """All sensors: by their kind and their device, and the first of a kind by that alone."""
    found: dict[str, IioSensor] = {}
    for device in sorted(root.glob("iio:device*")) if root.is_dir() else []:
        name = _text(device / "name") or device.name
        for kind, places in _values(device).items():
            for called in (f"{name}:{kind}", kind):
                found.setdefault(called, _sensor(device, called, kind, places))
    return found


def chosen_sensors(names: Sequence[str], root: Path) -> tuple[IioSensor, ...]:
    """The sensors of these names.

    Raises:
        MissingDataError: the machine has no such devices at all.
        InputError: one is none of them.
    """
    known = iio_sensors(root)
    if not known:
        raise MissingDataError(
            f"sensors: expected devices in {root}, found none; the sensor's driver has to be "
            "loaded, on a Raspberry Pi by a dtoverlay line in /boot/firmware/config.txt "
            "(docs/raspberry-pi.md)"
        )
    for name in names:
        if name not in known:
            raise InputError(f"--iio {name}: expected one of {', '.join(known)}")
    return tuple(known[name] for name in names)


def read_iio(
    sensors: Sequence[IioSensor],
    rate_hz: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> Iterator[Reading]:
    """A reading of all sensors at each tick of the rate; ticks that are missed are left out.

    Args:
        sensors: in the order of the values.
        rate_hz: how many a second.
        clock: wall clock, seconds.
        sleep: waits so many seconds.

    Raises:
        InputError: the sensors have not answered for long.
    """
    step, due, failures = 1.0 / rate_hz, clock(), 0
    while True:
        now = clock()
        if now < due:
            sleep(due - now)
        else:
            due = now - math.fmod(now - due, step)
        due += step
        time_s = clock()
        try:
            values = tuple(value for one in sensors for value in one.read())
        except (OSError, ValueError) as error:
            failures += 1
            if failures >= _MOST_FAILURES:
                reason = f"{failures} times in a row no answer ({error})"
                raise InputError(f"sensors: {reason}") from error
            continue
        failures = 0
        yield Reading(time_s, values)


def _values(device: Path) -> dict[str, dict[str, Path]]:
    """By kind, the file of each axis; '' of what has none."""
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(device.glob("in_*")):
        named = _VALUE.fullmatch(path.name)
        if named is not None:
            places = found.setdefault(named["kind"], {})
            places.setdefault(named["axis"] or "", path)
    return found


def _sensor(device: Path, name: str, kind: str, places: Mapping[str, Path]) -> IioSensor:
    axes = tuple(axis for axis in _AXES if axis in places) or ("",)
    unit, factor = _UNITS.get(kind, ("", 1.0))
    files = tuple(_file(device, kind, places[axis], axis, factor) for axis in axes)
    return IioSensor(name, unit, axes, files, _matrix(device, kind))


def _file(device: Path, kind: str, path: Path, axis: str, factor: float) -> _File:
    if path.name.endswith("_input"):  # is scaled already
        return _File(path, 0.0, factor)

    def of(what: str, otherwise: float) -> float:
        for name in (f"in_{kind}_{axis}_{what}", f"in_{kind}_{what}"):
            text = _text(device / name)
            if text:
                return float(text)
        return otherwise

    return _File(path, of("offset", 0.0), of("scale", 1.0) * factor)


def _matrix(device: Path, kind: str) -> NDArray[np.float64] | None:
    """``x1, y1, z1; x2, …`` of the board; None: the axes are as they are."""
    for name in (f"in_{kind}_mount_matrix", "in_mount_matrix", "mount_matrix"):
        rows = [row.split(",") for row in _text(device / name).split(";")]
        if [len(row) for row in rows] == [3, 3, 3]:
            return np.array(rows, np.float64)
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
