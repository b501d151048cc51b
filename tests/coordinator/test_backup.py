"""Backups of a run folder: of one commit, whole or refused, and good to go on with."""

from __future__ import annotations

import hashlib
import io
import shutil
import sqlite3
import stat
import tarfile
import tempfile
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from fake_endpoint import CONNECTED, QUIET

from protofleet.coordinator import events
from protofleet.coordinator.database import open_database
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.ledger.rollout_rows import RolloutRows, RolloutSettings
from protofleet.coordinator.ledger.rows import SCHEMA, Accepted, ArrivedUpdate
from protofleet.coordinator.process import backup as backups
from protofleet.coordinator.process.backup import back_up, read_list, restore
from protofleet.coordinator.publish import stored_bundle
from protofleet.errors import InputError, ProtofleetError, RefusedError
from protofleet.federation.records import UpdateRecord
from protofleet.strategies.types import ServerState


def _there(fed):
    return [CONNECTED, fed.online("a"), fed.online("b")]


def _leave(fed):
    return [fed.gone("a", "left"), fed.gone("b", "left")]


def _bits(fed):
    return {name: value.tobytes() for name, value in fed.server_state.tensors.items()}


def _moved(fed, run_dir):
    """The same federation in another folder."""
    config = msgspec.structs.replace(fed.plan.config, run_dir=run_dir)
    fed.plan = replace(fed.plan, config=config)
    fed.server = replace(fed.server, plan=fed.plan)
    return fed


def test_a_backup_of_an_open_round_goes_on_in_it_with_the_same_bits(open_federation, tmp_path):
    """What was received after it comes again, and counts once."""
    fed = open_federation(rounds=3)
    archive = tmp_path / "run.tar"

    def backs_up():
        back_up(fed.plan.config.run_dir, archive)

    fed.play(
        _there(fed),
        [*fed.delivers("a"), *fed.delivers("b")],
        fed.delivers("b", 2),
        backs_up,
        fed.delivers("a", 2),
        [*fed.delivers("a", 3), *fed.delivers("b", 3)],
        _leave(fed),
    )
    first = _bits(fed)
    listed = read_list(archive)
    assert (listed.federation, listed.round_id, listed.phase) == ("home", 2, "open")
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    assert not list(fed.plan.config.run_dir.glob(".backup-*"))

    restore(archive, tmp_path / "other", federation="home")
    fed = _moved(fed, tmp_path / "other")
    fed.events.clear()
    fed.play(_there(fed), fed.delivers("a", 2), QUIET)
    assert fed.told(events.UpdateReceived, "device_id", "delivered") == [("a", 2)]
    fed.play(_there(fed), [*fed.delivers("a", 3), *fed.delivers("b", 3)], _leave(fed))
    assert _bits(fed) == first


def test_a_backup_has_the_bundle_that_a_run_hands_to_devices_of_another(open_federation, tmp_path):
    """A roll-out with none before it."""
    fed = open_federation(rounds=1)
    run_dir, digest = fed.plan.config.run_dir, fed.plan.bundle.digest
    kept = stored_bundle(run_dir, digest)

    def publishes():
        kept.parent.mkdir()
        kept.write_bytes(b"bundle")
        with closing(open_database(run_dir / "ledger.sqlite", SCHEMA)) as db:
            RolloutRows(db).begin(digest, "", sequence=1, settings=RolloutSettings())
        back_up(run_dir, tmp_path / "run.tar")

    fed.play(_there(fed), publishes, [*fed.delivers("a"), *fed.delivers("b")], _leave(fed))
    restore(tmp_path / "run.tar", tmp_path / "other", federation="home")
    assert stored_bundle(tmp_path / "other", digest).read_bytes() == b"bundle"


