"""The members of a federation: its keys, who was granted to speak, and whose grant was revoked.

They outlive runs and lie in the federation's own folder: ``federation.pem`` (the federation key,
mode 0600, which may be kept elsewhere) and ``members.sqlite``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.bundle import keys
from protofleet.coordinator.database import damaged, open_database
from protofleet.errors import InputError, RefusedError
from protofleet.wire.identity import DeviceGrant, public_bytes, read_statement, sign_statement
from protofleet.wire.topics import check_id

KEY_FILE = "federation.pem"
GRANT_S = 2 * 366 * 86_400
"""How long a grant lasts: longer than a study, short enough that a forgotten device ends."""
LOOK_S = 1.0
"""How often a running coordinator looks for revocations."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS grants (
    device_id TEXT NOT NULL,
    serial INTEGER NOT NULL,
    key TEXT NOT NULL,
    until INTEGER NOT NULL,
    statement TEXT NOT NULL,
    granted_s REAL NOT NULL,
    revoked_s REAL,
    PRIMARY KEY (device_id, serial)
) STRICT;

CREATE TABLE IF NOT EXISTS federation_keys (
    position INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    rotation TEXT NOT NULL DEFAULT ''
) STRICT;
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A device's latest grant.

    Attributes:
        serial: of the grant.
        until, granted_s: seconds since 1970.
        revoked_s: when it was revoked; None: it is in force.
    """

    device_id: str
    serial: int
    until: int
    granted_s: float
    revoked_s: float | None


class Members:
    """The federation's folder, shared by the commands and the coordinator.

    Args:
        folder: of the federation.
        name: of the federation.

    Raises:
        InputError: no folder of a federation, or of one with another name.
    """

    def __init__(self, folder: Path, name: str) -> None:
        if not (folder / "members.sqlite").exists():
            raise InputError(
                f"keys '{folder}': no folder of a federation; make it with: "
                f"protofleet device invite --keys {folder} --federation {name} DEVICE"
            )
        self.folder, self.name = folder, name
        self._db = open_database(folder / "members.sqlite", _SCHEMA)
        found = self._meta("federation")
        if found != name:
            raise InputError(f"keys '{folder}': of federation '{found}', expected '{name}'")

    @classmethod
    def create(cls, folder: Path, name: str) -> Self:
        """The folder, made with a new federation key if there is none.

        Raises:
            InputError: a name that no topic may have, or the folder is another federation's.
        """
        check_id(name, "federation")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not (folder / "members.sqlite").exists():
            public = public_bytes(keys.load_or_create_signing_key(folder / KEY_FILE))
            keys.save_public_key(public, folder / "federation.pub.pem")
            db = open_database(folder / "members.sqlite", _SCHEMA)
            with db:
                db.execute("INSERT OR IGNORE INTO meta VALUES ('federation', ?)", (name,))
                db.execute(
                    "INSERT OR IGNORE INTO federation_keys (position, key) VALUES (0, ?)",
                    (public.hex(),),
                )
            db.close()
        return cls(folder, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    @property
    def federation_key(self) -> bytes:
        """The public key in force, raw."""
        return self._lineage()[-1]

    @property
    def rotations(self) -> tuple[str, ...]:
        """Statements by which earlier federation keys handed over, oldest first."""
        rows = self._db.execute("SELECT rotation FROM federation_keys ORDER BY position")
        return tuple(rotation for (rotation,) in rows if rotation)

    def private_key(self) -> Ed25519PrivateKey | None:
        """The federation key itself; None where it is kept elsewhere.

        Raises:
            InputError: the file is damaged, readable by others, or another key.
        """
        path = self.folder / KEY_FILE
        if not path.exists():
            return None
        key = keys.load_signing_key(path)
        if public_bytes(key) != self.federation_key:
            raise InputError(f"key '{path}': not the key of federation '{self.name}'")
        return key

    def grant(self, key: Ed25519PrivateKey, device_id: str, device_key: bytes) -> str:
        """A new grant for a device's key; what it was granted before is revoked.

        Args:
            key: the federation's.
            device_id: the device.
            device_key: raw public key.
        """
        now = time.time()
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            (last,) = self._db.execute(
                "SELECT coalesce(max(serial), 0) FROM grants WHERE device_id = ?", (device_id,)
            ).fetchone()
            grant = DeviceGrant(
                federation=self.name,
                device_id=device_id,
                key=device_key.hex(),
                serial=last + 1,
                until=int(now) + GRANT_S,
            )
            statement = sign_statement(key, grant)
            self._revoke(device_id, now)
            self._db.execute(
                "INSERT INTO grants (device_id, serial, key, until, statement, granted_s)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (device_id, grant.serial, grant.key, grant.until, statement, now),
            )
        return statement

    def revoke(self, device_id: str) -> bool:
        """End a device's grant; False if it has none in force."""
        with self._db:
            return self._revoke(device_id, time.time())

    def members(self) -> list[Member]:
        """Every device's latest grant, by device."""
        rows = self._db.execute(
            "SELECT device_id, max(serial), until, granted_s, revoked_s FROM grants"
            " GROUP BY device_id ORDER BY device_id"
        )
        names = ("device_id", "serial", "until", "granted_s", "revoked_s")
        return [Member(**dict(zip(names, row, strict=True))) for row in rows]

    def check(self, text: str) -> DeviceGrant:
        """The grant in ``text``, if it is in force.

        A grant of an earlier federation key, which may have been stolen, must be known here.

        Raises:
            RefusedError: rule ``statement``, or ``revoked``: revoked or replaced by a later one, or
                unknown here and of an earlier federation key.
        """
        lineage = self._lineage()
        grant = read_statement(text, DeviceGrant, lineage, federation=self.name)
        row = self._db.execute(
            "SELECT key, revoked_s FROM grants WHERE device_id = ? AND serial = ?",
            (grant.device_id, grant.serial),
        ).fetchone()
        if row is None:
            return read_statement(text, DeviceGrant, lineage[-1:], federation=self.name)
        known, revoked_s = row
        if known != grant.key or revoked_s is not None:
            raise RefusedError(
                "revoked", f"{grant.device_id}: grant {grant.serial} is no longer in force"
            )
        return grant

    def version(self) -> int:
        """Another number after every change by another process."""
        found: int = self._db.execute("PRAGMA data_version").fetchone()[0]
        return found

    def revoked(self) -> set[tuple[str, int]]:
        """Device and serial of every grant that is no longer in force."""
        rows = self._db.execute("SELECT device_id, serial FROM grants WHERE revoked_s IS NOT NULL")
        return set(rows)

    def _revoke(self, device_id: str, now: float) -> bool:
        done = self._db.execute(
            "UPDATE grants SET revoked_s = ? WHERE device_id = ? AND revoked_s IS NULL",
            (now, device_id),
        )
        return done.rowcount > 0

    def _lineage(self) -> list[bytes]:
        rows = self._db.execute("SELECT key FROM federation_keys ORDER BY position")
        try:
            return [bytes.fromhex(key) for (key,) in rows]
        except ValueError as error:
            raise InputError(damaged(self.folder / "members.sqlite", error)) from error

    def _meta(self, key: str) -> str:
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return row[0] if row else ""


class Revocations:
    """Tells a running coordinator whose grant was revoked by a command meanwhile.

    Args:
        members: of the federation.
    """

    def __init__(self, members: Members) -> None:
        self._members = members
        self._version = 0
        self._known: set[tuple[str, int]] = set()
        self._due = 0.0

    def take(self, now: float) -> set[tuple[str, int]]:
        """Device and serial of grants revoked since the last call; looks once a second.

        Args:
            now: monotonic seconds.
        """
        if now < self._due:
            return set()
        self._due = now + LOOK_S
        version = self._members.version()
        if version == self._version:
            return set()
        self._version = version
        found = self._members.revoked()
        fresh, self._known = found - self._known, found
        return fresh
