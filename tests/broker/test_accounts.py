from __future__ import annotations

import shutil
import stat
import subprocess
import threading

import pytest
from secured_broker import PASSWORD

from protofleet.broker.access import AccessList
from protofleet.broker.accounts import Accounts, hash_password, matches, new_password
from protofleet.broker.folder import BrokerFolder
from protofleet.broker.probe import BrokerProbe, Credential
from protofleet.errors import InputError


@pytest.fixture
def folder(tmp_path):
    return BrokerFolder.create(tmp_path / "broker")


def test_a_hash_is_that_of_mosquitto_passwd(tmp_path):
    """Made by mosquitto_passwd 2.0.11 for 'sesame', and by ours with the same salt."""
    made = (
        "$7$101$6b1O2NUfOQyEYuqJ$vzRKX4tBZ8bPZ8RRSxBLVVDFV3PZpuoW7XvYTWpoFPcfk6jAbsUOcRN0Vhb1hV5I"
        "zpkcBTdUnwWFTYWK6T0Fqg=="
    )
    if shutil.which("mosquitto_passwd") is not None:
        users = tmp_path / "users"
        subprocess.run(["mosquitto_passwd", "-b", "-c", users, "anna", "sesame"], check=True)
        made = users.read_text().strip().removeprefix("anna:")
        assert matches("sesame", made)
        assert not matches("Sesame", made)
    assert made.startswith("$7$101$")
    assert matches(PASSWORD, hash_password(PASSWORD))
    assert hash_password(PASSWORD) != hash_password(PASSWORD)


@pytest.mark.parametrize(
    "hashed", ["", "$6$101$YQ==$YQ==", "$7$x$YQ==$YQ==", "$7$101$*$YQ==", "$7$101$YQ==", "$7$0$$"]
)
def test_what_is_no_hash_of_this_form_matches_nothing(hashed):
    assert not matches("a", hashed)


def test_accounts_are_added_replaced_and_removed(folder):
    accounts = folder.accounts
    accounts.add("pi-1", PASSWORD)
    other = new_password()
    accounts.add("pi-1", other)
    assert accounts.names() == ["coordinator", "pi-1"]
    assert accounts.check("pi-1", other)
    assert not accounts.check("pi-1", PASSWORD)
    assert accounts.remove("pi-1")
    assert not accounts.remove("pi-1")
    assert not accounts.check("pi-1", other)
    assert stat.S_IMODE(accounts.file.stat().st_mode) == 0o600


def test_an_invitation_has_its_section_as_long_as_its_account(folder):
    accounts = folder.accounts
    before = accounts.access_file.read_text()
    accounts.add("invite.pi-1", PASSWORD)
    topic = "fl/x/en/invite.pi-1/q"
    assert "user invite.pi-1" in accounts.access_file.read_text()
    assert not AccessList(before).may("invite.pi-1", "write", topic)
    accounts.remove("invite.pi-1")
    assert accounts.access_file.read_text() == before


@pytest.mark.parametrize(
    ("name", "password", "told"),
    [
        ("a:b", PASSWORD, "account: expected 1 to 64"),
        ("a\nb", PASSWORD, "account: expected 1 to 64"),
        ("a", "short", "a password of at least 16 bytes"),
        ("a", PASSWORD + "\nroot:", "on one line"),
    ],
)
def test_what_would_break_the_file_is_refused(folder, name, password, told):
    before = folder.accounts.file.read_bytes()
    with pytest.raises(InputError, match=told):
        folder.accounts.add(name, password)
    assert folder.accounts.file.read_bytes() == before


def test_changes_at_the_same_time_lose_nothing(folder):
    names = [f"d{number}" for number in range(16)]
    threads = [
        threading.Thread(target=folder.accounts.add, args=(name, PASSWORD)) for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folder.accounts.names() == sorted([*names, "coordinator"])


def test_a_folder_without_accounts_is_named(tmp_path):
    with pytest.raises(InputError, match="passwords: No such file or directory; make one with"):
        Accounts(tmp_path).names()


def test_a_running_broker_takes_and_drops_accounts(secured_broker):
    """Removal ends the connection that there is."""
    folder, place = secured_broker.folder, secured_broker.place
    anna = Credential(user="anna", password=PASSWORD)
    with BrokerProbe(place, anna) as probe:
        assert "uthori" in probe.refused
    folder.accounts.add("anna", PASSWORD)
    assert folder.reload() == ""
    with _connected(place, anna) as probe:
        folder.accounts.remove("anna")
        folder.reload()
        assert probe.await_end(5)
    with BrokerProbe(place, anna) as probe:
        assert "uthori" in probe.refused


def _connected(place, credential):
    """SIGHUP is answered a moment later."""
    for _ in range(50):
        with BrokerProbe(place, credential) as probe:
            if not probe.refused:
                return BrokerProbe(place, credential)
    raise TimeoutError(probe.refused)
