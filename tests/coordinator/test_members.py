from __future__ import annotations

import itertools
import multiprocessing

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from deadly_writes import die_at_write
from keyed import in_a_day

from protofleet.bundle import keys
from protofleet.coordinator.membership.members import KEY_FILE, Members, Revocations
from protofleet.errors import InputError, RefusedError
from protofleet.wire.trust.identity import (
    DeviceGrant,
    KeyRotation,
    public_bytes,
    read_statement,
    sign_statement,
)


@pytest.fixture
def members(tmp_path):
    with Members.create(tmp_path / "federation", "home") as members:
        yield members


def _public() -> bytes:
    return public_bytes(Ed25519PrivateKey.generate())


def test_the_folder_is_made_once_and_is_private(members):
    """The same key for every later command; nobody else may read it."""
    with Members.create(members.folder, "home") as again:
        assert again.federation_key == members.federation_key
    for path in (members.folder, members.folder / KEY_FILE, members.folder / "members.sqlite"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_folder_of_another_federation_or_none_is_an_error(members, tmp_path):
    with pytest.raises(InputError, match="of federation 'home', expected 'lab'"):
        Members(members.folder, "lab")
    with pytest.raises(InputError, match="protofleet device invite"):
        Members(tmp_path / "nothing", "home")
    with pytest.raises(InputError, match="expected 1 to 64 characters"):
        Members.create(tmp_path / "bad", "no such name")


def test_a_grant_counts_until_it_is_revoked_or_replaced(members):
    key = members.private_key()
    first = members.grant(key, "anna", _public())
    assert members.check(first).serial == 1
    second = members.grant(key, "anna", _public())
    assert members.check(second).serial == 2
    assert members.revoke("anna")
    assert not members.revoke("anna")
    for text in (first, second):
        with pytest.raises(RefusedError, match="no longer in force") as refused:
            members.check(text)
        assert refused.value.rule == "revoked"
    (row,) = members.members()
    assert (row.device_id, row.serial, row.revoked_s is None) == ("anna", 2, False)


def test_a_grant_with_a_known_serial_and_another_key_is_refused(members):
    """Signed by a stolen federation key, after it had signed an honest one."""
    key = members.private_key()
    members.grant(key, "anna", _public())
    forged = DeviceGrant(
        federation="home", device_id="anna", key="ab" * 32, serial=1, until=in_a_day()
    )
    with pytest.raises(RefusedError) as refused:
        members.check(sign_statement(key, forged))
    assert refused.value.rule == "revoked"


def test_a_federation_key_that_is_another_is_an_error(members):
    path = members.folder / KEY_FILE
    path.unlink()
    assert members.private_key() is None
    with Members.create(members.folder.with_name("other"), "home") as other:
        (other.folder / KEY_FILE).rename(path)
    with pytest.raises(InputError, match="not the key of federation 'home'"):
        members.private_key()


def test_a_running_coordinator_learns_of_revocations_once(members):
    key = members.private_key()
    members.grant(key, "anna", _public())
    revocations = Revocations(members)
    assert revocations.take(0.0) == set()
    with Members(members.folder, "home") as command:
        command.revoke("anna")
    assert revocations.take(0.5) == set()
    assert revocations.take(2.0) == {("anna", 1)}
    assert revocations.take(4.0) == set()


def test_a_federation_key_hands_over_to_the_next(members):
    """Devices that were granted by the old one stay; the old one itself is gone."""
    old, key = members.federation_key, members.private_key()
    grant = members.grant(key, "anna", _public())
    new, _ = members.rotate()
    assert members.federation_key == new == public_bytes(members.private_key())
    (text,) = members.rotations
    rotation = read_statement(text, KeyRotation, [old], federation="home")
    assert (rotation.old, rotation.new) == (old.hex(), new.hex())
    assert members.check(grant).serial == 1
    with pytest.raises(RefusedError):
        members.check(sign_statement(key, _unknown_grant()))
    names = sorted(path.name for path in members.folder.glob("*.pem"))
    assert names == [KEY_FILE, "federation.pub.pem"]
    assert keys.load_public_key(members.folder / "federation.pub.pem") == new


def _unknown_grant() -> DeviceGrant:
    return DeviceGrant(
        federation="home", device_id="eve", key="ab" * 32, serial=1, until=in_a_day()
    )


def test_a_folder_whose_making_was_interrupted_is_made_by_the_same_command(tmp_path):
    (tmp_path / "members.sqlite").touch()
    with pytest.raises(InputError, match="protofleet device invite"):
        Members.open(tmp_path)
    with pytest.raises(InputError, match="protofleet device invite"):
        Members(tmp_path, "home")
    with Members.create(tmp_path, "home") as made, Members.open(tmp_path) as found:
        assert made.federation_key == found.federation_key == public_bytes(found.private_key())


def _rotate_and_die(folder, fatal: int) -> None:
    die_at_write(fatal)
    with Members(folder, "home") as members:
        members.rotate()


def test_killed_at_any_write_a_rotation_has_happened_or_not(members):
    """The private key in the folder is the one in force, or becomes it at its next use."""
    fork = multiprocessing.get_context("fork")
    outcomes = set()
    for fatal in itertools.count(1):
        before = members.federation_key
        process = fork.Process(target=_rotate_and_die, args=(members.folder, fatal))
        process.start()
        process.join(30)
        now = members.federation_key
        outcomes.add(now == before)
        assert public_bytes(members.private_key()) == now
        if process.exitcode == 0:
            break
    assert outcomes == {True, False}


def test_without_the_federation_key_nothing_is_signed(members):
    (members.folder / KEY_FILE).unlink()
    with pytest.raises(InputError, match="put it back for this command"):
        members.needed_key()
    with pytest.raises(InputError, match="put it back for this command"):
        members.rotate()
