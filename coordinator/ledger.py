"""The ledger: what must survive the process, in SQLite, with tensors in files beside it.

Order of every transition: files first (fsync, rename), then one transaction that refers to them,
then the act itself. A file that no row refers to is rubbish of a crash and is swept at the start.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np

from protofleet.coordinator._schema import FORMAT, SCHEMA
from protofleet.coordinator._shared import SharedPayloads
from protofleet.durable import lock, move_whole, sync_folder, write_whole
from protofleet.errors import InputError, ProtofleetError
from protofleet.federation.coding import UpdateRecord, unpack_update
from protofleet.federation.settings import CodecSettings
from protofleet.federation.synchronous import Phase, State
from protofleet.strategies.types import ServerState, Update
from protofleet.tensors import blobs

_NO_LIMIT = 2**62
_SUFFIX = ".safetensors"
_ADDED_LATER = {"codec": CodecSettings().identity}
"""Of an identity: what runs had that were begun before it was kept."""
_to_counts = msgspec.json.Decoder(tuple[int, ...]).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """One accepted update: its row without its tensors."""

    client_id: str
    transfer_id: str
    record: UpdateRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedRound:
    """One committed round.

    Attributes:
        seconds: wall time from its opening to its commit.
        scores: what ``results.py`` stored with it, JSON.
        final: whether it was the final fit.
    """

    round_id: int
    seconds: float
    scores: Any
    final: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a device had paid in all, as of its last heartbeat that named a round."""

    bytes_up: int
    bytes_down: int
    peak_rss_bytes: int


@dataclass(frozen=True, slots=True)
class SpooledUpdates:
    """Updates sorted by client_id; each is read from disk when the iteration reaches it.

    Attributes:
        files: one for each update.
        class_counts: what its client had registered when it was accepted; None: nothing.
    """

    files: tuple[Path, ...]
    class_counts: tuple[tuple[int, ...] | None, ...]

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[Update]:
        for file, counts in zip(self.files, self.class_counts, strict=True):
            update, _ = unpack_update(file.read_bytes(), max_bytes=_NO_LIMIT)
            known = None if counts is None else np.array(counts, np.int64)
            yield replace(update, class_counts=known)


