"""Sensors that publish by MQTT as readings: Home Assistant, ESPHome, Zigbee2MQTT and the like.

A payload is a bare number (``21.5``), or JSON with a number in a field::

    {"temperature": 21.5, "accel": {"x": 0.1}, "last_seen": "2026-05-31T21:04:05.250Z"}

Each topic speaks at its own time. A message with the first channel's value opens a reading; of
every other channel it takes what was said nearest to that: the newest before, or the first
thereafter. It is complete when all have spoken after it, at the latest when the first channel
speaks again.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, Self

from protofleet.edge.data.sample_times import to_time
from protofleet.edge.data.termux import Reading
from protofleet.errors import InputError, UnavailableError
from protofleet.wire.mqtt.link import Disconnected, LinkEvent, MqttMessage

_log = logging.getLogger(__name__)

MOST_BYTES = 64 * 1024
"""Of one payload; a sensor's have some hundred."""
NO_VALUE = frozenset({"", "none", "null", "unavailable", "unknown"})
"""What stands in a number's place while a sensor is away."""
DAY_S = 86_400.0
"""Clocks that differ by more than time zones do are wrong."""
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_TIMES = ("timestamp", "time", "last_seen", "Time")
"""Fields; the last one is Tasmota's."""
_UNITS = (1.0, 1e-3, 1e-6, 1e-9)
_TOPIC_BYTES = 65_535


class EventSource(Protocol):
    """Events of a broker, such as ``Link``'s."""

    def get(self, timeout_s: float | None = None) -> LinkEvent | None:
        """The next one; None if none came."""
        ...


