"""What the ledger keeps of devices between their rounds.

``status`` reads refusals and holds while the coordinator runs. From invitations and past rounds
follows, after a restart too, whom the next round invites and how much work it asks of whom; from
class counts how updates weigh, and from the payloads that devices have how the next are coded.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Mapping

import msgspec

from protofleet.errors import RefusedError
from protofleet.federation.records import UpdateRecord
from protofleet.federation.schedules.stragglers import PastRound

_LOOKED_AT = 16
"""A device's last invitations that tell of its speed."""
to_counts = msgspec.json.Decoder(tuple[int, ...]).decode
_record = msgspec.json.Decoder(UpdateRecord).decode


class DeviceRows:
    """The ledger's tables about devices.

    Args:
        db: the ledger's database.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._invitations: Counter[str] | None = None

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

    def note_trouble(self, device_id: str, what: str, *, there: bool) -> None:
        """A device has the trouble, or has it no more."""
        text = (
            "INSERT OR IGNORE INTO device_troubles VALUES (?, ?)"
            if there
            else "DELETE FROM device_troubles WHERE device_id = ? AND what = ?"
        )
        with self._db:
            self._db.execute(text, (device_id, what))

    def troubles(self) -> dict[str, tuple[str, ...]]:
        """Trouble → the devices that have it, both by name; an earlier version has kept none."""
        found: dict[str, list[str]] = {}
        table = "SELECT 1 FROM sqlite_master WHERE name = 'device_troubles'"
        if self._db.execute(table).fetchone() is not None:
            for what, device_id in self._db.execute(
                "SELECT what, device_id FROM device_troubles ORDER BY what, device_id"
            ):
                found.setdefault(what, []).append(device_id)
        return {what: tuple(names) for what, names in found.items()}

    def last_invited(self) -> dict[str, int]:
        """Device → the last round to which it was invited."""
        rows = self._db.execute("SELECT device_id, max(round_id) FROM members GROUP BY device_id")
        return dict(rows)

    def late(self, round_id: int) -> dict[str, int]:
        """Devices whose last task was of a round before this one and has no update, with its round.

        However long that is ago, as long as the state of which it was made is there: the schedule
        knows what is too late.
        """
        first, oldest = self._db.execute(
            "SELECT min(round_id), min(CASE WHEN state_file IS NOT NULL THEN round_id END)"
            " FROM rounds WHERE phase = 'committed'"
        ).fetchone()
        rows = self._db.execute(
            "SELECT device_id, max(round_id), file FROM members GROUP BY device_id"
        )
        return {
            device_id: task
            for device_id, task, file in rows
            if file is None
            and task < round_id
            and (first is None or task <= first or oldest < task)
        }

    def late_delivered(self, round_id: int) -> frozenset[str]:
        """Devices whose update of an earlier round counts in this one."""
        rows = self._db.execute(
            "SELECT device_id FROM members WHERE counted_in = ? AND round_id < ?",
            (round_id, round_id),
        )
        return frozenset(device_id for (device_id,) in rows)

    def most_invitations(self) -> int:
        """Rounds to which the device was invited that was to most, without the final fit.

        Of rounds that were given up (``backup.restore``) nothing is known but their number: it may
        have been there.
        """
        if self._invitations is None:
            rows = self._db.execute(
                "SELECT device_id, count(*) FROM members"
                " JOIN rounds USING (round_id) WHERE NOT final GROUP BY device_id"
            )
            self._invitations = Counter(dict(rows))
        given_up = self._db.execute("SELECT value FROM meta WHERE key = 'given_up'").fetchone()
        return max(self._invitations.values(), default=0) + int(given_up[0])

    def invite(self, round_id: int, device_ids: Collection[str], *, final: bool) -> None:
        """These are members of a round, within the transaction that is open."""
        self._db.executemany(
            "INSERT INTO members (round_id, device_id) VALUES (?, ?)",
            [(round_id, device_id) for device_id in device_ids],
        )
        if self._invitations is not None and not final:
            self._invitations.update(device_ids)

    def past_rounds(self, device_id: str, before: int) -> Iterator[PastRound]:
        """A device's latest rounds before one, the last first."""
        rows = self._db.execute(
            "SELECT record FROM members WHERE device_id = ? AND round_id < ?"
            " ORDER BY round_id DESC LIMIT ?",
            (device_id, before, _LOOKED_AT),
        )
        for (record,) in rows:
            yield PastRound.of(None if record is None else _record(record))

    def register(self, device_id: str, class_counts: tuple[int, ...]) -> None:
        """A device's training samples of each class, until it registers others."""
        with self._db:
            self._db.execute(
                "INSERT INTO registrations VALUES (?, ?)"
                " ON CONFLICT DO UPDATE SET class_counts = excluded.class_counts",
                (device_id, msgspec.json.encode(class_counts).decode()),
            )

    def registered(self) -> dict[str, tuple[int, ...]]:
        """Class counts by device, as registered last."""
        rows = self._db.execute("SELECT device_id, class_counts FROM registrations")
        return {device_id: to_counts(counts) for device_id, counts in rows}

    def references(self) -> dict[str, str]:
        """Device → the payload that it has, as the SHA-256 of its raw blob."""
        rows = self._db.execute("SELECT device_id, reference FROM payloads WHERE reference != ''")
        return dict(rows)

    def reference_of(self, device_id: str) -> str:
        """The payload that a device has; empty: none that is known."""
        row = self._db.execute("SELECT reference FROM payloads WHERE device_id = ?", (device_id,))
        found: tuple[str] | None = row.fetchone()
        return found[0] if found else ""

    def forget_reference(self, device_id: str) -> None:
        """The device does not have that payload any more."""
        with self._db:
            self._db.execute("UPDATE payloads SET reference = '' WHERE device_id = ?", (device_id,))

    def takes_raw_only(self, device_id: str) -> bool:
        """Whether a device gets raw payloads, whatever the federation's codec."""
        row = self._db.execute(
            "SELECT 1 FROM payloads WHERE device_id = ? AND raw_only", (device_id,)
        )
        return row.fetchone() is not None

    def send_raw_only(self, device_id: str) -> None:
        """The device does not know the codec: it gets raw payloads from now on."""
        with self._db:
            self._db.execute(
                "INSERT INTO payloads (device_id, raw_only) VALUES (?, 1)"
                " ON CONFLICT DO UPDATE SET raw_only = 1",
                (device_id,),
            )
