"""Whose bundles a command runs."""

from __future__ import annotations

from pathlib import Path


def trusted_keys(files: tuple[Path, ...], *, own: bool = False) -> frozenset[bytes]:
    """Raw public keys in the given files and those of 'bundle trust'.

    Args:
        files: public keys (PEM).
        own: whether what this user signed counts too.

    Raises:
        InputError: there are none.
    """
    from protofleet.bundle import keys
    from protofleet.errors import InputError

    trusted = frozenset(map(keys.load_public_key, files)) | keys.trusted_keys()
    if own and keys.signing_key_path().exists():
        mine = keys.load_signing_key(keys.signing_key_path())
        trusted |= {mine.public_key().public_bytes_raw()}
    if not trusted:
        raise InputError(
            "no trusted signer: give the public key of whoever exported the bundle with "
            "--trust KEY.pem, or once with: protofleet bundle trust KEY.pem"
        )
    return trusted
