"""Sensors of an Android phone as readings: the JSON that Termux's ``termux-sensor`` writes.

It writes one object after each delay, without a time and without a separator, with what every
sensor said last; before a sensor has said anything it is left out::

    {
      "LSM6DSO Accelerometer": {
        "values": [
          0.2968,
          -0.1053,
          9.8117
        ]
      }
    }
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from protofleet.errors import InputError
from protofleet.printable import printable

MOST_TEXT = 64 * 1024
"""Of one object; a phone's forty sensors have 10 kB."""
_PIECE = 4096


class Source(Protocol):
    """Bytes as they come, such as ``sys.stdin.buffer``."""

    def read1(self, size: int = ..., /) -> bytes:
        """At least one byte, none at the end."""
        ...


@dataclass(frozen=True, slots=True)
class Sensor:
    """One of the sensors, and what its values are multiplied by.

    Attributes:
        name: as of ``termux-sensor -s``: a part of its whole name suffices, in any case.
        factor: from Android's unit (m/s², rad/s, µT) to the bundle's.
    """

    name: str
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Reading:
    """What all sensors said.

    Attributes:
        time_s: when it was read; objects that came together share the time since those before.
        values: of the sensors in their order, one after the other.
    """

    time_s: float
    values: tuple[float, ...]


def read_termux(
    source: Source, sensors: Sequence[Sensor], channels: int, clock: Callable[[], float]
) -> Iterator[Reading]:
    """Readings as they come.

    Args:
        source: what ``termux-sensor`` writes.
        sensors: in the order of the bundle's channels.
        channels: how many values they have together.
        clock: seconds.

    Raises:
        InputError: text of another kind, a sensor that is not there or stands for several, or
            another number of values.
    """
    decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
    text, before = "", clock()
    while piece := source.read1(_PIECE):
        found, text = _objects(text + decode(piece))
        now = clock()
        for number, one in enumerate(found, 1):
            values = _values(one, sensors, channels)
            if values is not None:
                yield Reading(before + (now - before) * number / len(found), values)
        if found:
            before = now
    if text.strip():
        raise InputError("termux-sensor: its output ended within an object; start it again")


def _objects(text: str) -> tuple[list[dict[str, Any]], str]:
    """Whole objects at the beginning, and the text behind them."""
    found, decoder = [], json.JSONDecoder()
    text = text.lstrip()
    while text:
        if not text.startswith("{"):
            raise InputError(
                f"termux-sensor: expected its JSON, got {printable(text[:200].strip())!r}; the app "
                "Termux:API must be installed, and 'pkg install termux-api' done"
            )
        try:
            one, end = decoder.raw_decode(text)
        except (ValueError, RecursionError) as error:
            if len(text) > MOST_TEXT or isinstance(error, RecursionError):
                raise InputError("termux-sensor: expected its JSON, got something else") from error
            break
        found.append(one)
        text = text[end:].lstrip()
    return found, text


def _values(
    said: dict[str, Any], sensors: Sequence[Sensor], channels: int
) -> tuple[float, ...] | None:
    """Of all sensors; None while one has said nothing yet."""
    if len(said) < len(sensors):
        return None
    values: list[float] = []
    for sensor in sensors:
        values += [sensor.factor * value for value in _of_sensor(said, sensor)]
    if len(values) != channels:
        raise InputError(
            f"sensors {', '.join(sensor.name for sensor in sensors)}: expected {channels} values "
            f"together, as many as the bundle has channels, got {len(values)}"
        )
    return tuple(values)


def _of_sensor(said: dict[str, Any], sensor: Sensor) -> list[float]:
    wanted = sensor.name.lower()
    fitting = [name for name in said if wanted in name.lower()]
    exact = [name for name in fitting if wanted == name.lower()]
    if len(exact or fitting) != 1:
        among = printable(", ".join(fitting or said)[:500])
        raise InputError(f"sensor '{sensor.name}': expected one of that name, among {among}")
    one = said[(exact or fitting)[0]]
    values = one.get("values") if isinstance(one, dict) else None
    if not isinstance(values, list) or not all(type(value) in (int, float) for value in values):
        raise InputError(f"sensor '{sensor.name}': expected its 'values' as numbers")
    return [float(value) for value in values]
