"""The disks that forget see a write that is not synced, and a name whose folder is not."""

from __future__ import annotations

import os

import pytest
from power_loss import cuts, record


def work(folder, mark):
    """Two files, written as those do who have not heard of power cuts."""
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "new.tmp").write_bytes(b"whole")
    (folder / "inner" / "new.tmp").rename(folder / "inner" / "new")
    mark("named")
    with (folder / "synced").open("wb") as file:
        file.write(b"half")
        file.flush()
        os.fsync(file.fileno())
        mark("synced")
        file.write(b" and whole")
    (folder / "synced").unlink()


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """By disk and what was promised: the files that some cut has left."""
    scratch = tmp_path_factory.mktemp("power")
    found = {}
    for cut in cuts(
        record(__file__, scratch / "root", scratch), scratch / "root", scratch / "left"
    ):
        files = {
            str(one.relative_to(cut.folder)): one.read_bytes()
            for one in cut.folder.rglob("*")
            if one.is_file()
        }
        found.setdefault((cut.disk, cut.marks), []).append(files)
    return found


def test_a_name_without_its_content_is_seen(left):
    assert {"inner/new": b""} in left["eager", ()]
    assert all("inner/new" not in files for files in left["strict", ("named",)])


def test_what_was_synced_stays_where_its_name_does(left):
    promised = ("named", "synced")
    assert all(files.get("synced", b"half") == b"half" for files in left["eager", promised])
    assert any("synced" in files for files in left["eager", promised])
    assert not any("synced" in files for files in left["strict", promised])
