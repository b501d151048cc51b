"""A run's event stream, read on from where it was left, and what follows from its lines."""

from __future__ import annotations

from collections import Counter, deque
from pathlib import Path
from typing import Any

import msgspec

from protofleet.coordinator.event_log import EVENTS, FORMER_EVENTS, MAX_BYTES
from protofleet.hub.dashboard.records import LoggedEvent

KEPT = 2000
_ROUNDS_KEPT = 64
_LOGS_KEPT = 256
_MOST_BYTES = 2 * MAX_BYTES
"""Read at once: all of a file."""
_AGAINST = ("device_refused", "update_rejected", "task_refused")


class EventStream:
    """What the events of a run folder say.

    Args:
        folder: of the run.

    Attributes:
        events: the latest, the oldest first.
        update_times: round → device → when its update was taken.
        deadlines: round → when it passes, Unix seconds.
        against: device → what of it was refused last: rule and reason.
        rounds: how many the run is to have; 0: not told.
        logs: device → its last log, of the devices that sent one last.
        counts: events of each kind, those that were withheld, too.
        waiting: the last event that devices are waited for; None: a round has opened since.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._former = folder / EVENTS, folder / FORMER_EVENTS
        self._offset = self._inode = 0
        self.events: deque[LoggedEvent] = deque(maxlen=KEPT)
        self.update_times: dict[int, dict[str, float]] = {}
        self.deadlines: dict[int, float] = {}
        self.against: dict[str, tuple[str, str]] = {}
        self.logs: dict[str, LoggedEvent] = {}
        self.rounds = 0
        self.counts: Counter[str] = Counter()
        self.waiting: LoggedEvent | None = None
        self._deadline_s = 0.0

    def read(self) -> bool:
        """Read on; whether there was news."""
        try:
            inode = self._path.stat().st_ino
        except OSError:
            return False
        news = False
        if inode != self._inode:
            # The rest of the file before, or all of it at the start.
            if self._former.is_file() and self._inode in (0, self._former.stat().st_ino):
                news = self._read_from(self._former)
            self._inode, self._offset = inode, 0
        return self._read_from(self._path) or news

    def _read_from(self, path: Path) -> bool:
        with path.open("rb") as file:
            file.seek(self._offset)
            data = file.read(_MOST_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self._take(line)
        return bool(whole)

    def _take(self, line: bytes) -> None:
        try:
            fields = msgspec.json.decode(line, type=dict[str, Any])
            event = LoggedEvent(
                event=str(fields.pop("event")), time_s=float(fields.pop("time_s")), fields=fields
            )
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError, ValueError, TypeError):
            return  # half a line of a disk that was full
        self.events.append(event)
        kind = event.event
        self._count(event)
        if kind in ("started", "rounds_raised"):
            self.rounds = int(fields.get("rounds", 0))
        elif kind in ("round_opened", "round_extended"):
            self._deadline_s = float(fields.get("deadline_s", self._deadline_s))
            self.deadlines = {int(fields["round_id"]): event.time_s + self._deadline_s}
            self.waiting = None
        elif kind == "waiting":
            self.waiting = event
        elif kind == "update_received":
            self._note_update(event)
        elif kind == "device_log":
            self._note_log(event)
        elif kind in _AGAINST:
            self.against[event.device_id] = (
                str(fields.get("rule", "")),
                str(fields.get("reason", "")),
            )

    def _count(self, event: LoggedEvent) -> None:
        if event.event == "withheld":
            self.counts[str(event.fields.get("kind"))] += int(event.fields.get("count", 0))
        else:
            self.counts[event.event] += 1

    def _note_update(self, event: LoggedEvent) -> None:
        round_id = int(event.fields.get("round_id", 0))
        self.update_times.setdefault(round_id, {})[event.device_id] = event.time_s
        self.against.pop(event.device_id, None)
        while len(self.update_times) > _ROUNDS_KEPT:
            del self.update_times[min(self.update_times)]

    def _note_log(self, event: LoggedEvent) -> None:
        self.logs.pop(event.device_id, None)
        self.logs[event.device_id] = event
        while len(self.logs) > _LOGS_KEPT:
            del self.logs[next(iter(self.logs))]
