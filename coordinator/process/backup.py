"""A run folder in one file: made while its coordinator runs, checked before anything is restored.

The archive is an uncompressed tar file. Its first member, ``backup.json``, names every other one
with size and SHA-256. What it holds is the run at one commit: the ledger as SQLite's backup gives
it, and the files that its rows refer to. Files never change under their names, so a copy that finds
all of them is of that commit; one that misses some, because the coordinator has gone on, begins
anew.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import IO

import msgspec

from protofleet.bundle.bundle import SUFFIX
from protofleet.coordinator.database import refuse_code
from protofleet.coordinator.ledger import LEDGER
from protofleet.coordinator.ledger.control import not_started
from protofleet.coordinator.ledger.formats import FORMAT, OLDEST, bring_up, check_ledger
from protofleet.coordinator.ledger.rollout_rows import BUNDLES
from protofleet.durable import TEMPORARY, sync_folder
from protofleet.errors import InputError, RefusedError, UnavailableError
from protofleet.private_files import PRIVATE_FOLDER, opener

_LIST = "backup.json"
_KEYS = ("coordinator.pem", "certificate")
_NAME = re.compile(
    r"ledger\.sqlite|coordinator\.pem|certificate"
    r"|states/[0-9]{6}\.safetensors|spool/[0-9]{6}/[A-Za-z0-9._-]{1,64}\.safetensors"
    r"|references/[0-9a-f]{64}\.safetensors|noise/[0-9]{6}|bundles/[0-9a-f]{64}\.pfb"
)
_GATHERED = ".backup-"
_ABANDONED_S = 3600.0
_LIST_BYTES = 64 << 20
_ATTEMPTS = 20
_BLOCK = 1 << 20


class BackedUpFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the run folder: its path there, its bytes, and their SHA-256 (hex)."""

    path: str
    bytes: int
    sha256: str


