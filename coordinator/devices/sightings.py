"""Who was heard when, and in which state: ``sightings.sqlite`` of the run folder.

For who looks at the run from another process; the coordinator itself never reads it, and each of
its processes makes it anew. Nothing of it is synced, and a disk that takes no writes holds nothing
up. Changes are written together, so seldom that writing takes at most two per cent of the time.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from protofleet.coordinator.devices.registry import Device
from protofleet.coordinator.ledger.usage_rows import COLUMNS, NAMES, from_columns, to_columns
from protofleet.private_files import make_private_file
from protofleet.wire.messages import Heartbeat
from protofleet.wire.mqtt.usage import NO_USAGE, DeviceUsage, usage_of

SIGHTINGS = "sightings.sqlite"
FLUSH_S = 1.0
_SHARE = 50
"""Times as long as writing took, it is not done again."""
_SETTINGS = "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA cache_size = -256;"
"""256 KiB of memory for pages: they are written, and not read."""
_MOST = 100_000


class Sighting(msgspec.Struct, kw_only=True, gc=False):
    """What was heard of one device; times are Unix seconds.

    Attributes:
        state: ``online``, ``held`` (by its owner's ``conditions``), ``refused``, or why it is gone
            (``offline``, ``left``, ``silent``, ``revoked``, ``unregistered``), since ``since_s``.
        heard_s: when anything came of it.
        conditions: that hold it.
        bundle: digest of the one that it has.
        phase: of its last heartbeat, since ``phase_since_s``; empty: there was none.
        round_id: of its last heartbeat.
        usage: as its last heartbeat said.
    """

    device_id: str
    state: str = "online"
    since_s: float = 0.0
    heard_s: float = 0.0
    conditions: tuple[str, ...] = ()
    bundle: str = ""
    phase: str = ""
    phase_since_s: float = 0.0
    round_id: int = 0
    usage: DeviceUsage = NO_USAGE


_FIELDS = Sighting.__struct_fields__[:-1]
"""Without ``usage``, whose columns stand behind."""
_CONDITIONS = _FIELDS.index("conditions")
_NAMES = (*_FIELDS, *NAMES, "written")
_SQL_TYPES: Mapping[Any, str] = {int: "INTEGER", float: "REAL"}
_COLUMNS = ", ".join(
    f"{one.name} {_SQL_TYPES.get(one.type, 'TEXT')} NOT NULL"
    for one in msgspec.structs.fields(Sighting)[:-1]
)
_SCHEMA = f"""
CREATE TABLE devices (
    {_COLUMNS}, {COLUMNS}, written INTEGER NOT NULL, PRIMARY KEY (device_id)
) STRICT;
CREATE INDEX devices_by_writing ON devices (written);
"""
_INSERT = (
    f"INSERT OR REPLACE INTO devices ({', '.join(_NAMES)})"  # noqa: S608 - our fields
    f" VALUES ({', '.join('?' * len(_NAMES))})"
)
_OURS = {
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_RANGE,
}
"""Faults of the statement, which would lose every sighting; others are of disk or readers."""


class Sightings:
    """Writes what is heard of devices into a run folder.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self._known: dict[str, Sighting] = {}
        self._changed: set[str] = set()
        self._written = 0
        self._next_s = float("-inf")
        self._db = _made(folder / SIGHTINGS)

    def heard(self, device_id: str) -> None:
        """Something came from a device that has presented itself."""
        found = self._known.get(device_id)
        if found is not None:
            found.heard_s = time.time()
            self._changed.add(device_id)

    def stands(self, device_id: str, state: str, device: Device | None = None) -> None:
        """In which state a device is from now on; ``device``: what it has just said of itself."""
        present = device is not None or state == "refused"
        found = self._sighting(device_id) if present else self._known.get(device_id)
        if found is None:
            return
        now = time.time()
        if state != found.state or not found.since_s:
            found.state, found.since_s = state, now
        if device is not None:
            found.heard_s = now
            found.bundle, found.conditions = device.bundle, device.held
        self._changed.add(device_id)

    def beat(self, device_id: str, heartbeat: Heartbeat) -> None:
        """A device tells what it does and what it has paid."""
        found = self._sighting(device_id)
        if found is None:
            return
        now = found.heard_s = time.time()
        if (heartbeat.phase, heartbeat.round_id) != (found.phase, found.round_id):
            found.phase, found.phase_since_s = heartbeat.phase, now
            found.round_id = heartbeat.round_id
        found.usage = usage_of(heartbeat)
        self._changed.add(device_id)

    def flush(self, now: float) -> None:
        """Write what has changed, if it is time (``now``: monotonic seconds)."""
        if not self._changed or now < self._next_s or self._db is None:
            return
        began = time.monotonic()
        self._written += 1
        rows = (self._row(self._known[device_id]) for device_id in self._changed)
        try:
            with self._db:
                self._db.executemany(_INSERT, rows)
            self._changed.clear()
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF in _OURS:
                raise
        took = time.monotonic() - began
        self._next_s = now + max(FLUSH_S, _SHARE * took)

    def close(self) -> None:
        """Write what is left, and end."""
        self.flush(float("inf"))
        if self._db is not None:
            self._db.close()
            self._db = None

    def _sighting(self, device_id: str) -> Sighting | None:
        found = self._known.get(device_id)
        if found is None and len(self._known) < _MOST:
            found = self._known[device_id] = Sighting(device_id=device_id)
        return found

    def _row(self, one: Sighting) -> tuple[object, ...]:
        *values, usage = msgspec.structs.astuple(one)
        values[_CONDITIONS] = msgspec.json.encode(one.conditions).decode()
        return (*values, *to_columns(usage), self._written)


class SightingsReader:
    """Reads the sightings of a run folder, each time what is new.

    Args:
        folder: of the run.

    Attributes:
        known: by device; emptied where another process of the coordinator has begun anew.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / SIGHTINGS
        self.known: dict[str, Sighting] = {}
        self._began = self._last = 0

    def read(self) -> bool:
        """Read on; whether there was news.

        Raises:
            sqlite3.Error: it cannot be read now.
        """
        if not self._path.is_file():
            return False
        with closing(sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)) as db:
            began = db.execute("PRAGMA user_version").fetchone()[0]
            if began != self._began:
                self._began, self._last = began, 0
                self.known.clear()
            rows = db.execute(
                f"SELECT {', '.join(_NAMES)} FROM devices WHERE written > ?",  # noqa: S608 - our fields
                (self._last,),
            ).fetchall()
        for *row, written in rows:
            fields = dict(zip(_FIELDS, row[: len(_FIELDS)], strict=True))
            fields["usage"] = from_columns(row[len(_FIELDS) :])
            fields["conditions"] = msgspec.json.decode(fields["conditions"], type=tuple[str, ...])
            self.known[fields["device_id"]] = Sighting(**fields)
            self._last = max(self._last, written)
        return bool(rows)


def _made(path: Path) -> sqlite3.Connection | None:
    """An empty database in the place of an earlier process's; None where it cannot be made."""
    try:
        for end in ("", "-wal", "-shm"):
            path.with_name(path.name + end).unlink(missing_ok=True)
        make_private_file(path)
        # Of a coordinator that is one thread; tests and several federations close it in another.
        db = sqlite3.connect(path, timeout=0.05, check_same_thread=False)
        began = f"PRAGMA user_version = {1 + secrets.randbits(30)};"
        db.executescript(f"{_SETTINGS}{began}{_SCHEMA}")
    except (OSError, sqlite3.Error):
        return None
    return db
