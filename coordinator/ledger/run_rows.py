"""What the ledger says of its run as a whole: which it is, and what no restart may take back."""

from __future__ import annotations

import json
import os
import platform
import secrets
import sqlite3
from collections.abc import Mapping
from pathlib import Path

import msgspec

from protofleet import __version__
from protofleet.coordinator.ledger.formats import FORMAT
from protofleet.coordinator.ledger.reading import RunAbout
from protofleet.coordinator.process.lease import LeaseTerm
from protofleet.errors import InputError
from protofleet.federation.outcomes.calibration import CalibrationProgress
from protofleet.federation.records import Scores
from protofleet.federation.schedules.early_stopping import EarlyEnd
from protofleet.federation.settings import SECTIONS

_FIRST = {"announced": "0", "lease": "0 - -", "next_round": "1", "given_up": "0"}
"""What a new run's database says of itself, beside its identity."""


class RunRows:
    """The ledger's table ``meta``, of names and values.

    Args:
        db: the ledger's database.
        folder: of the run, whose lock this process has.
        lock: that lock's descriptor.
        identity: what makes two starts the same run.

    Raises:
        InputError: the database is of a run of another identity, or of another format.
    """

    def __init__(
        self, db: sqlite3.Connection, folder: Path, lock: int, identity: Mapping[str, str]
    ) -> None:
        self._db, self._lock = db, lock
        self._check({"format": str(FORMAT), **identity}, folder)

    @property
    def run_id(self) -> str:
        """16 hex digits, drawn when the run folder was made."""
        return self._value("run_id")

    @property
    def next_round(self) -> int:
        """No round before this one opens: they were given up when the folder was restored."""
        return int(self._value("next_round"))

    @property
    def announced(self) -> int:
        """No announcement of an earlier process had a higher sequence."""
        return int(self._value("announced"))

    def note_announced(self, sequence: int) -> None:
        """Keep a bound of the sequences of announcements that are about to go out."""
        self._set("announced", str(sequence))

    def note_start(self, scores: Scores) -> None:
        """Keep what the server's model was scored before the first round."""
        self._keep("start", scores)

    def note_early_end(self, end: EarlyEnd) -> None:
        """Keep after which round the run ends before its last one, or that it goes on."""
        self._keep("early_end", end)

    def note_calibration(self, progress: CalibrationProgress) -> None:
        """Keep who tries learning rates, what came of them, and which is chosen."""
        self._keep("calibration", progress)

    def note_about(self, about: RunAbout) -> None:
        """Keep what the results say of the run, for who makes them from the ledger."""
        self._keep("about", about)

    def tenure(self, boot_id: str) -> LeaseTerm:
        """What the folder knows of leases; ``boot_id`` is that of this process.

        The process before this one has ended for certain where its folder is this very one, whose
        lock this one has, and no copy.
        """
        epoch, former, place = self._value("lease").split(" ")
        here = os.fstat(self._lock)
        ours = f"{platform.node()}:{here.st_dev}:{here.st_ino}".replace(" ", "_")
        return LeaseTerm(
            epoch=int(epoch),
            boot_id=former if place == ours else "",
            note=lambda epoch: self._set("lease", f"{epoch} {boot_id} {ours}"),
        )

    def _value(self, key: str) -> str:
        found: str = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()[0]
        return found

    def _keep(self, key: str, value: msgspec.Struct) -> None:
        text = msgspec.json.encode(value).decode()
        with self._db:
            self._db.execute("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (key, text))

    def _set(self, key: str, value: str) -> None:
        with self._db:
            self._db.execute("UPDATE meta SET value = ? WHERE key = ?", (value, key))

    def _check(self, identity: Mapping[str, str], folder: Path) -> None:
        stored = dict(self._db.execute("SELECT key, value FROM meta"))
        for key, value in identity.items():
            if stored and not _same(stored.get(key), value, SECTIONS.get(key)):
                raise InputError(
                    f"run folder {folder}: it holds a run with {key} {stored.get(key)}, the "
                    f"federation file says {value}; choose another run_dir or restore the value"
                )
        with self._db:
            self._db.executemany(
                "INSERT OR IGNORE INTO meta (key, value) VALUES (?, ?)",
                {**_FIRST, "run_id": secrets.token_hex(8), **identity}.items(),
            )
            self._db.execute(
                "INSERT OR REPLACE INTO meta (key, value) VALUES ('version', ?)", (__version__,)
            )


def _same(stored: str | None, value: str, default: str | None) -> bool:
    """Whether two texts say the same; what a section of an earlier version lacks is the default."""
    if stored == value or default is None:
        return stored == value
    try:
        section = json.loads(default)
        before, now = section | json.loads(stored or "{}"), section | json.loads(value)
    except (ValueError, TypeError):
        return False
    return bool(before == now)