class BackupList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an archive holds.

    ``made_s``: seconds since 1970. ``round_id``, ``phase``: the latest round that it knows; 0 and
    empty before the first. ``keys``: whether the coordinator's own key and certificate are in it.
    """

    format: int
    federation: str
    run_id: str
    made_s: float
    round_id: int
    phase: str
    keys: bool
    files: tuple[BackedUpFile, ...]


def back_up(run_dir: Path, archive: Path, *, keys: bool = True) -> BackupList:
    """Write a run folder, in use or not, into ``archive`` (mode 0600, whole or not at all).

    Args:
        run_dir: of the run.
        archive: must not be there.
        keys: whether the coordinator's key of this run goes with it.

    Raises:
        InputError: no run was started there, or ``archive`` exists.
        UnavailableError: the coordinator went on faster than its files could be gathered.
    """
    if not (run_dir / LEDGER).is_file():
        raise not_started(run_dir)
    if archive.exists():
        raise InputError(f"'{archive}': expected a new file, this one exists; choose another name")
    _sweep(run_dir)
    # Beside the run folder's own files, so that links suffice where the file system has them.
    with tempfile.TemporaryDirectory(prefix=_GATHERED, dir=run_dir) as place:
        folder = Path(place)
        for _ in range(_ATTEMPTS):
            try:
                _gather(run_dir, folder, keys=keys)
                break
            except FileNotFoundError:
                _empty(folder)
        else:
            raise UnavailableError(
                f"run folder {run_dir}: its rounds follow each other faster than they can be "
                "copied; pause the coordinator meanwhile (protofleet coordinator pause)"
            )
        listed = _list(folder)
        _write(archive, folder, listed)
    return listed


def read_list(archive: Path) -> BackupList:
    """What an archive says that it holds; nothing else of it is read.

    Raises:
        RefusedError: it is none of this version, or names what no run folder has.
    """
    with _opened(archive) as tar:
        return _read_list(tar)


def restore(
    archive: Path, run_dir: Path, *, federation: str = "", next_round: int = 0
) -> BackupList:
    """Make a run folder from an archive; it is there when all of it was checked, or not at all.

    The next start holds no lease of the time before: it looks for a living coordinator.

    Args:
        archive: as ``back_up`` wrote it.
        run_dir: absent or empty.
        federation: that it must be of; empty: any.
        next_round: the run goes on with this round, and gives up those from the last that the
            archive has committed up to it: devices have finished them since; 0: with its own.

    Raises:
        InputError: ``run_dir`` holds something, the archive is of another federation, or it has
            committed ``next_round``.
        RefusedError: the archive is damaged or holds what it does not name.
    """
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        raise InputError(f"run folder {run_dir}: expected none, or an empty one; move it away")
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    with _opened(archive) as tar:
        listed = _read_list(tar)
        if federation and listed.federation != federation:
            raise InputError(
                f"'{archive}': holds a run of federation '{listed.federation}', the federation "
                f"file says '{federation}'"
            )
        prefix = f".{run_dir.name}-"
        with tempfile.TemporaryDirectory(prefix=prefix, dir=run_dir.parent) as place:
            folder = Path(place) / "run"
            _extract(tar, listed, folder)
            with _ledger_of(folder, archive) as db:
                _forget_process(db)
                if next_round:
                    _give_up(db, next_round)
            for path in (folder, *(one for one in folder.rglob("*") if one.is_dir())):
                sync_folder(path)
            folder.replace(run_dir)
            sync_folder(run_dir.parent)
    return listed


def _gather(run_dir: Path, folder: Path, *, keys: bool) -> None:
    """The ledger and what it refers to; FileNotFoundError if the coordinator has removed it."""
    target = folder / LEDGER
    with (
        closing(sqlite3.connect(f"file:{run_dir / LEDGER}?mode=ro", uri=True)) as source,
        closing(sqlite3.connect(target)) as copy,
    ):
        check_ledger(run_dir, source)
        source.backup(copy)
        names = [*_named(copy)]
        copy.execute("PRAGMA journal_mode = DELETE")
    target.chmod(0o600)
    open_rounds = {name.split("/")[1] for name in names if name.startswith("spool/")}
    names += [f"noise/{name}" for name in open_rounds if (run_dir / "noise" / name).exists()]
    names += [name for name in _KEYS if keys and (run_dir / name).exists()]
    for name in names:
        place = folder / name
        _make_parents(folder, place)
        _copy(run_dir / name, place)


def _named(db: sqlite3.Connection) -> Iterator[str]:
    """Files that rows refer to; updates that have counted are gone."""
    for (name,) in db.execute("SELECT state_file FROM rounds WHERE state_file IS NOT NULL"):
        yield name
    pending = (
        "SELECT file FROM members WHERE counted_in >"
        " (SELECT coalesce(max(round_id), 0) FROM rounds WHERE phase = 'committed')"
    )
    for (name,) in db.execute(pending):
        yield name
    for (reference,) in db.execute("SELECT DISTINCT reference FROM payloads WHERE reference != ''"):
        yield f"references/{reference}.safetensors"
    for (digest,) in db.execute(
        "SELECT target FROM rollouts UNION SELECT former FROM rollouts WHERE former != ''"
    ):
        yield f"{BUNDLES}/{digest}{SUFFIX}"


def _copy(source: Path, target: Path) -> None:
    """A link where that can be; seeds of noise are overwritten at their end, and are copied."""
    if source.parent.name != "noise":
        try:
            os.link(source, target)
        except FileNotFoundError:
            raise
        except OSError:  # no links here
            pass
        else:
            return
    shutil.copyfile(source, target)
    target.chmod(0o600)


def _sweep(run_dir: Path) -> None:
    """Remove what backups that were killed have gathered."""
    for left in run_dir.glob(f"{_GATHERED}*"):
        if time.time() - left.stat().st_mtime > _ABANDONED_S:
            shutil.rmtree(left, ignore_errors=True)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _list(folder: Path) -> BackupList:
    files = []
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        name = path.relative_to(folder).as_posix()
        files.append(BackedUpFile(path=name, bytes=path.stat().st_size, sha256=digest))
    with closing(sqlite3.connect(folder / LEDGER)) as db:
        meta = dict(db.execute("SELECT key, value FROM meta"))
        latest = db.execute(
            "SELECT round_id, phase FROM rounds ORDER BY round_id DESC LIMIT 1"
        ).fetchone()
    if "run_id" not in meta:
        raise InputError(f"run folder {folder.parent}: its run is about to begin")
    round_id, phase = latest or (0, "")
    return BackupList(
        format=FORMAT,
        federation=meta["federation"],
        run_id=meta["run_id"],
        made_s=round(time.time(), 3),
        round_id=round_id,
        phase=phase,
        keys=any(one.path in _KEYS for one in files),
        files=tuple(files),
    )


def _write(archive: Path, folder: Path, listed: BackupList) -> None:
    temporary = archive.with_name(archive.name + TEMPORARY)
    try:
        with open(temporary, "wb", opener=opener) as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                _add(tar, _LIST, io.BytesIO(msgspec.json.encode(listed)))
                for one in listed.files:
                    with (folder / one.path).open("rb") as content:
                        _add(tar, one.path, content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(archive)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise UnavailableError(f"'{archive}': {error.strerror or error}") from error
    sync_folder(archive.parent)


def _add(tar: tarfile.TarFile, name: str, content: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.mode, entry.size = 0o600, content.seek(0, io.SEEK_END)
    content.seek(0)
    tar.addfile(entry, content)


def _name(tar: tarfile.TarFile) -> str:
    return f"'{os.fsdecode(tar.name or '')}'"


@contextmanager
def _opened(archive: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(archive, mode="r:") as tar:
            yield tar
    except FileNotFoundError as error:
        raise InputError(f"'{archive}': no such file") from error
    except (tarfile.TarError, EOFError) as error:
        raise RefusedError("archive", f"'{archive}': no backup, or damaged: {error}") from error


def _read_list(tar: tarfile.TarFile) -> BackupList:
    first = tar.next()
    if first is None or first.name != _LIST or not first.isreg() or first.size > _LIST_BYTES:
        raise RefusedError("archive", f"{_name(tar)}: expected a backup, which begins with {_LIST}")
    content = tar.extractfile(first)
    try:
        listed = msgspec.json.decode(content.read() if content else b"", type=BackupList)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedError("archive", f"{_name(tar)}: {_LIST}: {error}") from error
    if not OLDEST <= listed.format <= FORMAT:
        raise RefusedError(
            "archive",
            f"{_name(tar)}: expected a format from {OLDEST} to {FORMAT}, got {listed.format}; a "
            "later one needs the version of Protofleet that has made the backup",
        )
    names = [one.path for one in listed.files]
    wrong = [name for name in names if not _NAME.fullmatch(name)]
    if wrong or len(set(names)) != len(names) or LEDGER not in names:
        got = (wrong or names)[:3]
        raise RefusedError("archive", f"{_name(tar)}: expected each file of a run once, got {got}")
    return listed


def _extract(tar: tarfile.TarFile, listed: BackupList, folder: Path) -> None:
    """The files, each checked; names, sizes and hashes are those of the list."""
    folder.mkdir(mode=PRIVATE_FOLDER)
    for one in listed.files:
        entry = tar.next()
        if entry is None or (entry.name, entry.size) != (one.path, one.bytes) or not entry.isreg():
            got = "nothing" if entry is None else f"'{entry.name[:100]}' of {entry.size}"
            raise RefusedError(
                "archive",
                f"{_name(tar)}: expected '{one.path}' of {one.bytes} bytes, got {got}",
            )
        content = tar.extractfile(entry)
        target = folder / one.path
        _make_parents(folder, target)
        if content is None or _written(content, target) != one.sha256:
            raise RefusedError("archive", f"{_name(tar)}: '{one.path}' is not what was backed up")
    if tar.next() is not None:
        raise RefusedError("archive", f"{_name(tar)}: holds more than its {_LIST} names")


def _make_parents(folder: Path, target: Path) -> None:
    for parent in reversed(target.relative_to(folder).parents[:-1]):
        (folder / parent).mkdir(mode=PRIVATE_FOLDER, exist_ok=True)


def _written(content: IO[bytes], target: Path) -> str:
    """Copy to a durable file; the SHA-256 of its bytes."""
    digest = hashlib.sha256()
    with open(target, "xb", opener=opener) as file:
        while block := content.read(_BLOCK):
            digest.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


@contextmanager
def _ledger_of(folder: Path, archive: Path) -> Iterator[sqlite3.Connection]:
    """Of an extracted archive; RefusedError: it is none, though its hash is right."""
    try:
        with closing(sqlite3.connect(folder / LEDGER)) as db, db:
            refuse_code(db)
            bring_up(folder / LEDGER, db)
            yield db
    except sqlite3.DatabaseError as error:
        raise RefusedError("archive", f"'{archive}': its ledger is damaged: {error}") from error


def _forget_process(db: sqlite3.Connection) -> None:
    """The process that had the lease may live: it is not that of this folder."""
    found = db.execute("SELECT value FROM meta WHERE key = 'lease'").fetchone()
    checked = db.execute("PRAGMA quick_check(1)").fetchone()
    if found is None or checked != ("ok",):
        raise sqlite3.DatabaseError("it tells of no lease" if found is None else checked[0])
    epoch = found[0].split(" ")[0]
    db.execute("UPDATE meta SET value = ? WHERE key = 'lease'", (f"{epoch} - -",))


def _give_up(db: sqlite3.Connection, next_round: int) -> None:
    """Let the run go on with a later round; its spools are swept at the start."""
    found = db.execute("SELECT max(round_id) FROM rounds WHERE phase = 'committed'").fetchone()
    last = found[0] or 0
    if next_round <= last:
        raise InputError(f"next round: expected one behind {last}, the last, got {next_round}")
    for table in ("members", "signed_offers", "rounds"):
        db.execute(f"DELETE FROM {table} WHERE round_id > ?", (last,))  # noqa: S608 - ours
    # What was late for an earlier round counts in the next one that opens.
    db.execute("UPDATE members SET counted_in = ? WHERE counted_in > ?", (next_round, last))
    lost = next_round - 1 - last
    db.execute("UPDATE meta SET value = CAST(value + ? AS TEXT) WHERE key = 'given_up'", (lost,))
    db.execute("UPDATE meta SET value = ? WHERE key = 'next_round'", (str(next_round),))
