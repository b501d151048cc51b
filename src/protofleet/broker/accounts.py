"""Accounts of a broker: names and password hashes in Mosquitto's own file format.

A line is ``name:$7$<iterations>$<salt>$<hash>``, both in Base64: PBKDF2 with HMAC-SHA-512 over the
UTF-8 password, 64 bytes, as ``mosquitto_passwd`` of Mosquitto 2 writes it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass
from pathlib import Path

from protofleet.broker._files import alone, write_private
from protofleet.broker.access import check_account, with_invitation, without_account
from protofleet.errors import InputError
from protofleet.printable import shell_word
from protofleet.wire.topics import INVITED

ITERATIONS = 101
"""As ``mosquitto_passwd`` does. Each reload hashes the passwords of all connected clients, in the
broker's only thread; passwords of 192 random bits need no stretching."""
MIN_PASSWORD_BYTES = 16
"""What few iterations suffice for."""
_SALT_BYTES = 12
_HASH_BYTES = 64


def new_password() -> str:
    """A password of 192 random bits, 32 characters of ``A-Z a-z 0-9 _ -``."""
    return secrets.token_urlsafe(24)


def hash_password(password: str, salt: bytes | None = None, iterations: int = ITERATIONS) -> str:
    """What stands behind a name and its colon for ``password``."""
    salt = secrets.token_bytes(_SALT_BYTES) if salt is None else salt
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, iterations, _HASH_BYTES)
    parts = (base64.b64encode(part).decode() for part in (salt, digest))
    return "$".join(("", "7", str(iterations), *parts))


def matches(password: str, hashed: str) -> bool:
    """Whether ``hashed`` was made of ``password``; False for any other form than ``$7$``."""
    try:
        empty, kind, iterations, salt, digest = hashed.split("$")
        expected = base64.b64decode(digest, validate=True)
        made = hashlib.pbkdf2_hmac(
            "sha512",
            password.encode(),
            base64.b64decode(salt, validate=True),
            int(iterations),
            len(expected),
        )
    except (ValueError, OverflowError, binascii.Error):
        return False
    return (empty, kind) == ("", "7") and hmac.compare_digest(made, expected)


@dataclass(frozen=True, slots=True)
class Accounts:
    """The accounts in a broker's folder; a running broker learns of changes by ``reload``.

    Attributes:
        folder: where ``passwords`` and ``acl`` lie.
    """

    folder: Path

    @property
    def file(self) -> Path:
        """Names and hashes."""
        return self.folder / "passwords"

    @property
    def access_file(self) -> Path:
        """The access list."""
        return self.folder / "acl"

    def names(self) -> list[str]:
        """All accounts, sorted.

        Raises:
            InputError: the file cannot be read.
        """
        return sorted(self.hashes())

    def add(self, name: str, password: str) -> None:
        """Let ``name`` in with ``password`` and no other; replaces what it had.

        An account ``invite.<id>`` gets a section in the access list: it may enrol, nothing else.

        Raises:
            InputError: a name that no account may have, a short password, or files that cannot be
                read or written.
        """
        check_account(name)
        if len(password.encode()) < MIN_PASSWORD_BYTES or "\n" in password or "\0" in password:
            raise InputError(
                f"account {name}: expected a password of at least {MIN_PASSWORD_BYTES} bytes on "
                "one line; new_password() makes one"
            )
        with alone(self.folder):
            hashes = self.hashes()
            hashes[name] = hash_password(password)
            # First what it may do, then that it may come: a crash in between opens nothing.
            if name.startswith(INVITED):
                write_private(self.access_file, with_invitation(self._access(), name))
            self._write(hashes)

    def remove(self, name: str) -> bool:
        """Let ``name`` in no more; whether it was known.

        Raises:
            InputError: files that cannot be read or written.
        """
        with alone(self.folder):
            hashes = self.hashes()
            known = hashes.pop(name, None) is not None
            if known:
                self._write(hashes)
            if name.startswith(INVITED):
                write_private(self.access_file, without_account(self._access(), name))
        return known

    def check(self, name: str, password: str) -> bool:
        """Whether ``password`` is that of ``name``."""
        hashed = self.hashes().get(name)
        return hashed is not None and matches(password, hashed)

    def hashes(self) -> dict[str, str]:
        """Hash by name.

        Raises:
            InputError: the file cannot be read.
        """
        lines = (line.partition(":") for line in self._read(self.file).splitlines())
        return {name: hashed for name, colon, hashed in lines if colon}

    def _write(self, hashes: dict[str, str]) -> None:
        text = "".join(f"{name}:{hashed}\n" for name, hashed in sorted(hashes.items()))
        write_private(self.file, text)

    def _access(self) -> str:
        return self._read(self.access_file)

    def _read(self, path: Path) -> str:
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8"
            raise InputError(
                f"broker folder '{self.folder}': {path.name}: {reason}; make one with: "
                f"protofleet broker init {shell_word(self.folder)}"
            ) from error
