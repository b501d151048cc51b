"""What a ledger tells of a run, to its coordinator and to whoever opens the file to read."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from protofleet.coordinator.ledger.device_rows import DeviceRows
from protofleet.coordinator.ledger.rows import IDLE, NO_TRAFFIC, Accepted, Traffic
from protofleet.coordinator.ledger.usage_rows import UsageRows
from protofleet.federation.outcomes.calibration import CalibrationProgress
from protofleet.federation.records import (
    CellRecord,
    PrivacyRecord,
    RoundRecord,
    Scores,
    StatisticRows,
    UpdateRecord,
)
from protofleet.federation.schedules.early_stopping import EarlyEnd
from protofleet.tensors import TaskName
from protofleet.wire.mqtt.usage import NO_USAGE

_LAST = "(SELECT coalesce(max(round_id), 0) FROM rounds WHERE phase = 'committed')"
_COUNTED, _REPORTED_IN = f"counted_in <= {_LAST}", f"round_id <= {_LAST}"
_START = "json_extract(record, '$.evaluation.start')"
_PEAK = "max(json_extract(record, '$.costs.peak_rss_bytes'))"
_ROUNDS = (
    "SELECT round_id, final, seconds, scores, update_norms, figures,"  # noqa: S608 - ours
    " (SELECT count(*) FROM members WHERE counted_in = rounds.round_id), record,"
    " (SELECT avg(counted_in - members.round_id) FROM members"
    " WHERE counted_in = rounds.round_id),"
    f" (SELECT count(*) FROM members WHERE counted_in = rounds.round_id AND {IDLE})"
    " FROM rounds LEFT JOIN privacy USING (round_id) WHERE phase = 'committed'"
)
_to_norms = msgspec.json.Decoder(dict[str, float]).decode
_to_record = msgspec.json.Decoder(UpdateRecord).decode


_TAKERS = (
    "SELECT round_id, count(DISTINCT device_id),"  # noqa: S608 - ours
    f" count(DISTINCT CASE WHEN {IDLE} THEN device_id END) FROM reported"
)
_REPORTED = (
    "SELECT *, min(length(cell) || ' ' || cell) FROM reported WHERE EXISTS (SELECT 1 FROM members"
    " WHERE members.round_id = reported.round_id AND members.device_id = reported.cell"
    " AND members.file IS NOT NULL) GROUP BY round_id, device_id"
)
"""Rows of what cells have reported; of a device in two cells the first cell's."""


class RunAbout(msgspec.Struct, frozen=True, kw_only=True):
    """What ``result.json`` and ``devices.json`` say of a run as a whole; fields as there."""

    strategy: str
    seed: int
    task: TaskName
    outputs: tuple[str, ...]
    codec: str = "raw / raw"
    switched_off: str = ""


def to_early_end(text: str | None) -> EarlyEnd | None:
    """What stands in the ledger's table ``meta``."""
    return None if text is None else msgspec.json.decode(text, type=EarlyEnd)


def to_calibration(text: str | None) -> CalibrationProgress | None:
    """What stands in the ledger's table ``meta``."""
    return None if text is None else msgspec.json.decode(text, type=CalibrationProgress)


