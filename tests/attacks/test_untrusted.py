from __future__ import annotations

from attacks.hostile import assert_refused
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.bundle import Bundle
from protofleet.bundle.files import MANIFEST, SIGNATURE


def _signed_by_a_stranger(forge):
    content = forge.content()
    stranger = Ed25519PrivateKey.generate()
    public = stranger.public_key().public_bytes_raw()
    return {**content, SIGNATURE: public + stranger.sign(content[MANIFEST])}


def test_a_valid_signature_by_a_stranger_is_refused(forge):
    assert_refused("untrusted", *forge.both(_signed_by_a_stranger(forge)), match="not trusted")


def test_without_a_trust_list_the_stranger_is_named_instead(forge):
    content = _signed_by_a_stranger(forge)
    assert Bundle.open(forge.single(content)).signer == content[SIGNATURE][:32].hex()
