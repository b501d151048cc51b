from __future__ import annotations

import time

import pytest

from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.membership.credentials import CERTIFICATE_S, open_credentials
from protofleet.coordinator.membership.members import KEY_FILE, Members
from protofleet.errors import InputError
from protofleet.wire.trust.identity import CoordinatorCertificate, read_statement

_BUNDLE = "cd" * 32


@pytest.fixture
def members(tmp_path):
    with Members.create(tmp_path / "federation", "home") as members:
        yield members


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "run", {"federation": "home"}) as ledger:
        yield ledger


def test_a_run_is_certified_once_and_goes_on_without_the_federation_key(members, ledger):
    first, _ = open_credentials(members, ledger, _BUNDLE)
    certificate = read_statement(
        first.certificate(), CoordinatorCertificate, [members.federation_key], federation="home"
    )
    assert certificate.run_id == ledger.run.run_id == first.run_id
    (members.folder / KEY_FILE).rename(members.folder / "elsewhere")
    again, _ = open_credentials(members, ledger, _BUNDLE)
    assert again.certificate() == first.certificate()


def test_without_federation_key_and_certificate_the_remedy_is_named(members, ledger):
    (members.folder / KEY_FILE).unlink()
    with pytest.raises(InputError, match=r"put federation\.pem into"):
        open_credentials(members, ledger, _BUNDLE)


def test_a_certificate_is_renewed_before_it_ends(members, ledger, monkeypatch):
    first, _ = open_credentials(members, ledger, _BUNDLE)
    later = time.time() + CERTIFICATE_S - 86_400
    monkeypatch.setattr(time, "time", lambda: later)
    assert open_credentials(members, ledger, _BUNDLE)[0].certificate() != first.certificate()


def test_a_copied_certificate_is_no_other_runs(members, ledger, tmp_path):
    first, _ = open_credentials(members, ledger, _BUNDLE)
    with Ledger(tmp_path / "other", {"federation": "home"}) as other:
        (other.folder / "certificate").write_text(first.certificate())
        assert open_credentials(members, other, _BUNDLE)[0].certificate() != first.certificate()


def test_the_sequence_of_announcements_is_kept(members, ledger):
    credentials, _ = open_credentials(members, ledger, _BUNDLE)
    assert credentials.announced == 0
    credentials.note(17)
    assert open_credentials(members, ledger, _BUNDLE)[0].announced == 17
