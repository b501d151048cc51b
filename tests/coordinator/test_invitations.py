from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.broker.folder import BrokerFolder
from protofleet.cli.device import device
from protofleet.coordinator.membership.invitations import (
    find_meeting,
    invite,
    own_broker,
    revoke,
    standings,
)
from protofleet.coordinator.membership.members import Members
from protofleet.errors import InputError, UnavailableError
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.trust.enrolment import Invitation
from protofleet.wire.trust.identity import public_bytes

_ACCESS = BrokerAccess(url="mqtts://boss:secret@broker.example?version=5")


@pytest.fixture
def members(tmp_path):
    with Members.create(tmp_path / "federation", "home") as members:
        yield members


@pytest.fixture
def own(members):
    return BrokerFolder.create(members.folder / "broker", ["192.0.2.7"], 8899)


def _public() -> bytes:
    return public_bytes(Ed25519PrivateKey.generate())


def _invite(members, name, valid_s=3600, access=_ACCESS):
    return invite(members, find_meeting(members, access), name, valid_s, [].append)


def _states(members):
    return {one.device_id: one.state for one in standings(members, time.time())}


def test_an_invitation_names_the_broker_without_our_account(members):
    found = _invite(members, "anna")
    assert found.broker == "mqtts://broker.example?version=5"
    assert (found.certificate, found.account) == ("", False)
    assert "secret" not in repr(Invitation.parse(str(found)))


def test_an_invitation_to_the_own_broker_pins_its_certificate_and_has_an_account(members, own):
    found = _invite(members, "anna", access=None)
    assert found.broker == "mqtts://192.0.2.7:8899"
    assert len(found.certificate) == 64
    assert own.accounts.check("invite.anna", found.keys().password)
    assert own.accounts.check("anna", members.invitation("anna").password)


def test_a_device_that_has_an_account_keeps_it_when_it_is_invited_again(members, own):
    own.accounts.add("anna", "p" * 20)
    _invite(members, "anna", access=None)
    assert own.accounts.check("anna", "p" * 20)


def test_nobody_is_invited_without_a_broker_or_to_one_that_does_not_answer(members, tmp_path, own):
    with (
        pytest.raises(InputError, match="protofleet broker init"),
        Members.create(tmp_path / "other", "home") as other,
    ):
        find_meeting(other, None)
    private = BrokerAccess(url="mqtts://127.0.0.1:1", ca_file=own.ca)
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:1"):
        find_meeting(members, private)


@pytest.mark.parametrize("name", ["coordinator", "invite.anna", "a/b", "x" * 58])
def test_names_of_other_accounts_are_refused(members, own, name):
    with pytest.raises(InputError):
        _invite(members, name, access=None)
    if len(name) < 50:
        with pytest.raises(InputError):
            revoke(members, own, name, [].append)
    assert own.accounts.names() == ["coordinator"]


def test_where_devices_stand(members):
    key = members.private_key()
    _invite(members, "invited")
    _invite(members, "late", valid_s=-1)
    members.grant(key, "enrolled", _public())
    for name in ("revoked", "again"):
        members.grant(key, name, _public())
        members.revoke(name)
    _invite(members, "again")
    assert _states(members) == {
        "invited": "invited",
        "late": "expired",
        "enrolled": "enrolled",
        "revoked": "revoked",
        "again": "invited",
    }
    assert {one.state for one in standings(members, time.time() + 5e9)} == {"expired", "revoked"}


def test_a_revoked_device_has_no_grant_no_invitation_and_no_account(members, own):
    members.grant(members.private_key(), "anna", _public())
    _invite(members, "anna", access=None)
    assert revoke(members, own, "anna", [].append)
    assert _states(members) == {"anna": "revoked"}
    assert own.accounts.names() == ["coordinator"]
    assert members.invitation("anna") is None
    assert not revoke(members, own, "anna", [].append)


def _run(members, *arguments):
    command = [arguments[0], "--keys", str(members.folder), *arguments[1:]]
    return CliRunner().invoke(device, command, catch_exceptions=True)


def test_commands_invite_list_revoke_and_rotate(members):
    broker = ("--broker", "mqtt://127.0.0.1:1", "--no-wait")
    made = _run(members, "invite", "anna", "berta", "--json", *broker)
    lines = [json.loads(line) for line in made.stdout.splitlines()]
    assert [line["device_id"] for line in lines] == ["anna", "berta"]
    assert Invitation.parse(lines[0]["invitation"]).until == lines[0]["until_s"]
    shown = _run(members, "invite", "anna", "--qr", "--valid", "30m", *broker)
    assert "protofleet device enroll protofleet:" in shown.stdout
    assert "█" in shown.stdout
    hub = ("--hub", "https://pi.local:8443/")
    shown = _run(members, "invite", "anna", "--qr", *hub, *broker)
    assert "  open https://pi.local:8443/#protofleet:" in shown.stdout
    assert "█" in shown.stdout
    line = json.loads(_run(members, "invite", "anna", "--json", *hub, *broker).stdout)
    assert line["url"] == f"https://pi.local:8443/#{line['invitation']}"
    members.grant(members.private_key(), "berta", _public())
    table = _run(members, "list").stdout.splitlines()
    assert table[2].split()[:3] == ["anna", "invited", "-"]
    assert table[3].split()[:4] == ["berta", "enrolled,", "invited", "1"]
    rows = [json.loads(line) for line in _run(members, "list", "--json").stdout.splitlines()]
    assert [row["state"] for row in rows] == ["invited", "enrolled"]
    assert isinstance(_run(members, "rotate", "anna", *broker).exception, InputError)
    assert _run(members, "rotate", "berta", *broker).exit_code == 0
    assert "berta: revoked" in _run(members, "revoke", "berta").stdout
    assert isinstance(_run(members, "revoke", "nobody").exception, InputError)
    assert _run(members, "rotate").exit_code == 2
    assert _run(members, "invite", "anna", "--valid", "91d", *broker).exit_code == 2


