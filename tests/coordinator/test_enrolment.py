from __future__ import annotations

import time

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.broker.folder import BrokerFolder
from protofleet.coordinator.membership.enrolment import EnrolmentService
from protofleet.coordinator.membership.invitations import JoinAddress, invite
from protofleet.coordinator.membership.members import Members
from protofleet.errors import RefusedError
from protofleet.wire.mqtt.broker_access import BrokerAccess
from protofleet.wire.topics import Topics
from protofleet.wire.trust.enrolment import InvitationKeys, ask, check_grant, open_answer
from protofleet.wire.trust.identity import public_bytes

_ACCESS = BrokerAccess(url="mqtt://127.0.0.1:1")
_ASKS = Topics("home").enrolment_request("anna")
_ANSWERS = Topics("home").enrolment_answer("anna")
_DEVICE, _TWIN = Ed25519PrivateKey.generate(), Ed25519PrivateKey.generate()


@pytest.fixture
def members(tmp_path):
    with Members.create(tmp_path / "federation", "home") as members:
        yield members


@pytest.fixture
def told():
    return []


@pytest.fixture
def service(members, told):
    return EnrolmentService(members, _ACCESS, told.append)


@pytest.fixture
def invitation(members, told):
    return invite(members, JoinAddress(access=_ACCESS, url=str(_ACCESS)), "anna", 3600, told.append)


def _ask(keys, key=_DEVICE, step="grant"):
    return ask(key, keys, _ASKS, device_id="anna", step=step)


def _grant_in(answer, asked, invitation):
    keys = invitation.keys()
    found = open_answer(answer, asked, keys.answer, _ANSWERS)
    return check_grant(found, invitation, bytes.fromhex(asked.request.key))


def test_the_same_key_gets_the_same_grant_and_another_none(members, service, invitation, told):
    keys = invitation.keys()
    serials = set()
    for _ in range(3):
        asked = _ask(keys)
        answer = service.answer("anna", asked.payload, time.time())
        serials.add(_grant_in(answer, asked, invitation).serial)
    assert serials == {1}
    answer = service.answer("anna", _ask(keys, _TWIN).payload, time.time())
    assert (answer.rule, answer.sealed) == ("used", "")
    assert told == ["anna: refused: another device has used this invitation"]
    assert len(members.members()) == 1


def test_once_taken_an_invitation_gives_nothing_more(members, service, invitation):
    keys = invitation.keys()
    too_early = service.answer("anna", _ask(keys, step="taken").payload, time.time())
    assert too_early.rule == "grant"
    service.answer("anna", _ask(keys).payload, time.time())
    for _ in range(2):
        assert service.answer("anna", _ask(keys, step="taken").payload, time.time()).rule == ""
    assert members.invitation("anna").taken_s is not None
    assert members.invitation("anna").password == ""
    assert service.answer("anna", _ask(keys).payload, time.time()).rule == "used"
    assert service.answer("anna", _ask(keys, _TWIN, "taken").payload, time.time()).rule == "used"


def test_guesses_are_answered_and_told_now_and_then(service, invitation, told):
    """A flood costs neither the log nor the broker much, and the right device gets its answer."""
    guess = InvitationKeys(proof=bytes(32), answer=bytes(32))
    answers = [service.answer("anna", _ask(guess).payload, 1000.0 + at / 50) for at in range(100)]
    given = [answer for answer in answers if answer is not None]
    assert [answer.rule for answer in given] == ["token"] * 2
    assert len(told) == 7
    assert told[-1] == "anna: a wrong invitation (64 times)"
    asked = _ask(invitation.keys())
    assert _grant_in(service.answer("anna", asked.payload, 1002.0), asked, invitation).serial == 1


def test_invented_names_share_one_limit(service, told):
    keys = InvitationKeys(proof=bytes(32), answer=bytes(32))
    answers = [
        service.answer(f"nobody-{number}", _ask(keys).payload, 1000.0) for number in range(100)
    ]
    assert sum(answer is not None for answer in answers) == 1
    assert all(line.startswith("devices that are not invited: ") for line in told)


def test_noise_is_not_answered(service):
    for payload in (b"", b"{}", bytes(2000), bytes(96) + b"[" * 500):
        assert service.answer("anna", payload, time.time()) is None


def test_a_rotated_key_revokes_the_old_one_once_the_new_one_is_used(members, service, told):
    """By the device's word or by its first presence, which is what ``check`` sees."""
    key = members.private_key()
    old = members.grant(key, "anna", public_bytes(_TWIN))
    meeting = JoinAddress(access=_ACCESS, url=str(_ACCESS))
    invitation = invite(members, meeting, "anna", 3600, told.append)
    asked = _ask(invitation.keys())
    answer = service.answer("anna", asked.payload, time.time())
    found = open_answer(answer, asked, invitation.keys().answer, _ANSWERS)
    assert members.check(old).serial == 1
    assert members.check(found.grant).serial == 2
    assert members.invitation("anna").taken_s is not None
    with pytest.raises(RefusedError, match="no longer in force"):
        members.check(old)


def test_what_is_broken_on_our_side_ends_nothing(members, told):
    """A broker's folder without its files, for instance: it may be put right."""
    folder = BrokerFolder.create(members.folder / "broker", ["localhost"], 8899)
    broken = EnrolmentService(members, _ACCESS, told.append)
    folder.accounts.file.unlink()
    for _ in range(3):
        with broken._going_on("accounts"):
            broken._end_accounts()
    assert len(told) == 2
    assert "passwords" in told[0]
    assert told[1].endswith("(2 times)")
