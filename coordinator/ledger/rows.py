"""What the ledger's database holds: its tables, and its rows as others see them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec

from protofleet.coordinator.ledger.rollout_rows import SCHEMA as ROLLOUTS
from protofleet.coordinator.ledger.usage_rows import SCHEMA as USAGE
from protofleet.federation.coding import read_update
from protofleet.federation.records import UpdateRecord
from protofleet.strategies.types import Update
from protofleet.wire.messages import TransferOffer

NO_NORMS: Mapping[str, float] = MappingProxyType({})
Traffic = Mapping[int, tuple[int, int]]
"""What all devices sent and received in each round; in round 0 it is what it cost to join."""
NO_TRAFFIC: Traffic = MappingProxyType({})

IDLE = "json_extract(record, '$.num_examples') = 0"
"""Of an update: its device had nothing to train on."""
SCHEMA = f"""
{ROLLOUTS}
{USAGE}
CREATE TABLE IF NOT EXISTS meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS rounds (
    round_id INTEGER PRIMARY KEY,
    phase TEXT NOT NULL CHECK (phase IN ('open', 'closing', 'committed')),
    size INTEGER NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 0,
    final INTEGER NOT NULL,
    opened_s REAL NOT NULL,
    seconds REAL,
    state_file TEXT,
    state_sha256 TEXT,
    scores TEXT,
    update_norms TEXT,
    figures TEXT
) STRICT;

CREATE INDEX IF NOT EXISTS rounds_with_state ON rounds (round_id) WHERE state_file IS NOT NULL;
CREATE INDEX IF NOT EXISTS rounds_open ON rounds (round_id) WHERE phase != 'committed';

CREATE TABLE IF NOT EXISTS members (
    round_id INTEGER NOT NULL REFERENCES rounds,
    device_id TEXT NOT NULL,
    file TEXT,
    transfer_id TEXT,
    record TEXT,
    norms TEXT,
    class_counts TEXT,
    counted_in INTEGER,
    admitted INTEGER,
    PRIMARY KEY (round_id, device_id)
) STRICT;

CREATE INDEX IF NOT EXISTS members_by_device ON members (device_id, round_id);
CREATE INDEX IF NOT EXISTS members_by_count ON members (counted_in, device_id);
CREATE INDEX IF NOT EXISTS members_idle ON members (counted_in) WHERE {IDLE};
CREATE UNIQUE INDEX IF NOT EXISTS members_by_admission ON members (admitted);

CREATE TABLE IF NOT EXISTS registrations (
    device_id TEXT PRIMARY KEY,
    class_counts TEXT NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS refusals (
    device_id TEXT PRIMARY KEY,
    rule TEXT NOT NULL,
    reason TEXT NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS held (
    device_id TEXT PRIMARY KEY,
    conditions TEXT NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS device_troubles (
    device_id TEXT NOT NULL,
    what TEXT NOT NULL,
    PRIMARY KEY (device_id, what)
) STRICT;

CREATE TABLE IF NOT EXISTS signed_offers (
    round_id INTEGER NOT NULL,
    device_id TEXT NOT NULL,
    offer TEXT NOT NULL,
    PRIMARY KEY (round_id, device_id)
) STRICT;

CREATE TABLE IF NOT EXISTS payloads (
    device_id TEXT PRIMARY KEY,
    reference TEXT NOT NULL DEFAULT '',
    raw_only INTEGER NOT NULL DEFAULT 0
) STRICT;

CREATE TABLE IF NOT EXISTS privacy (
    round_id INTEGER PRIMARY KEY REFERENCES rounds,
    record TEXT NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS control (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    serial INTEGER NOT NULL,
    wish TEXT NOT NULL CHECK (wish IN ('run', 'pause', 'stop', 'end', 'stopped')),
    since_s REAL NOT NULL,
    rounds INTEGER NOT NULL,
    taken INTEGER NOT NULL
) STRICT;
"""

THINNED = (
    "json_remove(record, '$.evaluation.own', '$.evaluation.pooled', '$.evaluation.own_loss',"
    " '$.evaluation.more', '$.costs.train_step_ms', '$.costs.infer_ms',"
    " '$.costs.phases_s', '$.costs.cpu_s')"
)
"""A record of an update without what takes most of its room."""


class Accepted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One accepted update: its row without its tensors; ``norms`` as in ``DecodedUpdate``."""

    device_id: str
    transfer_id: str
    record: UpdateRecord
    norms: Mapping[str, float] = {}

    def claims(self) -> Accepted:
        """What the aggregation asks for, which of thousands is small: no scores, no costs."""
        of_record = self.record
        record = UpdateRecord(
            client_id=self.device_id,
            round_id=of_record.round_id,
            num_examples=of_record.num_examples,
            work=of_record.work,
        )
        return Accepted(device_id=self.device_id, transfer_id="", record=record, norms=self.norms)


@dataclass(frozen=True, slots=True)
class ArrivedUpdate:
    """An admitted update that is to be accepted.

    Attributes:
        source: file of its raw blob.
        accepted: its row.
        offer: which its device has signed, where the federation has keys.
        reference: the payload that its device has now; empty if none will refer to it.
        counted_in: the round in which it counts; 0: that of its task.
    """

    source: Path
    accepted: Accepted
    offer: TransferOffer | None = None
    reference: str = ""
    counted_in: int = 0


@dataclass(frozen=True, slots=True)
class SpooledUpdates:
    """Updates sorted by device_id, a late one behind its device's other.

    Each is read from disk when the iteration reaches it.

    Attributes:
        folder: of the run.
        names: of one file for each update, within it.
        class_counts: what its device had registered when it was accepted; None: nothing.
    """

    folder: Path
    names: tuple[str, ...]
    class_counts: tuple[tuple[int, ...] | None, ...]

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Update]:
        folder = str(self.folder)  # a path object for each would take as long as reading it
        for name, counts in zip(self.names, self.class_counts, strict=True):
            with open(f"{folder}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 - as above
                yield read_update(file.readall(), counts)

    @property
    def files(self) -> tuple[Path, ...]:
        """Each takes some hundred bytes."""
        return tuple(self.folder / name for name in self.names)
