"""The log as lines of JSON, of the same form on a coordinator and on a device: docs/monitoring.md.

What happens is told as an *event* with fields; other messages of the log are of the event ``log``.
The text of the log is the same with either format.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import math
from collections.abc import Mapping
from typing import Any

_IDS = {"federation": "federation", "round": "round_id", "device": "device_id"} | {
    "transfer": "transfer_id"
}
"""Fields of events that have a place of their own in each line, by that place's name."""


def log_event(
    log: logging.Logger,
    event: str,
    fields: Mapping[str, Any],
    text: str,
    *,
    level: int = logging.INFO,
) -> None:
    """Tell the log what has happened.

    Args:
        log: by whom.
        event: its name, for programs.
        fields: its figures and names; values that JSON has.
        text: the same for a person.
        level: of ``logging``.
    """
    log.log(level, "%s", text, extra={"event": event, "fields": dict(fields)})


class JsonLines(logging.Formatter):
    """Each record as one line of JSON that is safe on a terminal.

    Args:
        side: ``coordinator`` or ``device``.

    Attributes:
        about: ids (``federation``, ``device``) of lines that say none themselves.
    """

    def __init__(self, side: str) -> None:
        super().__init__()
        self.about: dict[str, str] = {}
        self._side = side

    def format(self, record: logging.LogRecord) -> str:
        """``time``, ``level``, ``side``, ``event``, ids, ``message``, ``fields``, ``logger``."""
        fields = dict(getattr(record, "fields", {}))
        ids = {place: fields.pop(name) for place, name in _IDS.items() if fields.get(name)}
        line = {
            "time": _time_text(record.created),
            "level": record.levelname.lower(),
            "side": self._side,
            "event": getattr(record, "event", "log"),
            **self.about,
            **ids,
            "message": record.getMessage(),
            "logger": record.name,
        }
        if fields:
            line["fields"] = fields
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        # Everything but plain ASCII is escaped, so nothing in it reaches a terminal as it is.
        return json.dumps(_finite(line), default=str)


def _finite(value: Any) -> Any:
    """``value`` with null for numbers that JSON has not: a loss may be none."""
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _time_text(seconds: float) -> str:
    """RFC 3339 in UTC, with milliseconds."""
    text = dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