class Ledger:
    """One run's durable state in ``folder``, owned by one process at a time.

    Args:
        folder: the run folder; made if absent.
        identity: what makes two starts the same run (federation, bundle, strategy, seed, …).

    Attributes:
        shared: the payloads that devices have.

    Raises:
        InputError: the folder belongs to a run of another identity.
        UnavailableError: another coordinator uses the folder.
    """

    def __init__(self, folder: Path, identity: Mapping[str, str]) -> None:
        self.folder = folder
        self.spool = folder / "spool"
        self.states = folder / "states"
        for made in (folder, self.spool, self.states):
            made.mkdir(parents=True, exist_ok=True)
        taken = f"run folder {folder}: another coordinator is running in it"
        self._lock = lock(folder / "lock", taken=taken)
        self._traffic: dict[tuple[str, int], Totals] = {}
        self._db = _connect(folder / "ledger.sqlite")
        self.shared = SharedPayloads(self._db)
        self._check_identity({**identity, "format": str(FORMAT)})
        self._sweep()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Write what is pending and release the folder."""
        with self._db:
            self._flush_traffic()
        self._db.close()
        self._lock.close()

    def state(self) -> State:
        """Where the run stands, for ``rounds.resume``; between rounds: one beyond the last."""
        row = self._db.execute(
            "SELECT round_id, phase, size, attempt, round_id IN (SELECT round_id FROM finals)"
            " FROM rounds ORDER BY round_id DESC LIMIT 1"
        ).fetchone()
        if row is None:
            return State()
        round_id, phase, size, attempt, final = row
        if phase == "committed":
            return State(round_id=round_id + 1, final=bool(final))
        members = self._db.execute(
            "SELECT client_id, file FROM members WHERE round_id = ?", (round_id,)
        ).fetchall()
        return State(
            phase=Phase(phase),
            round_id=round_id,
            cohort=tuple(sorted(client_id for client_id, _ in members)),
            delivered=frozenset(client_id for client_id, file in members if file),
            attempt=attempt,
            size=size,
            final=bool(final),
        )

    def open_round(
        self, round_id: int, cohort: Iterable[str], opened_s: float, *, final: bool = False
    ) -> None:
        """A round begins; ``opened_s`` is the wall clock in seconds."""
        members = [(round_id, client_id) for client_id in cohort]
        with self._db:
            self._db.execute(
                "INSERT INTO rounds (round_id, phase, size, opened_s) VALUES (?, 'open', ?, ?)",
                (round_id, len(members), opened_s),
            )
            if final:
                self._db.execute("INSERT INTO finals VALUES (?)", (round_id,))
            self._invite(members)

    def extend_round(self, round_id: int, attempt: int, added: Iterable[str]) -> None:
        """The round goes on with more members."""
        with self._db:
            self._db.execute(
                "UPDATE rounds SET attempt = ? WHERE round_id = ?", (attempt, round_id)
            )
            self._invite([(round_id, client_id) for client_id in added])

    def accept(self, source: Path, accepted: Accepted, *, base: str = "") -> None:
        """Move a complete, valid update into the spool; durable when this returns.

        With it go the class counts that its client has registered by now.

        Args:
            source: file of the update's raw blob.
            accepted: its row.
            base: the payload that its client has now; empty if none will refer to it.
        """
        record = accepted.record
        target = self._spool_file(record.round_id, accepted.client_id)
        if not target.parent.exists():
            target.parent.mkdir()
            sync_folder(self.spool)
        move_whole(source, target)
        with self._db:
            self._flush_traffic()
            self._db.execute(
                "UPDATE members SET file = ?, transfer_id = ?, num_examples = ?, record = ?"
                " WHERE round_id = ? AND client_id = ?",
                (
                    str(target.relative_to(self.folder)),
                    accepted.transfer_id,
                    record.num_examples,
                    msgspec.json.encode(record).decode(),
                    record.round_id,
                    accepted.client_id,
                ),
            )
            self._db.execute(
                "INSERT OR REPLACE INTO counted SELECT ?, client_id, class_counts"
                " FROM registrations WHERE client_id = ?",
                (record.round_id, accepted.client_id),
            )
            if base:
                self.shared.note(accepted.client_id, base)

    def register(self, client_id: str, class_counts: tuple[int, ...]) -> None:
        """A client's training samples of each class, until it registers others."""
        with self._db:
            self._db.execute(
                "INSERT INTO registrations VALUES (?, ?)"
                " ON CONFLICT DO UPDATE SET class_counts = excluded.class_counts",
                (client_id, msgspec.json.encode(class_counts).decode()),
            )

    def registered(self) -> dict[str, tuple[int, ...]]:
        """Class counts by client, as registered last."""
        rows = self._db.execute("SELECT client_id, class_counts FROM registrations")
        return {client_id: _to_counts(counts) for client_id, counts in rows}

    def close_round(self, round_id: int) -> None:
        """From here on exactly the accepted updates count."""
        with self._db:
            self._db.execute("UPDATE rounds SET phase = 'closing' WHERE round_id = ?", (round_id,))

    def updates(self, round_id: int) -> SpooledUpdates:
        """The round's accepted updates, sorted by client_id."""
        rows = self._db.execute(
            "SELECT file, class_counts FROM members LEFT JOIN counted USING (round_id, client_id)"
            " WHERE round_id = ? AND file IS NOT NULL ORDER BY client_id",
            (round_id,),
        ).fetchall()
        return SpooledUpdates(
            tuple(self.folder / file for file, _ in rows),
            tuple(None if counts is None else _to_counts(counts) for _, counts in rows),
        )

    def accepted(self, round_id: int) -> list[Accepted]:
        """Records of the round's accepted updates, sorted by client_id."""
        rows = self._db.execute(
            "SELECT client_id, transfer_id, record FROM members"
            " WHERE round_id = ? AND file IS NOT NULL ORDER BY client_id",
            (round_id,),
        )
        return [
            Accepted(
                client_id=client_id,
                transfer_id=transfer_id,
                record=msgspec.json.decode(record, type=UpdateRecord),
            )
            for client_id, transfer_id, record in rows
        ]

    def transfer_ids(self) -> list[str]:
        """Transfers that were ever accepted: they are answered ``done`` again."""
        rows = self._db.execute("SELECT transfer_id FROM members WHERE file IS NOT NULL")
        return [transfer_id for (transfer_id,) in rows]

    def commit_round(
        self, state: ServerState, scores: Any, committed_s: float, *, keep_states: int
    ) -> None:
        """The round's new server state counts; older states and its spool are removed.

        Args:
            state: after aggregation; its ``round_id`` is the round's.
            scores: JSON-able, kept with the round.
            committed_s: wall clock in seconds.
            keep_states: states that stay on disk.
        """
        name = f"states/{state.round_id:06d}{_SUFFIX}"
        data = blobs.encode(state.tensors)
        write_whole(self.folder / name, data)
        sync_folder(self.states)
        with self._db:
            self._flush_traffic()
            self._db.execute(
                "UPDATE rounds SET phase = 'committed', seconds = max(0, ? - opened_s),"
                " state_file = ?, state_sha256 = ?, scores = ? WHERE round_id = ?",
                (
                    committed_s,
                    name,
                    hashlib.sha256(data).hexdigest(),
                    msgspec.json.encode(scores).decode(),
                    state.round_id,
                ),
            )
            self._db.execute(
                "UPDATE rounds SET state_file = NULL WHERE round_id <= ?",
                (state.round_id - keep_states,),
            )
        self._sweep()

    def server_state(self) -> ServerState | None:
        """The state after the last committed round; None before the first.

        Raises:
            ProtofleetError: the file is no longer what was written.
        """
        row = self._db.execute(
            "SELECT round_id, state_file, state_sha256 FROM rounds"
            " WHERE phase = 'committed' ORDER BY round_id DESC LIMIT 1"
        ).fetchone()
        if row is None:
            return None
        round_id, name, sha256 = row
        data = (self.folder / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise ProtofleetError(f"{self.folder / name}: damaged; restore it from a backup")
        tensors, _ = blobs.decode(data, max_bytes=_NO_LIMIT)
        return ServerState(round_id=round_id, tensors=tensors)

    def committed(self) -> list[CommittedRound]:
        """All committed rounds, in order."""
        rows = self._db.execute(
            "SELECT round_id, seconds, scores, round_id IN (SELECT round_id FROM finals)"
            " FROM rounds WHERE phase = 'committed' ORDER BY round_id"
        )
        return [
            CommittedRound(
                round_id=round_id,
                seconds=seconds,
                scores=msgspec.json.decode(scores),
                final=bool(final),
            )
            for round_id, seconds, scores, final in rows
        ]

    def pay(self, client_id: str, round_id: int, totals: Totals) -> None:
        """A device's totals in a round; written with the next transition (they come again)."""
        self._traffic[client_id, round_id] = totals

    def paid(self) -> dict[str, dict[int, Totals]]:
        """Client → round → its totals at the end of that round, rounds in order."""
        with self._db:
            self._flush_traffic()
        rows = self._db.execute(
            "SELECT client_id, round_id, bytes_up, bytes_down, peak_rss_bytes FROM traffic"
            " ORDER BY client_id, round_id"
        )
        found: dict[str, dict[int, Totals]] = {}
        for client_id, round_id, up, down, rss in rows:
            found.setdefault(client_id, {})[round_id] = Totals(
                bytes_up=up, bytes_down=down, peak_rss_bytes=rss
            )
        return found

    def _invite(self, members: list[tuple[int, str]]) -> None:
        self._flush_traffic()
        self._db.executemany("INSERT INTO members (round_id, client_id) VALUES (?, ?)", members)

    def _flush_traffic(self) -> None:
        self._db.executemany(
            "INSERT INTO traffic VALUES (?, ?, ?, ?, ?)"
            " ON CONFLICT DO UPDATE SET bytes_up = max(bytes_up, excluded.bytes_up),"
            " bytes_down = max(bytes_down, excluded.bytes_down),"
            " peak_rss_bytes = max(peak_rss_bytes, excluded.peak_rss_bytes)",
            [
                (client_id, round_id, t.bytes_up, t.bytes_down, t.peak_rss_bytes)
                for (client_id, round_id), t in self._traffic.items()
            ],
        )
        self._traffic.clear()

    def _check_identity(self, identity: Mapping[str, str]) -> None:
        stored = dict(self._db.execute("SELECT key, value FROM meta"))
        held = {**_ADDED_LATER, **stored}
        for key, value in identity.items():
            if stored and held.get(key) != value:
                raise InputError(
                    f"run folder {self.folder}: it holds a run with {key} {held.get(key)}, the "
                    f"federation file says {value}; choose another run_dir or restore the value"
                )
        with self._db:
            self._db.executemany(
                "INSERT OR IGNORE INTO meta (key, value) VALUES (?, ?)", identity.items()
            )

    def _spool_file(self, round_id: int, client_id: str) -> Path:
        return self.spool / f"{round_id:06d}" / f"{client_id}{_SUFFIX}"

    def _sweep(self) -> None:
        """Remove states that no row names, and the spool of committed rounds."""
        named = {name for (name,) in self._db.execute("SELECT state_file FROM rounds")}
        for file in self.states.iterdir():
            if f"states/{file.name}" not in named:
                file.unlink()
        pending = self._db.execute("SELECT round_id FROM rounds WHERE phase != 'committed'")
        kept = {f"{round_id:06d}" for (round_id,) in pending}
        for folder in self.spool.iterdir():
            if folder.name not in kept:
                for file in folder.iterdir():
                    file.unlink()
                folder.rmdir()


def _connect(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    # A receipt makes a device delete its update, so a commit must outlive a power cut.
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA foreign_keys = ON")
    db.executescript(SCHEMA)
    return db
