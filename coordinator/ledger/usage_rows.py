"""What devices have used, as the ledger keeps it: their totals at the end of each round."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from protofleet.federation.records import RoundBytes
from protofleet.wire.mqtt.usage import FIGURES, DeviceUsage, UsageFigure


def _column(one: UsageFigure) -> str:
    """Its definition, by which it can also be added to a table that has rows."""
    kind = "INTEGER" if one.whole else "REAL"
    return f"{one.name} {kind}" if one.optional else f"{one.name} {kind} NOT NULL DEFAULT 0"


NAMES = tuple(one.name for one in FIGURES)
COLUMNS = ",\n    ".join(map(_column, FIGURES))
"""Of a table that keeps what a device has used."""
SCHEMA = f"""
CREATE TABLE IF NOT EXISTS traffic (
    device_id TEXT NOT NULL,
    round_id INTEGER NOT NULL,
    {COLUMNS},
    PRIMARY KEY (device_id, round_id)
) STRICT;

CREATE INDEX IF NOT EXISTS traffic_by_round ON traffic (round_id);
"""


def _merged(one: UsageFigure) -> str:
    was, new = one.name, f"excluded.{one.name}"
    both = f"coalesce({new}, {was})"
    if one.shown.merge != "last":
        both = f"max({both}, coalesce({was}, {new}))"
    return f"{was} = {both}"


_NOTE = (
    f"INSERT INTO traffic (device_id, round_id, {', '.join(NAMES)})"  # noqa: S608 - our names
    f" VALUES (?, ?{', ?' * len(NAMES)})"
    f" ON CONFLICT DO UPDATE SET {', '.join(map(_merged, FIGURES))}"
)
_PAID = (
    "SELECT device_id, round_id, max(bytes_up - lag(bytes_up, 1, 0) OVER earlier, 0) AS up,"
    " max(bytes_down - lag(bytes_down, 1, 0) OVER earlier, 0) AS down FROM traffic {}"
    " WINDOW earlier AS (PARTITION BY device_id ORDER BY round_id)"
)
"""What each device paid in each round: its totals less those before."""
_BEFORE = (
    "coalesce((SELECT {} FROM traffic AS earlier WHERE earlier.device_id = now.device_id"
    " AND earlier.round_id < now.round_id ORDER BY round_id DESC LIMIT 1), 0)"
)


class UsageRows:
    """The ledger's table ``traffic``: a row holds what a device has used up to that round.

    Args:
        db: the ledger's database.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._noted: dict[tuple[str, int], DeviceUsage] = {}

    def note(self, device_id: str, round_id: int, usage: DeviceUsage) -> None:
        """A device's totals in a round; written with the next transition (they come again)."""
        self._noted[device_id, round_id] = usage

    def latest(self) -> Iterator[tuple[str, int, DeviceUsage]]:
        """Of each device the last round in which it told, and its totals; by device."""
        self._write()
        absent = {one.name: "NULL" if one.optional else "0" for one in _missing(self._db)}
        columns = ", ".join(absent.get(name, name) for name in NAMES)
        # SQLite takes plain columns beside max() from the row that has the largest.
        rows = self._db.execute(
            f"SELECT device_id, max(round_id), {columns} FROM traffic"  # noqa: S608 - our names
            " GROUP BY device_id ORDER BY device_id"
        )
        for device_id, round_id, *values in rows:
            yield device_id, round_id, from_columns(values)

    def of_round(self, round_id: int) -> tuple[int, int]:
        """What all devices together sent and received in a round, as far as they have told."""
        self._write()
        up, down = self._db.execute(
            f"SELECT total(max(bytes_up - {_BEFORE.format('bytes_up')}, 0)),"  # noqa: S608 - ours
            f" total(max(bytes_down - {_BEFORE.format('bytes_down')}, 0))"
            " FROM traffic AS now WHERE round_id = ?",
            (round_id,),
        ).fetchone()
        return int(up), int(down)

    def by_round(self) -> dict[int, tuple[int, int]]:
        """The same of each round; what it cost to join is in round 0."""
        self._write()
        rows = self._db.execute(
            f"SELECT round_id, sum(up), sum(down) FROM ({_PAID.format('')}) GROUP BY round_id"  # noqa: S608 - ours
        )
        return {round_id: (up, down) for round_id, up, down in rows}

    def by_device(self) -> Iterator[tuple[str, tuple[RoundBytes, ...]]]:
        """Each device and what it paid in each round, both in order."""
        self._write()
        rows = self._db.execute(f"{_PAID.format('')} ORDER BY device_id, round_id")
        for device_id, its in groupby(rows, key=itemgetter(0)):
            yield device_id, _round_bytes(its)

    def of_device(self, device_id: str) -> tuple[RoundBytes, ...]:
        """What one device paid in each round, in order."""
        self._write()
        return _round_bytes(
            self._db.execute(
                f"{_PAID.format('WHERE device_id = ?')} ORDER BY round_id", (device_id,)
            )
        )

    def _write(self) -> None:
        if self._noted:
            with self._db:
                self.flush()

    def flush(self) -> None:
        """Write what was noted, in the transaction that is open."""
        self._db.executemany(
            _NOTE,
            [
                (device_id, round_id, *to_columns(usage))
                for (device_id, round_id), usage in self._noted.items()
            ],
        )
        self._noted.clear()


def _round_bytes(rows: Iterable[tuple[str, int, int, int]]) -> tuple[RoundBytes, ...]:
    return tuple(
        RoundBytes(round_id=round_id, bytes_up=up, bytes_down=down)
        for _, round_id, up, down in rows
    )


def add_columns(db: sqlite3.Connection) -> None:
    """Make room for figures that devices did not tell when the ledger was made."""
    for one in _missing(db):
        db.execute(f"ALTER TABLE traffic ADD COLUMN {_column(one)}")


def to_columns(usage: DeviceUsage) -> tuple[float | None, ...]:
    """Values for ``COLUMNS``."""
    return tuple(one.of(usage) for one in FIGURES)


def from_columns(values: Sequence[float | None]) -> DeviceUsage:
    """From values of ``COLUMNS``."""
    fields: dict[str, Any] = dict(zip(NAMES, values, strict=True))
    return DeviceUsage(**fields)


def _missing(db: sqlite3.Connection) -> list[UsageFigure]:
    there = {name for (name,) in db.execute("SELECT name FROM pragma_table_info('traffic')")}
    return [one for one in FIGURES if there and one.name not in there]
