from __future__ import annotations

import json
import time

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from protofleet.edge.credentials import (
    Enrolment,
    device_key,
    load_enrolment,
    open_credentials,
    save_enrolment,
)
from protofleet.errors import InputError, ProvisionError
from protofleet.wire.trust.identity import DeviceGrant, public_bytes, sign_statement

_FEDERATION = Ed25519PrivateKey.generate()


def _enrolment(folder, **changed) -> Enrolment:
    grant = DeviceGrant(
        federation="home",
        device_id="anna",
        key=public_bytes(device_key(folder)).hex(),
        serial=1,
        until=int(time.time()) + 3600,
    )
    return Enrolment(
        federation="home",
        device_id="anna",
        grant=sign_statement(_FEDERATION, replace(grant, **changed)),
        federation_key=public_bytes(_FEDERATION).hex(),
        broker={"url": "mqtts://anna@broker", "password_file": "password", "ca_file": "ca.pem"},
    )


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "enrolment"
    folder.mkdir()
    return folder


def test_every_process_is_a_new_start_and_nothing_noted_goes_back(folder):
    save_enrolment(folder, _enrolment(folder))
    first = open_credentials(folder)
    first.note(17, bytes(32))
    second = open_credentials(folder)
    assert (first.start, second.start) == (1, 2)
    assert (second.announced, second.federation_key) == (17, bytes(32))
    assert public_bytes(second.key) == public_bytes(device_key(folder))


def test_a_device_that_is_not_enrolled_has_none(folder):
    device_key(folder)
    assert load_enrolment(folder) is None
    assert open_credentials(folder) is None


def test_the_broker_is_reached_with_the_files_of_the_enrolment(folder):
    access = _enrolment(folder).access(folder)
    assert access.password_file == folder / "password"
    assert access.ca_file == folder / "ca.pem"
    with pytest.raises(ProvisionError, match="enrol the device anew"):
        replace(_enrolment(folder), broker={"url": 7}).access(folder)


@pytest.mark.parametrize("changed", [{"key": "ab" * 32}, {"device_id": "berta"}, {"until": 1}])
def test_a_grant_that_is_not_for_this_key_name_and_time_is_an_error(folder, changed):
    save_enrolment(folder, _enrolment(folder, **changed))
    with pytest.raises(ProvisionError, match="device enroll INVITATION"):
        open_credentials(folder)


def test_a_grant_that_ends_soon_is_told_of_at_the_start(folder, caplog):
    save_enrolment(folder, _enrolment(folder, until=int(time.time()) + 40 * 86_400))
    open_credentials(folder)
    assert not caplog.text
    save_enrolment(folder, _enrolment(folder))
    open_credentials(folder)
    assert "grant in federation home ends at" in caplog.text
    assert "device enroll INVITATION" in caplog.text


def test_damaged_files_are_named(folder):
    save_enrolment(folder, _enrolment(folder))
    path = folder / "enrolment.json"
    path.write_text(json.dumps({"federation": 7}))
    with pytest.raises(ProvisionError, match=r"enrolment\.json"):
        open_credentials(folder)
    save_enrolment(folder, _enrolment(folder))
    (folder / "device.pem").write_text("no key")
    with pytest.raises(InputError, match=r"device\.pem"):
        open_credentials(folder)
