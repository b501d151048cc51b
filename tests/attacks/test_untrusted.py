from __future__ import annotations

import pytest
from attacks.hostile import PUBLIC, assert_refused
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.bundle import Bundle, keys
from protofleet.bundle.files import MANIFEST, SIGNATURE
from protofleet.errors import InputError, RefusedError


def _signed_by_a_stranger(forge):
    content = forge.content()
    stranger = Ed25519PrivateKey.generate()
    public = stranger.public_key().public_bytes_raw()
    return {**content, SIGNATURE: public + stranger.sign(content[MANIFEST])}


def test_a_valid_signature_by_a_stranger_is_refused(forge):
    assert_refused("untrusted", *forge.both(_signed_by_a_stranger(forge)), match="not trusted")


@pytest.mark.parametrize("trusted", [(), frozenset()])
def test_without_a_trust_list_the_users_trust_store_decides(forge, trusted, tmp_path, monkeypatch):
    content = _signed_by_a_stranger(forge)
    path = forge.single(content)
    monkeypatch.setenv("PROTOFLEET_CONFIG", str(tmp_path / "config"))
    with pytest.raises(RefusedError, match="not trusted"):
        Bundle.open(path, trusted=trusted)
    keys.trust(content[SIGNATURE][:32])
    assert Bundle.open(path, trusted=trusted).signer == content[SIGNATURE][:32].hex()


def test_what_this_user_signed_counts(forge, tmp_path, monkeypatch):
    monkeypatch.setenv("PROTOFLEET_CONFIG", str(tmp_path / "config"))
    mine = keys.load_or_create_signing_key()
    content = forge.content()
    public = mine.public_key().public_bytes_raw()
    content[SIGNATURE] = public + mine.sign(content[MANIFEST])
    assert Bundle.open(forge.single(content)).signer == public.hex()


@pytest.mark.parametrize("spoilt", ["trusted/{}.pem", "trusted", "."])
def test_a_trust_store_that_others_can_change_is_refused(forge, tmp_path, monkeypatch, spoilt):
    monkeypatch.setenv("PROTOFLEET_CONFIG", str(tmp_path / "config"))
    file = keys.trust(PUBLIC)
    bundle = forge.single()
    Bundle.open(bundle)
    path = tmp_path / "config" / spoilt.format(file.stem)
    path.chmod(0o777)
    with pytest.raises(InputError, match=r"trust store .*: chmod go-w"):
        Bundle.open(bundle)


def test_asked_to_take_any_signer_the_stranger_is_named_instead(forge):
    content = _signed_by_a_stranger(forge)
    assert (
        Bundle.open(forge.single(content), any_signer=True).signer == content[SIGNATURE][:32].hex()
    )
