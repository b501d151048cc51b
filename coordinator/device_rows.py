"""What the ledger keeps of devices between their rounds: refusals, holds, invitations, speed.

``status`` reads the first two while the coordinator runs; from the others follows, after a restart
too, whom the next round invites and how much work it asks of whom.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping

import msgspec

from protofleet.errors import RefusedError
from protofleet.federation.records import UpdateRecord
from protofleet.federation.stragglers import PastRound

_LOOKED_AT = 16
"""A device's last invitations that tell of its speed."""
_record = msgspec.json.Decoder(UpdateRecord).decode


class DeviceRows:
    """The ledger's tables about devices.

    Args:
        db: the ledger's database.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def note_refusal(self, device_id: str, error: RefusedError) -> None:
        """A device cannot take part, and why, until ``forget_refusal``."""
        row = (device_id, error.rule, str(error))
        with self._db:
            self._db.execute("INSERT OR REPLACE INTO refusals VALUES (?, ?, ?)", row)

    def forget_refusal(self, device_id: str) -> None:
        """The device takes part."""
        with self._db:
            self._db.execute("DELETE FROM refusals WHERE device_id = ?", (device_id,))

    def refused(self) -> set[str]:
        """Devices that cannot take part."""
        return {device_id for (device_id,) in self._db.execute("SELECT device_id FROM refusals")}

    def note_held(self, changed: Mapping[str, tuple[str, ...]]) -> None:
        """Which conditions hold devices now; none: the device is not held any more."""
        held = [
            (device_id, msgspec.json.encode(conditions).decode())
            for device_id, conditions in changed.items()
            if conditions
        ]
        free = [(device_id,) for device_id, conditions in changed.items() if not conditions]
        with self._db:
            self._db.executemany("INSERT OR REPLACE INTO held VALUES (?, ?)", held)
            self._db.executemany("DELETE FROM held WHERE device_id = ?", free)

    def forget_held(self) -> None:
        """A new process knows of none: each says so again."""
        with self._db:
            self._db.execute("DELETE FROM held")

    def last_invited(self) -> dict[str, int]:
        """Device → the last round to which it was invited."""
        rows = self._db.execute("SELECT device_id, max(round_id) FROM members GROUP BY device_id")
        return dict(rows)

    def most_invitations(self) -> int:
        """Rounds to which the device was invited that was to most, without the final fit.

        Of rounds that were given up (``backup.restore``) nothing is known but their number: it may
        have been there.
        """
        row = self._db.execute(
            "SELECT max(invited) FROM (SELECT count(*) AS invited FROM members"
            " JOIN rounds USING (round_id) WHERE NOT final GROUP BY device_id)"
        ).fetchone()
        given_up = self._db.execute("SELECT value FROM meta WHERE key = 'given_up'").fetchone()
        return (row[0] or 0) + int(given_up[0])

    def past_rounds(self, device_id: str, before: int) -> Iterator[PastRound]:
        """A device's latest rounds before one, the last first."""
        rows = self._db.execute(
            "SELECT record FROM members WHERE device_id = ? AND round_id < ?"
            " ORDER BY round_id DESC LIMIT ?",
            (device_id, before, _LOOKED_AT),
        )
        for (record,) in rows:
            yield PastRound.of(None if record is None else _record(record))
