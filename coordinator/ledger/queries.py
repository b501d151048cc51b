"""What others ask of a run's ledger, while its coordinator may be writing it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from protofleet.coordinator.ledger import LEDGER
from protofleet.coordinator.ledger.formats import check_format
from protofleet.coordinator.ledger.reading import one_state
from protofleet.errors import InputError
from protofleet.federation.records import UpdateRecord

_to_record = msgspec.json.Decoder(UpdateRecord).decode
_to_phases = msgspec.json.Decoder(dict[str, float]).decode


class LatestRound(NamedTuple):
    """The round that was opened last."""

    round_id: int
    phase: str
    final: bool
    size: int
    attempt: int
    opened_s: float

    @property
    def awaited(self) -> int:
        """The round that an update would count in now."""
        return self.round_id + (self.phase == "committed")


class AdmittedUpdate(NamedTuple):
    """An update, by the order in which updates were admitted; ``record`` and ``start`` are JSON.

    Attributes:
        start: of the bundle's model on the device's test part; None: not told this time.
    """

    admitted: int
    device_id: str
    round_id: int
    record: str
    start: str | None


class DeviceTask(NamedTuple):
    """A device's task; without a record its update is not in."""

    round_id: int
    record: UpdateRecord | None
    counted_in: int | None


class CountedTransfer(NamedTuple):
    """What a device has sent for a round, and in which it counts."""

    device_id: str
    round_id: int
    transfer_id: str
    counted_in: int


