from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from protofleet.errors import InputError, RefusedError
from protofleet.signatures import fingerprint
from protofleet.wire.messages import encode
from protofleet.wire.topics import Topics
from protofleet.wire.trust import enrolment
from protofleet.wire.trust.enrolment import (
    Asked,
    EnrolmentAnswer,
    EnrolmentGrant,
    EnrolmentRequest,
    Invitation,
    check_grant,
    check_request,
    open_answer,
    read_request,
    seal_answer,
    write_request,
)
from protofleet.wire.trust.identity import DeviceGrant, public_bytes, sign_statement

_GOLDEN = Path(__file__).parent / "golden"
_FEDERATION = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
_DEVICE = Ed25519PrivateKey.from_private_bytes(bytes([7]) * 32)
_OTHER = Ed25519PrivateKey.from_private_bytes(bytes([9]) * 32)
_INVITATION = Invitation(
    federation="lab",
    device_id="pi-7",
    broker="mqtts://broker.example:8883",
    fingerprint=fingerprint(public_bytes(_FEDERATION)),
    until=4_000_000_000,
    token=bytes(range(16)),
    certificate="cd" * 32,
    account=True,
)
_KEYS = _INVITATION.keys()
_ASKS = Topics("lab").enrolment_request("pi-7")
_ANSWERS = Topics("lab").enrolment_answer("pi-7")
_SHARES = tuple(X25519PrivateKey.from_private_bytes(bytes([byte]) * 32) for byte in (1, 2))
_REQUEST = EnrolmentRequest(
    step="grant",
    device_id="pi-7",
    key=public_bytes(_DEVICE).hex(),
    share=_SHARES[0].public_key().public_bytes_raw().hex(),
    nonce="0f" * 16,
    time=1_800_000_000,
)
_PAYLOAD = write_request(_REQUEST, _DEVICE, _KEYS.proof, _ASKS)
_ASKED = Asked(request=_REQUEST, payload=_PAYLOAD, private=_SHARES[0])
_STATEMENT = DeviceGrant(
    federation="lab",
    device_id="pi-7",
    key=public_bytes(_DEVICE).hex(),
    serial=1,
    until=4_000_000_000,
)
_GRANT = EnrolmentGrant(
    grant=sign_statement(_FEDERATION, _STATEMENT),
    federation_key=public_bytes(_FEDERATION).hex(),
    ca="",
    password="A" * 32,
)
TEXT = (
    "protofleet:AQMAAQIDBAUGBwgJCgsMDQ4PVkdap1RjR0wChd9dvyvKt83Nzc3Nzc3Nzc3Nzc3Nzc3Nz"
    "c3Nzc3Nzc3Nzc3Nzc3NAAAAAO5rKABtcXR0czovL2Jyb2tlci5leGFtcGxlOjg4ODMKbGFiCnBpLTd3C"
    "veg"
)
PROOF = "5c5015a47a6071729efc05679a05d06ea79e5968b16c043d6f8ce88989f27e64"
ANSWER_KEY = "82a4f0897640f1dd5b864e7acb2211b33215e386df03e2e61647a1b6eba7ba8c"
PASSWORD = "IQEZDOpJhsqrrEQP1TgHVoyRxWgZ4lPN"  # noqa: S105 - golden


def _answer(grant=_GRANT, answer_key=_KEYS.answer, topic=_ANSWERS) -> EnrolmentAnswer:
    share, sealed = seal_answer(grant, _PAYLOAD, _SHARES[1], answer_key, topic)
    return EnrolmentAnswer(answers=_REQUEST.nonce, time=1_800_000_000, share=share, sealed=sealed)


def test_golden_bytes():
    """What docs/protocol.md prints of an invitation and its keys; a request and its answer."""
    assert str(_INVITATION) == TEXT
    assert Invitation.parse(TEXT) == _INVITATION
    assert (_KEYS.proof.hex(), _KEYS.answer.hex(), _KEYS.password) == (PROOF, ANSWER_KEY, PASSWORD)
    assert (_GOLDEN / "enrolment-request.bin").read_bytes() == _PAYLOAD
    assert encode(_answer()) == (_GOLDEN / "enrolment-answer.json").read_bytes()


_NAMES = st.from_regex(r"\A[A-Za-z0-9._-]{1,57}\Z").filter(lambda name: not name.startswith("inv"))


@given(
    federation=_NAMES,
    device_id=_NAMES,
    until=st.integers(0, 2**64 - 1),
    token=st.binary(min_size=16, max_size=16),
    certificate=st.sampled_from(["", "ab" * 32]),
    account=st.booleans(),
)
def test_an_invitation_survives_its_text_and_folded_lines(**fields):
    invitation = dataclasses.replace(_INVITATION, **fields)
    text = str(invitation)
    folded = f" {text[:40]}\n  {text[40:]}\n"
    assert Invitation.parse(text) == Invitation.parse(folded) == invitation


@given(st.one_of(st.text(max_size=400), st.text("AB-_", max_size=400).map("protofleet:".__add__)))
def test_text_that_is_no_invitation_is_an_error(text):
    with pytest.raises(InputError, match="invitation: "):
        Invitation.parse(text)


@given(st.integers(len("protofleet:"), len(str(_INVITATION)) - 2), st.sampled_from("AZz09-_"))
def test_a_misread_character_is_noticed_and_the_message_does_not_repeat_the_secret(place, letter):
    text = str(_INVITATION)
    if text[place] == letter:
        return
    with pytest.raises(InputError) as refused:
        Invitation.parse(text[:place] + letter + text[place + 1 :])
    assert text[20:60] not in str(refused.value)


