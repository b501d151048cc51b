from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from protofleet.coordinator.database import open_database
from protofleet.errors import InputError

_SCHEMA = "CREATE TABLE IF NOT EXISTS things (name TEXT PRIMARY KEY, size INTEGER NOT NULL) STRICT;"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "things.sqlite"
    with closing(open_database(path, _SCHEMA)) as db, db:
        db.executemany("INSERT INTO things VALUES (?, ?)", [(f"thing-{k}", k) for k in range(500)])
    return path


def test_it_is_private_and_kept(path):
    assert path.stat().st_mode & 0o777 == 0o600
    with closing(open_database(path, _SCHEMA)) as db:
        assert db.execute("SELECT count(*) FROM things").fetchone() == (500,)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"not SQLite" * len(data),
        lambda data: data[: len(data) // 2],
        lambda data: data[:3000] + b"\xff" * 2000 + data[5000:],
        lambda data: data[:100] + b"\xff" * 20 + data[120:],
    ],
)
def test_a_damaged_one_is_named_in_one_line(path, damage):
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(
        InputError, match=r"things.sqlite': damaged, or of another version \(.*; restore"
    ) as told:
        open_database(path, _SCHEMA)
    assert "\n" not in str(told.value)


def test_text_that_is_no_text_is_shown(path):
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("INSERT INTO things VALUES (CAST(x'61ff' AS TEXT), 1)")
    with closing(open_database(path, _SCHEMA)) as db:
        assert db.execute("SELECT name FROM things WHERE size = 1 ORDER BY name").fetchone() == (
            "a�",
        )


def test_a_place_that_cannot_be_written_is_no_damage(tmp_path):
    (tmp_path / "folder.sqlite").mkdir()
    with pytest.raises(OSError, match="folder"):
        open_database(tmp_path / "folder.sqlite", _SCHEMA)


@pytest.mark.parametrize(
    "code",
    [
        "CREATE TRIGGER t AFTER UPDATE ON things BEGIN DELETE FROM things; END",
        "CREATE VIEW v AS SELECT * FROM things",
        "CREATE VIRTUAL TABLE v USING fts5(x)",
    ],
)
def test_what_acts_by_itself_is_refused(path, code):
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(code)
    with pytest.raises(InputError, match="expected tables alone, got a"):
        open_database(path, _SCHEMA)
