"""Columns of a table by what their names mean: channels, labels, times.

Names are compared by their words, whatever their case, order and marks, and by what they are short
for: ``Acceleration x (m/s^2)`` and ``acc_x`` are one. What fits is told; where several columns fit
a channel none does. Accelerations and rotations whose columns name their unit are brought to that
of the bundle, which says it (``Preprocessing.units``) or whose mean and std tell which that is.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from protofleet.bundle.manifest import Manifest, Preprocessing
from protofleet.edge.data.sample_times import SECONDS

_log = logging.getLogger(__name__)

LABEL = "label"
"""The column of classes."""
_LABELS = frozenset({"label", "labels", "activity", "class"})
_SHORT = {
    "acc": "acc",
    "accel": "acc",
    "acceleration": "acc",
    "accelerometer": "acc",
    "accelerations": "acc",
    "gyr": "gyro",
    "gyro": "gyro",
    "gyroscope": "gyro",
    "mag": "mag",
    "magnetic": "mag",
    "magnetometer": "mag",
    "heartrate": "hr",
    "temp": "temperature",
}
"""What words of channels' names are short for."""
_SENSORS = frozenset(_SHORT.values()) | {
    *("gravity", "orientation", "rotation", "pressure", "barometer", "altitude", "microphone"),
    *("location", "gps", "pedometer", "proximity", "humidity"),
    *("eda", "bvp", "ibi", "ppg", "ecg", "emg", "eeg", "eog", "resp", "spo2"),
}
"""What a file may be named after."""
_TIMES = frozenset({"time", "timestamp", "datetime", "date", "elapsed", "t", "epoch", "unixtime"})
_UNITS_S = {
    "s": 1.0,
    "sec": 1.0,
    "secs": 1.0,
    "second": 1.0,
    "seconds": 1.0,
    "ms": 1e-3,
    "msec": 1e-3,
    "millis": 1e-3,
    "milliseconds": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "microseconds": 1e-6,
    "ns": 1e-9,
    "nanoseconds": 1e-9,
}
"""Seconds of the units that a column of times may name."""
_G = 9.80665
_DEGREE = math.pi / 180
_ACCELERATIONS = {
    **dict.fromkeys(("m/s^2", "m/s²", "m/s2", "ms^-2", "ms-2", "m s-2", "m/s/s"), 1.0),
    "g": _G,
    "mg": _G / 1000,
}
_ROTATIONS = {
    **dict.fromkeys(("rad/s", "rad s-1"), 1.0),
    **dict.fromkeys(("deg/s", "°/s", "dps", "deg s-1"), _DEGREE),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quantity:
    """What channels with such names measure.

    ``units``: how long each is in the quantity's own; ``small`` and ``large``: the two that a
    bundle may have, the first where the vector is shorter than ``most_of_small``.
    """

    named: re.Pattern[str]
    units: Mapping[str, float]
    small: float
    large: float
    most_of_small: float


_QUANTITIES = (
    _Quantity(
        named=re.compile("gyr|rot|angular|^g.?[xyz]$", re.IGNORECASE),
        units=_ROTATIONS,
        small=1.0,
        large=_DEGREE,
        most_of_small=12.0,
    ),
    _Quantity(
        named=re.compile("(lin|body|user).*acc|acc.*(lin|body|user)", re.IGNORECASE),
        units=_ACCELERATIONS,
        small=_G,
        large=1.0,
        most_of_small=1.0,
    ),
    _Quantity(
        named=re.compile("acc|^a.?[xyz]$", re.IGNORECASE),
        units=_ACCELERATIONS,
        small=_G,
        large=1.0,
        most_of_small=4.0,
    ),
)
"""As of ``src/web/src/intake/motion.ts``."""
_AXES = frozenset("xyz")
_DIMENSIONS = 3
_AT_REST = 0.3
"""Of gravity, at least, in the mean of accelerations that have it."""
_MOST_LETTERS = 200
"""Of a name that means anything."""
_UNIT = re.compile(r"[(\[](?P<unit>[^)\]]*)[)\]]\s*$")
_WORD = re.compile(r"[A-ZÀ-ÖØ-Þ]?[a-zµß-öø-ÿ]+|[A-ZÀ-ÖØ-Þ]+(?![a-zß-öø-ÿ])|\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeColumn:
    """A column that tells when rows were sampled.

    Attributes:
        name: of the column.
        unit_s: seconds of its unit; None: its name does not say.
        is_given: whether a person has named it, and so knows what it holds.
    """

    name: str
    unit_s: float | None
    is_given: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Gravity:
    """Accelerations whose length at rest is that of gravity, which tells their unit.

    Attributes:
        channels: of the three axes.
        unit: of the bundle's, in m/s².
    """

    channels: tuple[str, ...]
    unit: float

    def factor(self, vectors: NDArray[np.float64]) -> tuple[str, float] | None:
        """The unit that readings seem to have, and by what they become the bundle's; None: alike.

        Args:
            vectors: ``(n, 3)``, all finite.
        """
        length = float(np.median(np.linalg.norm(vectors, axis=1)))
        # Between 1 g and 9.8 m/s² in the mean of their ratios.
        name, own = ("g", _G) if length < math.sqrt(_G) else ("m/s²", 1.0)
        return None if math.isclose(own, self.unit) else (name, own / self.unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What the columns of a table are.

    Attributes:
        names: of all, the bundle's own for those that mean its channels or classes.
        factors: by which the numbers of a channel are multiplied; of the others 1.
        time: the one that tells when rows were sampled; None: there is none, or no single one.
        gravity: the three channels of accelerations whose columns name no unit, in a bundle whose
            own is known; None: there are none.
    """

    names: list[str]
    factors: Mapping[str, float] = field(default_factory=dict)
    time: TimeColumn | None = None
    gravity: Gravity | None = None


def columns_of(  # noqa: PLR0913 - what is known of a table, each by its name
    header: Sequence[str],
    manifest: Manifest,
    where: str,
    *,
    time: str | None = None,
    is_timed: bool = True,
    named: str = "",
) -> Columns:
    """What the columns of a table are, by their names.

    Args:
        header: as the table has them.
        manifest: the bundle's.
        where: what to call the table in the log.
        time: the column of times, where a person has named it.
        is_timed: whether a column may tell the times whose name only says so; not where a person
            has said how fast rows come.
        named: the file's name, which may be that of a sensor.
    """
    channels = manifest.preprocessing.channels
    meant = meanings(header, channels, named)
    if not set(channels) <= {*header, *meant.values()}:
        meant = {}
    factors = _factors(meant, manifest.preprocessing, where)
    labels = [name for name in header if is_label(name)]
    if LABEL not in header and len(labels) == 1 and manifest.classes:
        meant[labels[0]] = LABEL
    if meant:
        told = ", ".join(f"'{name}' is {channel}" for name, channel in meant.items())
        _log.warning("%s: columns by the meaning of their names: %s", where, told)
    names = [meant.get(name, name) for name in header]
    found = _given_time(names, time)
    if found is None and is_timed:
        found = _time_of(names, channels)
    return Columns(
        names=names, factors=factors, time=found, gravity=_gravity(header, meant, manifest)
    )


def _given_time(names: Sequence[str], given: str | None) -> TimeColumn | None:
    """The column that a person has named, or that has a known name."""
    if given is not None:
        return TimeColumn(name=given, unit_s=SECONDS.get(given), is_given=True)
    known = next((name for name in SECONDS if name in names), None)
    return None if known is None else TimeColumn(name=known, unit_s=SECONDS[known])


def _time_of(names: Sequence[str], channels: Sequence[str]) -> TimeColumn | None:
    """The only column whose name says that it holds times; None: there is none, or several."""
    others = [name for name in names if name not in {*channels, LABEL}]
    found = [
        (name, words)
        for name in others
        if len(name) <= _MOST_LETTERS and (words := _words(name)) & _TIMES
    ]
    if len(found) != 1:
        return None
    ((name, _),) = found
    return TimeColumn(name=name, unit_s=seconds_in(name))


def seconds_in(name: str) -> float | None:
    """Seconds of the unit that the name of a column of times says; None: none, or several."""
    unit = _unit_in(name)
    told = {unit["unit"].strip().lower()} if unit else _words(name)
    units = {seconds for word, seconds in _UNITS_S.items() if word in told}
    return units.pop() if len(units) == 1 else None


def words_in(name: str) -> frozenset[str]:
    """Words of a column's name, without its unit."""
    return _words(_without_unit(name)) if len(name) <= _MOST_LETTERS else frozenset()


def meanings(header: Sequence[str], channels: Sequence[str], named: str) -> dict[str, str]:
    """Columns and the channels that their names mean, where each is meant by one."""
    return dict(_meant(header, [one for one in channels if one not in header], named))


def time_named(header: Sequence[str], channels: Sequence[str]) -> str | None:
    """The column that seems to hold the times; None: there is none, or several."""
    found = _given_time(header, None) or _time_of(header, channels)
    return None if found is None else found.name


def is_label(name: str) -> bool:
    """Whether a column's name says that it holds labels."""
    return name.strip().lower() in _LABELS


def unit_part(name: str) -> str:
    """The unit in brackets behind a column's name, with a blank before; '' where there is none."""
    unit = _unit_in(name)
    return f" {unit[0].strip()}" if unit else ""


def sensors_in(name: str) -> frozenset[str]:
    """The sensors after which a file is named."""
    return _words(name) & _SENSORS


def channels_in(header: Sequence[str], channels: Sequence[str], named: str) -> tuple[str, ...]:
    """Those channels that columns of a table have the name of, or mean."""
    meant = {channel for _, channel in _meant(header, channels, named)}
    return tuple(one for one in channels if one in header or one in meant)


def _meant(header: Sequence[str], channels: Sequence[str], named: str) -> Iterable[tuple[str, str]]:
    """Columns and the channels that they mean, where each is meant by one."""
    words = {name: _words(_without_unit(name)) for name in header if len(name) <= _MOST_LETTERS}
    of = sensors_in(named)
    # The x of a gyroscope's file is no acceleration.
    words = {name: said | of if said and said <= _AXES else said for name, said in words.items()}
    axes = [_words(channel) for channel in channels]
    sensors = {one - _AXES for one in axes}
    for channel, wanted in zip(channels, axes, strict=True):
        fitting = [name for name, said in words.items() if said == wanted]
        # Of one sensor the axes alone may do, as in a file that is named after it.
        if not fitting and not of and len(sensors) == 1:
            fitting = [name for name, said in words.items() if said and said == wanted & _AXES]
        if len(fitting) == 1:
            yield fitting[0], channel


def _factors(
    meant: Mapping[str, str], preprocessing: Preprocessing, where: str
) -> dict[str, float]:
    """By channel: from the unit that its column names to the bundle's."""
    found: dict[str, float] = {}
    told: dict[str, list[str]] = {}
    for name, channel in meant.items():
        if not (unit := _unit_in(name)):
            continue
        said, declared = unit["unit"].strip().lower(), _declared(preprocessing, channel)
        factor = _factor(said, channel, preprocessing)
        found[channel] = 1.0 if factor is None else factor
        if said == declared or (factor is not None and math.isclose(factor, 1)):
            continue
        if factor is not None:
            how = f"times {factor:.5g}, as the bundle's"
        elif declared:
            own = preprocessing.unit(channel)
            how = f"as they are, since nothing is known of the bundle's {own} and this one"
        else:
            how = "as they are, since the bundle does not tell its unit"
        told.setdefault(f"in {unit['unit']}, taken {how}", []).append(channel)
    for what, channels in told.items():
        _log.warning("%s: %s: %s", where, ", ".join(channels), what)
    return found


def _factor(unit: str, channel: str, preprocessing: Preprocessing) -> float | None:
    """From a unit to that of a bundle's channel; None: one of them is not known."""
    quantity = _quantity_of(channel)
    if quantity is None:
        return None
    own, has = quantity.units.get(unit), _unit_of(quantity, preprocessing, channel)
    return own / has if own and has else None


def _gravity(header: Sequence[str], meant: Mapping[str, str], manifest: Manifest) -> Gravity | None:
    """Accelerations with gravity of which neither name nor bundle leaves open what they are."""
    inputs, quantity = manifest.preprocessing, _QUANTITIES[-1]
    channels = tuple(one for one in inputs.channels if _quantity_of(one) is quantity)
    unit = _unit_of(quantity, inputs, channels[0]) if len(channels) == _DIMENSIONS else None
    said = {channel for name, channel in meant.items() if _unit_in(name)}
    if unit is None or said & set(channels) or not set(channels) <= {*header, *meant.values()}:
        return None
    places = [inputs.channels.index(one) for one in channels]
    mean = math.sqrt(sum(inputs.mean[k % len(inputs.mean)] ** 2 for k in places))
    # Without gravity, as in linear accelerations, a length at rest tells nothing.
    has_gravity = mean > _AT_REST * _G / unit or _is_plain(inputs)
    return Gravity(channels=channels, unit=unit) if has_gravity else None


def _declared(preprocessing: Preprocessing, channel: str) -> str | None:
    """The unit that a bundle says, in small letters."""
    unit = preprocessing.unit(channel)
    return None if unit is None else unit.strip().lower()


def _is_plain(preprocessing: Preprocessing) -> bool:
    """Whether examples are not normalised."""
    return not any(preprocessing.mean) and set(preprocessing.std) == {1.0}


def _unit_of(quantity: _Quantity, preprocessing: Preprocessing, channel: str) -> float | None:
    """The length of a bundle's unit in m/s² or rad/s, as the phone's page takes it; None: unknown.

    What the bundle says, or else by the root mean square of the length of the vector: gravity is 1
    or 9.8, and nobody turns by hundreds of radians in a second.
    """
    declared = _declared(preprocessing, channel)
    if declared is not None:
        return quantity.units.get(declared)
    mean, std = preprocessing.mean, preprocessing.std
    if _is_plain(preprocessing):
        return None
    places = [k for k, one in enumerate(preprocessing.channels) if _quantity_of(one) == quantity]
    squares = sum(mean[k % len(mean)] ** 2 + std[k % len(std)] ** 2 for k in places)
    size = math.sqrt(3 * squares / len(places))
    return quantity.small if size < quantity.most_of_small else quantity.large


def _quantity_of(name: str) -> _Quantity | None:
    return next((one for one in _QUANTITIES if one.named.search(name)), None)


def _unit_in(name: str) -> re.Match[str] | None:
    return _UNIT.search(name) if len(name) <= _MOST_LETTERS else None


def _without_unit(name: str) -> str:
    return _UNIT.sub("", name)


def _words(name: str) -> frozenset[str]:
    """Its words in small letters, each as what it is short for."""
    said = " ".join(word.lower() for word in _WORD.findall(name)).replace("heart rate", "hr")
    return frozenset(_SHORT.get(word, word) for word in said.split())
