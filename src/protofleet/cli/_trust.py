"""Whose bundles a command runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

bundle_trust_option = click.option(
    "--trust",
    "trust_files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Public key (PEM) whose bundles to accept, beside those of 'bundle trust'.",
)


def trust_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--trust`` beside a file that lists keys itself, as ``trust_files``."""
    return click.option(
        "--trust",
        "trust_files",
        type=click.Path(path_type=Path),
        multiple=True,
        help="Public key (PEM) whose bundles to accept, beside those that FILE lists.",
    )(command)


def as_hex(files: tuple[Path, ...]) -> tuple[str, ...]:
    """Public keys (PEM) as files of federations and fleets list them.

    Raises:
        InputError: one is no public key.
    """
    from protofleet.bundle import keys

    return tuple(keys.load_public_key(file).hex() for file in files)


def trusted_keys(files: tuple[Path, ...]) -> frozenset[bytes]:
    """Raw public keys in the given files, those of 'bundle trust', and this user's own.

    Args:
        files: public keys (PEM).

    Raises:
        InputError: there are none.
    """
    from protofleet.bundle import keys
    from protofleet.errors import InputError

    trusted = frozenset(map(keys.load_public_key, files)) | keys.user_trust()
    if not trusted:
        raise InputError(
            "no trusted signer: give the public key of whoever exported the bundle with "
            "--trust KEY.pem, or once with: protofleet bundle trust KEY.pem"
        )
    return trusted
