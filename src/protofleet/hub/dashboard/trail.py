"""The trail: what operators did, each act a line, and what was refused, counted.

Two files, so that no stranger's refusals push out what operators did. Neither grows beyond its
size: it then takes the place of a former one.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from protofleet.errors import InputError
from protofleet.printable import printable, shell_word
from protofleet.private_files import opener

AUDIT_FILE, REFUSED_FILE = "audit.jsonl", "refused.jsonl"
AUDIT_BYTES, REFUSED_BYTES = 8 << 20, 1 << 20
"""Of a file; then it becomes ``audit.former.jsonl`` or ``refused.former.jsonl``."""
MINUTE_S = 60.0
"""Refusals of one kind are a line in this time, which says how many there were."""
FIELD_CHARS, OUTCOME_CHARS = 80, 400
_READ_BYTES = 256 << 10
"""Of a file's end, for a page."""
_LINES = 200


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the trail.

    Attributes:
        time_s: Unix seconds.
        address: of the browser.
        session: names the session without giving it away; empty: there was none.
        action: such as ``pause``, ``revoke``, ``sign-in``.
        target: federation, or device of it.
        outcome: ``done: …`` or ``failed: …``.
        refused: so many refusals of this kind since the line before of it, the last of which this
            line tells of; 0: none was refused.
    """

    time_s: float
    address: str
    session: str
    action: str
    target: str
    outcome: str
    refused: int = 0


@dataclass(slots=True)
class _Kind:
    """Refusals that were not told yet, the last of them, and when they may be."""

    last: AuditRecord
    count: int = 0
    due: float = 0.0


class Trail:
    """Writes and reads the trail of a folder; from any thread, and beside other hubs.

    Args:
        folder: exists.

    Raises:
        InputError: a file of it is a link.
    """

    def __init__(self, folder: Path) -> None:
        self._acts, self._refusals = folder / AUDIT_FILE, folder / REFUSED_FILE
        for path in (self._acts, self._refusals):
            if path.is_symlink():
                raise InputError(
                    f"audit trail '{path}': is a link, through which nothing is written; remove "
                    f"it: rm {shell_word(path)}"
                )
        self._kinds: dict[tuple[str, str], _Kind] = {}
        self._lock = threading.Lock()

    def act(self, record: AuditRecord) -> None:
        """Note what an operator did; on the disk when this returns.

        Raises:
            OSError: the disk takes no writes.
        """
        _append(self._acts, record, AUDIT_BYTES)
        self.tell()

    def refuse(self, record: AuditRecord) -> None:
        """Count what was refused; a line a minute of each action and outcome.

        Args:
            record: its action and outcome are words of this program.

        Raises:
            OSError: the disk takes no writes.
        """
        with self._lock:
            kind = self._kinds.setdefault((record.action, record.outcome), _Kind(record))
            kind.last, kind.count = record, kind.count + 1
        self.tell()

    def tell(self, *, everything: bool = False) -> None:
        """Write the counts of refusals that are due, or ``everything``.

        Raises:
            OSError: the disk takes no writes.
        """
        now = time.monotonic()
        with self._lock:
            for kind in self._kinds.values():
                if kind.count and (everything or now >= kind.due):
                    told = msgspec.structs.replace(kind.last, refused=kind.count)
                    _append(self._refusals, told, REFUSED_BYTES)
                    kind.count, kind.due = 0, now + MINUTE_S

    def latest(self) -> tuple[AuditRecord, ...]:
        """What was done and refused last, the latest first.

        Raises:
            OSError: the trail cannot be read or written.
        """
        self.tell()
        files = (self._acts, self._refusals)
        found = [one for path in files for one in (*read_trail(path), *read_trail(_former(path)))]
        return tuple(sorted(found, key=lambda one: one.time_s, reverse=True))


def cut(text: str, chars: int = FIELD_CHARS) -> str:
    """What a stranger sent, as long as it may stand in a line."""
    return printable(text[:chars])[:chars]


def read_trail(path: Path) -> tuple[AuditRecord, ...]:
    """The latest records of a file of the trail, the latest first; none where there is no file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = file.seek(max(0, size - _READ_BYTES))
            lines = file.read().splitlines()[1 if start else 0 :]
    except FileNotFoundError:
        return ()
    found = []
    for line in reversed(lines[-_LINES:]):
        # Half a line of a disk that was full is none.
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            found.append(msgspec.json.decode(line, type=AuditRecord))
    return tuple(found)


def _former(path: Path) -> Path:
    return path.with_suffix(f".former{path.suffix}")


def _append(path: Path, record: AuditRecord, most: int) -> None:
    line = msgspec.json.encode(record) + b"\n"
    while not _appended(path, line, most):
        pass


def _appended(path: Path, line: bytes, most: int) -> bool:
    """Whether ``line`` is on the disk; False: the file has made room, and another is to be made."""
    file, same = opener(str(path), os.O_CREAT | os.O_APPEND | os.O_WRONLY), False
    try:
        # Two hubs of one user would rename the file that the other has just begun.
        fcntl.flock(file, fcntl.LOCK_EX)
        found = os.fstat(file)
        with suppress(FileNotFoundError):
            same = os.path.samestat(found, path.lstat())
        if not same:
            return False
        if found.st_size and found.st_size + len(line) > most:
            path.replace(_former(path))
            return False
        os.write(file, line)
        os.fsync(file)
        return True
    finally:
        os.close(file)
