from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from keyed import in_a_day

from protofleet.coordinator.members import KEY_FILE, Members, Revocations
from protofleet.errors import InputError, RefusedError
from protofleet.wire.identity import DeviceGrant, public_bytes, sign_statement


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
