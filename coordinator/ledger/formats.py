"""Formats of a run's ledger: one that an earlier version has written is brought up at opening.

A version that changes what ``rows.SCHEMA`` says of a table that is there raises ``FORMAT``
and adds a step from the format before; what devices tell of their use has columns that come by
themselves (``usage_rows``). ``tests/coordinator/folders`` has a run folder of each.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from protofleet import __version__
from protofleet.coordinator.ledger.usage_rows import add_columns
from protofleet.durable import sync_folder
from protofleet.errors import InputError
from protofleet.private_files import make_private_file

_log = logging.getLogger(__name__)

FORMAT = 5
"""Of the ledger that this version writes."""


def _count_late(db: sqlite3.Connection) -> None:
    """Updates count in a round of their own, and have an order in which they were admitted."""
    db.execute("ALTER TABLE members ADD COLUMN counted_in INTEGER")
    db.execute("ALTER TABLE members ADD COLUMN admitted INTEGER")
    db.execute(
        "UPDATE members SET counted_in = round_id, admitted = (SELECT count(*) FROM members AS one"
        " WHERE one.file IS NOT NULL AND (one.round_id, one.device_id)"
        " <= (members.round_id, members.device_id)) WHERE file IS NOT NULL"
    )


_STEPS: Mapping[int, Callable[[sqlite3.Connection], None]] = {4: _count_late}
"""From each earlier format to the next."""
OLDEST = min(_STEPS)


def bring_up(path: Path, db: sqlite3.Connection) -> None:
    """Make a ledger of an earlier format one of ``FORMAT``, in one transaction.

    A copy of the file as it was stays beside it until ``forget_former``.

    Args:
        path: of the ledger, whose run folder this process has locked.
        db: it, open.

    Raises:
        InputError: a later version has written it, or one whose format is no longer read.
    """
    meta = _meta(db)
    if "format" not in meta or meta["format"] == str(FORMAT):
        add_columns(db)
        return
    check_known(path.parent, meta)
    found = int(meta["format"])
    former = path.with_name(f"ledger.format{found}.sqlite")
    make_private_file(former)
    with closing(sqlite3.connect(former)) as copy:
        db.backup(copy)
    sync_folder(path.parent)
    db.execute("BEGIN IMMEDIATE")
    with db:
        for step in range(found, FORMAT):
            _STEPS[step](db)
        add_columns(db)
        db.execute("UPDATE meta SET value = ? WHERE key = 'format'", (str(FORMAT),))
    _log.warning(
        "run folder '%s': its ledger of format %s is one of format %s now; as it was it lies in "
        "'%s' until a round is committed",
        path.parent,
        found,
        FORMAT,
        former.name,
    )


def forget_former(folder: Path) -> None:
    """The ledger of this format has worked: remove copies of it as it was before."""
    for former in folder.glob("ledger.format*.sqlite"):
        former.unlink()


def check_format(folder: Path, meta: Mapping[str, str]) -> None:
    """Raise InputError unless a ledger can be read as it is; its coordinator alone changes it.

    Args:
        folder: of the run.
        meta: the ledger's table of names and values; empty: it is being made.
    """
    if meta.get("format", str(FORMAT)) == str(FORMAT):
        return
    check_known(folder, meta)
    raise InputError(
        f"run folder '{folder}': its ledger has format {meta['format']}, this version's is "
        f"{FORMAT}; start its coordinator once, protofleet coordinator run FILE, to bring it up"
    )


def check_ledger(folder: Path, db: sqlite3.Connection) -> None:
    """As ``check_format``, of a database that was opened to write an operator's order."""
    check_format(folder, _meta(db))
    add_columns(db)


def check_known(folder: Path, meta: Mapping[str, str]) -> None:
    """Raise InputError unless a ledger's format is this version's or can be brought up to it."""
    text = meta.get("format", "")
    found = int(text) if text.isascii() and text.isdigit() and len(text) < 9 else -1
    if OLDEST <= found <= FORMAT:
        return
    by = f"Protofleet {meta['version'][:40]}" if "version" in meta else "another version"
    remedy = "install that version or a later one" if found > FORMAT else "choose another run_dir"
    raise InputError(
        f"run folder '{folder}': its ledger has format {text[:40]}, written by {by}; this is "
        f"Protofleet {__version__}, which reads formats {OLDEST} to {FORMAT}: {remedy}"
    )


def _meta(db: sqlite3.Connection) -> dict[str, str]:
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone() is None:
        return {}
    return dict(db.execute("SELECT key, value FROM meta"))
