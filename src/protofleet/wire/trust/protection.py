"""What an endpoint does to every record: nothing (``Plain``), or signing, sealing and checking.

Announcement and presence are *signed*: 64 bytes of Ed25519 signature over topic and JSON, then the
JSON. They carry the handshakes; every other record is *sealed* with the session that follows from
them (``session.py``). Without keys all records are bare JSON, which only a broker on the same
machine, or a network that one trusts, excuses.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from typing import TypeVar

from protofleet.errors import RefusedError
from protofleet.wire.messages import (
    Message,
    TransferOffer,
    decode,
    encode,
)
from protofleet.wire.trust.identity import (
    SIGNATURE_BYTES,
)
from protofleet.wire.trust.session import Handshake
from protofleet.wire.trust.signed_records import is_signed

KEYS = "keys"
"""Rule of a federation whose ends have to have keys, all or none."""

M = TypeVar("M", bound=Message)


class Plain:
    """Records as they are, for a federation without keys; the keyed ends differ from it."""

    sealed = False

    def write(self, message: Message, topic: str, device_id: str) -> bytes | None:
        """The payload that carries ``message``; None as long as the other end is not known.

        Args:
            message: the record.
            topic: where it is published.
            device_id: whose topic it is; '' for all.
        """
        return self.seal(encode(message), topic, device_id)

    def read(self, payload: bytes, topic: str, device_id: str, kind: type[M]) -> M | None:
        """The record in ``payload``; None for one that is out of date and harms nobody.

        Raises:
            RefusedError: it broke a rule; ``keys`` where the other end has them and this has none.
        """
        if not self.sealed and is_signed(payload) and not is_signed(payload[SIGNATURE_BYTES:]):
            name = kind.__struct_config__.tag
            raise RefusedError(KEYS, f"{name}: signed with keys, and there are none at this end")
        return decode(self.open(payload, topic, device_id), kind)

    def seal(self, record: bytes, topic: str, device_id: str) -> bytes | None:  # noqa: ARG002 - of the keyed ends
        """The payload that carries an encoded record; None as long as there is no session."""
        return record

    def open(self, payload: bytes, topic: str, device_id: str) -> bytes:  # noqa: ARG002 - of the keyed ends
        """The encoded record in ``payload``.

        Raises:
            RefusedError: rule ``session`` (there is none with this device), ``seal``, ``replay``.
        """
        return payload

    def content_key(self, sha256: str, chunk_bytes: int) -> str:  # noqa: ARG002 - of the keyed ends
        """What seals the chunks of a blob in a grid, for its offer; empty: nothing does."""
        return ""

    def sign_offer(self, offer: TransferOffer) -> TransferOffer:
        """A device's own offer of an update with its signature."""
        return offer

    def check_offer(self, device_id: str, offer: TransferOffer) -> None:
        """Raise RefusedError (rule ``signature``) unless the device has signed its offer."""

    def end_session(self, device_id: str, serial: int) -> bool:  # noqa: ARG002 - of the keyed coordinator
        """Whether a session had been begun with this grant; it is over now."""
        return False

    @property
    def in_force(self) -> bool:
        """Whether no coordinator has signed that a device's grant is over."""
        return True

    @property
    def overtakes(self) -> bool:
        """Whether a device has to present itself, as a later start than it was."""
        return False


class Keyed(Plain):
    """What both keyed ends share."""

    sealed = True

    def __init__(self) -> None:
        self._handshake = Handshake()
        self._secret = secrets.token_bytes(32)

    def content_key(self, sha256: str, chunk_bytes: int) -> str:
        """One for all transfers of a blob in a grid, so that all devices may share one."""
        message = f"{sha256}/{chunk_bytes}".encode()
        return hmac.digest(self._secret, message, hashlib.sha256).hex()
