"""The ledger: what must survive the process, in SQLite, with tensors in files beside it.

Order of every transition: files first (fsync, rename), then one transaction that refers to them,
then the act itself. A file that no row refers to is rubbish of a crash and is swept at the start.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Self

import msgspec

from protofleet.coordinator.database import open_database
from protofleet.coordinator.ledger import LEDGER
from protofleet.coordinator.ledger.control import Control, Wish
from protofleet.coordinator.ledger.device_rows import DeviceRows, to_counts
from protofleet.coordinator.ledger.formats import bring_up, forget_former
from protofleet.coordinator.ledger.reading import LedgerReading
from protofleet.coordinator.ledger.rollout_rows import RolloutRows
from protofleet.coordinator.ledger.rows import (
    NO_NORMS,
    SCHEMA,
    THINNED,
    Accepted,
    ArrivedUpdate,
    SpooledUpdates,
)
from protofleet.coordinator.ledger.run_rows import RunRows
from protofleet.coordinator.noise_seeds import NoiseSeeds
from protofleet.durable import Remover, lock, move_all, sync_folder, write_whole
from protofleet.errors import ProtofleetError
from protofleet.federation.records import (
    PrivacyRecord,
    Scores,
    UpdateRecord,
)
from protofleet.federation.replay import Admission
from protofleet.federation.schedules.schedule import RoundPhase, RoundState
from protofleet.private_files import PRIVATE_FOLDER, make_private_folder, refuse_links
from protofleet.strategies.types import ServerState
from protofleet.tensors import blobs
from protofleet.wire.messages import TransferOffer

LOCK_S = 0.5
"""Who looks whether a coordinator runs has its lock for a moment."""
DETAILED_ROUNDS = 1000
"""Of so many last rounds the ledger keeps what devices told of their latencies and scores."""
_NO_LIMIT = 2**62
_SUFFIX = ".safetensors"
_to_record = msgspec.json.Decoder(UpdateRecord).decode


class Ledger(LedgerReading):
    """One run's durable state in ``folder``, owned by one process at a time.

    Args:
        folder: the run folder; made if absent.
        identity: what makes two starts the same run (federation, bundle, strategy, seed, …).
        patience_s: how long the end of another coordinator in the folder is waited for.

    Raises:
        InputError: the folder belongs to a run of another identity, others may read it, or the
            database is damaged.
        UnavailableError: another coordinator uses the folder.
    """

    def __init__(
        self, folder: Path, identity: Mapping[str, str], *, patience_s: float = LOCK_S
    ) -> None:
        self.spool = folder / "spool"
        self.states = folder / "states"
        self.noise = NoiseSeeds(folder / "noise")
        removed = folder / "removed"
        for made in (folder, self.spool, self.states, removed):
            make_private_folder(made, "run folder")
        refuse_links(folder, "run folder")
        taken = f"run folder {folder}: another coordinator is running in it"
        self._lock = lock(folder / "lock", taken=taken, patience_s=patience_s)
        self._remover = Remover(removed)
        super().__init__(_connect(folder / LEDGER), folder)
        self.devices = DeviceRows(self._db)
        self.rollouts = RolloutRows(self._db)
        self.run = RunRows(self._db, folder, self._lock.fileno(), identity)
        self.control = Control(self._db)
        self._sweep()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is pending and release the folder."""
        try:
            with self._db:
                self.usage.flush()
        finally:
            self._db.close()
            self._remover.close()
            self._lock.close()

    def state(self) -> RoundState:
        """Where the run stands, for ``Schedule.resume``; between rounds: one beyond the last."""
        row = self._db.execute(
            "SELECT round_id, phase, size, attempt, final FROM rounds"
            " ORDER BY round_id DESC LIMIT 1"
        ).fetchone()
        paused = self.control.read().wish is not Wish.RUN
        if row is None:
            return RoundState(round_id=self.run.next_round, paused=paused)
        round_id, phase, size, attempt, final = row
        invited = self.devices.last_invited()
        if phase == "committed":
            awaited = max(round_id + 1, self.run.next_round)
            return RoundState(
                round_id=awaited,
                final=bool(final),
                last_invited=invited,
                paused=paused,
                late=self.devices.late(awaited),
                late_delivered=self.devices.late_delivered(awaited),
            )
        members = self._db.execute(
            "SELECT device_id, file FROM members WHERE round_id = ?", (round_id,)
        ).fetchall()
        return RoundState(
            phase=RoundPhase(phase),
            round_id=round_id,
            cohort=tuple(sorted(device_id for device_id, _ in members)),
            delivered=frozenset(device_id for device_id, file in members if file),
            attempt=attempt,
            size=size,
            final=bool(final),
            last_invited=invited,
            paused=paused,
            late=self.devices.late(round_id),
            late_delivered=self.devices.late_delivered(round_id),
        )

    def open_round(
        self,
        round_id: int,
        cohort: Collection[str],
        opened_s: float,
        *,
        size: int | None = None,
        final: bool = False,
    ) -> None:
        """A round begins.

        Args:
            round_id: from 1.
            cohort: who is invited.
            opened_s: wall clock in seconds.
            size: how many updates suffice; None: one of each.
            final: whether it is the final fit.
        """
        size = len(cohort) if size is None else size
        with self._db:
            self._db.execute(
                "INSERT INTO rounds (round_id, phase, size, final, opened_s)"
                " VALUES (?, 'open', ?, ?, ?)",
                (round_id, size, final, opened_s),
            )
            self.usage.flush()
            self.devices.invite(round_id, cohort, final=final)

    def extend_round(self, round_id: int, attempt: int, added: Collection[str]) -> None:
        """The round goes on with more members."""
        with self._db:
            self._db.execute(
                "UPDATE rounds SET attempt = ? WHERE round_id = ?", (attempt, round_id)
            )
            (final,) = self._db.execute(
                "SELECT final FROM rounds WHERE round_id = ?", (round_id,)
            ).fetchone()
            self.usage.flush()
            self.devices.invite(round_id, added, final=bool(final))

    def accept(self, *arrivals: ArrivedUpdate) -> None:
        """Move complete, valid updates into the spool; all are durable when this returns.

        With them go the class counts that their devices have registered by now, and what they have
        signed. Many at once cost little more than one.
        """
        files = {one.source: self._spool_file(one.accepted) for one in arrivals}
        for folder in {file.parent for file in files.values()}:
            if not folder.exists():
                folder.mkdir(mode=PRIVATE_FOLDER)
                sync_folder(self.spool)
        move_all(files)
        with self._db:
            self.usage.flush()
            for one in arrivals:
                self._note_accepted(one, files[one.source])

    def _note_accepted(self, arrival: ArrivedUpdate, file: Path) -> None:
        accepted, offer, record = arrival.accepted, arrival.offer, arrival.accepted.record
        self._db.execute(
            "UPDATE members SET file = ?, transfer_id = ?, record = ?, norms = ?, counted_in = ?,"
            " admitted = (SELECT 1 + coalesce(max(admitted), 0) FROM members),"
            " class_counts = (SELECT class_counts FROM registrations"
            " WHERE registrations.device_id = members.device_id)"
            " WHERE round_id = ? AND device_id = ?",
            (
                str(file.relative_to(self.folder)),
                accepted.transfer_id,
                msgspec.json.encode(record).decode(),
                msgspec.json.encode(dict(accepted.norms)).decode(),
                arrival.counted_in or record.round_id,
                record.round_id,
                accepted.device_id,
            ),
        )
        if offer is not None and offer.signature:
            kept = msgspec.structs.replace(offer, key="")
            self._db.execute(
                "INSERT OR REPLACE INTO signed_offers VALUES (?, ?, ?)",
                (record.round_id, accepted.device_id, msgspec.json.encode(kept).decode()),
            )
        if arrival.reference:
            self._db.execute(
                "INSERT INTO payloads (device_id, reference) VALUES (?, ?)"
                " ON CONFLICT DO UPDATE SET reference = excluded.reference",
                (accepted.device_id, arrival.reference),
            )

    def close_round(self, round_id: int) -> None:
        """From here on exactly the accepted updates count."""
        with self._db:
            self._db.execute("UPDATE rounds SET phase = 'closing' WHERE round_id = ?", (round_id,))

    def updates(self, round_id: int) -> SpooledUpdates:
        """The updates that count in the round, sorted by device_id."""
        names: list[str] = []
        class_counts: list[tuple[int, ...] | None] = []
        for file, counts in self._db.execute(
            "SELECT file, class_counts FROM members"
            " WHERE counted_in = ? ORDER BY device_id, round_id DESC",
            (round_id,),
        ):
            names.append(file)
            class_counts.append(None if counts is None else to_counts(counts))
        return SpooledUpdates(self.folder, tuple(names), tuple(class_counts))

    def claims(self, round_id: int) -> list[Accepted]:
        """``accepted`` as far as the aggregation asks for it."""
        return [one.claims() for one in self.accepted(round_id)]

    def last_accepted(self) -> list[tuple[str, int, str]]:
        """Device, round and transfer of each device's latest update, the latest rounds first."""
        rows = self._db.execute(
            "SELECT device_id, max(round_id), transfer_id FROM members"
            " WHERE transfer_id IS NOT NULL GROUP BY device_id ORDER BY 2 DESC, device_id"
        )
        return rows.fetchall()

    def admissions(self) -> list[Admission]:
        """All accepted updates, in the order in which they were admitted."""
        rows = self._db.execute(
            "SELECT counted_in, device_id, round_id, record FROM members"
            " WHERE admitted IS NOT NULL ORDER BY admitted"
        )
        return [
            Admission(counted_in, device_id, round_id, _to_record(record).share_of_work)
            for counted_in, device_id, round_id, record in rows
        ]

    def signed_offers(self) -> list[tuple[str, TransferOffer]]:
        """Device and offer of every accepted update whose device has signed for it, in order.

        ``wire.trust.identity.verify_offer`` checks one with the key of the device's grant.
        """
        rows = self._db.execute(
            "SELECT device_id, offer FROM signed_offers ORDER BY round_id, device_id"
        )
        decode = msgspec.json.Decoder(TransferOffer).decode
        return [(device_id, decode(offer)) for device_id, offer in rows]

    def has_accepted(self, device_id: str, offer: TransferOffer) -> bool:
        """Whether this very update was ever accepted: then it is answered ``done`` again."""
        row = self._db.execute(
            "SELECT transfer_id FROM members WHERE round_id = ? AND device_id = ?",
            (offer.round_id, device_id),
        ).fetchone()
        return row is not None and row[0] == offer.transfer_id

    def commit_round(  # noqa: PLR0913 - what a round has made, each named at the call
        self,
        state: ServerState,
        scores: Scores,
        committed_s: float,
        *,
        update_norms: Mapping[str, float] = NO_NORMS,
        figures: Mapping[str, float] = NO_NORMS,
        keep_states: int,
        oldest_task: int | None = None,
        privacy: PrivacyRecord | None = None,
    ) -> None:
        """The round's new server state counts; older states and its spool are removed.

        Args:
            state: after aggregation; its ``round_id`` is the round's.
            scores: kept with the round.
            committed_s: wall clock in seconds.
            update_norms: as in ``RoundRecord``.
            figures: as in ``RoundRecord``.
            keep_states: states that stay on disk.
            oldest_task: a task of this round may still be answered, so that the state that it was
                made of stays, too; None: there is none.
            privacy: what the round has spent; its seed is removed.
        """
        name = f"states/{state.round_id:06d}{_SUFFIX}"
        data = blobs.encode(state.tensors)
        write_whole(self.folder / name, data)
        sync_folder(self.states)
        with self._db:
            self.usage.flush()
            self._db.execute(
                "UPDATE rounds SET phase = 'committed', seconds = max(0, ? - opened_s),"
                " state_file = ?, state_sha256 = ?, scores = ?, update_norms = ?, figures = ?"
                " WHERE round_id = ?",
                (
                    committed_s,
                    name,
                    hashlib.sha256(data).hexdigest(),
                    msgspec.json.encode(scores).decode(),
                    msgspec.json.encode(dict(update_norms)).decode(),
                    msgspec.json.encode(dict(figures)).decode(),
                    state.round_id,
                ),
            )
            self._db.execute(
                "UPDATE rounds SET state_file = NULL"
                " WHERE state_file IS NOT NULL AND round_id <= ? AND round_id <"
                " (SELECT coalesce(max(round_id), 0) FROM rounds"
                " WHERE phase = 'committed' AND round_id < ?)",
                (state.round_id - keep_states, oldest_task or state.round_id + 1),
            )
            self._thin(state.round_id - DETAILED_ROUNDS)
            if privacy is not None:
                record = msgspec.json.encode(privacy).decode()
                self._db.execute("INSERT INTO privacy VALUES (?, ?)", (state.round_id, record))
        forget_former(self.folder)
        self._sweep()

    def _thin(self, round_id: int) -> None:
        """Of the updates that counted in a round long ago, who took part and with what stays.

        Rows that shrink in their place give no page back, so they are written anew.
        """
        rows = self._db.execute(
            f"SELECT rowid, round_id, device_id, file, transfer_id, {THINNED}, '{{}}', NULL,"  # noqa: S608 - ours
            " counted_in, admitted FROM members WHERE counted_in = ?",
            (round_id,),
        ).fetchall()
        self._db.execute("DELETE FROM members WHERE counted_in = ?", (round_id,))
        self._db.executemany(
            "INSERT INTO members (rowid, round_id, device_id, file, transfer_id, record, norms,"
            " class_counts, counted_in, admitted) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            rows,
        )

    def server_state(self, before: int = _NO_LIMIT) -> ServerState | None:
        """The state after the last committed round; None before the first.

        Args:
            before: only rounds before this one are looked at.

        Raises:
            ProtofleetError: the file is no longer what was written.
        """
        row = self._db.execute(
            "SELECT round_id, state_file, state_sha256 FROM rounds"
            " WHERE phase = 'committed' AND round_id < ? ORDER BY round_id DESC LIMIT 1",
            (before,),
        ).fetchone()
        if row is None:
            return None
        round_id, name, sha256 = row
        data = (self.folder / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ProtofleetError(f"{self.folder / name}: damaged; restore it from a backup")
        tensors, _ = blobs.decode(data, max_bytes=_NO_LIMIT)
        return ServerState(round_id=round_id, tensors=tensors)

    def _spool_file(self, accepted: Accepted) -> Path:
        return self.spool / f"{accepted.record.round_id:06d}" / f"{accepted.device_id}{_SUFFIX}"

    def _sweep(self) -> None:
        """Remove states that no row names, noise of committed rounds, and updates that counted."""
        rows = self._db.execute("SELECT state_file FROM rounds WHERE state_file IS NOT NULL")
        named = {name for (name,) in rows}
        for file in self.states.iterdir():
            if f"states/{file.name}" not in named:
                file.unlink()
        pending = self._db.execute("SELECT round_id FROM rounds WHERE phase != 'committed'")
        kept = {f"{round_id:06d}" for (round_id,) in pending}
        self.noise.keep_only(kept)
        awaited = self._db.execute(
            "SELECT file FROM members WHERE counted_in >"
            " (SELECT coalesce(max(round_id), 0) FROM rounds WHERE phase = 'committed')"
        )
        spooled: dict[str, set[str]] = {}
        for (name,) in awaited:
            _, folder_name, file_name = name.split("/")
            spooled.setdefault(folder_name, set()).add(file_name)
        for folder in self.spool.iterdir():
            if folder.name not in kept and folder.name not in spooled:
                self._remover.remove(folder)
                continue
            for file in list(folder.iterdir()):
                if file.name not in spooled.get(folder.name, ()):
                    file.unlink()


def _connect(path: Path) -> sqlite3.Connection:
    db = open_database(path, SCHEMA, partial(bring_up, path))
    db.execute("PRAGMA journal_mode = WAL")
    return db
