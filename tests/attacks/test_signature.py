from __future__ import annotations

import pytest
from attacks.hostile import PUBLIC, assert_refused
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.bundle.files import MANIFEST, SIGNATURE


@pytest.mark.parametrize("place", [0, 31, 32, 95])
def test_an_altered_signature_or_key_is_refused(forge, place):
    content = forge.content()
    altered = bytearray(content[SIGNATURE])
    altered[place] ^= 1
    assert_refused("signature", *forge.both({**content, SIGNATURE: bytes(altered)}))


def test_one_altered_byte_of_the_manifest_is_refused(forge):
    content = forge.content()
    text = content[MANIFEST].replace(b'"tiny"', b'"Tiny"')
    assert_refused("signature", *forge.both({**content, MANIFEST: text}))


def test_a_signature_by_another_key_under_the_trusted_name_is_refused(forge):
    content = forge.content()
    signed = Ed25519PrivateKey.generate().sign(content[MANIFEST])
    assert_refused("signature", *forge.both({**content, SIGNATURE: PUBLIC + signed}))


def test_a_signature_file_that_is_too_short_is_refused(forge):
    content = forge.content()
    assert_refused("signature", *forge.both({**content, SIGNATURE: content[SIGNATURE][:95]}))


def test_the_manifest_is_not_interpreted_before_its_signature_is_valid(forge):
    """A manifest that is no JSON at all and wrongly signed is refused for its signature."""
    content = forge.content(b"\xff not json")
    assert_refused("signature", *forge.both({**content, SIGNATURE: PUBLIC + bytes(64)}))