def test_an_invitation_cut_short_is_an_error():
    for length in range(len(str(_INVITATION))):
        with pytest.raises(InputError):
            Invitation.parse(str(_INVITATION)[:length])


def test_what_is_shown_of_an_invitation_and_its_keys_has_no_secret():
    shown = repr(_INVITATION) + repr(_KEYS)
    assert "token" not in shown
    assert "proof" not in shown
    assert _KEYS.password not in shown


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"broker": "mqtts://eve:secret@broker"}, "account"),
        ({"broker": "http://broker"}, "mqtt://"),
        ({"federation": "a/b"}, "federation"),
        ({"device_id": "invite.x"}, "expected another one"),
        ({"device_id": "x" * 58}, "1 to 64 characters"),
    ],
)
def test_an_invitation_with_a_wrong_part_is_an_error(changed, words):
    with pytest.raises(InputError, match=words):
        Invitation.parse(str(dataclasses.replace(_INVITATION, **changed)))


def test_an_invitation_of_a_later_format_is_an_error(monkeypatch):
    monkeypatch.setattr(enrolment, "_FORMAT", 2)
    text = str(_INVITATION)
    monkeypatch.undo()
    with pytest.raises(InputError, match="expected format 1, got 2; update protofleet"):
        Invitation.parse(text)


def test_a_request_is_taken_with_its_invitation_and_for_its_topic_alone():
    request = read_request(_PAYLOAD)
    assert request == _REQUEST
    check_request(_PAYLOAD, request, _KEYS.proof, _ASKS)
    guessed = dataclasses.replace(_INVITATION, token=bytes(16)).keys()
    elsewhere = Topics("lab").enrolment_request("pi-8")
    for proof, topic in ((guessed.proof, _ASKS), (_KEYS.proof, elsewhere)):
        with pytest.raises(RefusedError) as refused:
            check_request(_PAYLOAD, request, proof, topic)
        assert refused.value.rule == "token"


def test_a_key_that_the_sender_does_not_have_is_refused():
    """Somebody with the invitation cannot have another's key granted."""
    payload = write_request(_REQUEST, _OTHER, _KEYS.proof, _ASKS)
    with pytest.raises(RefusedError) as refused:
        check_request(payload, _REQUEST, _KEYS.proof, _ASKS)
    assert refused.value.rule == "signature"


@given(st.integers(0, len(_PAYLOAD) - 1), st.integers(1, 255))
def test_a_changed_byte_of_a_request_is_refused(place, change):
    altered = bytearray(_PAYLOAD)
    altered[place] ^= change
    with pytest.raises(RefusedError):
        check_request(bytes(altered), read_request(bytes(altered)), _KEYS.proof, _ASKS)


@given(st.binary(max_size=1200))
def test_noise_is_no_request(noise):
    with pytest.raises(RefusedError):
        read_request(noise)
    with pytest.raises(RefusedError):
        read_request(_PAYLOAD[:96] + noise)


@pytest.mark.parametrize("field", ["key", "share", "nonce"])
def test_a_request_with_something_else_than_hex_digits_is_refused(field):
    payload = write_request(replace(_REQUEST, **{field: "z" * 64}), _DEVICE, _KEYS.proof, _ASKS)
    with pytest.raises(RefusedError, match=field):
        read_request(payload)


def test_only_who_asked_opens_the_answer_and_only_who_invited_can_make_it():
    assert open_answer(_answer(), _ASKED, _KEYS.answer, _ANSWERS) == _GRANT
    other = dataclasses.replace(_ASKED, private=_SHARES[1])
    request = replace(_REQUEST, nonce="00" * 16)
    another = write_request(request, _DEVICE, _KEYS.proof, _ASKS)
    for asked, answer in (
        (other, _answer()),
        (dataclasses.replace(_ASKED, payload=another), _answer()),
        (_ASKED, _answer(answer_key=bytes(32))),
        (_ASKED, _answer(topic="fl/v2/lab/en/invite.pi-8/a")),
    ):
        with pytest.raises(RefusedError) as refused:
            open_answer(answer, asked, _KEYS.answer, _ANSWERS)
        assert refused.value.rule == "seal"


@given(share=st.text(max_size=70), sealed=st.text(max_size=200))
def test_noise_is_no_answer(share, sealed):
    for changed in ({"share": share}, {"sealed": sealed}, {"share": share, "sealed": sealed}):
        with pytest.raises(RefusedError):
            open_answer(replace(_answer(), **changed), _ASKED, _KEYS.answer, _ANSWERS)


def test_a_share_that_gives_everybody_the_same_key_is_refused():
    with pytest.raises(RefusedError) as refused:
        open_answer(replace(_answer(), share="00" * 32), _ASKED, _KEYS.answer, _ANSWERS)
    assert refused.value.rule == "share"


def _signed(signer=_FEDERATION, **changed) -> str:
    return sign_statement(signer, replace(_STATEMENT, **changed))


def test_a_grant_counts_for_its_key_under_the_federation_that_was_named():
    public = public_bytes(_DEVICE)
    assert check_grant(_GRANT, _INVITATION, public) == _STATEMENT
    for changed, rule in (
        ({"federation_key": public_bytes(_OTHER).hex()}, "federation-key"),
        ({"federation_key": "no key"}, "federation-key"),
        ({"grant": _signed(_OTHER)}, "statement"),
        ({"grant": _signed(key="ab" * 32)}, "statement"),
        ({"grant": _signed(device_id="pi-8")}, "statement"),
        ({"grant": _signed(until=1)}, "statement"),
        ({"ca": "x" * 20_000}, "ca"),
    ):
        with pytest.raises(RefusedError) as refused:
            check_grant(replace(_GRANT, **changed), _INVITATION, public)
        assert refused.value.rule == rule, changed
