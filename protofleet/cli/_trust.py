"""Whose bundles a command runs."""

from __future__ import annotations

from pathlib import Path


def trusted_keys(files: tuple[Path, ...]) -> frozenset[bytes]:
    """Raw public keys in the given files and those of 'bundle trust'.

    Raises:
        InputError: there are none.
    """
    from protofleet.errors import InputError
    from protofleet.wire import keys

    trusted = frozenset(map(keys.load_public_key, files)) | keys.trusted_keys()
    if not trusted:
        raise InputError(
            "no trusted signer: give the public key of whoever exported the bundle with "
            "--trust KEY.pem, or once with: protofleet bundle trust KEY.pem"
        )
    return trusted