def test_rounds_that_devices_have_finished_since_are_given_up_by_wish(open_federation, tmp_path):
    """Their numbers never come again, so nothing of them is counted twice."""
    fed = open_federation(rounds=5)
    archive = tmp_path / "run.tar"
    fed.play(_there(fed), [*fed.delivers("a"), *fed.delivers("b")], fed.delivers("a", 2))
    back_up(fed.plan.config.run_dir, archive)
    with pytest.raises(InputError, match="expected one behind 1"):
        restore(archive, tmp_path / "other", next_round=1)
    restore(archive, tmp_path / "other", next_round=4)
    fed = _moved(fed, tmp_path / "other")
    fed.events.clear()
    fed.play(_there(fed), [*fed.delivers("a", 4), *fed.delivers("b", 4)], QUIET)
    assert fed.told(events.RoundClosed, "round_id", "participants") == [(4, 2)]
    assert fed.state.round_id == 5
    with Ledger(tmp_path / "other", fed.plan.identity) as ledger:
        # Rounds 1, 4 and 5; of 2 and 3 it cannot be known.
        assert ledger.devices.most_invitations() == 5


def test_a_backup_beside_a_coordinator_in_a_hurry_is_of_one_commit(tiny, tmp_path):
    """Rounds come and go while it is made: states and spools vanish under it."""
    run_dir, over, made = tiny.plan.config.run_dir, threading.Event(), []

    def rounds():
        with Ledger(run_dir, tiny.plan.identity) as ledger:
            for round_id in range(1, 10_000):
                _play_round(ledger, round_id, tmp_path)
                if over.is_set():
                    return

    thread = threading.Thread(target=rounds)
    thread.start()
    try:
        while len(made) < 8:
            if any(run_dir.glob("states/*.safetensors")):
                made.append(tmp_path / f"{len(made)}.tar")
                back_up(run_dir, made[-1])
    finally:
        over.set()
        thread.join()
    for archive in made:
        folder = tmp_path / f"{archive.name}.run"
        listed = restore(archive, folder)
        with Ledger(folder, tiny.plan.identity) as ledger:
            last, state = ledger.state(), ledger.server_state()
            assert len(ledger.updates(last.round_id)) == len(last.delivered)
            assert all(path.read_bytes() for path in ledger.updates(last.round_id).files)
            committed = max(listed.round_id - (listed.phase != "committed"), 0)
            assert (state.round_id if state else 0) == committed


def _play_round(ledger, round_id, tmp_path):
    ledger.open_round(round_id, ("a", "b"), 0.0)
    for name in "ab":
        source = tmp_path / f"{name}.raw"
        source.write_bytes(b"update")
        record = UpdateRecord(client_id=name, round_id=round_id, num_examples=1)
        accepted = Accepted(device_id=name, transfer_id=f"{name}{round_id}", record=record)
        ledger.accept(ArrivedUpdate(source, accepted))
    ledger.close_round(round_id)
    state = ServerState(round_id=round_id, tensors={"w": np.zeros(1000)})
    ledger.commit_round(state, {}, 1.0, keep_states=1)


@pytest.fixture
def archive(open_federation, tmp_path):
    fed = open_federation()
    fed.play(_there(fed), fed.delivers("a"))
    for name in ("coordinator.pem", "certificate"):
        (fed.plan.config.run_dir / name).write_text("secret")
    back_up(fed.plan.config.run_dir, tmp_path / "run.tar")
    return tmp_path / "run.tar"


def test_keys_go_with_it_unless_they_are_not_wanted(archive, tmp_path):
    assert read_list(archive).keys
    restore(archive, tmp_path / "other")
    assert (tmp_path / "other" / "coordinator.pem").read_text() == "secret"
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "other").rglob("*")}
    assert modes == {0o600, 0o700}
    back_up(tmp_path / "other", tmp_path / "bare.tar", keys=False)
    listed = read_list(tmp_path / "bare.tar")
    assert not listed.keys
    assert not [one for one in listed.files if one.path in ("coordinator.pem", "certificate")]


