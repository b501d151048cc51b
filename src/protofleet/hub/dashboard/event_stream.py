"""A run's event stream, read on from where it was left, and what follows from its lines."""

from __future__ import annotations

from collections import Counter, deque
from pathlib import Path

import msgspec

from protofleet.coordinator import events
from protofleet.coordinator.events import from_line
from protofleet.coordinator.process.event_log import EVENTS, FORMER_EVENTS, MAX_BYTES
from protofleet.hub.dashboard.records import LoggedEvent

KEPT = 2000
_ROUNDS_KEPT = 64
_LOGS_KEPT = 256
_MOST_BYTES = 2 * MAX_BYTES
"""Read at once: all of a file."""


class _Head(msgspec.Struct):
    event: str
    time_s: float


_head = msgspec.json.Decoder(_Head).decode


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
        self.waiting: events.Waiting | None = None
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
            head = _head(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return  # half a line of a disk that was full
        said = from_line(line)
        event = LoggedEvent(event=head.event, time_s=head.time_s, said=said)
        self.events.append(event)
        if isinstance(said, events.Withheld):
            self.counts[said.kind] += said.count
        else:
            self.counts[event.event] += 1
        match said:
            case events.Started() | events.RoundsRaised():
                self.rounds = said.rounds
            case events.RoundOpened() | events.RoundExtended():
                if isinstance(said, events.RoundOpened):
                    self._deadline_s = said.deadline_s
                self.deadlines = {said.round_id: event.time_s + self._deadline_s}
                self.waiting = None
            case events.Waiting():
                self.waiting = said
            case events.UpdateReceived():
                self._note_update(said, event.time_s)
            case events.DeviceLog():
                self._note_log(said.device_id, event)
            case events.RefusalEvent():
                self.against[said.device_id] = (said.rule, said.reason)

    def _note_update(self, update: events.UpdateReceived, time_s: float) -> None:
        self.update_times.setdefault(update.round_id, {})[update.device_id] = time_s
        self.against.pop(update.device_id, None)
        while len(self.update_times) > _ROUNDS_KEPT:
            del self.update_times[min(self.update_times)]

    def _note_log(self, device_id: str, event: LoggedEvent) -> None:
        self.logs.pop(device_id, None)
        self.logs[device_id] = event
        while len(self.logs) > _LOGS_KEPT:
            del self.logs[next(iter(self.logs))]