@dataclass(frozen=True, slots=True)
class ChannelTopic:
    """Where the values of one channel come from.

    Attributes:
        topic: its name, without ``+`` and ``#``.
        field: dotted path in JSON, of names and places in lists (``accel.x``, ``values.0``); '':
            the payload is the number itself.
        factor: from the sensor's unit to the bundle's.
    """

    topic: str
    field: str = ""
    factor: float = 1.0

    def __str__(self) -> str:
        return f"{self.topic}={self.field}" if self.field else self.topic

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``TOPIC[=FIELD][*FACTOR]``.

        Raises:
            InputError: another form, or a filter in the place of a topic's name.
        """
        head, _, factor = text.rpartition("*") if "*" in text else (text, "", "1")
        topic, separator, field = head.partition("=")
        number = _number(factor)
        if not topic or bool(separator) != bool(field) or number is None:
            form = "TOPIC[=FIELD][*FACTOR] such as zigbee2mqtt/bed=temperature*0.1"
            raise InputError(f"expected {form}, got '{text}'")
        if set(topic) & set("+#\0") or len(topic.encode(errors="replace")) > _TOPIC_BYTES:
            raise InputError(f"expected the name of one topic, without + and #, got '{text}'")
        return cls(topic, field, number)


def parse_payload(payload: bytes) -> Any:
    """What a message says: JSON's value, else its text.

    Raises:
        ValueError: it is too large or no text; says which.
    """
    if len(payload) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES // 1024} KiB")
    try:
        text = payload.decode().strip()
    except UnicodeDecodeError:
        raise ValueError("not UTF-8") from None
    try:
        return json.loads(text)
    except ValueError:
        return text
    except RecursionError:
        raise ValueError("JSON that is nested too deep") from None


def _said(message: MqttMessage) -> Any:
    if message.retained:
        raise ValueError("retained, so of before the recording")
    return parse_payload(message.payload)


def value_at(said: Any, field: str) -> float | None:
    """The number of a field.

    Args:
        said: of ``parse_payload``.
        field: as of ``ChannelTopic``.

    Returns:
        It, finite; None if the sensor says that it has none.

    Raises:
        ValueError: it is not there or no finite number; says which.
    """
    if isinstance(said, str) and said.strip().lower() in NO_VALUE:
        return None
    for name in field.split(".") if field else ():
        said = _part(said, name)
    if said is None or (isinstance(said, str) and said.strip().lower() in NO_VALUE):
        return None
    if isinstance(said, dict | list) and not field:
        raise ValueError("JSON; name its field, TOPIC=FIELD")
    number = _number(said.strip() if isinstance(said, str) else said)
    if number is None:
        raise ValueError("no finite number")
    return number


def _part(said: Any, name: str) -> Any:
    if isinstance(said, dict) and name in said:
        return said[name]
    if isinstance(said, list) and name.isascii() and name.isdecimal():
        place = int(name[:6])
        if place < len(said):
            return said[place]
    raise ValueError("no such field" if isinstance(said, dict | list) else "no JSON")


def _number(said: Any) -> float | None:
    if type(said) not in (int, float) and not (isinstance(said, str) and _NUMBER.fullmatch(said)):
        return None
    try:
        number = float(said)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def time_of(said: Any, arrival_s: float) -> float:
    """When something was measured.

    Args:
        said: of ``parse_payload``.
        arrival_s: when it came, seconds since 1970.

    Returns:
        The message's ``timestamp``, ``time`` or ``last_seen``, a date of ISO 8601 (without a zone:
        UTC) or seconds to nanoseconds since 1970, if it is within a day of ``arrival_s``; else
        ``arrival_s``.
    """
    for name in _TIMES if isinstance(said, dict) else ():
        number = _time(said.get(name))
        for unit_s in _UNITS:
            if abs(number * unit_s - arrival_s) <= DAY_S:
                return number * unit_s
    return arrival_s


def _time(told: Any) -> float:
    """NaN if it is none."""
    number = _number(told)
    if number is None and isinstance(told, str):
        with suppress(ValueError, OverflowError):
            return to_time(told)
    return math.nan if number is None else number


@dataclass(slots=True)
class _Open:
    """A reading that waits for what may come nearer to it.

    Attributes:
        time_s: of the reading.
        arrival_s: when it was opened.
        values: by channel.
        waiting: channels that have not spoken since.
    """

    time_s: float
    arrival_s: float
    values: dict[int, float]
    waiting: set[int]


class Joiner:
    """Readings of channels that come one by one.

    Args:
        channels: in the order of the bundle's.

    Attributes:
        left_out: how many messages gave no value, by topic and reason.
    """

    def __init__(self, channels: Sequence[ChannelTopic]) -> None:
        self.left_out: Counter[str] = Counter()
        self._channels = tuple(channels)
        self._newest: dict[int, tuple[float, float]] = {}
        self._heard: set[int] = set()
        self._open: _Open | None = None

    @property
    def topics(self) -> tuple[str, ...]:
        """Each once."""
        return tuple(dict.fromkeys(one.topic for one in self._channels))

    @property
    def silent(self) -> tuple[ChannelTopic, ...]:
        """Channels of which no value has come; without one there is no reading."""
        return tuple(one for k, one in enumerate(self._channels) if k not in self._heard)

    def push(self, message: MqttMessage, arrival_s: float) -> list[Reading]:
        """Take a message in, give back the readings that are complete now.

        Args:
            message: of any payload; what cannot be used is counted in ``left_out``.
            arrival_s: when it came, seconds since 1970; never less than the one before.
        """
        try:
            said = _said(message)
        except ValueError as error:
            self.left_out[f"{message.topic}: {error}"] += 1
            return []
        values = self._values(message.topic, said)
        self._heard |= {k for k, value in values.items() if value is not None}
        found = self.flush() if 0 in values else []
        self._complete(values, arrival_s)
        for k, value in values.items():
            if value is None:
                self._newest.pop(k, None)  # what a sensor said before it went away is not true now
            else:
                self._newest[k] = arrival_s, value
        if values.get(0) is not None:
            newest = {k: value for k, (_, value) in self._newest.items()}
            waiting = set(range(len(self._channels))) - values.keys()
            self._open = _Open(time_of(said, arrival_s), arrival_s, newest, waiting)
        complete = self._open is not None and not self._open.waiting
        return found + self.flush() if complete else found

    def flush(self) -> list[Reading]:
        """The reading that is open, if every channel has a value: nothing nearer will come."""
        row, self._open = self._open, None
        if row is None or len(row.values) < len(self._channels):
            return []
        return [Reading(row.time_s, tuple(row.values[k] for k in range(len(self._channels))))]

    def _values(self, topic: str, said: Any) -> dict[int, float | None]:
        found: dict[int, float | None] = {}
        for k, one in enumerate(self._channels):
            if one.topic != topic:
                continue
            try:
                value = value_at(said, one.field)
            except ValueError as error:
                self.left_out[f"{one}: {error}"] += 1
                continue
            if value is None:
                self.left_out[f"{one}: the sensor has no value (unavailable, unknown, null)"] += 1
            elif not math.isfinite(one.factor * value):
                self.left_out[f"{one}: no finite number"] += 1
                continue
            found[k] = None if value is None else one.factor * value
        return found

    def _complete(self, values: dict[int, float | None], arrival_s: float) -> None:
        """What the open reading takes of values that came after it."""
        row = self._open
        if row is None:
            return
        for k in row.waiting & values.keys():
            row.waiting.discard(k)
            value, before = values[k], self._newest.get(k)
            nearer = before is None or arrival_s - row.arrival_s < row.arrival_s - before[0]
            if value is not None and nearer:
                row.values[k] = value


def read_mqtt(
    source: EventSource,
    joiner: Joiner,
    clock: Callable[[], float],
    *,
    begin_s: float = -math.inf,
    end_s: float = math.inf,
) -> Iterator[Reading]:
    """Readings as they come, over lost connections too.

    Args:
        source: what a broker sends of the joiner's topics.
        joiner: counts what could not be used.
        clock: seconds since 1970.
        begin_s: what is complete before that is left out.
        end_s: when to end, even if nothing comes.

    Raises:
        UnavailableError: the broker refuses the account, or the topics.
    """
    while (now := clock()) < end_s:
        event = source.get(None if math.isinf(end_s) else end_s - now)
        if isinstance(event, MqttMessage):
            arrival_s = clock()
            found = joiner.push(event, arrival_s)
            if arrival_s >= begin_s:
                yield from found
        elif isinstance(event, Disconnected):
            if event.final:
                raise UnavailableError(
                    f"broker: {event.reason}; it needs an account that may read the topics: "
                    "--broker-user NAME --broker-password-file FILE"
                )
            _log.warning("no connection to the broker: %s; trying again", event.reason)
    yield from joiner.flush()
