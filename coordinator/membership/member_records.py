"""What ``members.sqlite`` holds: grants, invitations and the federation's keys."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protofleet.coordinator.database import open_database
from protofleet.wire.trust.enrolment import InvitationKeys

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

CREATE TABLE IF NOT EXISTS invitations (
    device_id TEXT PRIMARY KEY,
    proof_key BLOB NOT NULL,
    answer_key BLOB NOT NULL,
    password TEXT NOT NULL,
    invited_s REAL NOT NULL,
    until INTEGER NOT NULL,
    serial INTEGER,
    taken_s REAL
) STRICT;

CREATE TABLE IF NOT EXISTS federation_keys (
    position INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    rotation TEXT NOT NULL DEFAULT ''
) STRICT;
"""

INVITATIONS = (
    "SELECT device_id, proof_key, answer_key, password, invited_s, until, serial, taken_s"
    " FROM invitations"
)
"""Rows of ``to_invited``."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Invited:
    """A device's latest invitation.

    Attributes:
        keys: what its token gave, without the password of the invitation's account.
        password: of the device's account at the broker, kept until the device has it; '' if none.
        invited_s, until: seconds since 1970.
        serial: of the grant that it gave; None: none yet.
        taken_s: when the device had it; None: not yet.
    """

    device_id: str
    keys: InvitationKeys
    password: str = field(repr=False)
    invited_s: float
    until: int
    serial: int | None = None
    taken_s: float | None = None

    def is_open(self, now: float) -> bool:
        """Whether a device may still use it, or is using it."""
        return self.taken_s is None and (self.serial is not None or now < self.until)


def to_invited(row: tuple[Any, ...]) -> Invited:
    """The record of a row of ``INVITATIONS``."""
    device_id, proof, answer, *others = row
    names = ("password", "invited_s", "until", "serial", "taken_s")
    return Invited(
        device_id=device_id,
        keys=InvitationKeys(proof=proof, answer=answer),
        **dict(zip(names, others, strict=True)),
    )


def connect(path: Path) -> sqlite3.Connection:
    """The database, made if there is none; raises InputError if it is damaged."""
    return open_database(path, _SCHEMA)