class LedgerReading:
    """The rounds and updates of a run.

    Args:
        db: the ledger's database.
        folder: of the run.
    """

    _updates = f"members WHERE {_COUNTED}"
    """That count in committed rounds …"""
    _newest = "counted_in DESC, round_id"
    """… and their order."""

    def __init__(self, db: sqlite3.Connection, folder: Path) -> None:
        self._db, self.folder = db, folder
        self.usage = UsageRows(db)

    def about(self) -> RunAbout | None:
        """What the coordinator has noted of the run; None: one of an earlier version has not."""
        found = self._meta("about")
        return None if found is None else msgspec.json.decode(found, type=RunAbout)

    def start(self) -> Scores:
        """Of the server's model before the first round; empty: nobody has measured it."""
        found = self._meta("start")
        return Scores() if found is None else msgspec.json.decode(found, type=Scores)

    def committed(self, traffic: Traffic = NO_TRAFFIC) -> tuple[RoundRecord, ...]:
        """All committed rounds, in order; with the bytes of ``traffic``, else without any."""
        rows = self._db.execute(f"{_ROUNDS} ORDER BY round_id")
        return tuple(_round(row, traffic.get(row[0], (0, 0))) for row in rows)

    def committed_since(self, round_id: int) -> Iterator[RoundRecord]:
        """Those behind one, in order, without bytes; of a root, whose members are cells."""
        rows = self._db.execute(f"{_ROUNDS} AND round_id > ? ORDER BY round_id", (round_id,))
        for row in rows:
            yield _round(row, (0, 0))

    def early_end(self) -> EarlyEnd | None:
        """Where the run ended before its last round, also if it has gone on since."""
        return to_early_end(self._meta("early_end"))

    def calibration(self) -> CalibrationProgress | None:
        """Of the run's learning rate; None: none has begun."""
        return to_calibration(self._meta("calibration"))

    def device_troubles(self) -> dict[str, tuple[str, ...]]:
        """What is wrong on devices → on which (``federation.outcomes.trouble``)."""
        return DeviceRows(self._db).troubles()

    def last_commit_s(self) -> float:
        """When the last round was committed, by the wall clock; 0: none was."""
        row = self._db.execute(
            "SELECT opened_s + seconds FROM rounds WHERE phase = 'committed'"
            " ORDER BY round_id DESC LIMIT 1"
        ).fetchone()
        return 0.0 if row is None else float(row[0])

    def scores(self, after: int) -> Iterator[tuple[int, Scores]]:
        """Of each aggregated round behind one, in order."""
        rows = self._db.execute(
            "SELECT round_id, scores FROM rounds"
            " WHERE phase = 'committed' AND NOT final AND round_id > ? ORDER BY round_id",
            (after,),
        )
        for round_id, scores in rows:
            yield round_id, msgspec.json.decode(scores, type=Scores)

    def committed_round(self, round_id: int) -> RoundRecord:
        """One of them, with its bytes: as cheap at the end of a long run as at its beginning."""
        row = self._db.execute(f"{_ROUNDS} AND round_id = ?", (round_id,)).fetchone()
        return _round(row, self.usage.of_round(round_id))

    def update_norms(self) -> Iterator[dict[str, float]]:
        """``RoundRecord.update_norms`` of all committed rounds, in order."""
        rows = self._db.execute(
            "SELECT update_norms FROM rounds WHERE phase = 'committed' ORDER BY round_id"
        )
        for (norms,) in rows:
            yield _to_norms(norms)

    def losses(self) -> Iterator[float]:
        """Mean losses on own test parts of the rounds that have one, in order; no final fit's."""
        rows = self._db.execute(
            "SELECT json_extract(scores, '$.own_loss.mean') AS loss FROM rounds"
            " WHERE phase = 'committed' AND NOT final AND loss IS NOT NULL ORDER BY round_id"
        )
        for (loss,) in rows:
            yield loss

    def last_norms(self) -> dict[str, float]:
        """The last committed round's; empty before the first."""
        row = self._db.execute(
            "SELECT update_norms FROM rounds WHERE phase = 'committed'"
            " ORDER BY round_id DESC LIMIT 1"
        ).fetchone()
        return {} if row is None else _to_norms(row[0])

    def accepted(self, round_id: int) -> Iterator[Accepted]:
        """Records of the updates that count in the round, in the order of ``Ledger.updates``.

        Each is read when the iteration reaches it: of thousands they would take megabytes.
        """
        rows = self._db.execute(
            "SELECT device_id, transfer_id, record, norms FROM members"
            " WHERE counted_in = ? ORDER BY device_id, round_id DESC",
            (round_id,),
        )
        for device_id, transfer_id, record, norms in rows:
            yield Accepted(
                device_id=sys.intern(device_id),
                transfer_id=transfer_id,
                record=_to_record(record),
                norms=_to_norms(norms),
            )

    def device_ids(self) -> list[str]:
        """Devices whose updates have counted in committed rounds, sorted."""
        rows = self._db.execute(
            f"SELECT DISTINCT device_id FROM members WHERE {_COUNTED} ORDER BY device_id"  # noqa: S608 - ours
        )
        return [device_id for (device_id,) in rows]

    def device_totals(self, device_id: str) -> tuple[int, int]:
        """How many of a device's updates have counted, and the most memory that one told of."""
        row = self._db.execute(
            f"SELECT count(*), {_PEAK} FROM {self._updates} AND device_id = ?",  # noqa: S608 - ours
            (device_id,),
        ).fetchone()
        return row[0], row[1] or 0

    def device_start(self, device_id: str) -> StatisticRows | None:
        """What the bundle's model did on the device's test part, as it was told last."""
        row = self._db.execute(
            f"SELECT {_START} FROM {self._updates} AND device_id = ? AND {_START} IS NOT NULL"  # noqa: S608 - ours
            " ORDER BY round_id DESC LIMIT 1",
            (device_id,),
        ).fetchone()
        return None if row is None else msgspec.json.decode(row[0], type=StatisticRows)

    def device_records(self, device_id: str) -> Iterator[UpdateRecord]:
        """What a device's updates have told that count in committed rounds, the last one first."""
        rows = self._db.execute(
            f"SELECT record FROM {self._updates} AND device_id = ? ORDER BY {self._newest}",  # noqa: S608 - ours
            (device_id,),
        )
        for (record,) in rows:
            yield _to_record(record)

    def cells(self) -> tuple[CellRecord, ...]:
        """Of a root; here there are none."""
        return ()

    def reported_since(self, _round_id: int) -> Iterator[tuple[str, UpdateRecord]]:
        """Of a root: what devices in cells have told in committed rounds behind one, in order."""
        return iter(())

    def _meta(self, key: str) -> str | None:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else row[0]


