"""What the ledger knows of the payloads that devices have."""

from __future__ import annotations

import sqlite3


class SharedPayloads:
    """Which payload each device has, and who gets raw ones.

    Args:
        db: of the ledger.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def bases(self) -> dict[str, str]:
        """Client → the payload that it has, as the SHA-256 of its raw blob."""
        return dict(self._db.execute("SELECT client_id, sha256 FROM bases"))

    def base_of(self, client_id: str) -> str:
        """The payload that a client has; empty: none that is known."""
        row = self._db.execute("SELECT sha256 FROM bases WHERE client_id = ?", (client_id,))
        found: tuple[str] | None = row.fetchone()
        return found[0] if found else ""

    def note(self, client_id: str, base: str) -> None:
        """The client has this payload; part of the caller's transaction."""
        self._db.execute(
            "INSERT INTO bases VALUES (?, ?) ON CONFLICT DO UPDATE SET sha256 = excluded.sha256",
            (client_id, base),
        )

    def forget(self, client_id: str) -> None:
        """The client does not have its base any more."""
        with self._db:
            self._db.execute("DELETE FROM bases WHERE client_id = ?", (client_id,))

    def is_plain(self, client_id: str) -> bool:
        """Whether a client gets raw payloads."""
        row = self._db.execute("SELECT 1 FROM plain WHERE client_id = ?", (client_id,))
        return row.fetchone() is not None

    def make_plain(self, client_id: str) -> None:
        """The client does not know the codec: it gets raw payloads from now on."""
        with self._db:
            self._db.execute("INSERT OR IGNORE INTO plain VALUES (?)", (client_id,))
