"""A device's store: whole, damaged at each of its files, open to others, in use."""

from __future__ import annotations

import os
import time

import pytest
from doctor_rows import levels, the

from protofleet.bundle import Bundle
from protofleet.edge.state.journal import StoreBinding, blob_path, bundle_path, read_journal
from protofleet.edge.state.store import Store


@pytest.fixture
def store(tmp_path, bundle):
    """It belongs to a bundle, of which it keeps a copy, and has a payload to train on."""
    opened = Bundle.open(bundle, any_signer=True)
    manifest = opened.manifest
    folder = tmp_path / "store"
    with Store.open(folder, device_id="pi-1") as store:
        store.keep_bundle(opened)
        store.bind(
            StoreBinding(federation="home", bundle=opened.digest, layout_hash=manifest.layout_hash)
        )
        store.commit_received(1, "0" * 32, b"a payload")
    return folder


def test_a_whole_store_is_well_and_left_as_it_is(told, store):
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    rows = told(store)
    assert {row["level"] for row in rows} == {"ok"}
    assert before == {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    with Store.open(store):
        rows = told(store)
    assert any("a device uses it now" in row["text"] for row in rows)


def test_a_damaged_journal_is_told_once(told, store):
    (store / "journal.json").write_text("{")
    rows = told(store)
    assert "protofleet device reset" in the(rows, "store.journal")["remedy"]
    assert levels(rows, "store.contents") == []


def test_damaged_contents_are_found(told, store):
    journal = read_journal(store)
    (file,) = journal.files
    blob_path(store, file).write_bytes(b"another")
    found = the(told(store), "store.contents")
    assert "expected 9 bytes with the hash in its name, got 7 other ones" in found["text"]
    assert found["remedy"]


def test_a_damaged_copy_of_the_bundle_is_a_problem_and_none_a_warning(told, store):
    copy = bundle_path(store, read_journal(store).bundles[0])
    data = bytearray(copy.read_bytes())
    data[-10] ^= 1
    copy.write_bytes(data)
    assert "--bundle once" in the(told(store), "store.contents")["remedy"]
    copy.unlink()
    assert "keeps no copy" in the(told(store), "store.contents", "warning")["text"]


def test_a_store_that_others_may_read_is_a_problem(told, store):
    store.chmod(0o755)
    assert "chmod 700" in the(told(store), "store.folder")["text"]


def test_a_store_of_the_future_is_a_wrong_clock(told, store):
    """A board whose clock went back to when its system was made."""
    later = time.time() + 86_400
    os.utime(store / "identity.json", (later, later))
    assert "before this store was written" in the(told(store), "store.journal")["text"]
