"""What devices have paid, as the ledger keeps it: their totals at the end of each round."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter

from protofleet.coordinator.ledger_rows import Totals
from protofleet.federation.records import RoundBytes

_PAID = (
    "SELECT device_id, round_id, max(bytes_up - lag(bytes_up, 1, 0) OVER earlier, 0) AS up,"
    " max(bytes_down - lag(bytes_down, 1, 0) OVER earlier, 0) AS down FROM traffic"
    " WINDOW earlier AS (PARTITION BY device_id ORDER BY round_id)"
)
"""What each device paid in each round: its totals less those before."""

_BEFORE = (
    "coalesce((SELECT {} FROM traffic AS earlier WHERE earlier.device_id = now.device_id"
    " AND earlier.round_id < now.round_id ORDER BY round_id DESC LIMIT 1), 0)"
)


class TrafficRows:
    """The ledger's table ``traffic``.

    Args:
        db: the ledger's database.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._noted: dict[tuple[str, int], Totals] = {}

    def note(self, device_id: str, round_id: int, totals: Totals) -> None:
        """A device's totals in a round; written with the next transition (they come again)."""
        self._noted[device_id, round_id] = totals

    def totals(self) -> dict[str, dict[int, Totals]]:
        """Device → round → its totals at the end of that round, rounds in order."""
        self._write()
        rows = self._db.execute(
            "SELECT device_id, round_id, bytes_up, bytes_down, peak_rss_bytes FROM traffic"
            " ORDER BY device_id, round_id"
        )
        found: dict[str, dict[int, Totals]] = {}
        for device_id, round_id, up, down, rss in rows:
            found.setdefault(device_id, {})[round_id] = Totals(
                bytes_up=up, bytes_down=down, peak_rss_bytes=rss
            )
        return found

    def latest(self) -> Iterator[tuple[str, Totals]]:
        """The totals of each device, by device; no counter of a device ever falls."""
        self._write()
        rows = self._db.execute(
            "SELECT device_id, max(bytes_up), max(bytes_down), max(peak_rss_bytes) FROM traffic"
            " GROUP BY device_id ORDER BY device_id"
        )
        for device_id, up, down, rss in rows:
            yield device_id, Totals(bytes_up=up, bytes_down=down, peak_rss_bytes=rss)

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

    def by_device(self) -> Iterator[tuple[str, tuple[RoundBytes, ...]]]:
        """Each device and what it paid in each round, both in order."""
        self._write()
        rows = self._db.execute(f"{_PAID} ORDER BY device_id, round_id")
        for device_id, its in groupby(rows, key=itemgetter(0)):
            yield (
                device_id,
                tuple(
                    RoundBytes(round_id=round_id, bytes_up=up, bytes_down=down)
                    for _, round_id, up, down in its
                ),
            )

    def _write(self) -> None:
        if self._noted:
            with self._db:
                self.flush()

    def flush(self) -> None:
        """Write what was noted, in the transaction that is open."""
        self._db.executemany(
            "INSERT INTO traffic VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET bytes_up = max(bytes_up, excluded.bytes_up),"
            " bytes_down = max(bytes_down, excluded.bytes_down),"
            " peak_rss_bytes = max(peak_rss_bytes, excluded.peak_rss_bytes)",
            [
                (device_id, round_id, t.bytes_up, t.bytes_down, t.peak_rss_bytes)
                for (device_id, round_id), t in self._noted.items()
            ],
        )
        self._noted.clear()