class RootReading(LedgerReading):
    """The same of a root, whose members are cells and whose updates are those of their devices."""

    _updates = f"({_REPORTED}) WHERE {_REPORTED_IN}"
    _newest = "round_id DESC"

    def accepted(self, round_id: int) -> Iterator[Accepted]:
        """Of the devices in all cells, sorted by device_id; of one in two what the first says."""
        rows = self._db.execute(
            f"SELECT device_id, transfer_id, record, norms FROM ({_REPORTED})"  # noqa: S608 - ours
            " WHERE round_id = ? ORDER BY device_id",
            (round_id,),
        )
        for device_id, transfer_id, record, norms in rows:
            yield Accepted(
                device_id=device_id,
                transfer_id=transfer_id,
                record=_to_record(record),
                norms=_to_norms(norms),
            )

    def committed(self, traffic: Traffic = NO_TRAFFIC) -> tuple[RoundRecord, ...]:
        """All committed rounds, in order; their participants are devices."""
        rows = self._db.execute(f"{_TAKERS} GROUP BY round_id")
        counts = {round_id: (devices, idle) for round_id, devices, idle in rows}
        return tuple(
            _of_devices(one, *counts.get(one.round_id, (0, 0)))
            for one in super().committed(traffic)
        )

    def committed_round(self, round_id: int) -> RoundRecord:
        """One of them."""
        _, devices, idle = self._db.execute(f"{_TAKERS} WHERE round_id = ?", (round_id,)).fetchone()
        return _of_devices(super().committed_round(round_id), devices, idle)

    def device_ids(self) -> list[str]:
        """Devices of whose updates cells have reported."""
        rows = self._db.execute(
            f"SELECT DISTINCT device_id FROM ({_REPORTED}) WHERE {_REPORTED_IN} ORDER BY device_id"  # noqa: S608 - ours
        )
        return [device_id for (device_id,) in rows]

    def reported_since(self, round_id: int) -> Iterator[tuple[str, UpdateRecord]]:
        """What devices in cells have told in committed rounds behind one, by round."""
        rows = self._db.execute(
            f"SELECT device_id, record FROM ({_REPORTED}) WHERE {_REPORTED_IN} AND round_id > ?"  # noqa: S608 - ours
            " ORDER BY round_id",
            (round_id,),
        )
        for device_id, record in rows:
            yield device_id, _to_record(record)

    def cells(self) -> tuple[CellRecord, ...]:
        """The cells that have reported, by name."""
        counts = self._db.execute(
            "SELECT cell, count(DISTINCT device_id) FROM reported GROUP BY cell"
            " ORDER BY length(cell), cell"
        ).fetchall()
        last = {name: usage for name, _, usage in self.usage.latest()}
        return tuple(
            CellRecord(
                id=name,
                devices=count,
                bytes_up=last.get(name, NO_USAGE).bytes_up,
                bytes_down=last.get(name, NO_USAGE).bytes_down,
            )
            for name, count in counts
        )


def reading_of(db: sqlite3.Connection, folder: Path) -> LedgerReading:
    """How to read a run's ledger that another process may be writing."""
    root = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'reported'").fetchone()
    return (LedgerReading if root is None else RootReading)(db, folder)


@contextmanager
def one_state(db: sqlite3.Connection) -> Iterator[None]:
    """In the block the database stands still, however many queries there are."""
    db.execute("BEGIN")
    try:
        yield
    finally:
        db.execute("ROLLBACK")


def _of_devices(cells: RoundRecord, devices: int, idle: int) -> RoundRecord:
    """A root's round, told of devices in the place of cells."""
    return msgspec.structs.replace(cells, participants=devices, trained=devices - idle)


def _round(row: tuple[Any, ...], paid: tuple[int, int]) -> RoundRecord:
    round_id, final, seconds, scores, norms, figures, participants, privacy, staleness, idle = row
    return RoundRecord(
        round_id=round_id,
        final=bool(final),
        seconds=round(seconds, 4),
        participants=participants,
        bytes_up=paid[0],
        bytes_down=paid[1],
        scores=msgspec.json.decode(scores, type=Scores),
        update_norms=_to_norms(norms),
        figures=_to_norms(figures),
        privacy=msgspec.json.decode(privacy, type=PrivacyRecord) if privacy else None,
        staleness=round(staleness or 0.0, 4),
        trained=participants - idle,
    )
