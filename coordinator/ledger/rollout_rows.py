"""Roll-outs of bundles as the ledger keeps them: what was published, and how far each device is."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping
from typing import Literal, get_args

import msgspec

from protofleet.errors import InputError

RolloutState = Literal["running", "waiting", "paused", "complete", "taken_back"]
"""``waiting``: for the operator, before the next stage."""
DeviceState = Literal["offered", "fetched", "verified", "tested", "active", "confirmed", "failed"]
STAGES = ("first", "share", "rest")
UNDER_WAY: tuple[RolloutState, ...] = ("running", "waiting", "paused")
BUNDLES = "bundles"
"""Folder of published bundles in the run folder, named by their digests."""

_STATES = ", ".join(f"'{state}'" for state in get_args(RolloutState))
_DEVICE_STATES = ", ".join(f"'{state}'" for state in get_args(DeviceState))
SCHEMA = f"""
CREATE TABLE IF NOT EXISTS rollouts (
    id INTEGER PRIMARY KEY,
    target TEXT NOT NULL,
    former TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ({_STATES})),
    stage INTEGER NOT NULL,
    settings TEXT NOT NULL,
    withdrawal TEXT NOT NULL,
    reason TEXT NOT NULL,
    since_s REAL NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS rollout_devices (
    rollout INTEGER NOT NULL REFERENCES rollouts,
    device_id TEXT NOT NULL,
    stage INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ({_DEVICE_STATES})),
    rule TEXT NOT NULL DEFAULT '',
    reason TEXT NOT NULL DEFAULT '',
    since_s REAL NOT NULL,
    PRIMARY KEY (rollout, device_id)
) STRICT;
"""
_COLUMNS = "id, target, former, sequence, state, stage, settings, withdrawal, reason, since_s"


class RolloutSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a bundle is rolled out.

    Attributes:
        first: devices of the first stage.
        share: of all devices, reached by the second stage.
        max_failures: share of the devices so far; if more fail in one stage, the roll-out ends.
        max_loss: a device fails whose training loss, or loss on its own test part, in a round with
            the bundle is more than this many times that of its last round before, and 0.1; 0: the
            losses do not matter.
        by_hand: whether each further stage waits for the operator.
        on_failure: ``back``: all devices go back to the bundle before; ``pause``: nothing more
            happens without the operator.
    """

    first: int = 1
    share: float = 0.05
    max_failures: float = 0.2
    max_loss: float = 2.0
    by_hand: bool = False
    on_failure: Literal["back", "pause"] = "back"


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """One bundle's way to the fleet.

    Attributes:
        id: counts them.
        target: digest of the bundle; ``former``: of the one before; empty: it is the run's own
            from the start, for devices of another run.
        sequence: the largest whose place it may take.
        state: where it stands, since ``since_s`` (Unix seconds).
        stage: index into ``STAGES``.
        settings: how.
        withdrawal: its signer's statement that devices go back to ``target``; empty: it is newer.
        reason: why it was paused or taken back, if nobody asked for it.
    """

    id: int
    target: str
    former: str
    sequence: int
    state: RolloutState
    stage: int
    settings: RolloutSettings
    withdrawal: str
    reason: str
    since_s: float

    @property
    def under_way(self) -> bool:
        """Whether it is neither complete nor taken back."""
        return self.state in UNDER_WAY


class RolloutDevice(msgspec.Struct, frozen=True, kw_only=True):
    """How far one device is, since ``since_s`` (Unix seconds); ``rule``, ``reason``: of ``failed``.

    ``stage``: index into ``STAGES``.
    """

    device_id: str
    stage: int
    state: DeviceState
    since_s: float
    rule: str = ""
    reason: str = ""


