"""Databases of the coordinator: SQLite files whose damage is told in one line."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from protofleet.errors import InputError
from protofleet.private_files import make_private_file

_OF_THE_DISK = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
}
"""Not of the file: later, or elsewhere, it can be opened."""


def open_database(
    path: Path, schema: str, prepare: Callable[[sqlite3.Connection], None] | None = None
) -> sqlite3.Connection:
    """The database at ``path``, made (mode 0600) if there is none; its further files are like it.

    Commits outlive a power cut. Waits half a minute for another process.

    Args:
        path: of the file.
        schema: of all tables, in statements that change nothing where they are there.
        prepare: called with the database as it was found, which may be of another format.

    Raises:
        InputError: the file is no database, is damaged, breaks its own rules, or has triggers.
        sqlite3.OperationalError: the disk is full, the file cannot be written, or is in use.
    """
    make_private_file(path)
    db = sqlite3.connect(path, timeout=30.0)
    # Damaged text is shown as such, or refused by who reads it, but is no error of its own.
    db.text_factory = partial(str, encoding="utf-8", errors="replace")
    try:
        _check_pages(db)
        refuse_code(db)
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        if prepare is not None:
            prepare(db)
        db.executescript(schema)
        _check_columns(db, schema)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        db.close()
        if getattr(error, "sqlite_errorcode", None) in _OF_THE_DISK:
            raise
        raise InputError(damaged(path, error)) from error
    except BaseException:
        db.close()
        raise
    return db


def _check_pages(db: sqlite3.Connection) -> None:
    found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        raise sqlite3.DatabaseError(found)


def refuse_code(db: sqlite3.Connection) -> None:
    """Raise sqlite3.DatabaseError if the file holds what acts by itself; ours hold tables alone."""
    found = db.execute(
        "SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'view')"
        " OR sql LIKE 'CREATE VIRTUAL%' LIMIT 1"
    ).fetchone()
    if found is not None:
        kind, name = found
        raise sqlite3.DatabaseError(f"expected tables alone, got a {kind} '{name[:80]}'")


def _check_columns(db: sqlite3.Connection, schema: str) -> None:
    """Each table has its columns; ``executescript`` leaves alone one that is there."""
    with closing(sqlite3.connect(":memory:")) as model:
        model.executescript(schema)
        for (table,) in model.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
            names = [row[1] for row in model.execute(f"PRAGMA table_info({table})")]
            db.execute(f"SELECT {', '.join(names)} FROM {table} LIMIT 0")  # noqa: S608 - our schema


def damaged(path: Path, error: Exception) -> str:
    """What to tell of a database that cannot be read."""
    reason = " ".join(str(error).split())[:200]
    return f"'{path}': damaged, or of another version ({reason}); restore its folder from a backup"
