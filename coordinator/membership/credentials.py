"""A coordinator's credentials: a key of its run, and the federation key's certificate for it."""

from __future__ import annotations

import time

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protofleet.bundle import keys
from protofleet.coordinator.ledger.ledger import Ledger
from protofleet.coordinator.membership.members import KEY_FILE, Members
from protofleet.durable import sync_folder, write_whole
from protofleet.errors import InputError, RefusedError
from protofleet.wire.trust.coordinator_protection import CoordinatorCredentials
from protofleet.wire.trust.identity import (
    CoordinatorCertificate,
    public_bytes,
    read_statement,
    sign_statement,
)

CERTIFICATE_S = 366 * 86_400
"""How long a certificate lasts."""
RENEW_S = 30 * 86_400
"""It is made anew this long before it ends, as soon as the federation key is at hand."""
PATH = "certificate"
"""Of its text, in the run folder."""


def open_credentials(
    members: Members, ledger: Ledger, bundle: str
) -> tuple[CoordinatorCredentials, RunCertificate]:
    """The credentials of a run, certified here if the federation key is at hand.

    Args:
        members: of the federation.
        ledger: of the run.
        bundle: digest of its bundle, hex.

    Raises:
        InputError: there is no certificate in force, and the federation key is elsewhere.
    """
    key = keys.load_or_create_signing_key(ledger.folder / "coordinator.pem")
    certificate = RunCertificate(members, ledger, key)
    credentials = CoordinatorCredentials(
        federation=members.name,
        run_id=ledger.run.run_id,
        bundle=bundle,
        federation_key=members.federation_key,
        key=key,
        certificate=lambda: certificate.text,
        rotations=members.rotations,
        grant=members.check,
        announced=ledger.run.announced,
        note=ledger.run.note_announced,
    )
    return credentials, certificate


class RunCertificate:
    """What the federation key says of a run's own key, made anew where that key is at hand.

    Args:
        members: of the federation.
        ledger: of the run.
        key: the run's own.

    Attributes:
        text: the statement.
        until: when it ends, seconds since 1970.

    Raises:
        InputError: the federation key is elsewhere, and there is no certificate in force.
    """

    def __init__(self, members: Members, ledger: Ledger, key: Ed25519PrivateKey) -> None:
        self._members, self._folder = members, ledger.folder
        self._run_id, self._key = ledger.run.run_id, public_bytes(key).hex()
        self.text, self.until = self._read()
        self.renew()
        if self.until <= time.time():
            raise InputError(
                f"run folder '{ledger.folder}': this coordinator has no certificate in force; put "
                f"{KEY_FILE} into '{members.folder}' for one start, then take it away again"
            )

    def renew(self) -> bool:
        """Make it anew if it ends soon and the federation key is at hand; whether that was done.

        Raises:
            InputError: the file of the federation key is damaged, or is another key.
        """
        if self.until - time.time() >= RENEW_S:
            return False
        federation_key = self._members.private_key()
        if federation_key is None:
            return False
        certificate = CoordinatorCertificate(
            federation=self._members.name,
            run_id=self._run_id,
            key=self._key,
            until=int(time.time()) + CERTIFICATE_S,
        )
        text = sign_statement(federation_key, certificate)
        write_whole(self._folder / PATH, text.encode())
        sync_folder(self._folder)
        self.text, self.until = text, certificate.until
        return True

    def _read(self) -> tuple[str, int]:
        """The one of an earlier process; an empty text that is over: none that holds."""
        path, members = self._folder / PATH, self._members
        try:
            text = path.read_text(encoding="utf-8")
            found = read_statement(
                text, CoordinatorCertificate, [members.federation_key], federation=members.name
            )
        except (FileNotFoundError, RefusedError, UnicodeDecodeError):
            return "", 0
        own = (found.run_id, found.key) == (self._run_id, self._key)
        return (text, found.until) if own else ("", 0)