@pytest.mark.parametrize(
    "address",
    ["pi.local:8443", "mqtts://pi.local", "https://pi.local/x", "https://a@b", "https://"],
)
def test_a_hub_is_named_as_a_browser_would(members, address):
    done = _run(members, "invite", "anna", "--no-wait", "--hub", address)
    assert (done.exit_code, "such as https://192.168.1.5:8443" in done.output) == (2, True)


def test_without_a_name_there_must_be_somebody_to_wait_for(members):
    broker = ("--broker", "mqtt://127.0.0.1:1")
    assert "no invitation to wait for" in str(_run(members, "invite", *broker).exception)
    _invite(members, "late", valid_s=-1)
    assert "no invitation to wait for" in str(_run(members, "invite", *broker).exception)


def test_accounts_of_anothers_broker_are_made_by_the_operator(members):
    """Who gets both passwords; the device has the first in its invitation, the second later."""
    broker = ("--broker", "mqtt://127.0.0.1:1", "--no-wait", "--accounts", "--json")
    lines = _run(members, "invite", "anna", *broker).stdout.splitlines()
    first, second, invited = map(json.loads, lines)
    keys = Invitation.parse(invited["invitation"]).keys()
    assert (first["name"], first["password"]) == ("invite.anna", keys.password)
    assert (second["name"], second["password"]) == ("anna", members.invitation("anna").password)
    assert Invitation.parse(invited["invitation"]).account
    assert _run(members, "invite", "anna", "--accounts", "--no-wait").exit_code == 2


def test_the_federations_own_key_is_replaced(members):
    before = members.federation_key
    _invite(members, "anna")
    told = _run(members, "rotate", "--federation-key")
    assert "invite again: anna" in told.stdout
    with Members.open(members.folder) as again:
        assert again.federation_key != before
        assert len(again.rotations) == 1
        assert again.invitations() == []
        assert again.private_key() is not None


def test_the_folder_is_named_after_itself_at_its_first_invitation(tmp_path):
    folder = tmp_path / "lab"
    broker = ("--broker", "mqtt://127.0.0.1:1", "--no-wait")
    made = CliRunner().invoke(device, ["invite", "anna", "--keys", str(folder), *broker])
    assert made.exit_code == 0, made.output
    with Members.open(folder) as members:
        assert members.name == "lab"
    assert own_broker(folder) is None
    other = CliRunner().invoke(
        device, ["invite", "anna", "--keys", str(folder), "--federation", "home", *broker]
    )
    assert "of federation 'lab', expected 'home'" in str(other.exception)


def _invite_with(folder, *options):
    return CliRunner().invoke(
        device, ["invite", "anna", "--keys", str(folder), "--no-wait", *options]
    )


def test_a_federation_is_called_as_its_broker_says_and_no_other_is_made(tmp_path):
    """Else the broker would refuse every device that was invited."""
    folder = tmp_path / "federation"
    BrokerFolder.create(folder / "broker", ["192.0.2.7"], federations=["sec"])
    refused = str(_invite_with(folder, "--federation", "home").exception)
    assert refused.startswith(
        f"federation 'home': the broker in '{folder / 'broker'}' serves 'sec'"
    )
    assert refused.endswith("leave --federation out, or: --federation sec")
    assert not (folder / "members.sqlite").exists()
    assert _invite_with(folder).exit_code == 0
    with Members.open(folder) as members:
        assert members.name == "sec"


def test_a_folder_whose_name_its_broker_does_not_serve_says_what_helps(tmp_path):
    """Such as one that was made before its name was looked at."""
    folder = tmp_path / "federation"
    Members.create(folder, "federation").__exit__()
    BrokerFolder.create(folder / "broker", ["192.0.2.7"], federations=["sec"])
    for options in ((), ("--federation", "federation")):
        refused = str(_invite_with(folder, *options).exception)
        assert "are of 'federation': if no device has enrolled" in refused
    for name in ("federation.pem", "members.sqlite"):
        (folder / name).rename(tmp_path / name)
    assert _invite_with(folder).exit_code == 0


def test_federations_that_share_a_broker_have_keys_of_their_own(tmp_path):
    folder = tmp_path / "federation"
    broker = BrokerFolder.create(folder / "broker", ["192.0.2.7"], federations=["sec", "lab"])
    refused = str(_invite_with(folder).exception)
    assert f"protofleet device invite --keys {folder / 'sec'} DEVICE" in refused
    for name in ("sec", "lab"):
        assert _invite_with(folder / name).exit_code == 0
        with Members.open(folder / name) as members:
            assert members.name == name
    assert own_broker(folder / "lab", "lab") == broker
    assert own_broker(folder / "lab", "other") is None
    assert "invite.anna" in broker.accounts.names()
    done = CliRunner().invoke(device, ["revoke", "anna", "--keys", str(folder / "lab")])
    assert done.exit_code == 0, done.output
    assert broker.accounts.names() == ["coordinator"]


def test_anothers_broker_above_a_federation_is_not_its_own(tmp_path):
    (tmp_path / "mosquitto.conf").write_text("listener 1883")
    assert own_broker(tmp_path / "federation", "home") is None
