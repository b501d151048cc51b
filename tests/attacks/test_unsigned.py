from __future__ import annotations

from attacks.hostile import assert_refused

from protofleet.bundle.files import SIGNATURE


def test_a_directory_without_a_signature_is_refused(forge):
    root = forge.directory()
    (root / SIGNATURE).unlink()
    assert_refused("unsigned", root)


def test_an_archive_without_a_signature_is_refused(forge):
    """The entry is renamed, so that another file stands where the signature must be."""
    path = forge.single()
    path.write_bytes(path.read_bytes().replace(SIGNATURE.encode(), b"manifest.gis"))
    assert_refused("unsigned", path)
