"""A coordinator's credentials: a key of its run, and the federation key's certificate for it."""

from __future__ import annotations

import time
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.bundle import keys
from protofleet.coordinator.ledger import Ledger
from protofleet.coordinator.members import KEY_FILE, Members
from protofleet.durable import sync_folder, write_whole
from protofleet.errors import InputError, RefusedError
from protofleet.wire.identity import (
    CoordinatorCertificate,
    public_bytes,
    read_statement,
    sign_statement,
)
from protofleet.wire.protection import CoordinatorCredentials

CERTIFICATE_S = 366 * 86_400
"""How long a certificate lasts."""
RENEW_S = 30 * 86_400
"""It is made anew this long before it ends, at the next start with the federation key at hand."""


def open_credentials(members: Members, ledger: Ledger, bundle: str) -> CoordinatorCredentials:
    """The credentials of a run; certified here if the federation key is at hand.

    Args:
        members: of the federation.
        ledger: of the run.
        bundle: digest of its bundle, hex.

    Raises:
        InputError: there is no certificate in force, and the federation key is elsewhere.
    """
    key = keys.load_or_create_signing_key(ledger.folder / "coordinator.pem")
    return CoordinatorCredentials(
        federation=members.name,
        run_id=ledger.run.run_id,
        bundle=bundle,
        federation_key=members.federation_key,
        key=key,
        certificate=certify(members, ledger, key),
        rotations=members.rotations,
        grant=members.check,
        announced=ledger.run.announced,
        note=ledger.run.note_announced,
    )


def certify(members: Members, ledger: Ledger, key: Ed25519PrivateKey) -> str:
    """The run's certificate, made or renewed where the federation key is at hand.

    Raises:
        InputError: it is not, and there is no certificate in force.
    """
    path = ledger.folder / "certificate"
    left = _seconds_left(path, members, ledger.run.run_id, key)
    federation_key = members.private_key() if left < RENEW_S else None
    if federation_key is not None:
        certificate = CoordinatorCertificate(
            federation=members.name,
            run_id=ledger.run.run_id,
            key=public_bytes(key).hex(),
            until=int(time.time()) + CERTIFICATE_S,
        )
        write_whole(path, sign_statement(federation_key, certificate).encode())
        sync_folder(ledger.folder)
    elif left <= 0:
        raise InputError(
            f"run folder '{ledger.folder}': this coordinator has no certificate in force; put "
            f"{KEY_FILE} into '{members.folder}' for one start, then take it away again"
        )
    return path.read_text(encoding="ascii")


def _seconds_left(path: Path, members: Members, run_id: str, key: Ed25519PrivateKey) -> float:
    if not path.exists():
        return 0.0
    try:
        certificate = read_statement(
            path.read_text(encoding="utf-8"),
            CoordinatorCertificate,
            [members.federation_key],
            federation=members.name,
        )
    except (RefusedError, UnicodeDecodeError):
        return 0.0
    if (certificate.run_id, certificate.key) != (run_id, public_bytes(key).hex()):
        return 0.0
    return certificate.until - time.time()
