"""A coordinator waits for its disk, and is opened anew from its ledger."""

from __future__ import annotations

import errno
import sqlite3
from contextlib import contextmanager

import pytest

from protofleet.coordinator import events
from protofleet.coordinator.process import storage
from protofleet.durable import takes_no_writes
from protofleet.errors import StorageError


class _Run:
    """Fails with its disk ``times`` times, then ends."""

    def __init__(self, times):
        self.times, self.opened, self.runs = times, 0, 0
        self.cause = OSError(errno.ENOSPC, "No space left on device")

    @contextmanager
    def open(self):
        self.opened += 1
        yield self

    def run(self):
        self.runs += 1
        if self.runs <= self.times:
            raise StorageError("run folder 'run': No space left on device") from self.cause


@pytest.fixture(autouse=True)
def _without_waits(monkeypatch):
    monkeypatch.setattr(storage, "LOOK_S", 0.0)


def test_it_says_so_and_goes_on_when_the_folder_can_be_written(tmp_path, monkeypatch):
    run, told, full = _Run(2), [], [True, True, False, False]

    def write(path, parts):
        if full.pop(0):
            raise OSError(errno.ENOSPC, "No space left on device")
        path.write_bytes(b"".join(parts))

    monkeypatch.setattr(storage, "write_synced", write)
    storage.serve(run.open, tmp_path, told.append)
    assert (run.opened, run.runs, full) == (3, 3, [])
    assert [type(one) for one in told] == [events.StorageFailed, events.StorageBack] * 2
    assert told[0].reason == "run folder 'run': No space left on device"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EACCES])
def test_what_does_not_pass_is_an_error(tmp_path, number):
    run, told = _Run(2), []
    run.cause = OSError(number, "not there")
    with pytest.raises(StorageError):
        storage.serve(run.open, tmp_path, told.append)
    assert (run.runs, told) == (1, [])


def test_a_database_on_a_full_disk_is_one_that_may_pass(tmp_path):
    """SQLite has numbers of its own; its limit of pages stands for the disk's end."""
    database = sqlite3.connect(tmp_path / "full.db")
    database.execute("CREATE TABLE rows (value BLOB)")
    database.execute("PRAGMA max_page_count = 3")
    with pytest.raises(sqlite3.OperationalError) as full:
        database.execute("INSERT INTO rows VALUES (zeroblob(100000))")
    assert takes_no_writes(full.value)
    with pytest.raises(sqlite3.OperationalError) as missing:
        database.execute("SELECT * FROM others")
    assert not takes_no_writes(missing.value)
    database.close()


def test_a_folder_that_never_could_be_written_is_an_error(tmp_path):
    @contextmanager
    def opened():
        raise StorageError("run folder 'run': Read-only file system")
        yield

    told = []
    with pytest.raises(StorageError, match="Read-only"):
        storage.serve(opened, tmp_path, told.append)
    assert told == []


def test_who_is_to_end_does_not_wait(tmp_path):
    run, told, ended = _Run(1), [], []
    storage.serve(
        run.open,
        tmp_path,
        lambda report: (told.append(report), ended.append(True)),
        ended=lambda: bool(ended),
    )
    assert [type(one) for one in told] == [events.StorageFailed]
    assert run.runs == 1
