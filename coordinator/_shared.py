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

    def plain(self) -> frozenset[str]:
        """Clients that get raw payloads."""
        rows = self._db.execute("SELECT client_id FROM plain")
        return frozenset(client_id for (client_id,) in rows)

    def make_plain(self, client_id: str) -> None:
        """The client does not know the codec: it gets raw payloads from now on."""
        with self._db:
            self._db.execute("INSERT OR IGNORE INTO plain VALUES (?)", (client_id,))