def test_nothing_is_overwritten(archive, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(InputError, match="expected none, or an empty one"):
        restore(archive, tmp_path / "full")
    with pytest.raises(InputError, match="expected a new file"):
        back_up(tmp_path / "run", archive)
    with pytest.raises(InputError, match="of federation 'home'"):
        restore(archive, tmp_path / "other", federation="lab")
    with pytest.raises(InputError, match="no run was started here"):
        back_up(tmp_path / "none", tmp_path / "none.tar")
    with pytest.raises(InputError, match="no such file"):
        restore(tmp_path / "none.tar", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def _members(path):
    with tarfile.open(path) as tar:
        return [(entry, tar.extractfile(entry).read()) for entry in tar]


def _pack(path, members):
    with tarfile.open(path, "w") as tar:
        for entry, content in members:
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def _linked(members):
    entry = members[-1][0]
    entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return [*members[:-1], (entry, b"")]


def _renamed(members):
    listed = members[0][1].replace(members[-1][0].name.encode(), b"../../x")
    members[-1][0].name = "../../x"
    return [(members[0][0], listed), *members[1:]]


def _changed(members):
    entry, content = members[-1]
    return [*members[:-1], (entry, content[:-1] + bytes([content[-1] ^ 1]))]


def _with_ledger(change):
    """An archive whose list names the hash of a ledger that is none."""

    def spoil(members):
        listed = msgspec.json.decode(members[0][1])
        (place,) = (n for n, (one, _) in enumerate(members) if one.name == "ledger.sqlite")
        data = change(members[place][1])
        for one in listed["files"]:
            if one["path"] == "ledger.sqlite":
                one |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        members[0] = (members[0][0], msgspec.json.encode(listed))
        members[place] = (members[place][0], data)
        return members

    return spoil


def _triggered(data):
    """The ledger with a trigger, which would act when the restored run is written to."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ledger.sqlite")
        path.write_bytes(data)
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("CREATE TRIGGER t AFTER UPDATE ON meta BEGIN DELETE FROM rounds; END")
        return path.read_bytes()


@pytest.mark.parametrize(
    "spoil",
    [
        _with_ledger(_triggered),
        _with_ledger(lambda data: b"x" * len(data)),
        _with_ledger(lambda data: data[:8192]),
        _with_ledger(lambda _: b""),
        lambda members: members[:-1],
        lambda members: [*members, members[-1]],
        lambda members: members[1:],
        lambda members: [members[0], *members[:0:-1]],
        lambda members: [(members[0][0], b"{}"), *members[1:]],
        _linked,
        _renamed,
        _changed,
    ],
    ids=[
        "trigger",
        "no ledger",
        "half a ledger",
        "empty ledger",
        "short",
        "surplus",
        "no list",
        "order",
        "list",
        "link",
        "path",
        "bit",
    ],
)
def test_a_spoiled_archive_is_refused_and_leaves_nothing(archive, tmp_path, spoil):
    _pack(tmp_path / "bad.tar", spoil(_members(archive)))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(RefusedError) as refused:
        restore(tmp_path / "bad.tar", tmp_path / "other")
    assert refused.value.rule == "archive"
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("length", [0, 100, 1000, 5000])
def test_a_torn_archive_is_refused(archive, tmp_path, length):
    (tmp_path / "torn.tar").write_bytes(archive.read_bytes()[:length])
    with pytest.raises(ProtofleetError, match="torn"):
        restore(tmp_path / "torn.tar", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_without_links_files_are_copied(archive, tmp_path, monkeypatch):
    def refuses(*_):
        raise PermissionError

    restore(archive, tmp_path / "other")
    monkeypatch.setattr(backups.os, "link", refuses)
    back_up(tmp_path / "other", tmp_path / "again.tar")
    ours, theirs = read_list(archive).files, read_list(tmp_path / "again.tar").files
    assert [one for one in ours if "ledger" not in one.path] == [
        one for one in theirs if "ledger" not in one.path
    ]
    shutil.rmtree(tmp_path / "other")