class RolloutRows:
    """The roll-outs in a ledger, for its coordinator and for commands beside it.

    Args:
        db: the ledger's database.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._seen = -1

    def changed(self) -> bool:
        """Whether another process has written into the ledger since the last call."""
        before, self._seen = self._seen, self._db.execute("PRAGMA data_version").fetchone()[0]
        return bool(self._seen != before)

    def active(self) -> str:
        """Digest of the bundle that the run has now; empty before its first start."""
        row = self._db.execute("SELECT value FROM meta WHERE key = 'bundle'").fetchone()
        return row[0] if row else ""

    def latest(self) -> Rollout | None:
        """The last one that was begun."""
        row = self._db.execute(
            f"SELECT {_COLUMNS} FROM rollouts ORDER BY id DESC LIMIT 1"  # noqa: S608 - ours
        ).fetchone()
        if row is None:
            return None
        fields = dict(zip(_COLUMNS.split(", "), row, strict=True))
        fields["settings"] = msgspec.json.decode(fields["settings"], type=RolloutSettings)
        return Rollout(**fields)

    def devices(self, rollout: int) -> list[RolloutDevice]:
        """Of a roll-out, by stage and id."""
        rows = self._db.execute(
            "SELECT device_id, stage, state, since_s, rule, reason FROM rollout_devices"
            " WHERE rollout = ? ORDER BY stage, device_id",
            (rollout,),
        )
        names = RolloutDevice.__struct_fields__
        return [RolloutDevice(**dict(zip(names, row, strict=True))) for row in rows]

    def begin(
        self,
        target: str,
        former: str,
        *,
        sequence: int,
        settings: RolloutSettings,
        stage: int = 0,
    ) -> None:
        """A bundle is published; durable when this returns.

        Raises:
            InputError: another roll-out is under way.
        """
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            found = self.latest()
            if found is not None and found.under_way:
                raise InputError(
                    f"bundle: the roll-out of {found.target[:16]} is under way ({found.state}); "
                    "await it, or take it back first: protofleet bundle rollback FILE"
                )
            self._insert(
                target=target,
                former=former,
                sequence=sequence,
                settings=settings,
                withdrawal="",
                state="running",
                stage=stage,
            )

    def withdraw(self, found: Rollout, *, sequence: int, withdrawal: str) -> None:
        """The bundle of a complete roll-out makes room for the one before it, everywhere."""
        with self._db:
            self._insert(
                target=found.former,
                former=found.target,
                sequence=sequence,
                settings=found.settings,
                withdrawal=withdrawal,
                state="complete",
                stage=len(STAGES) - 1,
            )
            self._db.execute("UPDATE meta SET value = ? WHERE key = 'bundle'", (found.former,))

    def move(
        self,
        found: Rollout,
        state: RolloutState,
        *,
        stage: int | None = None,
        reason: str = "",
    ) -> bool:
        """Let a roll-out stand elsewhere; False: another process was faster."""
        with self._db:
            done = self._db.execute(
                "UPDATE rollouts SET state = ?, stage = ?, reason = ?, since_s = ?"
                " WHERE id = ? AND state = ? AND stage = ?",
                (
                    state,
                    found.stage if stage is None else stage,
                    reason,
                    time.time(),
                    found.id,
                    found.state,
                    found.stage,
                ),
            )
            if state == "complete" and done.rowcount:
                self._db.execute("UPDATE meta SET value = ? WHERE key = 'bundle'", (found.target,))
        return done.rowcount > 0

    def note(self, rollout: int, changed: Mapping[str, RolloutDevice]) -> None:
        """How far devices are now."""
        rows = [
            (rollout, one.device_id, one.stage, one.state, one.rule, one.reason, one.since_s)
            for one in changed.values()
        ]
        with self._db:
            self._db.executemany(
                "INSERT OR REPLACE INTO rollout_devices"
                " (rollout, device_id, stage, state, rule, reason, since_s)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                rows,
            )

    def losses_before(self, device_id: str, round_id: int) -> tuple[float | None, float | None]:
        """Training loss and loss on the own test part in the last update before a round.

        None: the device told none.
        """
        row: tuple[float | None, float | None] | None = self._db.execute(
            "SELECT json_extract(record, '$.loss'), json_extract(record, '$.evaluation.own_loss')"
            " FROM members WHERE device_id = ? AND round_id < ? AND record IS NOT NULL"
            " ORDER BY round_id DESC LIMIT 1",
            (device_id, round_id),
        ).fetchone()
        return row or (None, None)

    def _insert(  # noqa: PLR0913 - the columns of a row
        self,
        *,
        target: str,
        former: str,
        sequence: int,
        settings: RolloutSettings,
        withdrawal: str,
        state: RolloutState,
        stage: int,
    ) -> None:
        self._db.execute(
            "INSERT INTO rollouts (target, former, sequence, state, stage, settings, withdrawal,"
            " reason, since_s) VALUES (?, ?, ?, ?, ?, ?, ?, '', ?)",
            (
                target,
                former,
                sequence,
                state,
                stage,
                msgspec.json.encode(settings).decode(),
                withdrawal,
                time.time(),
            ),
        )
