"""What a root keeps beside: of which devices its cells have reported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.ledger.reading import RootReading
from protofleet.coordinator.ledger.rows import THINNED, ArrivedUpdate
from protofleet.federation.cells import GatheredRound, ReportHeader, gather, read_header
from protofleet.strategies.strategy import Strategy
from protofleet.strategies.types import Updates

_SCHEMA = """
CREATE TABLE IF NOT EXISTS reported (
    round_id INTEGER NOT NULL,
    device_id TEXT NOT NULL,
    cell TEXT NOT NULL,
    transfer_id TEXT NOT NULL,
    record TEXT NOT NULL,
    norms TEXT NOT NULL,
    PRIMARY KEY (round_id, device_id, cell)
) STRICT;

CREATE INDEX IF NOT EXISTS reported_by_device ON reported (device_id, round_id);
"""
"""Devices of which a cell has reported an update; they count with the cell's row in ``members``."""


class RootLedger(RootReading, Ledger):
    """A run's durable state at the root: members are cells, updates are those of their devices.

    Args:
        folder, identity, patience_s: as of ``Ledger``.
        strategy: of the federation.
    """

    def __init__(
        self, folder: Path, identity: Mapping[str, str], *, strategy: Strategy, patience_s: float
    ) -> None:
        super().__init__(folder, identity, patience_s=patience_s)
        self._strategy = strategy
        self._db.executescript(_SCHEMA)

    def accept(self, *arrivals: ArrivedUpdate) -> None:
        """Move cells' reports into the spool, and rows of their devices beside; then durable."""
        with self._db:
            for one in arrivals:
                self._note_devices(one.accepted.device_id, read_header(one.source))
        super().accept(*arrivals)

    def _note_devices(self, cell: str, header: ReportHeader) -> None:
        self._db.execute(
            "DELETE FROM reported WHERE round_id = ? AND cell = ?", (header.round_id, cell)
        )
        self._db.executemany(
            "INSERT INTO reported VALUES (?, ?, ?, ?, ?, ?)",
            [
                (
                    header.round_id,
                    one.device_id,
                    cell,
                    one.transfer_id,
                    msgspec.json.encode(one.record).decode(),
                    msgspec.json.encode(one.norms).decode(),
                )
                for one in header.updates
            ],
        )

    def updates(self, round_id: int) -> Updates:  # type: ignore[override]
        """The round's updates of all cells, or one that stands for them."""
        return self._gathered(round_id).updates

    def _thin(self, round_id: int) -> None:
        super()._thin(round_id)
        rows = self._db.execute(
            f"SELECT round_id, device_id, cell, transfer_id, {THINNED}, '{{}}' FROM reported"  # noqa: S608 - ours
            " WHERE round_id = ?",
            (round_id,),
        ).fetchall()
        self._db.execute("DELETE FROM reported WHERE round_id = ?", (round_id,))
        self._db.executemany("INSERT INTO reported VALUES (?, ?, ?, ?, ?, ?)", rows)

    def _gathered(self, round_id: int) -> GatheredRound:
        files = self._db.execute(
            "SELECT file FROM members WHERE round_id = ? AND file IS NOT NULL", (round_id,)
        )
        return gather([self.folder / file for (file,) in files], self._strategy)
