"""The members of a federation: its keys, who was granted to speak, and whose grant was revoked.

They outlive runs and lie in the federation's own folder: ``federation.pem`` (the federation key,
mode 0600, which may be kept elsewhere) and ``members.sqlite``. One transaction decides each step of
an enrolment.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.bundle import keys
from protofleet.coordinator.database import damaged
from protofleet.coordinator.membership.member_records import (
    INVITATIONS,
    Invited,
    Member,
    connect,
    to_invited,
)
from protofleet.durable import sync_folder
from protofleet.errors import InputError, RefusedError
from protofleet.printable import shell_word
from protofleet.wire.topics import check_id, invited_account
from protofleet.wire.trust.enrolment import InvitationKeys
from protofleet.wire.trust.identity import (
    DeviceGrant,
    KeyRotation,
    public_bytes,
    read_statement,
    sign_statement,
)

KEY_FILE = "federation.pem"
_NEXT_KEY_FILE = "federation.next.pem"
_PUBLIC_FILE = "federation.pub.pem"
FORGOTTEN_S = 30 * 86_400
"""An invitation that nobody took is remembered this long beyond its end, to say that it is over."""
GRANT_S = 2 * 366 * 86_400
"""How long a grant lasts: longer than a study, short enough that a forgotten device ends."""
LOOK_S = 1.0
"""How often a running coordinator looks for revocations."""

_NO_FOLDER = (
    "keys '{folder}': no folder of a federation; make it with: "
    "protofleet device invite --keys {word}{name} DEVICE"
)


class Members:
    """The federation's folder, shared by the commands and the coordinator.

    Args:
        folder: of the federation.
        name: of the federation.

    Raises:
        InputError: no folder of a federation, or of one with another name.
    """

    def __init__(self, folder: Path, name: str) -> None:
        found = federation_name(folder)
        if not found:
            given = f" --federation {name}"
            raise InputError(_NO_FOLDER.format(folder=folder, word=shell_word(folder), name=given))
        if found != name:
            raise InputError(f"keys '{folder}': of federation '{found}', expected '{name}'")
        self.folder, self.name = folder, name
        self._db = connect(folder / "members.sqlite")

    @classmethod
    def create(cls, folder: Path, name: str) -> Self:
        """The folder, made with a new federation key if there is none.

        Raises:
            InputError: a name that no topic may have, or the folder is another federation's.
        """
        check_id(name, "federation")
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        if not federation_name(folder):
            public = public_bytes(keys.load_or_create_signing_key(folder / KEY_FILE))
            keys.save_public_key(public, folder / _PUBLIC_FILE)
            db = connect(folder / "members.sqlite")
            with db:
                db.execute("INSERT OR IGNORE INTO meta VALUES ('federation', ?)", (name,))
                db.execute(
                    "INSERT OR IGNORE INTO federation_keys (position, key) VALUES (0, ?)",
                    (public.hex(),),
                )
            db.close()
        return cls(folder, name)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The folder of a federation of whatever name.

        Raises:
            InputError: it is none.
        """
        found = federation_name(folder)
        if not found:
            raise InputError(_NO_FOLDER.format(folder=folder, word=shell_word(folder), name=""))
        return cls(folder, found)

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
        path, following = self.folder / KEY_FILE, self.folder / _NEXT_KEY_FILE
        if following.exists() and _public(following) == self.federation_key:
            self._put_in_force()  # a rotation was interrupted after it had been decided
        if not path.exists():
            return None
        key = keys.load_signing_key(path)
        if public_bytes(key) != self.federation_key:
            raise InputError(f"key '{path}': not the key of federation '{self.name}'")
        return key

    def needed_key(self) -> Ed25519PrivateKey:
        """The federation key itself.

        Raises:
            InputError: it is kept elsewhere, damaged, readable by others, or another key.
        """
        key = self.private_key()
        if key is None:
            raise InputError(
                f"keys '{self.folder}': {KEY_FILE} is not there; put it back for this command, "
                "then take it away again"
            )
        return key

    def rotate(self) -> tuple[bytes, list[str]]:
        """A new federation key; the old one signs that it hands over, and is removed.

        Invitations that nobody has taken end, because they name the old key.

        Returns:
            The new public key, raw, and the devices whose invitations ended.

        Raises:
            InputError: the federation key is not at hand.
        """
        old = self.needed_key()
        following = self.folder / _NEXT_KEY_FILE
        following.unlink(missing_ok=True)  # of a rotation that was never decided
        new = public_bytes(keys.load_or_create_signing_key(following))
        sync_folder(self.folder)
        rotation = KeyRotation(federation=self.name, old=public_bytes(old).hex(), new=new.hex())
        with self._transaction():
            ended = [one.device_id for one in self.invitations() if one.taken_s is None]
            self._db.execute("DELETE FROM invitations WHERE taken_s IS NULL")
            self._db.execute(
                "INSERT INTO federation_keys (position, key, rotation)"
                " SELECT max(position) + 1, ?, ? FROM federation_keys",
                (new.hex(), sign_statement(old, rotation)),
            )
        self._put_in_force()
        return new, ended

    def grant(self, key: Ed25519PrivateKey, device_id: str, device_key: bytes) -> str:
        """A new grant for a device's key; what it was granted before is revoked.

        Args:
            key: the federation's.
            device_id: the device.
            device_key: raw public key.
        """
        with self._transaction():
            self._revoke(device_id, time.time())
            return self._grant(key, device_id, device_key)[1]

    def invite(self, device_id: str, keys: InvitationKeys, until: int, password: str = "") -> None:
        """Note an invitation; an earlier one for this device ends, its grant does not.

        Args:
            device_id: the device.
            keys: what the invitation's token gives.
            until: seconds since 1970.
            password: for the device's account at the broker; '': it has none there.

        Raises:
            InputError: an id that no device may have.
        """
        invited_account(device_id)
        with self._transaction():
            self._db.execute(
                "INSERT OR REPLACE INTO invitations"
                " (device_id, proof_key, answer_key, password, invited_s, until)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                (device_id, keys.proof, keys.answer, password, time.time(), until),
            )

    def invitations(self) -> list[Invited]:
        """Every device's latest invitation, by device."""
        return [to_invited(row) for row in self._db.execute(f"{INVITATIONS} ORDER BY device_id")]

    def invitation(self, device_id: str) -> Invited | None:
        """A device's latest invitation."""
        row = self._db.execute(f"{INVITATIONS} WHERE device_id = ?", (device_id,)).fetchone()
        return to_invited(row) if row else None

    def enrol(self, key: Ed25519PrivateKey, invited: Invited, device_key: bytes) -> tuple[int, str]:
        """Serial and text of the grant that an invitation gives to a device's key.

        The first key that asks has it, and gets the same whenever it asks again. What the device
        was granted before stays in force until the new grant is used (``settle``).

        Args:
            key: the federation's.
            invited: whose token the request was proven with.
            device_key: raw public key.

        Raises:
            RefusedError: rule ``expired``, ``used`` (by another key) or ``token`` (it ended
                meanwhile).
        """
        with self._transaction():
            now = self.invitation(invited.device_id)
            if now is None or now.keys != invited.keys:
                raise RefusedError("token", "the invitation has just been replaced or withdrawn")
            if now.serial is not None:
                return now.serial, self.granted(invited.device_id, now.serial, device_key)
            if now.until <= time.time():
                ended = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now.until))
                raise RefusedError("expired", f"the invitation was valid until {ended}")
            serial, statement = self._grant(key, invited.device_id, device_key)
            self._db.execute(
                "UPDATE invitations SET serial = ? WHERE device_id = ?", (serial, invited.device_id)
            )
        return serial, statement

    def granted(self, device_id: str, serial: int, device_key: bytes) -> str:
        """The text of a grant that an invitation gave, for whose key it is.

        Raises:
            RefusedError: rule ``used``: it is another key's, or was revoked.
        """
        key, statement, revoked_s = self._db.execute(
            "SELECT key, statement, revoked_s FROM grants WHERE device_id = ? AND serial = ?",
            (device_id, serial),
        ).fetchone()
        if key != device_key.hex():
            raise RefusedError("used", "another device has used this invitation")
        if revoked_s is not None:
            raise RefusedError("used", "what this invitation gave was revoked")
        text: str = statement
        return text

    def settle(self, device_id: str, serial: int) -> bool:
        """A device uses this grant: earlier ones and its invitation end; False: they had before."""
        now = time.time()
        with self._transaction():
            earlier = self._db.execute(
                "UPDATE grants SET revoked_s = ?"
                " WHERE device_id = ? AND serial < ? AND revoked_s IS NULL",
                (now, device_id, serial),
            )
            taken = self._db.execute(
                "UPDATE invitations SET taken_s = ?, password = ''"
                " WHERE device_id = ? AND serial = ? AND taken_s IS NULL",
                (now, device_id, serial),
            )
        return earlier.rowcount + taken.rowcount > 0

    def forget_invitations(self) -> None:
        """Drop invitations that ended long ago."""
        with self._transaction():
            ended = (time.time() - FORGOTTEN_S,)
            self._db.execute("DELETE FROM invitations WHERE until < ?", ended)

    def revoke(self, device_id: str) -> bool:
        """End a device's grant and invitation; False if it has neither."""
        with self._transaction():
            invited = self._db.execute("DELETE FROM invitations WHERE device_id = ?", (device_id,))
            return self._revoke(device_id, time.time()) or invited.rowcount > 0

    def members(self) -> list[Member]:
        """Every device's latest grant, by device."""
        rows = self._db.execute(
            "SELECT device_id, max(serial), until, granted_s, revoked_s FROM grants"
            " GROUP BY device_id ORDER BY device_id"
        )
        names = ("device_id", "serial", "until", "granted_s", "revoked_s")
        return [Member(**dict(zip(names, row, strict=True))) for row in rows]

    def check(self, text: str) -> DeviceGrant:
        """The grant in ``text``, if it is in force; earlier ones of its device end.

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
        if self._is_unsettled(grant.device_id, grant.serial):
            self.settle(grant.device_id, grant.serial)
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

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """One writer at a time, all or nothing."""
        self._db.execute("BEGIN IMMEDIATE")
        with self._db:
            yield

    def _grant(self, key: Ed25519PrivateKey, device_id: str, device_key: bytes) -> tuple[int, str]:
        """Serial and text of a new grant, within a transaction."""
        now = time.time()
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
        self._db.execute(
            "INSERT INTO grants (device_id, serial, key, until, statement, granted_s)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (device_id, grant.serial, grant.key, grant.until, statement, now),
        )
        return grant.serial, statement

    def _is_unsettled(self, device_id: str, serial: int) -> bool:
        found = self._db.execute(
            "SELECT EXISTS (SELECT 1 FROM grants"
            " WHERE device_id = ?1 AND serial < ?2 AND revoked_s IS NULL)"
            " OR EXISTS (SELECT 1 FROM invitations"
            " WHERE device_id = ?1 AND serial = ?2 AND taken_s IS NULL)",
            (device_id, serial),
        ).fetchone()
        return bool(found[0])

    def _put_in_force(self) -> None:
        following = self.folder / _NEXT_KEY_FILE
        keys.save_public_key(_public(following), self.folder / _PUBLIC_FILE)
        following.replace(self.folder / KEY_FILE)
        sync_folder(self.folder)

    def _lineage(self) -> list[bytes]:
        rows = self._db.execute("SELECT key FROM federation_keys ORDER BY position")
        try:
            return [bytes.fromhex(key) for (key,) in rows]
        except ValueError as error:
            raise InputError(damaged(self.folder / "members.sqlite", error)) from error


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


def federation_name(folder: Path) -> str:
    """The federation whose folder it is; '' if none's, or its making was interrupted."""
    path = folder / "members.sqlite"
    if not path.exists():
        return ""
    with closing(connect(path)) as db:
        row = db.execute("SELECT value FROM meta WHERE key = 'federation'").fetchone()
    return row[0] if row else ""


def _public(path: Path) -> bytes:
    return public_bytes(keys.load_signing_key(path))