@contextmanager
def opened_ledger(run_dir: Path) -> Iterator[sqlite3.Connection]:
    """The ledger, to read; InputError in the block if it is damaged."""
    try:
        with closing(sqlite3.connect(f"file:{run_dir / LEDGER}?mode=ro", uri=True)) as db:
            yield db
    except (sqlite3.Error, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(damaged(run_dir, error)) from error


class FollowedLedger:
    """A ledger that is read again with every commit; nobody who writes it waits.

    Args:
        run_dir: of the run; it may be made later.
        forget: called when another file has come into its place, as from a backup.
    """

    def __init__(self, run_dir: Path, forget: Callable[[], None]) -> None:
        self._path, self._forget = run_dir / LEDGER, forget
        self._db: sqlite3.Connection | None = None
        self._file = self._version = -1

    @contextmanager
    def news(self) -> Iterator[sqlite3.Connection | None]:
        """One state of it, however many queries; None: nothing was committed since the last block.

        A block that fails is as if it had not been.

        Raises:
            sqlite3.Error: it cannot be read.
        """
        db = self._opened()
        version = self._version if db is None else db.execute("PRAGMA data_version").fetchone()[0]
        if db is None or version == self._version:
            yield None
            return
        with one_state(db):
            yield db
        self._version = version

    def _opened(self) -> sqlite3.Connection | None:
        try:
            file = os.stat(self._path).st_ino  # noqa: PTH116 - one call, every second
        except FileNotFoundError:
            return self._db
        if file != self._file:
            if self._db is not None:
                self._db.close()
            self._forget()
            self._db = sqlite3.connect(
                f"file:{self._path}?mode=ro",
                uri=True,
                isolation_level=None,
                check_same_thread=False,  # one thread at a time
            )
            self._file, self._version = file, -1
        return self._db


def damaged(run_dir: Path, error: Exception) -> str:
    """What to tell of a ledger that cannot be read."""
    return (
        f"run folder '{run_dir}': its ledger cannot be read ({error}); restore the folder, or "
        "choose another run_dir"
    )


def check_readable(run_dir: Path) -> None:
    """Raise InputError if a run's ledger is damaged, or of another version's format."""
    with opened_ledger(run_dir) as db:
        found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise sqlite3.DatabaseError(found)
        checked_identity(db, run_dir)


def read_identity(run_dir: Path) -> dict[str, str]:
    """What a run's ledger says it is, by name: federation, bundle, strategy, seed and more.

    Empty where ``run_dir`` has no ledger.
    """
    if not (run_dir / LEDGER).is_file():
        return {}
    with opened_ledger(run_dir) as db:
        return identity(db)


def identity(db: sqlite3.Connection) -> dict[str, str]:
    """The same of an open ledger."""
    return dict(db.execute("SELECT key, value FROM meta"))


def checked_identity(db: sqlite3.Connection, run_dir: Path) -> dict[str, str]:
    """The same; InputError if another version has written it."""
    found = identity(db)
    check_format(run_dir, found)
    return found


def latest_round(db: sqlite3.Connection) -> LatestRound | None:
    """The round that was opened last; None: none was."""
    row = db.execute(
        "SELECT round_id, phase, final, size, attempt, opened_s FROM rounds"
        " ORDER BY round_id DESC LIMIT 1"
    ).fetchone()
    return None if row is None else LatestRound(*row)._replace(final=bool(row[2]))


def has_committed(db: sqlite3.Connection) -> bool:
    """Whether any round was committed."""
    found = db.execute("SELECT 1 FROM rounds WHERE phase = 'committed' LIMIT 1").fetchone()
    return found is not None


def members(db: sqlite3.Connection, round_id: int) -> dict[str, bool]:
    """Members of a round by name, and whether their update is in."""
    rows = db.execute(
        "SELECT device_id, file IS NOT NULL FROM members WHERE round_id = ? ORDER BY device_id",
        (round_id,),
    )
    return {device_id: bool(there) for device_id, there in rows}


def counted(db: sqlite3.Connection, round_id: int) -> tuple[str, ...]:
    """Devices whose update counts in a round, by name."""
    rows = db.execute(
        "SELECT DISTINCT device_id FROM members WHERE counted_in = ? ORDER BY device_id",
        (round_id,),
    )
    return tuple(device_id for (device_id,) in rows)


def invited_since(db: sqlite3.Connection, row: int) -> list[tuple[int, str]]:
    """Rows behind one, and whom they invite."""
    return db.execute("SELECT rowid, device_id FROM members WHERE rowid > ?", (row,)).fetchall()


def updates_since(db: sqlite3.Connection, admitted: int) -> Iterator[AdmittedUpdate]:
    """Those that were admitted behind one, in order; each is read when its turn comes."""
    rows = db.execute(
        "SELECT admitted, device_id, round_id, record,"
        " json_extract(record, '$.evaluation.start') FROM members"
        " WHERE admitted > ? ORDER BY admitted",
        (admitted,),
    )
    return map(AdmittedUpdate._make, rows)


def counted_updates(db: sqlite3.Connection) -> Iterator[tuple[int, UpdateRecord]]:
    """All that count in a round, with its number and by it; each is read when its turn comes."""
    rows = db.execute(
        "SELECT counted_in, record FROM members WHERE counted_in IS NOT NULL"
        " ORDER BY counted_in, device_id"
    )
    for number, record in rows:
        yield number, _to_record(record)


def committed_updates(db: sqlite3.Connection) -> Iterator[tuple[str, int, UpdateRecord]]:
    """All that count in a committed round, by device, then by that round."""
    rows = db.execute(
        "SELECT device_id, counted_in, members.record FROM members"
        " JOIN rounds ON rounds.round_id = counted_in"
        " WHERE phase = 'committed' AND members.record IS NOT NULL"
        " ORDER BY device_id, counted_in"
    )
    for device_id, number, record in rows:
        yield device_id, number, _to_record(record)


def tasks_of(db: sqlite3.Connection, device_id: str, most: int) -> list[DeviceTask]:
    """A device's last tasks, the newest first."""
    rows = db.execute(
        "SELECT round_id, record, counted_in FROM members WHERE device_id = ?"
        " ORDER BY round_id DESC LIMIT ?",
        (device_id, most),
    )
    return [
        DeviceTask(number, None if record is None else _to_record(record), counted_in)
        for number, record, counted_in in rows
    ]


def round_times(db: sqlite3.Connection, round_id: int) -> tuple[float, float | None] | None:
    """When a round was opened, and the seconds to its commit; None: there is no such round."""
    found: tuple[float, float | None] | None = db.execute(
        "SELECT opened_s, seconds FROM rounds WHERE round_id = ?", (round_id,)
    ).fetchone()
    return found


def phases(db: sqlite3.Connection, round_id: int) -> dict[str, dict[str, float]]:
    """Wall seconds by phase of each member of a round; empty: its update is not in."""
    rows = db.execute(
        "SELECT device_id, json_extract(record, '$.costs.phases_s') FROM members"
        " WHERE round_id = ? ORDER BY device_id",
        (round_id,),
    )
    return {device_id: {} if text is None else _to_phases(text) for device_id, text in rows}


def refused(db: sqlite3.Connection) -> dict[str, tuple[str, str]]:
    """Device by name → the rule that its last update broke, and how."""
    rows = db.execute("SELECT device_id, rule, reason FROM refusals ORDER BY device_id")
    return {device_id: (rule, reason) for device_id, rule, reason in rows}


def held(db: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    """Device by name → the conditions that its owner has set, and that do not hold."""
    rows = db.execute("SELECT device_id, conditions FROM held ORDER BY device_id")
    return {
        device_id: tuple(msgspec.json.decode(conditions, type=list[str]))
        for device_id, conditions in rows
    }


def states(db: sqlite3.Connection) -> dict[int, str]:
    """Committed round → SHA-256 of the server's state after it."""
    return dict(db.execute("SELECT round_id, state_sha256 FROM rounds WHERE phase = 'committed'"))


def transfers(db: sqlite3.Connection) -> list[CountedTransfer]:
    """All updates that are in."""
    rows = db.execute(
        "SELECT device_id, round_id, transfer_id, counted_in FROM members WHERE file IS NOT NULL"
    )
    return [CountedTransfer(*row) for row in rows]
